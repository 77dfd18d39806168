"""A run small enough for tests, on real docstrings of the standard library."""

import json
import subprocess

import pytest

from tests.warm import warm_process

TINY = [
    "--pipeline=two-stage",
    "--set=collection.packages=['asyncio', 'logging', 'multiprocessing', 'unittest']",
    "--set=encoder.vocab_size=800",
    "--set=encoder.layers=2",
    "--set=encoder.hidden=32",
    "--set=encoder.heads=2",
    "--set=encoder.intermediate=64",
    "--set=encoder.passage_length=48",
    "--set=pretrain.max_steps=12",
    "--set=pretrain.save_steps=2",
    "--set=pretrain.logging_steps=2",
    "--set=pretrain.per_device_train_batch_size=8",
    "--set=finetune.max_steps=8",
    "--set=finetune.save_steps=2",
    "--set=finetune.logging_steps=2",
    "--set=finetune.per_device_train_batch_size=8",
    "--set=finetune.baselines=['labels-only']",
    "--set=evaluation.start=true",
    "--set=evaluation.depth=100",
]


def tiny(beir, *left_out):
    """The settings of `TINY` for a collection in BEIR's layout, without those whose names contain these words."""
    kept = [one for one in TINY if not any(word in one for word in ("collection", "vocab_size", *left_out))]
    return ["--collection", f"beir:{beir}", "--set=encoder.vocab_size=150", *kept]


def drkit(*arguments, check=True, **environment):
    """Standard output and error of the command line, one thread, in a child of a warm process."""
    result = warm_process().drkit(*arguments, environment=environment)
    assert not check or result["code"] == 0, result["err"]
    return subprocess.CompletedProcess(arguments, result["code"], result["out"], result["err"])


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A finished run of two stages at toy sizes: (folder, what it printed)."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    bm25 = "--set=evaluation.bm25_b=[0.75, 0.4]"
    done = drkit("compose", "--masker", "pmi", "--decoder", "enhanced", *TINY, bm25, "--run-dir", run)
    return run, done.stdout


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Sixty passages on twenty topics, with queries of three splits."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    passages = [
        {"_id": f"d{i}", "title": f"topic{i % 20}", "text": f"about topic{i % 20} and word{i} first. It says word{i}."}
        for i in range(60)
    ]
    splits = {"train": range(12), "dev": range(12, 16), "test": range(16, 20)}
    queries = [{"_id": f"q{t}", "text": f"what is topic{t} about"} for topics in splits.values() for t in topics]
    write_lines(folder / "corpus.jsonl", passages)
    write_lines(folder / "queries.jsonl", queries)
    for split, topics in splits.items():
        rows = [f"q{t}\td{t + 20 * n}\t{n + 1}" for t in topics for n in range(2)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
