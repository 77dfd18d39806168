"""Counts of n-grams and importance from tasks and from a cluster: the tables and values of one process."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from drkit.core.engine import open_engine
from drkit.data import counts as module
from drkit.data.counts import count_ngrams
from drkit.data.store import TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.signals.pmi import token_values
from tests.engine.encoders import wait_until_allowed
from tests.engine.engines import Pickling
from tests.engine.test_encoding import in_the_middle, watched, workers
from tests.search.toys import tokenizer

WORDS = ("remove", "a", "suffix", "from", "each", "file", "with", "zebra")


class Watched(TokenStore):
    """A store that a worker opens only once there is the file `go`, and cannot open if there is a file `poison`."""

    def __init__(self, path, watch):
        super().__init__(path)
        self.watch = Path(watch)

    def __reduce__(self):
        return open_watched, (self.path, self.watch)


def open_watched(path, watch):
    wait_until_allowed(watch)
    if (watch / "poison").exists():
        raise ValueError("poison")
    return Watched(path, watch)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts of about a hundred tokens."""
    monkeypatch.setattr(module, "_SMALLEST_CHUNK", 100)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """The token store of 300 texts, some of them empty."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("tokens")
    texts = ((str(n), " ".join(random.choice(WORDS, random.integers(0, 12)))) for n in range(300))
    tokenise(texts, tokenizer(), folder, max_length=32)
    return folder


def made(store, folder, engine, **options):
    """The bytes of all tables, and the importance of every token."""
    folder.mkdir()
    counted = count_ngrams(store, folder / "counts", window=4, min_count=2, engine=engine, **options)
    values = np.concatenate(list(token_values(store, counted, scratch=folder, engine=engine)))
    assert [path.name for path in folder.iterdir()] == ["counts"], "nothing temporary is left"
    return {path.name: path.read_bytes() for path in (folder / "counts").iterdir()}, values.tobytes()


@pytest.mark.parametrize("memory_mb", [1, 256])
def test_the_tables_are_those_of_one_process(tokens, tmp_path, memory_mb):
    engine, store = Pickling(window=3), TokenStore.open(tokens)
    found = made(store, tmp_path / "tasks", engine, memory_mb=memory_mb)
    assert found == made(store, tmp_path / "here", None)
    assert sorted(found[0]) == ["1.arrow", "2.arrow", "3.arrow", "4.arrow"]
    # Three tasks each: all orders are counted at once; for the values, they are found at once, then looked up at once.
    assert len(engine.names) == 3 * (1 + 1 + 1)
    assert engine.names[0].startswith("4-grams of")


@pytest.mark.slow
def test_a_cluster_counts_the_same_though_a_worker_is_killed(nodes, tokens, tmp_path):
    watch = tmp_path / "w"
    watched(watch, go=False)
    thread = in_the_middle(watch, lambda: os.kill(min(workers(watch) - {os.getpid()}), signal.SIGKILL))
    store = Watched(TokenStore.open(tokens).path, watch)
    with open_engine(nodes.engine) as engine:
        found = made(store, tmp_path / "ray", engine)
    thread.join()
    assert found == made(TokenStore.open(tokens), tmp_path / "here", None)


@pytest.mark.slow
def test_chunks_that_cannot_be_counted_are_named_and_nothing_is_left(nodes, tokens, tmp_path):
    watch = tmp_path / "w"
    watched(watch, poison=True)
    store = Watched(TokenStore.open(tokens).path, watch)
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError, match=r"4-grams of .* chunks of .*poison"):
        made(store, tmp_path / "ray", engine)
    assert not [*(tmp_path / "ray" / "counts").iterdir()]
