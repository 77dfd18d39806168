"""Finished runs of a tiny collection whose ids and texts try to act on a page."""

import json

import pytest

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit_report.page import ReportOptions, report_page

PARTS = installed()
HOSTILE = (
    '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked=2"> \u202e\'"&amp;{{7*7}} \x1b[2J'
)
TINY = (
    *("encoder.layers=1", "encoder.vocab_size=200", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=32", "pretrain.max_steps=4", "pretrain.logging_steps=2", "pretrain.probe.every=2"),
    *("pretrain.per_device_train_batch_size=8", "finetune.max_steps=4", "finetune.logging_steps=2"),
    *("finetune.per_device_train_batch_size=4", "evaluation.depth=20"),
)


def write_collection(folder, extra=""):
    """Sixty passages on twenty topics, with queries of three splits; `extra` is in every id and text."""
    (folder / "qrels").mkdir(parents=True)
    passages = [
        {
            "_id": f"d{i}{extra}",
            "title": f"topic{i % 20}",
            "text": f"about topic{i % 20} and word{i} first. It says word{i} to readers of topic{i % 20}. {extra}",
        }
        for i in range(60)
    ]
    splits = {"train": range(12), "dev": range(12, 16), "test": range(16, 20)}
    queries = [{"_id": f"q{t}{extra}", "text": f"what is topic{t} {extra}"} for ts in splits.values() for t in ts]
    write_lines(folder / "corpus.jsonl", passages)
    write_lines(folder / "queries.jsonl", queries)
    for split, topics in splits.items():
        rows = [f"q{t}{extra}\td{t + 20 * n}{extra}\t{n + 1}" for t in topics for n in range(2)]
        rows += [f"q{t}{extra}\td{t + 40}{extra}\t0" for t in topics]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(collection, run, *settings, masker="pmi", decoder="enhanced"):
    """Execute a tiny recipe on a folder in BEIR's layout; returns the run's folder.

    Equal stages of the runs beside it are reused.
    """
    request = ComposeRequest(
        masker=masker, decoder=decoder, collection=f"beir:{collection}", settings=(*TINY, *settings), pipeline="dpr"
    )
    recipe = compose(request, PARTS)
    others = [folder for folder in run.parent.iterdir() if (folder / "recipe.toml").exists()]
    stages = plan(recipe, PARTS.registry).stages
    execute(stages, run, recipe, registry=PARTS.registry, progress=Silent(), reuse=others)
    return run


@pytest.fixture(scope="session")
def collection(tmp_path_factory):
    return write_collection(tmp_path_factory.mktemp("collections") / "plain")


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    return make_run(write_collection(folder / "texts", HOSTILE), folder / f"<i>run-{'y' * 120}")


class Made(dict):
    """Values by name, each made when it is first asked for."""

    def __init__(self, make):
        self._make = make

    def __missing__(self, name):
        self[name] = self._make(name)
        return self[name]


SEVERAL = ("seed-1", "seed-2", "uniform", "few")
FEW = "finetune.rounds=[{name='retriever-1', miners=['bm25'], queries=4}]"
# Settings and masker of each run: two seeds, another masker, and fewer training queries.
RUNS = {
    "seed-1": (("seed=1",), {}),
    "seed-2": (("seed=2",), {}),
    "uniform": (("seed=1",), {"masker": "uniform"}),
    "few": (("seed=1", FEW), {}),
}


@pytest.fixture(scope="session")
def runs(collection, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def make(name):
        settings, parts = RUNS[name]
        return make_run(collection, folder / name, *settings, **parts)

    return Made(make)


@pytest.fixture(scope="session")
def pages(runs, request):
    """The pages of one run, of several, and of the hostile run."""

    def make(name):
        options = ReportOptions(baseline="uniform" if name == "several" else None)
        folders = {"one": ["seed-1"], "several": SEVERAL}
        given = [runs[run] for run in folders[name]] if name in folders else [request.getfixturevalue("hostile_run")]
        return report_page(given, PARTS, options)

    return Made(make)
