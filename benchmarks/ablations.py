"""Every pre-training recipe at the same budget, then the same fine-tuning: RR@10 and R@100, and what pre-training adds.

python benchmarks/ablations.py --work FOLDER [--collection pydocs] [--seeds 42,43,44] [--table FILE.md] [--json FILE]

Runs that are done are kept: start the same command again and it goes on. Main recipes and baselines run with every
seed, the others with the first. The budget is the same number of steps and texts for all, not the same time; where a
loss compares partners a step reads each text twice. `--only` takes some recipes, `--set` lays settings over all runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drkit.builtin import drkit_recipes
from drkit.core.registry import installed
from drkit.runs.manifest import read_manifest

MAIN = ("retromae", "simlm", "cpdae", "cdmae", "cotmae-qac")
BASELINE, MLM_ONLY = "no pre-training", "mlm-only"
MEASURES = ("RR@10", "R@100")
BUDGET = (
    "pretrain.max_steps=400",
    "pretrain.per_device_train_batch_size=32",
    "pretrain.probe.every=200",
    "finetune.max_steps=80",
    "finetune.per_device_train_batch_size=96",
    "finetune.negatives=0",
    'finetune.rounds=[{name="retriever-1"}]',
    "finetune.baseline=false",
    'evaluation.measures=["RR@10", "R@100"]',
    "evaluation.depth=100",
    "evaluation.bm25=false",
    "evaluation.start=false",
    "evaluation.export=last",
)


def recipes() -> list[str]:
    """Main recipes first, so that an unfinished table shows them."""
    named = [name for name in installed().recipes if name not in drkit_recipes()]
    first = [name for name in (MLM_ONLY, *MAIN) if name in named]
    return [*first, *(name for name in sorted(named) if name not in first)]


def jobs(chosen: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """(recipe, seed): one seed of everything, then the other seeds of the main ones."""
    main = [name for name in chosen if name in (MLM_ONLY, *MAIN)]
    for place, seed in enumerate(seeds):
        yield from ((name, seed) for name in (main if place else chosen))


def run(recipe: str, seed: int, options: argparse.Namespace) -> dict[str, object] | None:
    """One run through the command line; None where it failed (its output is beside its folder)."""
    folder = options.work / f"{recipe}-{seed}"
    limit = ["collection.limit=3500"] if options.collection == "pydocs" else []
    settings = [*BUDGET, *limit, f"seed={seed}", *options.set]
    if recipe == MLM_ONLY:  # it brings what is the same for every recipe: no pre-training, and BM25
        settings += ["finetune.baseline=true", "evaluation.bm25=true"]
    siblings = [path.parent for path in sorted(options.work.glob("*/recipe.toml")) if path.parent != folder]
    # A pipeline that is named takes the place of the paper's own fine-tuning: it is the same for all.
    command = [sys.executable, "-m", "drkit_cli.main", "compose", "--paper", recipe, "--pipeline", "dpr"]
    command += ["--run-dir", str(folder)]
    command += ["--collection", options.collection, *(f"--set={setting}" for setting in settings)]
    command += [part for sibling in siblings for part in ("--reuse", str(sibling))]
    started = time.perf_counter()
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    folder.with_suffix(".log").write_text(done.stdout + done.stderr)
    print(f"{recipe} {seed}: {time.perf_counter() - started:.0f} s, exit {done.returncode}", flush=True)
    return figures(folder) if done.returncode == 0 else None


def figures(folder: Path) -> dict[str, object]:
    """Measures of each system, and seconds of pre-training."""
    evaluated, pretrained = read_manifest(folder / "evaluation"), read_manifest(folder / "pretrained")
    assert evaluated is not None, folder
    assert pretrained is not None, folder
    systems = {row["system"]: {name: row["values"][name] for name in MEASURES} for row in evaluated.metrics["rows"]}
    return {"systems": systems, "pretraining_seconds": pretrained.seconds, "queries": evaluated.metrics["queries"]}


def table(found: dict[tuple[str, int], dict[str, object]]) -> str:
    """Markdown: mean (± standard deviation over seeds) of every recipe, best first."""
    rows: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {}
    for (recipe, _), result in sorted(found.items()):
        for system, measured in result["systems"].items():
            name = {"bm25": "BM25", "no-pretraining": BASELINE}.get(system, recipe)
            rows.setdefault(name, []).append(measured)
        seconds.setdefault(recipe, []).append(result["pretraining_seconds"])
    base = statistics.mean(m["RR@10"] for m in rows.get(BASELINE, [{"RR@10": math.nan}]))
    lines = [
        "| recipe | seeds | RR@10 | R@100 | RR@10 against no pre-training | pre-training, s |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(rows, key=lambda name: -statistics.mean(m["RR@10"] for m in rows[name])):
        cells = [_spread([m[measure] for m in rows[name]]) for measure in MEASURES]
        gain = statistics.mean(m["RR@10"] for m in rows[name]) - base
        shown = "" if name in (BASELINE, "BM25") else f"{gain:+.3f}"
        time_taken = f"{statistics.mean(seconds[name]):.0f}" if name in seconds else ""
        seeds = 1 if name == "BM25" else len(rows[name])
        lines.append(f"| {name} | {seeds} | {cells[0]} | {cells[1]} | {shown} | {time_taken} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--collection", default="pydocs")
    parser.add_argument("--seeds", default="42,43,44", type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--only", default="", help="some recipes, with commas between")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = list(jobs(options.only.split(",") if options.only else recipes(), options.seeds))
    found: dict[tuple[str, int], dict[str, object]] = {}
    # The first run makes what all share (texts, vocabulary, tokens); the others take it over.
    for part in (wanted[:1], wanted[1:]):
        with ThreadPoolExecutor(options.jobs) as pool:
            for job, result in pool.map(lambda job: (job, run(*job, options)), part):
                if result is not None:
                    found[job] = result
                    write(found, options)
    print(table(found))


def write(found: dict[tuple[str, int], dict[str, object]], options: argparse.Namespace) -> None:
    """What is known so far: a table and the figures behind it."""
    if options.table:
        options.table.write_text(table(found))
    if options.json:
        options.json.write_text(json.dumps({f"{r} {s}": v for (r, s), v in found.items()}, indent=1))


if __name__ == "__main__":
    main()
