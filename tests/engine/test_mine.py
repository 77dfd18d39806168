"""`drkit mine` with tasks and a cluster: the file of one process, and what is mined is kept."""

import pytest

from drkit.commands import Miners, Output, mine_to_file
from drkit.core.engine import LocalEngine
from drkit.miners import chain, sources
from tests.engine.engines import Pickling
from tests.miners.test_mine import collection, encoder  # noqa: F401

FILES = {
    "words": (["bm25"], "ids"),
    "vectors": (["dense", "ranks:2-9"], "triplets"),
    "both": (["mixed", "same-text"], "sentence-transformers"),
}


@pytest.fixture
def to_file(collection, encoder, tmp_path):  # noqa: F811
    """Mines the queries of a collection into a file; returns its content and the counts."""

    def call(name, path, engine=None, **options):
        names, kind = FILES[name]
        miners = Miners(names, encoder=str(encoder) if name != "words" else None, seed=5)
        counts = mine_to_file(f"beir:{collection}", miners, Output(path, kind), engine=engine, **options)
        return path.read_bytes(), counts

    return call


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_that_of_one_process(to_file, tmp_path, name):
    engine, seen = Pickling(), []
    found = to_file(name, tmp_path / "tasks.jsonl", engine, on_progress=lambda done, total: seen.append((done, total)))
    assert found == to_file(name, tmp_path / "local.jsonl")
    assert len(found[0].splitlines()) > 9
    assert seen[-1] == (12, 12)
    mined = {engine.uses[task] for task in engine.names if task.startswith("negatives of queries")}
    assert mined == {"core" if name == "words" else "gpu"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local.jsonl", "tasks.jsonl"]


@pytest.mark.parametrize("rest", [LocalEngine(), Pickling()], ids=["local", "other"])
@pytest.mark.parametrize("name", ["words", "vectors"])
def test_an_interrupted_file_is_finished_by_either_engine(to_file, tmp_path, monkeypatch, name, rest):
    monkeypatch.setattr(chain, "QUERIES_PER_BLOCK", 2)
    monkeypatch.setattr(sources.SearchLimits, "queries_per_batch", 2)
    expected, path = to_file(name, tmp_path / "local.jsonl"), tmp_path / "tasks.jsonl"
    with pytest.raises(KeyboardInterrupt):
        to_file(name, path, Pickling(at="negatives of queries 9 to 10"))
    parts = tmp_path / ".tasks.jsonl.parts"
    kept = {file: file.stat().st_mtime_ns for file in parts.glob("0*")}
    assert len(kept) == 4
    with pytest.raises(KeyboardInterrupt):
        to_file(name, path, Pickling(window=1, at="negatives of queries 9 to 10"))
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert to_file(name, path, rest) == expected
    assert not parts.exists()


@pytest.mark.slow
def test_the_command_writes_the_file_of_the_local_engine(nodes, collection, encoder, tmp_path, run_drkit):  # noqa: F811
    base = ["mine", "--collection", f"beir:{collection}", "--miner", "dense", "--encoder", encoder]
    code, out, err = run_drkit(*base, "-o", tmp_path / "local.jsonl", "--json")
    assert code == 0, err
    code, other, err = run_drkit(*base, "-o", tmp_path / "ray.jsonl", "--engine", nodes.engine, "--json")
    assert code == 0, err
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert other.replace("ray.jsonl", "local.jsonl") == out
