"""Every file operation of a run or command may fail, or be the last before a kill.

Each time there is one message and exit code 2 (or the signal's), and what is run again ends with the files of an
uninterrupted one: a run of one process or of two, on a clock that is set back, a command, a judgement on the page of
`drkit serve`. DRKIT_FAULTS is the number of faults, drawn by DRKIT_FAULTS_SEED (nightly: 500 and more).

All in one file, so that the warm process and the uninterrupted runs are made once.
"""

import errno
import json
import os
import random
import re
import shutil
import signal
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException

import click
import pytest
from transformers import BertConfig, BertForSequenceClassification

from drkit.core.files import is_temporary
from drkit_cli.main import cli
from tests.data.seq2seq import write_t5
from tests.search.toys import tokenizer
from tests.warm import ROOT

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
TIMES = {"seconds", "amount", "unit", "memory", "pairs_per_second", "finished", "training.json"}


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
    # `run` is what `compose` and `improve` do after they have composed a recipe, and `study` does both several times;
    # `reproduce` is `compose` with the arguments of a row; `serve` runs until it is stopped, and writes judgements
    # through the same functions as the others.
    assert names | {"prune", "run", "improve", "reproduce", "study", "serve"} == set(
        cli.list_commands(click.Context(cli))
    )


def test_a_command_that_only_reads_writes_nothing(server, finished):
    run = finished("three-stage")[0]
    for name, arguments in readers(run).items():
        result = server.drkit(*arguments, root=run)
        assert result["code"] == 0, (name, result["output"])
        assert result["operations"] == 0, name


# A clock that is set back

DAYS = 2 * 24 * 3600


@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_run_resumed_two_days_earlier_ends_as_one_without(server, beir, finished, tmp_path, part):
    """What the killed run left is from the future: newer checkpoints are not deleted, nor older ones preferred."""
    (whole, operations), run = finished("ance"), tmp_path / "killed"
    at = int(part * operations) + random.Random(SEED).randint(0, 20)
    assert_ends_well(server.drkit(*compose("ance", beir, run), root=run, at=at, error=KILL), KILL, at)
    assert not (run / "evaluation").exists()
    for path in (run, *run.rglob("*")):
        times = path.stat()
        os.utime(path, (times.st_atime + DAYS, times.st_mtime + DAYS))
    result = server.drkit(*compose("ance", beir, run), root=run)
    assert result["code"] == 0, result["output"]
    expected, found = contents(whole), contents(run)
    assert sorted(found) == sorted(expected)
    assert [path for path in found if found[path] != expected[path]] == []


# Two processes


def two_processes(server, *arguments, root, **faults):
    """The end of drkit in two processes; faults: the operation `at` below `root` of the process `rank` fails."""
    return server.process.drkit(*arguments, folder=ROOT, processes=2, root=str(root), **faults)


@pytest.fixture(scope="module")
def two_whole(server, beir, tmp_path_factory):
    """The contents of an uninterrupted run, and the number of file operations of each process."""
    run = tmp_path_factory.mktemp("whole") / "ance"
    done = two_processes(server, *compose("ance", beir, run), root=run)
    assert done["code"] == 0, done["err"][-3000:]
    return contents(run), done["operations"]


def faulty(server, beir, folder, rank, error, last):
    """A run that a fault ended: its folder, end, and the operation that failed, drawn from 1 to `last`.

    The processes share out shards of vectors as they come, so the number of operations of one differs from run to run.
    A run in which the process did not get as far as its fault ends well, and an earlier fault is drawn.
    """
    draw = random.Random(f"{rank} {error} {SEED}")
    while True:
        at = draw.randint(1, last)
        run = folder / str(at) / "ance"
        run.parent.mkdir()
        done = two_processes(server, *compose("ance", beir, run), root=run, rank=rank, at=at, error=error)
        if done["code"] != 0:
            return run, done, at
        last = done["operations"][rank]
        assert last < at


@pytest.mark.slow
@pytest.mark.parametrize("error", [KILL, errno.ENOSPC], ids=["kill", "ENOSPC"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_fault_in_one_process_ends_both_and_the_run_goes_on_later(server, beir, two_whole, tmp_path, rank, error):
    expected, counted = two_whole
    run, done, at = faulty(server, beir, tmp_path, rank, error, counted[rank])
    if error != KILL:
        lines = [line for line in done["err"].splitlines() if line.startswith("error")]
        assert len(lines) == 1, (at, done["err"][-3000:])
        assert lines[0].startswith("error: the disk is full"), (at, lines)
    done = two_processes(server, *compose("ance", beir, run), root=run)
    assert done["code"] == 0, (at, done["err"][-3000:])
    found = contents(run)
    assert {*found} ^ {*expected} == set(), at
    assert [path for path in found if found[path] != expected[path]] == [], at


# A judgement on the page of `drkit serve`

QUERY = "my own words of topic3"
JUDGED = "<b>relevant, grade 1</b>"


@pytest.fixture
def run(finished):
    return finished("ance")[0]


class Page:
    """The page of a server that is starting on a port."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def answer(self, path, **form):
        """(status, text) of a page, or of a form that is sent."""
        data = urllib.parse.urlencode(form).encode() if form else None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", data, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def await_start(self):
        for _ in range(1200):
            try:
                return self.answer("")
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def search(self):
        return self.answer(f"?{urllib.parse.urlencode({'q': QUERY})}")[1]

    def judge(self):
        """Judge the best passage of the query."""
        row, token = (re.search(rf'name="{name}" value="([^"]+)"', self.search())[1] for name in ("row", "token"))
        return self.answer("judge", q=QUERY, row=row, grade=1, token=token)


@contextmanager
def serving(server, run, folder, at=0, error=0):
    """A server that keeps judgements in a folder: its page, and its result once it has ended."""
    folder.mkdir(exist_ok=True)
    page, result = Page(), {}
    server.start("serve", run, "--port", page.port, "--qrels", folder / "mine.qrels", root=folder, at=at, error=error)
    try:
        page.await_start()
        yield page, result
    finally:
        server.process.send_signal(signal.SIGINT)
        result.update(server.wait())
    assert "Traceback" not in result["output"]


def kept(folder):
    return {path: held for path, held in contents(folder).items() if not is_temporary(folder / path)}


def test_a_judgement_with_a_fault_is_kept_or_refused(server, run, tmp_path):
    """A kill leaves the files of before or after; an error is on the page, and judging again keeps the judgement."""
    with serving(server, run, tmp_path / "whole") as (page, result):
        assert page.judge()[0] == 200
        assert JUDGED in page.search()
    assert result["code"] == 0
    expected, rng = kept(tmp_path / "whole"), random.Random(f"serve {SEED}")
    assert set(expected) == {"mine.qrels", "mine.qrels.queries.tsv", ".mine.qrels.lock"}
    for number in range(max(3, FAULTS // 20)):
        folder, at, error = tmp_path / str(number), rng.randint(1, result["operations"]), rng.choice(ERRORS)
        check_a_fault(server, run, folder, at, error, expected)


def check_a_fault(server, run, folder, at, error, expected):
    where = f"operation {at}, {errno.errorcode.get(error, 'kill')}"
    with serving(server, run, folder, at, error) as (page, result):
        if error == KILL:
            with pytest.raises((OSError, HTTPException)):
                page.judge()
        else:
            status, text = page.judge()
            assert (status == 200) is ("the judgement was not kept" not in text), (where, text)
            assert (JUDGED in page.search()) is (status == 200), where
    assert result["code"] == (-signal.SIGKILL if error == KILL else 0), where
    assert all(expected[path] == held for path, held in kept(folder).items()), where
    with serving(server, run, folder) as (page, _):
        assert page.judge()[0] == 200, where
    assert kept(folder) == expected, where
