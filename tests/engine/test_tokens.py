"""Tokens from tasks and from a cluster: the store of one process; lost workers, poisoned blocks, interruptions."""

import os
import signal
from pathlib import Path

import pytest

from drkit.core.engine import Loaded, LocalEngine, open_engine
from drkit.core.file_chunks import FileChunks
from drkit.core.types import Passage
from drkit.data import store
from drkit.data.corpus import StoredCorpus
from drkit.data.store import TokenStore, tokenise, tokenise_in_blocks
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from tests.engine.encoders import wait_until_allowed
from tests.engine.engines import Pickling
from tests.engine.test_encoding import in_the_middle, watched, workers
from tests.search.toys import tokenizer

WORDS = ["remove", "a", "suffix", "zebra", "", "from each file", "[MASK]", "file " * 30]


class Texts:
    """A collection of 50 passages, without queries."""

    name = "texts"

    def passages(self):
        return (Passage(f"d {n}", f"{WORDS[n % 8]} {WORDS[n % 7]}".strip()) for n in range(50))

    def splits(self):
        return ()

    def describe(self):
        return {}


class Watched(StoredCorpus):
    """A corpus that waits for the file `go`, and cannot read passage 20 as long as there is a file `poison`."""

    def __init__(self, folder, watch):
        super().__init__(folder)
        self.watch = Path(watch)

    def at(self, indices):
        wait_until_allowed(self.watch)
        if (self.watch / "poison").exists() and 20 in indices:
            raise ValueError("poison")
        return super().at(indices)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 8 passages, tokenised 4 at a time."""
    monkeypatch.setattr(store, "TEXTS_PER_BLOCK", 8)
    monkeypatch.setattr(store, "_TEXTS_AT_ONCE", 4)


@pytest.fixture(scope="module")
def passages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collection")
    write_collection(Texts(), folder)
    return folder / "passages"


def here(passages, folder, **options):
    counts = tokenise(((p.doc_id, p.content) for p in StoredCorpus(passages)), tokenizer(), folder, **options)
    return (folder / store.FILE).read_bytes(), counts


def in_tasks(corpus, folder, engine, *, max_length=12, **options):
    parts, given = FileChunks(folder / "parts"), (corpus, Loaded(tokenizer), folder)
    counts = tokenise_in_blocks(*given, max_length=max_length, parts=parts, engine=engine, **options)
    assert not parts.folder.exists()
    return (folder / store.FILE).read_bytes(), counts


@pytest.mark.parametrize("prompt", ["", "file: "])
@pytest.mark.parametrize("max_length", [12, 40_000])
def test_the_store_is_that_of_one_process(passages, tmp_path, prompt, max_length):
    engine, seen, options = Pickling(), [], {"prompt": prompt, "max_length": max_length}
    found = in_tasks(Loaded(StoredCorpus, passages), tmp_path / "tasks", engine, on_progress=seen.append, **options)
    assert found == here(passages, tmp_path / "here", **options)
    assert sorted(engine.names)[:2] == ["tokens of passages 1 to 8", "tokens of passages 17 to 24"]
    assert seen == [8, 16, 24, 32, 40, 48, 50]
    assert len(TokenStore.open(tmp_path / "tasks")) == found[1]["texts"] == 50
    assert (found[1]["truncated"] > 0) == (max_length == 12)


@pytest.mark.parametrize("rest", [LocalEngine(), Pickling()], ids=["local", "other"])
def test_finished_blocks_are_kept(passages, tmp_path, rest):
    corpus = Loaded(StoredCorpus, passages)
    with pytest.raises(KeyboardInterrupt):
        in_tasks(corpus, tmp_path / "tasks", Pickling(after=4))
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["parts"]
    assert len([*(tmp_path / "tasks" / "parts").iterdir()]) == 4
    seen = []
    found = in_tasks(corpus, tmp_path / "tasks", rest, on_progress=seen.append)
    assert found == here(passages, tmp_path / "here", max_length=12)
    assert len(seen) == 3


def test_a_prompt_without_room_is_refused_before_any_task(passages, tmp_path):
    engine = Pickling()
    with pytest.raises(DrkitError, match="leaves no room for text"):
        in_tasks(Loaded(StoredCorpus, passages), tmp_path / "t", engine, max_length=4, prompt="remove suffix file ")
    assert engine.names == []


@pytest.mark.slow
def test_a_cluster_writes_the_same_store_though_a_worker_is_killed(nodes, passages, tmp_path):
    watch = tmp_path / "w"
    watched(watch, go=False)
    thread = in_the_middle(watch, lambda: os.kill(min(workers(watch) - {os.getpid()}), signal.SIGKILL))
    with open_engine(nodes.engine) as engine:
        found = in_tasks(Loaded(Watched, passages, str(watch)), tmp_path / "ray", engine)
    thread.join()
    assert found == here(passages, tmp_path / "here", max_length=12)


@pytest.mark.slow
def test_a_poisoned_block_is_named_and_the_local_engine_finishes(nodes, passages, tmp_path):
    watch = tmp_path / "w"
    watched(watch, poison=True)
    message = "tokens of passages 17 to 24: ValueError: poison"
    with open_engine(nodes.engine) as engine, pytest.raises(DrkitError, match=message):
        in_tasks(Loaded(Watched, passages, str(watch)), tmp_path / "ray", engine)
    assert len([*(tmp_path / "ray" / "parts").glob("0*")]) == 6
    found = in_tasks(Loaded(StoredCorpus, passages), tmp_path / "ray", LocalEngine())
    assert found == here(passages, tmp_path / "here", max_length=12)
