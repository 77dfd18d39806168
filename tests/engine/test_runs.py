"""Whole runs with an engine whose tasks are pickled and end in another order: the bytes of the local engine."""

from contextlib import contextmanager
from pathlib import Path

import pytest

from drkit.core.engine import LocalEngine
from drkit.miners import chain, sources
from drkit.search import blocks
from drkit_cli import running
from tests.engine.engines import Pickling
from tests.faults.conftest import beir  # noqa: F401
from tests.faults.test_faults import compose, contents


@pytest.fixture
def with_engine(monkeypatch, run_drkit):
    """Runs a command with an engine of the test."""

    def call(engine, *arguments):
        @contextmanager
        def given(*_):
            yield engine

        monkeypatch.setattr(running, "open_engine", given)
        return run_drkit(*arguments)

    return call


@pytest.fixture
def small(monkeypatch):
    """Blocks of a query, or 4 queries."""
    monkeypatch.setattr(blocks, "QUERIES_PER_SEARCH", 1)
    monkeypatch.setattr(blocks, "WINDOW", 1)
    monkeypatch.setattr(chain, "QUERIES_PER_BLOCK", 4)
    monkeypatch.setattr(sources, "MAX_QUERIES", 4)


@pytest.fixture(scope="module")
def known():
    """What the local engine wrote, by recipe."""
    return {}


@pytest.fixture
def local(beir, known, small, tmp_path, run_drkit):  # noqa: F811
    """Returns what the local engine writes with a recipe."""

    def contents_of(recipe):
        if recipe not in known:
            assert run_drkit(*compose(recipe, beir, tmp_path / "local"))[0] == 0
            known[recipe] = contents(tmp_path / "local")
        return known[recipe]

    return contents_of


def differing(run, expected):
    """The files that a run and the local engine's do not have in common."""
    found = contents(run)
    return [path for path in {**found, **expected} if found.get(path, "") != expected.get(path, "")]


@pytest.mark.parametrize("recipe", ["ance", "three-stage"])
def test_a_run_has_the_same_bytes(beir, tmp_path, local, with_engine, recipe):  # noqa: F811
    expected, engine = local(recipe), Pickling()
    code, _, err = with_engine(engine, *compose(recipe, beir, tmp_path / "run"))
    assert code == 0, err
    assert differing(tmp_path / "run", expected) == []
    assert "negatives of queries 5 to 6" in engine.names
    ranked = {name.partition(" for ")[2] for name in engine.names if name.startswith("queries 2 to 2 for")}
    assert ranked == {Path(path).name for path in expected if Path(path).match("*runs/*.arrow")}
    by_words = {uses for task, uses in engine.uses.items() if task.endswith("for bm25.arrow")}
    assert by_words == {"core"}


@pytest.mark.parametrize("rest", [LocalEngine(), Pickling()], ids=["local", "other"])
def test_interrupted_rankings_are_kept_by_either_engine(beir, tmp_path, local, with_engine, rest):  # noqa: F811
    expected, run, name = local("ance"), tmp_path / "run", "queries {} to {} for retriever-2.arrow".format
    with_engine(Pickling(at=name(1, 1)), *compose("ance", beir, run))
    stage = run / ".unfinished" / "choice-runs"
    finished = (stage / "retriever-1.arrow").stat().st_mtime_ns
    assert len([*(stage / "checkpoints" / "retriever-2").iterdir()]) == 1
    assert with_engine(rest, "run", run)[0] == 0
    assert differing(run, expected) == []
    assert (run / "choice-runs" / "retriever-1.arrow").stat().st_mtime_ns == finished
    if isinstance(rest, Pickling):
        assert rest.names.count(name(1, 1)) == rest.names.count(name(2, 2)) + 1
