"""A teacher's scores of every query's positives and negatives, and their agreement with the judgements.

Scores are computed in blocks, on disk, and looked up by index. A block is a fixed range of queries, so the scores are
the same for any number of processes and interruptions: a kill loses only the current block.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from drkit.core.engine import Engine, Loaded, Task, count_done, loaded_value
from drkit.core.progress import Progress
from drkit.core.protocols import PairScorer
from drkit.core.quantities import counted
from drkit.core.types import Query
from drkit.data.arrays import arrow_file, read_batches, record_batch
from drkit.data.corpus import StoredCorpus
from drkit.errors import DrkitError
from drkit.train.columns import COLUMN_FILE, ColumnInfo, column_schema, read_info

_Indices = NDArray[np.int64]

BLOCK_PAIRS = 8192
# Pairs between two reports of progress within a block.
REPORTED_PAIRS = 1024


@frozen(eq=False)
class ScoreRequest:
    """Passages i64[n], ascending, to score for one query; index: of the query among the training queries."""

    index: int
    query: Query
    passages: _Indices


@frozen(eq=False)
class ScoreBlocks:
    """Computes scores in blocks, in a folder that several processes may share.

    scorer: anything with `score(pairs)`, `Loaded` for an engine of several machines; teacher: identifies it (a hash of
    its weights), and blocks of another teacher are computed again. blocks: the folder of the blocks. rank, processes:
    this process computes every n-th block.
    """

    scorer: PairScorer | Loaded[PairScorer]
    teacher: str
    corpus: StoredCorpus
    blocks: Path
    rank: int = 0
    processes: int = 1

    def make(
        self, requests: Sequence[ScoreRequest], progress: Progress, engine: Engine | None = None
    ) -> dict[str, float]:
        """Compute the missing blocks of this process; returns the number of pairs scored now, and the seconds.

        engine: where blocks are computed, a task each; in this process if None. Raises DrkitError for blocks that fail.
        """
        total, started = sum(len(request.passages) for request in requests), time.perf_counter()
        passed = scored = 0

        def missing() -> Iterator[Task[Iterator[int]]]:
            nonlocal passed
            for number, block in enumerate(cut_blocks(requests)):
                if number % self.processes == self.rank and not self._is_finished(number):
                    yield Task(
                        f"block {number} of the teacher's scores", ScoreBlocks.score, (self, number, block), "gpu"
                    )
                else:
                    passed += sum(len(request.passages) for request in block)
                    progress.advance(passed + scored, total, "pairs")

        for pairs in count_done(missing(), engine):
            scored += pairs
            progress.advance(passed + scored, total, "pairs")
        return {"scored": scored, "seconds": time.perf_counter() - started}

    def join(self, requests: Sequence[ScoreRequest], folder: Path) -> Path:
        """Join all blocks into one file in `folder`, atomically.

        Raises DrkitError if a block is missing, or holds the scores of another teacher.
        """
        numbers = range(sum(1 for _ in cut_blocks(requests)))
        missing = [number for number in numbers if not self._is_finished(number)]
        if missing:
            raise DrkitError(
                f"block {missing[0]} of the teacher's scores is missing in {self.blocks}; run the stage again"
            )
        batches = (batch for number in numbers for batch in read_batches(self._path(number)))
        return self._write(folder / COLUMN_FILE, batches)

    @property
    def _schema(self) -> Any:
        return column_schema(ColumnInfo(self.teacher))

    def score(self, number: int, block: Sequence[ScoreRequest]) -> Iterator[int]:
        """Score a block and write it; yields how many pairs more are scored. Raises DrkitError for a NaN."""
        indices = np.unique(np.concatenate([request.passages for request in block]))
        texts = dict(zip(indices.tolist(), (p.content for p in self.corpus.at(indices)), strict=True))
        pairs = [(request.query.text, texts[index]) for request in block for index in request.passages.tolist()]
        scored = []
        for start in range(0, len(pairs), REPORTED_PAIRS):
            some = pairs[start : start + REPORTED_PAIRS]
            scored.append(np.asarray(loaded_value(self.scorer).score(some), dtype=np.float32))
            _check(scored[-1], some)
            yield len(some)
        scores = np.concatenate(scored)
        ends = np.cumsum([len(request.passages) for request in block])
        columns = (
            [request.index for request in block],
            [request.query.query_id for request in block],
            [request.passages for request in block],
            np.split(scores, ends[:-1]),
        )
        self._write(self._path(number), [record_batch(columns, self._schema)])

    def _write(self, path: Path, batches: Iterable[Any]) -> Path:
        with arrow_file(path, self._schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return path

    def _is_finished(self, number: int) -> bool:
        """Return whether a block is there, intact, and of this teacher."""
        path = self._path(number)
        try:
            return path.is_file() and bool(read_batches(path)) and read_info(path).source == self.teacher
        except DrkitError:
            return False

    def _path(self, number: int) -> Path:
        return self.blocks / f"block-{number:07d}.arrow"


def cut_blocks(requests: Sequence[ScoreRequest], pairs: int | None = None) -> Iterator[list[ScoreRequest]]:
    """Yield ranges of queries with about `pairs` pairs each (default 8192), without splitting a query."""
    limit = BLOCK_PAIRS if pairs is None else pairs
    block: list[ScoreRequest] = []
    count = 0
    for request in requests:
        block.append(request)
        count += len(request.passages)
        if count >= limit:
            yield block
            block, count = [], 0
    if block:
        yield block


def _check(scores: NDArray[np.float32], pairs: Sequence[tuple[str, str]]) -> None:
    if scores.shape != (len(pairs),):
        raise DrkitError(
            f"the teacher returned scores of shape {scores.shape} for {len(pairs)} pairs, expected one score per pair"
        )
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        query, passage = pairs[int(wrong[0])]
        raise DrkitError(
            f"the teacher's score of the query {query[:50]!r} and the passage {passage[:50]!r} is not finite: "
            f"its training may have diverged. Lower its learning rate, or use another teacher."
        )


@define
class Agreement:
    """The agreement of a teacher with the judgements, over queries with both positives and negatives.

    queries: number of queries; first: number of queries whose best score is a positive's; expected: the same number for
    random scores.

    >>> agreement = Agreement()
    >>> agreement.add([2.0], [1.0, 0.5]); agreement.add([1.0], [3.0, 0.5])
    >>> agreement.share, round(agreement.chance, 2)
    (0.5, 0.33)
    """

    queries: int = 0
    first: int = 0
    expected: float = 0.0
    _variance: float = 0.0

    def add(self, positives: Sequence[float], negatives: Sequence[float]) -> None:
        """Add the scores of one query's positives and negatives; a positive that ties with a negative is not first."""
        if not len(positives) or not len(negatives):
            return
        chance = len(positives) / (len(positives) + len(negatives))
        self.queries += 1
        self.first += max(positives) > max(negatives)
        self.expected += chance
        self._variance += chance * (1 - chance)

    @property
    def share(self) -> float:
        """The share of queries whose best score is a positive's. Raises DrkitError without queries."""
        return self.first / self._counted()

    @property
    def chance(self) -> float:
        """The share that random scores would have. Raises DrkitError without queries."""
        return self.expected / self._counted()

    @property
    def is_chance(self) -> bool:
        """Whether `first` is at most two standard deviations above the number expected by chance."""
        return self.first <= self.expected + 2 * sqrt(self._variance)

    def summary(self) -> str:
        """Return the agreement in a sentence, with a warning if chance explains it."""
        if not self.queries:
            return "the teacher's agreement is unknown: no query has both a positive and a negative"
        text = (
            f"the teacher scores a positive above every negative for {self.share:.1%} of "
            f"{counted(self.queries, 'query')} "
            f"(expected by chance: {self.chance:.1%})"
        )
        if self.is_chance:
            text += (
                ". That is not above chance, so its scores are noise: train it longer, train it on easier "
                "negatives, or use a trained one (reranker.pretrained, teacher)"
            )
        return text

    def metrics(self) -> dict[str, Any]:
        """Return plain numbers for a manifest; empty without queries."""
        return {"positive_first": round(self.share, 4), "by_chance": round(self.chance, 4)} if self.queries else {}

    def _counted(self) -> int:
        if not self.queries:
            raise DrkitError("the agreement is undefined: no query has both a positive and a negative")
        return self.queries
