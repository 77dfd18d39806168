"""Every file operation of a run or command may fail, or be the last before a kill.

Each time there is one message and exit code 2 (or the signal's), and what is run again ends with the files of an
uninterrupted one. DRKIT_FAULTS is the number of faults, drawn by DRKIT_FAULTS_SEED (nightly: 500 and more).
"""

import errno
import json
import os
import random
import shutil
import signal

import click
import pytest
from transformers import BertConfig, BertForSequenceClassification

from drkit.core.files import is_temporary
from drkit_cli.main import cli
from tests.data.seq2seq import write_t5
from tests.search.toys import tokenizer

FAULTS = int(os.environ.get("DRKIT_FAULTS", "40"))
SEED = int(os.environ.get("DRKIT_FAULTS_SEED", "0"))
KILL = 0
pytestmark = pytest.mark.timeout(900 + 30 * FAULTS)
ERRORS = (KILL, KILL, errno.ENOSPC, errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)
# Faults in a row until a run is left to finish, and how many of a hundred faults hit each recipe.
CHAIN, SHARES = 10, {"three-stage": 25, "ance": 25, "texts": 25, "commands": 25}

TINY = [
    *("--no-trial", "--set=encoder.vocab_size=150", "--set=encoder.layers=1", "--set=encoder.hidden=16"),
    *("--set=encoder.heads=2", "--set=encoder.intermediate=16", "--set=encoder.passage_length=16"),
    *("--set=pretrain.max_steps=3", "--set=pretrain.save_steps=1", "--set=pretrain.per_device_train_batch_size=4"),
]
FINETUNE = [
    *("--set=finetune.max_steps=2", "--set=finetune.save_steps=1", "--set=finetune.per_device_train_batch_size=3"),
    *("--set=evaluation.depth=10", "--set=evaluation.start=false", "--set=finetune.baselines=[]"),
]
RECIPES = {
    "three-stage": [
        *("--pipeline", "three-stage", *FINETUNE),
        *("--set=pretrain.probe.every=2", "--set=finetune.validation.every=1"),
        *("--set=reranker.max_steps=2", "--set=reranker.save_steps=1", "--set=reranker.per_device_train_batch_size=3"),
    ],
    "ance": ["--pipeline", "ance", *FINETUNE],
    "texts": ["--paper", "cpdae", "--set=finetune=none"],
}


def compose(name, beir, run):
    collection = f"jsonl:{beir / 'corpus.jsonl'}" if name == "texts" else f"beir:{beir}"
    return ["compose", "--collection", collection, *TINY, *RECIPES[name], "--run-dir", run]


# Names of values and files that depend on the time.
TIMES = {"seconds", "memory", "pairs_per_second", "finished", "training.json"}


def contents(folder):
    """Content of every file by its path, without what depends on the time and the machine."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): content(folder, path) for path in (path.relative_to(folder) for path in paths)}


def content(folder, path):
    if path.name in TIMES:
        return None
    if path.suffix == ".json":
        return timeless(json.loads((folder / path).read_text()))
    return (folder / path).read_bytes().replace(bytes(folder), b"")  # a recipe says how to run it, where it is


def timeless(value):
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def assert_ends_well(result, error, where):
    """A kill ends the process; an error ends it with one message, unless it was made up for."""
    output = result["output"]
    assert "Traceback" not in output, (where, output)
    if result["code"] == 0:
        return
    if error == KILL:
        assert result["code"] == -signal.SIGKILL, (where, output)
        return
    assert result["code"] == 2, (where, result["code"], output)
    assert sum(line.startswith("error") for line in output.splitlines()) == 1, (where, output)


def interrupt(server, arguments, run, operations, rng, faults):
    """Run with up to `faults` faults in a row; returns how many there were."""
    for done in range(faults):
        reach = 20 if rng.random() < 0.2 else 2 * operations // min(CHAIN, max(faults, 1))
        at, error = rng.randint(1, reach), rng.choice(ERRORS)
        result = server.drkit(*arguments, root=run, at=at, error=error)
        assert_ends_well(result, error, f"operation {at}, {errno.errorcode.get(error, 'kill')}")
        if result["code"] == 0:
            return done + (result["operations"] >= at)
    return faults


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_with_faults_ends_as_one_without(server, beir, finished, tmp_path, name):
    whole, operations = finished(name)
    expected = contents(whole)
    left, chain = FAULTS * SHARES[name] // 100, 0
    while left:
        chain += 1
        run = tmp_path / str(chain)
        arguments, rng = compose(name, beir, run), random.Random(f"{name} {SEED} {chain}")
        left -= interrupt(server, arguments, run, operations, rng, min(left, CHAIN))
        result = server.drkit(*arguments, root=run)
        assert result["code"] == 0, (chain, result["output"])
        found = contents(run)
        assert sorted(found) == sorted(expected), chain
        assert [path for path in found if found[path] != expected[path]] == [], chain


def commands(run, beir, scorer, generator, out):
    """Arguments of every command that writes files, in an order in which each finds what it reads.

    run: a run with fine-tuning; scorer, generator: folders of models.
    """
    collection = ("--collection", f"beir:{beir}")
    return {
        "compose": ["compose", *collection, "--dry-run", "-o", out / "recipe.toml"],
        "encode": ["encode", "--encoder", run, *collection, "--shard-size", 16, "-o", out / "vectors"],
        "index": ["index", out / "vectors", "-o", out / "index"],
        "index-hnsw": ["index", out / "vectors", "--kind", "hnsw", "-o", out / "graph"],
        "export-vectors": ["export", run, "--vectors", out / "passages.parquet"],
        "search": ["search", run, "--split", "test", "-k", 10, "-o", out / "dense.trec"],
        "fuse": ["fuse", out / "dense.trec", run / "runs" / "bm25.arrow", "-o", out / "fused.trec"],
        "rerank": ["rerank", out / "dense.trec", "--model", scorer, *collection, "-o", out / "reranked.trec"],
        "mine": ["mine", *collection, "--miner", "bm25", "-o", out / "negatives.jsonl"],
        "export": ["export", run, "-o", out / "exported"],
        "evaluate": ["evaluate", run, "--per-query", out / "values.tsv"],
        "evaluate-encoder": ["evaluate", "--encoder", run, *collection, "-o", out / "evaluated"],
        "evaluate-beir": ["evaluate", "--encoder", run, "--beir", beir, "-o", out / "beir"],
        "queries": [
            *("queries", "--model", generator, *collection, "--count", 2, "--max-new-tokens", 3, "--batch-size", 8),
            *("-o", out / "queries.jsonl"),
        ],
        "init": ["init", f"beir:{beir}", "-o", out / "new.toml"],
        "report": ["report", run, "-o", out / "report.html"],
        "new-plugin": ["new-plugin", "mine", "--kind", "masker", "-o", out / "plugin"],
    }


def readers(run):
    """Arguments of the commands that write no file."""
    return {
        "compare": ["compare", f"{run}:bm25", f"{run}:retriever-1"],
        "status": ["status", run, "--verify"],
        "list": ["list", "--matrix"],
        "show": ["show", "masker", "pmi"],
        "plugins": ["plugins"],
        "inspect": ["inspect", "mask", "what is topic1 about", "--run", run, "--masker", "uniform"],
    }


def folders(path):
    return [path, *path.parents]


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """The folder of a model that generates queries."""
    return write_t5(tmp_path_factory.mktemp("generator"), ["about topic1 and word1", "It says word2 often."])


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    """The folder of a cross-encoder."""
    folder = tmp_path_factory.mktemp("scorer")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertForSequenceClassification(BertConfig(vocab_size=60, num_labels=1, **sizes)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def is_there(name, result):
    """Whether a command refuses to write over what a kill left, which is compared like what the others write again."""
    return name in ("init", "new-plugin") and result["code"] == 2 and "exists" in result["output"]


def test_a_command_with_faults_ends_as_one_without(server, beir, finished, scorer, generator, tmp_path):
    sources = finished("three-stage")[0], beir, scorer, generator
    whole, out = tmp_path / "all", tmp_path / "out"  # as long as each other: a recipe's comments are wrapped
    operations = {}
    for name, arguments in commands(*sources, whole).items():
        result = server.drkit(*arguments, root=whole)
        assert result["code"] == 0, (name, result["output"])
        operations[name] = result["operations"]
    expected, rng = contents(whole), random.Random(f"commands {SEED}")
    names = list(operations)
    drawn = [*names, *(rng.choice(names) for _ in range(FAULTS * SHARES["commands"] // 100 - len(names)))]
    for name, arguments in commands(*sources, out).items():
        for _ in range(drawn.count(name)):
            at, error = rng.randint(1, operations[name]), rng.choice(ERRORS)
            result = server.drkit(*arguments, root=out, at=at, error=error)
            if is_there(name, result):
                break
            assert_ends_well(result, error, f"{name}, operation {at}, {errno.errorcode.get(error, 'kill')}")
        result = server.drkit(*arguments, root=out)
        assert result["code"] == 0 or is_there(name, result), (name, result["output"])
    # Nobody resumes a killed command, so what it left half written stays beside its output, under a temporary name.
    found = {path: held for path, held in contents(out).items() if not any(map(is_temporary, folders(out / path)))}
    assert {*found} ^ {*expected} == set()
    assert [path for path in found if found[path] != expected[path]] == []


def test_pruning_with_faults_ends_as_without(server, finished, tmp_path):
    run, whole = finished("three-stage")[0], tmp_path / "whole" / "run"
    shutil.copytree(run, whole)
    operations = server.drkit("prune", whole, root=whole)["operations"]
    expected, rng = contents(whole), random.Random(f"prune {SEED}")
    for number in range(max(1, FAULTS // 20)):
        pruned = tmp_path / str(number) / "run"
        shutil.copytree(run, pruned)
        at, error = rng.randint(1, operations), rng.choice(ERRORS)
        result = server.drkit("prune", pruned, root=pruned, at=at, error=error)
        assert_ends_well(result, error, f"operation {at}, {errno.errorcode.get(error, 'kill')}")
        assert server.drkit("status", pruned, "--verify", root=pruned)["code"] == 0
        result = server.drkit("prune", pruned, root=pruned)
        assert result["code"] == 0, result["output"]
        found = contents(pruned)
        assert sorted(found) == sorted(expected), (at, error)
        assert [path for path in found if found[path] != expected[path]] == [], (at, error)
        shutil.rmtree(pruned)


def test_every_command_is_in_one_of_these_tests(beir, tmp_path):
    writers = commands(*[tmp_path] * 5).values()
    names = {arguments[0] for arguments in (*writers, *readers(tmp_path).values(), compose("ance", beir, tmp_path))}
    # `run` is what `compose` does after it has written the recipe, and `sweep` does both several times;
    # `serve` runs until it is stopped, and writes judgements through the same functions as the others.
    assert names | {"prune", "run", "sweep", "serve"} == set(cli.list_commands(click.Context(cli)))


def test_a_command_that_only_reads_writes_nothing(server, finished):
    run = finished("three-stage")[0]
    for name, arguments in readers(run).items():
        result = server.drkit(*arguments, root=run)
        assert result["code"] == 0, (name, result["output"])
        assert result["operations"] == 0, name
