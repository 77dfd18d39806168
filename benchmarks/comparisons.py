"""Every recipe at one budget: what its pre-training adds to each stage of a pipeline, from two starts, over seeds.

python benchmarks/comparisons.py --work FOLDER [--pipeline three-stage] [--collection pydocs] [--page FILE.md]

All rows share the collection, the vocabulary, the sizes of the encoder, the steps and texts of pre-training (not the
time), and the fine-tuning. `--starts`: word embeddings of co-occurrences, or random ones. Beside the recipes stand
`mlm-only` and no pre-training. Runs that are done are kept: start the same command again and it goes on.
`--processes` makes as many runs at a time, after the first of each start, whose stages they share: for a GPU, or many
cores. p are of paired t-tests on the first measure over queries (each query's mean over seeds), Holm-corrected over
the table.
`--page` puts the table and the plot into a page, between `<!-- comparisons PIPELINE COLLECTION -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen
from matplotlib.figure import Figure

import drkit
from drkit.builtin import drkit_recipes
from drkit.commands.records import RunRecord, open_run
from drkit.core.files import write_text
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.evaluate import Scores, average, holm, paired_t_test
from drkit.recipe.toml import parse_toml

# A start, a recipe, and a seed.
Job: TypeAlias = "tuple[str, str, int]"
MLM_ONLY, NONE, BM25 = "mlm-only", "no pre-training", "bm25"
# Searched by words, too, so that its rows say nothing of pre-training alone.
WORDS_TOO = "dupmae-lexical"
STARTS = {"ppmi-svd": "co-occurrences", "random": "random"}
MEASURES = ("RR@10", "nDCG@10", "R@100")
# Probes of pre-training, and how they are written; RR@10: of dev queries, before any label.
PROBES = {"RR@10": ".3f", "gain": ".2f", "anisotropy": ".2f"}
# Each stage of a pipeline, and the system whose ranking or weights it goes on from.
STAGES = {
    "dpr": {"retriever-1": BM25},
    "three-stage": {
        "retriever-1": BM25,
        "retriever-2": "retriever-1",
        "reranker": "retriever-2",
        "retriever-distilled": "retriever-2",
    },
}
COMMON: Mapping[str, Any] = {
    "finetune.baselines": [],
    "evaluation.measures": list(MEASURES),
    "evaluation.depth": 100,
    "evaluation.start": False,
    "evaluation.hybrid": False,
    "evaluation.export": "last",
}
# Without mined negatives, a stage is its loss within the batch. Short lists: mining and re-ranking take the time.
PIPELINES: Mapping[str, Mapping[str, Any]] = {
    "dpr": {"finetune.negatives": 0, "finetune.rounds": [{"name": "retriever-1"}]},
    "three-stage": {
        "finetune.rounds.0.miners.0.depth": 20,
        "finetune.rounds.1.miners.0.depth": 20,
        "finetune.rounds.2.miners.0.depth": 2,
        "finetune.rounds.2.negatives": 2,
        "reranker.miners.0.depth": 20,
        "reranker.negatives": 5,
        "reranker.max_length": 64,
        "reranker.depth": 10,
    },
}


def recipes() -> list[str]:
    """No pre-training and the masked LM first, so that an unfinished table has what the others are compared with."""
    named = sorted({*installed().recipes} - {*drkit_recipes(), MLM_ONLY, WORDS_TOO})
    return [NONE, MLM_ONLY, *named]


def choices(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `drkit.compose` of a job."""
    start, recipe, seed = job
    made = {**COMMON, **PIPELINES[options.pipeline], "encoder.init_embeddings": start}
    made |= {"finetune.max_steps": options.finetuning[0], "finetune.per_device_train_batch_size": options.finetuning[1]}
    if options.pipeline == "three-stage":
        made["reranker.max_steps"] = options.reranking
    if recipe == NONE:
        made["pretrain"] = None
    else:
        steps, texts = options.pretraining
        made |= {"pretrain.max_steps": steps, "pretrain.per_device_train_batch_size": texts}
        made["pretrain.probe.every"] = max(1, steps // 2)
    if options.limit:
        made["collection.limit"] = options.limit
    made |= dict(options.set)
    paper = MLM_ONLY if recipe == NONE else recipe
    return {"paper": paper, "pipeline": options.pipeline, "collection": options.collection, "seed": seed, **made}


def run(job: Job, options: argparse.Namespace) -> Path | None:
    """Make one run, with the equal stages of those that are done, and return its folder; None if it fails."""
    name, begun = "-".join(map(str, job)).replace(" ", "-"), time.perf_counter()
    try:
        recipe = drkit.compose(name=name, **choices(job, options))
        reuse = [evaluated.parent for evaluated in options.work.glob("*/evaluation")]
        record = drkit.run(recipe, options.work / name, reuse=reuse)
    except (DrkitError, RuntimeError) as error:  # RuntimeError: of a GPU
        print(f"{name}: failed: {error}", flush=True)
        return None
    print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
    return record.folder


@frozen(eq=False)
class Row:
    """One stage after one pre-training from one start, with a run for each seed."""

    start: str
    recipe: str
    stage: str
    runs: tuple[RunRecord, ...]

    def scores(self, system: str) -> Scores:
        """Return the values of each query of a system of the runs, averaged over the seeds."""
        return average([run.scores[system] for run in self.runs])

    def means(self, measure: str) -> list[float]:
        """Return the mean of each seed."""
        return [run.scores[self.stage].mean(measure) for run in self.runs]

    def probe(self, name: str) -> str:
        """Return the last value of a probe of pre-training, averaged over the seeds; empty without any."""
        logs = [run.log("pretrained", "probes.jsonl") for run in self.runs]
        found = [log[-1][name] for log in logs if log and name in log[-1]]
        return f"{statistics.fmean(found):{PROBES[name]}}" if found and self.stage == "retriever-1" else ""


def rows(done: Mapping[Job, RunRecord], stages: Sequence[str]) -> list[Row]:
    """Return the rows of a table: by start, then by the first measure of the last stage; the stages in order."""
    grouped: dict[tuple[str, str], list[RunRecord]] = {}
    for (start, recipe, _), record in done.items():
        grouped.setdefault((start, recipe), []).append(record)
    last = [Row(*key, stages[-1], tuple(runs)) for key, runs in grouped.items()]
    last.sort(key=lambda row: ([*STARTS].index(row.start), -statistics.fmean(row.means(MEASURES[0]))))
    return [Row(row.start, row.recipe, stage, row.runs) for row in last for stage in stages]


def tested(found: Sequence[Row], before: Mapping[str, str]) -> dict[tuple[Row, str], float]:
    """Return the corrected p of each row against the system before it, and against no pre-training."""
    without = {(row.start, row.stage): row for row in found if row.recipe == NONE}
    tests: dict[tuple[Row, str], float] = {}
    for row in found:
        others = {BM25: row.scores(before[row.stage])}
        if row.recipe != NONE and (row.start, row.stage) in without:
            others[NONE] = without[row.start, row.stage].scores(row.stage)
        own = row.scores(row.stage).per_query[MEASURES[0]]
        tests |= {(row, name): paired_t_test(own, other.per_query[MEASURES[0]]).p for name, other in others.items()}
    return dict(zip(tests, holm([*tests.values()]), strict=True))


def table(done: Mapping[Job, RunRecord], pipeline: str) -> str:
    """Return the table in Markdown: means (± standard deviation over seeds), tests, and probes of pre-training."""
    before = STAGES[pipeline]
    found = rows(done, [*before])
    tests = tested(found, before)
    bm25 = found[0].scores(BM25)
    head = ["start", "pre-training", "stage", *MEASURES, "p, system before", "p, no pre-training"]
    head += [f"probe: {name}" for name in PROBES]
    cells = [["", "BM25", "", *(f"{bm25.mean(measure):.3f}" for measure in MEASURES), "", "", *("" for _ in PROBES)]]
    cells += [
        [
            *(STARTS[row.start], f"{row.recipe} ({len(row.runs)})", row.stage),
            *(_spread(row.means(measure)) for measure in MEASURES),
            *(_p(tests.get((row, other))) for other in (BM25, NONE)),
            *(row.probe(name) for name in PROBES),
        ]
        for row in found
    ]
    lines = [head, ["---"] * len(head), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plot(done: Mapping[Job, RunRecord], pipeline: str, path: Path) -> Path:
    """Draw each recipe's first measure, its mean and standard deviation over seeds, by stage and start."""
    series, best = dict[str, dict[str, list[float]]](), dict[str, float]()
    for row in rows(done, [*STAGES[pipeline]]):
        means = row.means(MEASURES[0])
        series.setdefault(f"{row.stage}, {STARTS[row.start]}", {})[row.recipe] = means
        best[row.recipe] = max(statistics.fmean(means), best.get(row.recipe, 0.0))
    names = sorted(best, key=best.__getitem__)
    figure = Figure(figsize=(8, 1.2 + 0.27 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, (label, values) in enumerate(series.items()):
        heights = [names.index(name) + 0.12 * (number - (len(series) - 1) / 2) for name in values]
        centres, spreads = map(statistics.fmean, values.values()), map(_deviation, values.values())
        axes.errorbar([*centres], heights, xerr=[*spreads], fmt="os^D"[number % 4], markersize=5, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel(f"{MEASURES[0]}, standard deviation over seeds")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def put_into(page: Path, mark: str, text: str) -> None:
    """Replace what a page has between marks. Raises DrkitError if it lacks them."""
    begin, end, content = f"<!-- {mark} -->\n", "<!-- end -->", page.read_text(encoding="utf-8")
    before, found, rest = content.partition(begin)
    if not found or end not in rest:
        raise DrkitError(f"{page} has no marks {begin.strip()} and {end}; add them where the table belongs")
    write_text(page, f"{before}{begin}{text}{end}{rest.partition(end)[2]}")


def write(done: Mapping[Job, RunRecord], options: argparse.Namespace) -> None:
    """Write what is known so far: the table and the plot into the work folder, and both into the page."""
    text = table(done, options.pipeline)
    write_text(options.work / "table.md", text)
    name = f"comparisons-{options.pipeline}-{options.collection.partition(':')[0]}.png"
    image = plot(done, options.pipeline, (options.plots or options.work) / name)
    if options.page:
        shown = f"\n![{MEASURES[0]} of each recipe and stage]({os.path.relpath(image, options.page.parent)})\n"
        put_into(options.page, f"comparisons {options.pipeline} {options.collection}", text + shown)


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {_deviation(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{spread}"


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(item) for item in text.split(",")]


def _setting(text: str) -> tuple[str, Any]:
    path, _, value = text.partition("=")
    return path, parse_toml(f"value = {value}", path)["value"]


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--pipeline", choices=[*STAGES], default="dpr")
    parser.add_argument("--collection", default="pydocs")
    parser.add_argument("--limit", type=int, default=0, help="collection.limit; 0: all")
    parser.add_argument("--only", type=_listed(str), default=[], help="some recipes, with commas between")
    parser.add_argument("--starts", type=_listed(str), default=[*STARTS])
    parser.add_argument("--seeds", type=_listed(int), default=[42, 43, 44])
    parser.add_argument("--pretraining", type=_listed(int), default=[400, 32], metavar="STEPS,TEXTS")
    parser.add_argument("--finetuning", type=_listed(int), default=[80, 96], metavar="STEPS,QUERIES")
    parser.add_argument("--reranking", type=int, default=150, metavar="STEPS")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], type=_setting, metavar="PATH=VALUE")
    parser.add_argument("--page", type=Path, help="page that gets the table and the plot")
    parser.add_argument("--plots", type=Path, help="folder of the plot; default: --work")
    return parser


def main() -> None:
    options = arguments().parse_args()
    every = options.only or recipes()
    jobs = [(start, recipe, seed) for seed, start, recipe in product(options.seeds, options.starts, every)]
    first, done = [(start, every[0], options.seeds[0]) for start in options.starts], dict[Job, RunRecord]()
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for some in first, [job for job in jobs if job not in first]:
            made = {pool.submit(run, job, options): job for job in some}
            for future in as_completed(made):
                folder = future.result()
                if folder is not None:
                    done[made[future]] = open_run(folder, installed())
                    write({job: done[job] for job in jobs if job in done}, options)
    print(table(done, options.pipeline) if done else "no run finished")


if __name__ == "__main__":
    main()
