"""The stages of a pipeline side by side: BM25, the retrievers, the re-ranker between them; with significance.

python benchmarks/pipelines.py --work FOLDER [--collection pydocs] [--seeds 42,43,44] [--table FILE.md]

One three-stage run a recipe and seed, after the same short pre-training (that of `ablations.py`, so `--reuse` of its
runs saves it), and one without pre-training. Runs that are done are kept: start the same command again and it goes on.
The table shows means over seeds; p are of paired t-tests over queries (each query's mean over seeds), Holm-corrected
over the whole table: each stage against the retriever before it (the first against BM25), and against the same stage
without pre-training.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ablations import BUDGET

from drkit.evaluate import Scores, average, holm, paired_t_test
from drkit.runs.manifest import read_manifest

BASELINE = "no pre-training"
SYSTEMS = ("simlm", "retromae", "cdmae", BASELINE)
# Each stage, and what it is held against: the retriever before it.
BEFORE = {
    "retriever-1": "bm25",
    "retriever-2": "retriever-1",
    "reranker": "retriever-2",
    "retriever-distilled": "retriever-2",
}
STAGES = tuple(BEFORE)
MEASURES = ("RR@10", "nDCG@10", "R@100")
PRETRAINING = tuple(setting for setting in BUDGET if setting.startswith("pretrain."))
# Short lists: what is mined, scored by the teacher and ranked anew is what a run takes its time for.
FINETUNING = (
    "finetune.max_steps=60",
    "finetune.per_device_train_batch_size=64",
    "finetune.baseline=false",
    "evaluation.start=false",
    "evaluation.export=last",
    "finetune.rounds.0.miners.0.depth=20",
    "finetune.rounds.1.miners.0.depth=20",
    "finetune.rounds.2.miners.0.depth=2",
    "finetune.rounds.2.negatives=2",
    "reranker.miners.0.depth=20",
    "reranker.negatives=5",
    "reranker.max_steps=150",
    "reranker.max_length=64",
    "reranker.depth=10",
    f"evaluation.measures={json.dumps(MEASURES)}",
    "evaluation.depth=100",
)


def run(system: str, seed: int, options: argparse.Namespace) -> Path | None:
    """One run through the command line; None where it failed (its output is beside its folder)."""
    folder = options.work / f"{system.replace(' ', '-')}-{seed}"
    settings = [*FINETUNING, f"seed={seed}", *(["collection.limit=3500"] if options.collection == "pydocs" else [])]
    settings += ["pretrain=none"] if system == BASELINE else PRETRAINING
    paper = [] if system == BASELINE else ["--paper", system]
    others = [path.parent for root in (options.work, *options.reuse) for path in sorted(root.glob("*/recipe.toml"))]
    command = [sys.executable, "-m", "drkit_cli.main", "compose", *paper, "--pipeline", "three-stage"]
    command += ["--run-dir", str(folder), "--collection", options.collection]
    command += [f"--set={setting}" for setting in (*settings, *options.set)]
    command += [part for other in others if other != folder for part in ("--reuse", str(other))]
    started = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // options.jobs))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    folder.with_suffix(".log").write_text(done.stdout + done.stderr)
    print(f"{system} {seed}: {time.perf_counter() - started:.0f} s, exit {done.returncode}", flush=True)
    return folder if done.returncode == 0 else None


def scores(folder: Path) -> dict[str, Scores]:
    """Per-query values of every stage of a run."""
    found = json.loads((folder / "evaluation" / "scores.json").read_text())
    return {name: Scores(values) for name, values in found.items()}


def table(runs: dict[tuple[str, int], Path]) -> str:
    """Markdown: a block a system, a row a stage."""
    found = {key: scores(folder) for key, folder in runs.items()}
    systems = list(dict.fromkeys(system for system, _ in found))
    seeds = {system: [seed for name, seed in found if name == system] for system in systems}
    means = {
        (system, stage): average([found[system, seed][stage] for seed in seeds[system]])
        for system in systems
        for stage in STAGES
    }
    bm25 = next(iter(found.values()))["bm25"]
    lines = [
        f"| pre-training | stage | {' | '.join(MEASURES)} | p, retriever before | p, no pre-training |",
        f"|{'---|' * (len(MEASURES) + 4)}",
        f"| | BM25 | {' | '.join(f'{bm25.mean(m):.3f}' for m in MEASURES)} | | |",
    ]
    tests = dict(_tests(means, bm25, systems))
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    for system in systems:
        for stage in STAGES:
            cells = [_spread([found[system, seed][stage].mean(m) for seed in seeds[system]]) for m in MEASURES]
            before = _p(corrected.get((system, stage, "before")))
            without = _p(corrected.get((system, stage, "without")))
            name = f"{system} ({len(seeds[system])} seeds)" if stage == STAGES[0] else ""
            lines.append(f"| {name} | {stage} | {' | '.join(cells)} | {before} | {without} |")
    return "\n".join(lines) + "\n"


def _tests(
    means: dict[tuple[str, str], Scores], bm25: Scores, systems: list[str]
) -> Iterator[tuple[tuple[str, str, str], float]]:
    first = MEASURES[0]
    for system in systems:
        for stage, before in BEFORE.items():
            own = means[system, stage].per_query[first]
            other = bm25 if before == "bm25" else means[system, before]
            yield (system, stage, "before"), paired_t_test(own, other.per_query[first]).p
            if system != BASELINE and (BASELINE, stage) in means:
                yield (system, stage, "without"), paired_t_test(own, means[BASELINE, stage].per_query[first]).p


def teachers(runs: dict[tuple[str, int], Path]) -> str:
    """Markdown: for how many queries the teacher of a run scores a positive above its negatives, and by chance."""
    shares: dict[str, list[float]] = {}
    chance = 0.0
    for (system, _), folder in runs.items():
        manifest = read_manifest(folder / f"teacher-{STAGES[-1]}")
        assert manifest is not None
        shares.setdefault(system, []).append(manifest.metrics["positive_first"])
        chance = manifest.metrics["by_chance"]
    lines = ["| pre-training | positive first |", "|---|---|"]
    lines += [f"| {system} | {_spread(found)} |" for system, found in shares.items()]
    return "\n".join([*lines, f"| by chance | {chance:.3f} |"]) + "\n"


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--collection", default="pydocs")
    parser.add_argument("--seeds", default="42,43,44", type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--only", default=",".join(SYSTEMS), help="some systems, with commas between")
    parser.add_argument("--reuse", type=Path, action="append", default=[], help="a folder of runs to take stages from")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    wanted = [(system, seed) for seed in options.seeds for system in options.only.split(",")]
    done: dict[tuple[str, int], Path] = {}
    # The first run makes what all share (texts, vocabulary, tokens); the others take it over, as all do with --reuse.
    first = 0 if options.reuse else 1
    for part in (wanted[:first], wanted[first:]):
        with ThreadPoolExecutor(options.jobs) as pool:
            for key, folder in pool.map(lambda key: (key, run(*key, options)), part):
                if folder is not None:
                    done[key] = folder
                    if options.table:
                        options.table.write_text(table(done))
    print(table(done), teachers(done), sep="\n")
    finished = next(iter(done.values()), None)
    if finished is not None and (evaluated := read_manifest(finished / "evaluation")):
        print(f"{evaluated.metrics['queries']:,} queries")


if __name__ == "__main__":
    main()
