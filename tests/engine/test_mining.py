"""Negatives from tasks: those of one process, in the same batches; poisoned and interrupted mining is resumed."""

import os
import signal

import numpy as np
import pytest

from drkit.core.engine import Loaded, LocalEngine, open_engine
from drkit.core.file_chunks import FileChunks, items_of
from drkit.core.registry import installed
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners import chain, filters, sources
from drkit.miners.blocks import chain_text, mined_blocks, open_chain, read_mined, write_mined
from drkit.miners.chain import build_chain, model_hashes, parse_chain
from drkit.search import FlatIndex, Retriever, Vectors, encode_corpus
from drkit.testing.toys import ToyCorpus, ToyReranker, toy_requests
from tests.engine.encoders import Watched
from tests.engine.engines import Pickling
from tests.engine.test_encoding import in_the_middle, watched, workers
from tests.runs.damages import DAMAGES
from tests.search.test_encoding import encoder

REQUESTS = [*toy_requests(70)]
CHAINS = {
    "bm25": ["bm25"],
    "dense": ["dense"],
    "both": ["mixed"],
    "fused": ["hybrid", "margin"],
    "drawn": ["random"],
    "filtered": ["dense", "ranks:2-9", "same-text"],
    "scored": ["bm25", "cross-encoder-filter"],
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Batches of 16 queries, of 3 for a filter, and blocks of at least 10."""
    monkeypatch.setattr(chain, "QUERIES_PER_BLOCK", 10)
    monkeypatch.setattr(sources, "MAX_QUERIES", 16)
    monkeypatch.setattr(filters, "_QUERIES_PER_BATCH", 3)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors") / "v"
    encode_corpus(encoder(), [(passage.doc_id, passage.content) for passage in ToyCorpus()], folder)
    return folder


def context(vectors, watch=None):
    made_by = Watched(watch) if watch else encoder()
    retriever = Retriever(made_by, FlatIndex.over(Vectors.open(vectors)))
    return BuildContext(retriever=retriever, reranker=ToyReranker(), seed=3)


def opened(vectors, watch=None):
    """The context and the corpus, in a worker."""
    return context(vectors, watch), ToyCorpus()


class Mining:
    """A chain by the names of its miners, in this process and in tasks."""

    def __init__(self, names, vectors, folder, watch=None):
        here, registry = context(vectors), installed().registry
        choices = parse_chain(names, (), registry)
        self.chain = build_chain(choices, registry, here)
        self.parts = FileChunks(folder / "parts")
        given = (vectors, watch) if watch else (vectors,)
        weights = tuple(model_hashes(here).items())
        self.chain.save_index(folder / "index", ToyCorpus())
        self.loaded = Loaded(open_chain, chain_text(choices), opened, given, folder / "index", weights)

    def here(self, requests=REQUESTS):
        self.chain.index(ToyCorpus())
        return [*self.chain.mine(requests, self.chain.depth)]

    def on(self, engine, requests=REQUESTS, state=None, **options):
        size = self.chain.queries_per_block(self.chain.depth)
        blocks = mined_blocks(self.loaded, requests, self.chain.depth, size, state)
        return [*items_of(blocks, write=write_mined, read=read_mined, kept=self.parts, engine=engine, **options)]


@pytest.mark.parametrize("names", CHAINS.values(), ids=CHAINS)
def test_tasks_mine_what_one_process_does(vectors, tmp_path, names):
    mining, engine, seen = Mining(names, vectors, tmp_path), Pickling(), []
    found = mining.on(engine, on_progress=seen.append)
    assert found == mining.here()
    assert sum(len(one.doc_ids) for one in found) > 0
    assert (len(engine.names) > 4, max(seen)) == (True, 70)


@pytest.mark.parametrize(("names", "size"), [("bm25", 10), ("dense", 16), ("scored", 12), ("both", 16)])
def test_blocks_hold_whole_batches(vectors, tmp_path, names, size):
    assert Mining(CHAINS[names], vectors, tmp_path).chain.queries_per_block(200) == size


def test_a_block_is_a_multiple_of_all_batches(vectors, tmp_path):
    assert Mining(["dense", "cross-encoder-filter"], vectors, tmp_path).chain.queries_per_block(200) == 48


def test_workers_do_not_index_the_passages_for_bm25(vectors, tmp_path, monkeypatch):
    mining = Mining(["bm25"], vectors, tmp_path)
    expected = mining.here()
    monkeypatch.setattr(sources.Bm25Miner, "index", lambda *_: pytest.fail("a worker indexes the passages"))
    assert mining.on(Pickling()) == expected
    mining.chain.save_index(tmp_path / "index", ToyCorpus())  # kept


@pytest.mark.parametrize("rest", [LocalEngine(), Pickling()], ids=["local", "other"])
def test_interrupted_mining_goes_on_with_either_engine(vectors, tmp_path, rest):
    mining = Mining(["dense"], vectors, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        mining.on(Pickling(after=2))
    kept = {path: path.stat().st_mtime_ns for path in mining.parts.folder.iterdir()}
    assert len(kept) == 2
    assert mining.on(rest) == mining.here()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_saved_index_that_was_damaged_is_made_again(vectors, tmp_path, damage):
    folder, made = tmp_path / "index", Mining(["bm25"], vectors, tmp_path).chain
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(max(folder.iterdir(), key=lambda path: path.stat().st_size))
    made.save_index(folder, ToyCorpus())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("rest", [LocalEngine(), Pickling()], ids=["local", "other"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_kept_block_that_was_damaged_is_mined_again(vectors, tmp_path, rest, damage):
    mining = Mining(["dense"], vectors, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        mining.on(Pickling(after=2))
    damaged, intact = sorted(mining.parts.folder.iterdir())
    damage(damaged)
    before = intact.stat().st_mtime_ns
    assert mining.on(rest) == mining.here()
    assert intact.stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["state", "queries"])
def test_blocks_of_other_mining_are_not_used(vectors, tmp_path, change):
    mining, again = Mining(["bm25"], vectors, tmp_path), Pickling()
    first = mining.on(Pickling(), state=["one"])
    requests = [*toy_requests(71)][1:] if change == "queries" else REQUESTS
    second = mining.on(again, requests, state=["two" if change == "state" else "one"])
    assert len(again.names) == 7
    assert (first == second) == (change == "state")


def test_a_worker_with_other_weights_refuses(vectors, tmp_path):
    other = {"retriever": "other"}
    text = chain_text(parse_chain(["dense"], (), installed().registry))
    with pytest.raises(DrkitError, match=r"worker .*another model"):
        open_chain(text, opened, (vectors,), tmp_path / "index", tuple(other.items()))


def test_mined_negatives_read_back_equal(tmp_path):
    mined = [
        Mined("q é", ("a", "b"), (np.nextafter(0.1, 1), -3.0), {"p": 1e-30}, {"margin": 2, "skipped": 1}),
        Mined("none", (), (), {}, {"empty-query": 1}),
    ]
    write_mined(iter(mined), tmp_path / "m.arrow")
    assert [*read_mined(tmp_path / "m.arrow")] == mined
    write_mined((), tmp_path / "none.arrow")
    assert [*read_mined(tmp_path / "none.arrow")] == []


@pytest.mark.slow
def test_a_cluster_mines_the_same_though_a_worker_is_killed(nodes, vectors, tmp_path):
    watch = tmp_path / "w"
    watched(watch, go=False)
    mining = Mining(["dense"], vectors, tmp_path, str(watch))
    thread = in_the_middle(watch, lambda: os.kill(min(workers(watch) - {os.getpid()}), signal.SIGKILL))
    with open_engine(nodes.engine) as engine:
        found = mining.on(engine)
    thread.join()
    assert found == mining.here()


@pytest.mark.slow
def test_a_poisoned_block_is_named_and_the_local_engine_finishes(nodes, vectors, tmp_path):
    watch = tmp_path / "w"
    watched(watch, poison=True)
    mining = Mining(["dense"], vectors, tmp_path, str(watch))
    requests = [*toy_requests(70)]
    requests[20] = MiningRequest("q20", "poison topic20", requests[20].positives)
    message = "negatives of queries 17 to 32: ValueError: poison"
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError, match=message):
        mining.on(engine, requests)
    assert len([*mining.parts.folder.iterdir()]) == 4
    (watch / "poison").unlink()
    assert mining.on(LocalEngine(), requests) == mining.here(requests)
