"""A teacher's scores from tasks: the blocks of one process, resumed by either engine, and a poisoned block is named."""

from functools import partial
from pathlib import Path

import pytest

from drkit.core.engine import Loaded, LocalEngine, open_engine
from drkit.core.progress import Silent
from drkit.errors import DrkitError
from tests.rerank.test_teacher_scores import Lengths, work  # noqa: F401


class Poisoned(Lengths):
    """A scorer that fails at one query, as long as a file exists."""

    def __init__(self, query, file):
        super().__init__()
        self.query, self.file = query, Path(file)

    def score(self, pairs):
        if self.file.exists() and any(query == self.query for query, _ in pairs):
            raise ValueError("no score")
        return super().score(pairs)


def written(folder):
    return {path.name: path.read_bytes() for path in folder.glob("block-*")}


@pytest.fixture
def expected(work, tmp_path):  # noqa: F811
    """The blocks that one process writes without an engine."""
    _, asked, blocks = work
    blocks(Lengths(), blocks=tmp_path / "expected").make(asked, Silent())
    return written(tmp_path / "expected")


def scored(make, engine, loaded, asked):
    return make(loaded).make(asked, Silent(), engine)["scored"]


def test_tasks_write_the_blocks_of_one_process(work, expected, tmp_path):  # noqa: F811
    _, asked, blocks = work
    pairs = sum(len(one.passages) for one in asked)
    assert scored(blocks, LocalEngine(), Loaded(Lengths), asked) == pairs
    assert written(tmp_path / "blocks") == expected
    assert scored(blocks, LocalEngine(), Loaded(Lengths), asked) == 0, "finished blocks are kept"
    assert scored(partial(blocks, teacher="two"), LocalEngine(), Loaded(Lengths), asked) == pairs, "another teacher"


@pytest.mark.slow
def test_a_poisoned_block_is_named_and_either_engine_goes_on(nodes, work, expected, tmp_path):  # noqa: F811
    _, asked, blocks = work
    poison, loaded = tmp_path / "poison", Loaded(Poisoned, asked[-1].query.text, tmp_path / "poison")
    poison.touch()
    with (
        open_engine(nodes.engine) as engine,
        pytest.raises(DrkitError, match=r"block \d of the teacher's scores: Value"),
    ):
        scored(blocks, engine, loaded, asked)
    assert 0 < len(written(tmp_path / "blocks")) < len(expected)
    poison.unlink()
    (tmp_path / "blocks" / min(expected)).unlink()
    assert scored(blocks, LocalEngine(), loaded, asked) > 0
    assert written(tmp_path / "blocks") == expected
    (tmp_path / "blocks" / max(expected)).unlink()
    with open_engine(nodes.engine) as engine:
        assert scored(blocks, engine, loaded, asked) > 0
    assert written(tmp_path / "blocks") == expected
    assert len(expected) > 2
