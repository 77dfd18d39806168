"""Vectors from a cluster of two nodes: the bytes of one process, though workers and nodes are lost on the way."""

import os
import signal
import threading
import time

import psutil
import pytest

from drkit.core.engine import Loaded, open_engine
from drkit.errors import DrkitError
from drkit.search import Storage, encode_corpus
from tests.engine.encoders import LONGEST, Watched, other_encoder_elsewhere
from tests.refusals import says
from tests.search.test_encoding import PAIRS, SMALL, encoder, files

pytestmark = pytest.mark.slow
PAIRS = [*PAIRS, *((f"more {i}", f"number {i} file") for i in range(27))]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The files that one process writes: 12 shards."""
    folder = tmp_path_factory.mktemp("expected") / "v"
    encode_corpus(encoder(), PAIRS, folder, storage=SMALL)
    return files(folder)


def watched(folder, *, go=True, poison=False):
    folder.mkdir()
    for name, wanted in (("go", go), ("poison", poison)):
        if wanted:
            (folder / name).touch()
    return Loaded(Watched, str(folder))


def workers(folder):
    return {int(path.name.split("-")[1]) for path in folder.glob("working-*")}


def wait_for(condition):
    deadline = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_the_middle(folder, fault):
    """Wait in a thread until both workers are busy, cause a fault, and let the workers go on."""

    def act():
        wait_for(lambda: len(workers(folder) - {os.getpid()}) == 2)
        fault()
        (folder / "go").touch()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_the_bytes_are_those_of_one_process_and_each_worker_loads_once(nodes, tmp_path, expected):
    with open_engine(nodes.engine) as engine:
        found = encode_corpus(watched(tmp_path / "w"), PAIRS, tmp_path / "v", storage=SMALL, engine=engine)
    assert files(tmp_path / "v") == expected
    assert len(found) == len(PAIRS)
    loads = [path.name.split("-")[1] for path in (tmp_path / "w").glob("loaded-*")]
    assert len(loads) == len(set(loads)) <= 3, "once in this process, once in each worker"


def test_a_killed_worker_process_is_replaced(nodes, tmp_path, expected):
    watch, killed = tmp_path / "w", []

    def kill():
        killed.append(sorted(workers(watch) - {os.getpid()})[0])
        os.kill(killed[0], signal.SIGKILL)

    loaded = watched(watch, go=False)
    thread = in_the_middle(watch, kill)
    with open_engine(nodes.engine) as engine:
        encode_corpus(loaded, PAIRS, tmp_path / "v", storage=SMALL, engine=engine)
    thread.join()
    assert killed
    assert not psutil.pid_exists(killed[0])
    assert files(tmp_path / "v") == expected


def test_a_lost_node_leaves_its_shards_to_the_other(nodes, tmp_path, expected):
    watch = tmp_path / "w"
    loaded = watched(watch, go=False)
    thread = in_the_middle(watch, nodes.lose_node)
    with open_engine(nodes.engine) as engine:
        encode_corpus(loaded, PAIRS, tmp_path / "v", storage=SMALL, engine=engine)
    thread.join()
    assert nodes.second is None
    assert files(tmp_path / "v") == expected


def poisoned(at):
    return [(name, "poison" if number == at else text) for number, (name, text) in enumerate(PAIRS)]


def test_a_poisoned_shard_is_retried_and_named_and_the_others_are_kept(nodes, tmp_path, capsys):
    pairs, out = poisoned(9), tmp_path / "v"
    loaded = watched(tmp_path / "w", poison=True)
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError) as raised:
        encode_corpus(loaded, pairs, out, storage=SMALL, engine=engine)
    assert says(str(raised.value), "1 of 12 tasks", "3 attempts")
    assert f"shard 00002 of {out}: ValueError: poison\\x1b[31m in a text" in str(raised.value)
    assert "\x1b" not in str(raised.value)
    assert (tmp_path / "w" / "attempts").read_text() == "xxx"
    assert sorted(path.stem for path in out.glob("*.arrow")) == [f"{n:05d}" for n in range(12) if n != 2]
    assert capsys.readouterr().out == "", "standard output is for results"
    (tmp_path / "w" / "poison").unlink()
    (tmp_path / "w" / "attempts").unlink()
    encode_corpus(loaded, pairs, out, storage=SMALL)  # in this process
    encode_corpus(encoder(), pairs, tmp_path / "whole", storage=SMALL)
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("first", ["local", "ray"])
def test_either_engine_goes_on_where_the_other_was_interrupted(nodes, tmp_path, expected, first):
    class Interrupted(Exception):
        pass

    def half():
        yield from PAIRS[:24]
        raise Interrupted

    names = ["local", nodes.engine] if first == "local" else [nodes.engine, "local"]
    loaded, out = watched(tmp_path / "w"), tmp_path / "v"
    with open_engine(names[0]) as engine, pytest.raises(Interrupted):
        encode_corpus(loaded, half(), out, storage=SMALL, engine=engine)
    (tmp_path / "w" / "poison").touch()
    with open_engine(names[0]) as engine, pytest.raises((DrkitError, ValueError), match="poison"):
        encode_corpus(loaded, poisoned(47), out, storage=SMALL, engine=engine)
    (tmp_path / "w" / "poison").unlink()
    kept = files(out)
    assert 6 <= len(list(out.glob("*.arrow"))) < 12
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.arrow")}
    with open_engine(names[1]) as engine:
        encode_corpus(loaded, PAIRS, out, storage=SMALL, engine=engine)
    assert files(out) == expected
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times, "finished shards are kept"
    assert {name: content for name, content in files(out).items() if name in kept and name != "vectors.json"} == {
        name: content for name, content in kept.items() if name != "vectors.json"
    }


def test_a_worker_with_another_encoder_is_refused(nodes, tmp_path):
    loaded = Loaded(other_encoder_elsewhere, os.getpid())
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError, match=r"worker .*another encoder"):
        encode_corpus(loaded, PAIRS[:4], tmp_path / "v", storage=Storage(shard_size=4), engine=engine)
    assert not list((tmp_path / "v").glob("*.arrow"))
