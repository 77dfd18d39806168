"""A teacher's scores of every query's positives and negatives, and how well they agree with the judgements.

Scores are made block by block, on disk, and looked up by index. A block is a fixed run of queries, so that the same
scores come out of one process or many, of one go or several: a kill costs the block at hand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from attrs import define, frozen

from drkit.core.files import replacing
from drkit.core.types import Query
from drkit.data.corpus import StoredCorpus
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.core.progress import Progress
    from drkit.search.reranking import Scorer

    Places = NDArray[np.int64]


@define
class Agreement:
    """A teacher against the judgements, counted query by query; queries without a negative do not count.

    queries: how many counted; first: of how many a positive scores best; expected: how many that were by chance.

    >>> told = Agreement()
    >>> told.add([2.0], [1.0, 0.5]); told.add([1.0], [3.0, 0.5])
    >>> told.share, round(told.chance, 2)
    (0.5, 0.33)
    """

    queries: int = 0
    first: int = 0
    expected: float = 0.0
    _variance: float = 0.0

    def add(self, positives: Sequence[float], negatives: Sequence[float]) -> None:
        """The scores of one query's positives and negatives; a tie with a negative is not first."""
        if not len(positives) or not len(negatives):
            return
        chance = len(positives) / (len(positives) + len(negatives))
        self.queries += 1
        self.first += max(positives) > max(negatives)
        self.expected += chance
        self._variance += chance * (1 - chance)

    @property
    def share(self) -> float:
        """Of these queries, the share whose best score is a positive's. Raises DrkitError where there are none."""
        return self.first / self._counted()

    @property
    def chance(self) -> float:
        """The share that scores drawn at random would have. Raises DrkitError where there are no queries."""
        return self.expected / self._counted()

    @property
    def is_chance(self) -> bool:
        """Whether so few are first that it may be by chance: within two standard deviations of it, or below."""
        return self.first <= self.expected + 2 * sqrt(self._variance)

    def in_words(self) -> str:
        """A sentence for a person; a second one where such a teacher had better not teach."""
        if not self.queries:
            return "no query has both a positive and a negative: the teacher has nothing to compare"
        found = (
            f"the teacher scores a positive above every negative for {self.share:.1%} of {self.queries:,} queries "
            f"(by chance: {self.chance:.1%})"
        )
        if self.is_chance:
            found += (
                ". That is no better than chance, and what is distilled from it is noise: train it longer, on easier "
                "negatives, or take a trained one (reranker.pretrained, teacher)"
            )
        return found

    def metrics(self) -> dict[str, Any]:
        """Plain numbers for a manifest; none where nothing was counted."""
        return {"positive_first": round(self.share, 4), "by_chance": round(self.chance, 4)} if self.queries else {}

    def _counted(self) -> int:
        if not self.queries:
            raise DrkitError("no query has both a positive and a negative: there is no share of them")
        return self.queries


FILE = "scores.arrow"
BLOCK_PAIRS = 8192
SCHEMA = pa.schema(
    [
        ("query", pa.int64()),
        ("query_id", pa.large_string()),
        ("passages", pa.list_(pa.int64())),
        ("scores", pa.list_(pa.float32())),
    ]
)
_TEACHER = b"teacher"


@frozen(eq=False)
class ScoreRequest:
    """What is to be scored for one query: its place among the training queries, and passages i64[n], ascending."""

    place: int
    query: Query
    passages: Places


@frozen(eq=False)
class ScoreBlocks:
    """Scores made block by block in a folder, which may be shared by several processes.

    scorer: anything with `score(pairs)`; teacher: what tells it from others (a hash of its weights): blocks of another
    one are made again. blocks: where they wait. rank, processes: this process takes every n-th block.
    """

    scorer: Scorer
    teacher: str
    corpus: StoredCorpus
    blocks: Path
    rank: int = 0
    processes: int = 1

    def make(self, requests: Sequence[ScoreRequest], progress: Progress) -> dict[str, float]:
        """Make the blocks of this process that do not stand yet; the pairs that it scored now, and its seconds."""
        cut = list(cut_blocks(requests))
        total = sum(len(own.passages) for own in requests)
        done = scored = 0
        started = time.perf_counter()
        for number, block in enumerate(cut):
            pairs = sum(len(own.passages) for own in block)
            if number % self.processes == self.rank and not self._stands(number):
                self._make(number, block)
                scored += pairs
            done += pairs
            progress.advance(done, total, "pairs")
        return {"scored": scored, "seconds": time.perf_counter() - started}

    def join(self, requests: Sequence[ScoreRequest], folder: Path) -> Path:
        """All blocks, as one file in `folder`, atomically.

        Raises DrkitError where one is missing, or holds the scores of another teacher.
        """
        numbers = range(sum(1 for _ in cut_blocks(requests)))
        missing = [number for number in numbers if not self._stands(number)]
        if missing:
            raise DrkitError(f"block {missing[0]} of the teacher's scores is missing in {self.blocks}; run it again")
        batches = (batch for number in numbers for batch in _batches(self._path(number)))
        return self._write(folder / FILE, batches)

    def _make(self, number: int, block: Sequence[ScoreRequest]) -> None:
        places = np.unique(np.concatenate([own.passages for own in block]))
        texts = dict(zip(places.tolist(), (p.content for p in self.corpus.at(places)), strict=True))
        pairs = [(own.query.text, texts[place]) for own in block for place in own.passages.tolist()]
        scores = np.asarray(self.scorer.score(pairs), dtype=np.float32)
        _check(scores, pairs)
        ends = np.cumsum([len(own.passages) for own in block])
        columns = (
            [own.place for own in block],
            [own.query.query_id for own in block],
            [own.passages for own in block],
            np.split(scores, ends[:-1]),
        )
        arrays = [pa.array(column, kept.type) for column, kept in zip(columns, SCHEMA, strict=True)]
        self._write(self._path(number), [pa.record_batch(arrays, schema=SCHEMA)])

    def _write(self, path: Path, batches: Iterable[Any]) -> Path:
        metadata = {_TEACHER: self.teacher.encode()}
        schema = SCHEMA.with_metadata(metadata)
        with replacing(path) as new, pa.OSFile(str(new), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(metadata))
        return path

    def _stands(self, number: int) -> bool:
        path = self._path(number)
        if not path.is_file():
            return False
        with pa.memory_map(str(path)) as source:
            found: Mapping[bytes, bytes] = pa.ipc.open_file(source).schema.metadata or {}
        return found.get(_TEACHER) == self.teacher.encode()

    def _path(self, number: int) -> Path:
        return self.blocks / f"block-{number:07d}.arrow"


def score_requests(
    queries: Sequence[Query], positives: Mapping[str, Places], negatives: Mapping[str, Places]
) -> list[ScoreRequest]:
    """Every judged query's positives and mined negatives, each passage once; places i64 by query id."""
    none = np.empty(0, dtype=np.int64)
    return [
        ScoreRequest(place, query, np.union1d(positives[query.query_id], negatives.get(query.query_id, none)))
        for place, query in enumerate(queries)
        if len(positives.get(query.query_id, ()))
    ]


def cut_blocks(requests: Sequence[ScoreRequest], pairs: int | None = None) -> Iterator[list[ScoreRequest]]:
    """Runs of queries with about `pairs` pairs each (8192); no query is cut."""
    limit = BLOCK_PAIRS if pairs is None else pairs
    block: list[ScoreRequest] = []
    count = 0
    for own in requests:
        block.append(own)
        count += len(own.passages)
        if count >= limit:
            yield block
            block, count = [], 0
    if block:
        yield block


def _check(scores: NDArray[np.float32], pairs: Sequence[tuple[str, str]]) -> None:
    if scores.shape != (len(pairs),):
        raise DrkitError(
            f"the teacher gave scores of shape {scores.shape} for {len(pairs)} pairs; one a pair is wanted"
        )
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        query, passage = pairs[int(wrong[0])]
        raise DrkitError(
            f"the teacher's score of the query {query[:50]!r} and the passage {passage[:50]!r} is no finite number: "
            f"its training may have diverged"
        )


def _batches(path: Path) -> list[Any]:
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException) as error:
        raise DrkitError(f"{path}: no file of a teacher's scores ({error}); run its stage again") from None


def read_scores(folder: Path) -> StoredScores:
    """The scores that a stage left in `folder`. Raises DrkitError where there are none."""
    return StoredScores(Path(folder) / FILE)


class StoredScores:
    """A teacher's scores, memory-mapped; picklable by path. `len` is the number of queries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        batches = [batch for batch in _batches(path) if batch.num_rows]
        if batches and not {field.name for field in SCHEMA} <= set(batches[0].schema.names):
            raise DrkitError(f"{path}: no file of a teacher's scores; run its stage again")
        self._batches = [_Batch.of(batch) for batch in batches]
        self._starts = np.array([batch.queries[0] for batch in self._batches], dtype=np.int64)

    def __reduce__(self) -> tuple[type[StoredScores], tuple[Path]]:
        return StoredScores, (self.path,)

    def __len__(self) -> int:
        return sum(len(batch.queries) for batch in self._batches)

    def row(self, query_place: int) -> tuple[Places, NDArray[np.float32]] | None:
        """The passages i64[n] that were scored for a query, ascending, and their scores f32[n]; None: it has none."""
        which = int(np.searchsorted(self._starts, query_place, side="right")) - 1
        return self._batches[which].row(query_place) if which >= 0 else None

    def lookup(self, query_place: int, passages: Places) -> NDArray[np.float32]:
        """The scores f32[n] of passages i64[n] for a query, by places in collection and training queries; NaN: none."""
        out = np.full(len(passages), np.nan, dtype=np.float32)
        found = self.row(query_place)
        if found is None:
            return out
        own, scores = found
        slots = np.minimum(np.searchsorted(own, passages), len(own) - 1)
        hit = own[slots] == passages
        out[hit] = scores[slots[hit]]
        return out


@frozen(eq=False)
class _Batch:
    """Views of one record batch: queries i64[n], ascending; passages and scores, flat; starts i32[n + 1]."""

    queries: Places
    passages: Places
    scores: NDArray[np.float32]
    starts: NDArray[np.int32]

    @classmethod
    def of(cls, batch: Any) -> _Batch:
        passages, scores = batch.column("passages"), batch.column("scores")
        return cls(
            batch.column("query").to_numpy(),
            passages.values.to_numpy(),
            scores.values.to_numpy(),
            passages.offsets.to_numpy(),
        )

    def row(self, query: int) -> tuple[Places, NDArray[np.float32]] | None:
        place = int(np.searchsorted(self.queries, query))
        if place == len(self.queries) or self.queries[place] != query:
            return None
        own = slice(self.starts[place], self.starts[place + 1])
        return self.passages[own], self.scores[own]
