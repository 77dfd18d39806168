"""Rankings from a cluster of two nodes: the file of one process, though a worker is lost or a block is poisoned."""

import os
import signal
import threading

import numpy as np
import pytest

from drkit.commands import rank_to_run
from drkit.core.engine import Loaded, LocalEngine, open_engine
from drkit.core.types import Query
from drkit.errors import DrkitError
from drkit.search import Retriever, Vectors, build_index, encode_corpus, open_index
from drkit.search import blocks as module
from tests.engine.engines import Pickling
from tests.engine.test_encoding import PAIRS, wait_for, watched, workers
from tests.search.test_encoding import encoder

WORDS = ["remove", "suffix", "string", "from", "each", "number", "file"]
QUERIES = [Query(f"q {n}", " ".join(np.random.default_rng(n).choice(WORDS, 3))) for n in range(30)]


@pytest.fixture
def small(monkeypatch):
    """Blocks of 4 queries; workers get blocks, not their size."""
    monkeypatch.setattr(module, "QUERIES_PER_PASS", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An index of 48 passages."""
    folder = tmp_path_factory.mktemp("index")
    encode_corpus(encoder(), PAIRS, folder / "v")
    build_index(Vectors.open(folder / "v"), folder / "index", kind="flat")
    return folder / "index"


def expected(folder, tmp_path, queries=QUERIES):
    rank_to_run(retriever_of(folder, encoder), queries, tmp_path / "whole.trec", depth=9)
    return (tmp_path / "whole.trec").read_bytes()


def retriever_of(folder, make, *given):
    return Retriever(make(*given), open_index(folder))


def search(folder, queries, path, engine, make, depth=9):
    loaded = make if isinstance(make, Loaded) else Loaded(make)
    retriever = Loaded(retriever_of, folder, loaded.function, *loaded.arguments)
    return rank_to_run(retriever, queries, path, engine=engine, depth=depth)


def test_parts_join_into_the_file_of_one_pass(small, folder, tmp_path):
    out = tmp_path / "some.trec"
    assert search(folder, QUERIES, out, Pickling(), encoder) == 30
    assert out.read_bytes() == expected(folder, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def interrupted(folder, path, queries=QUERIES, depth=9):
    with pytest.raises(KeyboardInterrupt):
        search(folder, queries, path, Pickling(after=3), encoder, depth)


def test_finished_parts_are_kept(small, folder, tmp_path):
    out, rest = tmp_path / "some.trec", Pickling()
    interrupted(folder, out)
    assert not out.exists()
    search(folder, QUERIES, out, rest, encoder)
    assert len(rest.names) == 8 - 3
    assert out.read_bytes() == expected(folder, tmp_path)


@pytest.mark.parametrize("change", ["depth", "queries", "index"])
def test_parts_of_another_search_are_not_used(small, folder, tmp_path, change):
    out, rest, own, queries, depth = tmp_path / "some.trec", Pickling(), folder, QUERIES, 9
    interrupted(folder, out)
    if change == "depth":
        depth = 5
    elif change == "queries":
        queries = [Query(q.query_id, f"{q.text} file") for q in QUERIES]
    else:
        own = tmp_path / "other"
        build_index(encode_corpus(encoder(), PAIRS[:40], tmp_path / "v"), own, kind="flat")
    search(own, queries, out, rest, encoder, depth)
    assert len(rest.names) == 8
    rank_to_run(retriever_of(own, encoder), queries, tmp_path / "whole.trec", depth=depth)
    assert out.read_bytes() == (tmp_path / "whole.trec").read_bytes()


@pytest.mark.parametrize("engine", [LocalEngine(), Pickling()], ids=["local", "other"])
@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([], "queries .*file is empty"),
        ([*QUERIES, Query("q 0", "file")], "duplicate query 'q 0'"),
        ([*QUERIES, Query("empty", " ")], "query 'empty' is empty"),
    ],
)
def test_wrong_queries_are_refused(small, folder, tmp_path, queries, message, engine):
    with pytest.raises(DrkitError, match=message):
        search(folder, queries, tmp_path / "some.trec", engine, encoder)
    assert not (tmp_path / "some.trec").exists()


@pytest.mark.slow
def test_a_cluster_writes_the_same_file_though_a_worker_is_killed(nodes, small, folder, tmp_path):
    watch = tmp_path / "w"
    loaded = watched(watch, go=False)

    def kill():
        wait_for(lambda: len(workers(watch) - {os.getpid()}) == 2)
        os.kill(min(workers(watch) - {os.getpid()}), signal.SIGKILL)
        (watch / "go").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    with open_engine(nodes.engine) as engine:
        assert search(folder, QUERIES, tmp_path / "ray.trec", engine, loaded) == 30
    thread.join()
    assert (tmp_path / "ray.trec").read_bytes() == expected(folder, tmp_path)


@pytest.mark.slow
def test_a_poisoned_block_is_named_and_the_local_engine_finishes(nodes, small, folder, tmp_path):
    queries, out = [*QUERIES[:9], Query("q 9", "poison file"), *QUERIES[10:]], tmp_path / "ray.trec"
    loaded = watched(tmp_path / "w", poison=True)
    with (
        open_engine(nodes.engine) as engine,
        pytest.raises(DrkitError, match=r"queries 9 to 12 for ray.trec: ValueError: poison"),
    ):
        search(folder, queries, out, engine, loaded)
    assert not out.exists()
    left = len(list((tmp_path / ".ray.trec.parts").iterdir()))
    search(folder, queries, out, LocalEngine(), encoder)
    assert left == 7
    assert out.read_bytes() == expected(folder, tmp_path, queries)
