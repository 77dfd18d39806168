"""A collection on disk, memory-mapped: passages by index and id; queries, judgements and negatives by split."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from drkit.core.checksums import check_unchanged
from drkit.core.types import Judgement, Passage, Query
from drkit.data.arrays import Arrays, ArrayWriter, check_batch, read_batches
from drkit.data.merging import Spilled, key_ranges, spill
from drkit.data.preview import text_hash
from drkit.data.splits import PSEUDO, SPLITS
from drkit.errors import DrkitError

_LOGGER = logging.getLogger(__name__)
TEXTS_FILE, _INDEX = "texts.arrow", "ids.arrow"
# The columns of `ids.arrow`; the second has its name from the first version of the format.
_HASHES, _INDICES = "hashes", "places"
_SHOWN = 5
_REMEMBERED = 2**17
_HASHES_AT_ONCE = 2**18


class IndexWriter:
    """Writes the index of the ids of passages, which are added in the order of the passages, in bounded memory."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count, self._waiting = folder, 0, list[NDArray[np.uint64]]()
        self._runs: list[tuple[Spilled, Spilled]] = []

    def __len__(self) -> int:
        return self._count + sum(map(len, self._waiting))

    def __enter__(self) -> IndexWriter:
        self._scratch = tempfile.TemporaryDirectory(dir=self._folder, prefix=".ids-")
        return self

    def __exit__(self, *_error: object) -> None:
        self._scratch.cleanup()

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add the hashes u64[n] of the ids of the next passages."""
        self._waiting.append(hashes)
        if len(self) - self._count >= _HASHES_AT_ONCE:
            self._spill()

    def finish(self) -> None:
        """Write the index; ids that share a hash stay in the order of their passages."""
        self._spill()
        with ArrayWriter(self._folder / _INDEX, {_HASHES: np.uint64, _INDICES: np.int64}) as writer:
            for slices in key_ranges([hashes for hashes, _ in self._runs], _HASHES_AT_ONCE):
                pieces = [(run[0][rows], run[1][rows]) for run, rows in zip(self._runs, slices, strict=True)]
                hashes, indices = (np.concatenate(column) for column in zip(*pieces, strict=True))
                order = np.argsort(hashes, kind="stable")
                writer.append(**{_HASHES: hashes[order], _INDICES: indices[order]})

    def _spill(self) -> None:
        hashes = np.concatenate([np.empty(0, np.uint64), *self._waiting])
        order = np.argsort(hashes, kind="stable")
        file = f"{self._scratch.name}/{self._count}"
        self._runs.append((spill(hashes[order], f"{file}.hashes"), spill(order + self._count, f"{file}.indices")))
        self._count, self._waiting = self._count + len(hashes), []


class MappedTable:
    """A memory-mapped Arrow file of several record batches, read as a stream of rows or by row indices.

    A batch is validated before it is first read: to do so for all texts takes as long as to read them.

    Raises DrkitError if the file is missing or not an Arrow file, and later if a batch that is read is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._batches, self._valid = path, read_batches(path, whole=False), set[int]()
        self.starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row as a tuple of values; one record batch is held at a time."""
        for number in range(len(self._batches)):
            yield from zip(*(column.to_pylist() for column in self._batch(number).columns), strict=True)

    def column(self, name: str) -> Iterator[Any]:
        """Yield every value of a column; reads no other column."""
        for number in range(len(self._batches)):
            yield from self._batch(number).column(name).to_pylist()

    def take(self, indices: NDArray[np.int64]) -> list[tuple[Any, ...]]:
        """Return the rows at these indices, in this order."""
        columns = (self._column(name, indices) for name in self._batches[0].schema.names) if len(indices) else ()
        return list(zip(*columns, strict=True))

    def take_first_column(self, indices: NDArray[np.int64]) -> list[Any]:
        """Return the values of the first column at these indices, in this order; reads no other column."""
        return self._column(self._batches[0].schema.names[0], indices) if len(indices) else []

    def _column(self, name: str, indices: NDArray[np.int64]) -> list[Any]:
        for number in np.unique(np.searchsorted(self.starts, indices, side="right") - 1).tolist():
            self._batch(number)
        return take_values([batch.column(name) for batch in self._batches], self.starts, indices)

    def _batch(self, number: int) -> Any:
        if number not in self._valid:
            check_batch(self._batches[number], self._path)
            self._valid.add(number)
        return self._batches[number]


def take_values(chunks: Sequence[Any], starts: NDArray[np.int64], indices: NDArray[np.int64]) -> list[Any]:
    """Return the values at indices i64[n] of an Arrow column in chunks, whose first indices are `starts` i64[C+1].

    `ChunkedArray.take` copies the whole column in each call.

    >>> take_values([pa.array(["a", "b"]), pa.array(["c"])], np.array([0, 2, 3]), np.array([2, 0, 1, 2]))
    ['c', 'a', 'b', 'c']
    """
    if not len(indices):
        return []
    chunk_of = np.searchsorted(starts, indices, side="right") - 1
    order = np.argsort(chunk_of, kind="stable")
    numbers, firsts = np.unique(chunk_of[order], return_index=True)
    members = zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True)
    taken = pa.concat_arrays([chunks[n].take(pa.array(indices[own] - starts[n])) for n, own in members])
    values: list[Any] = taken.take(pa.array(np.argsort(order))).to_pylist()
    return values


class StoredCorpus:
    """Passages on disk, read by index and by id; picklable, each process maps the files itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._table = MappedTable(self.folder / TEXTS_FILE)
        index = Arrays(self.folder / _INDEX)
        self._hashes: NDArray[np.uint64] = index[_HASHES]
        self._indices: NDArray[np.int64] = index[_INDICES]
        self._known: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[StoredCorpus], tuple[Path]]:
        return StoredCorpus, (self.folder,)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Passage]:
        return (Passage(doc_id, text, title) for doc_id, title, text in self._table.rows())

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in this order. Raises DrkitError for an unknown id."""
        return self.at(self.positions(doc_ids))

    def at(self, indices: Sequence[int] | NDArray[np.int64]) -> list[Passage]:
        """Return the passages at these indices, in this order."""
        rows = self._table.take(np.asarray(indices, dtype=np.int64))
        return [Passage(doc_id, text, title) for doc_id, title, text in rows]

    def ids(self) -> Iterator[str]:
        """Iterate over the ids of all passages, in the order of the passages."""
        return self._table.column("doc_id")

    def ids_at(self, indices: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of the passages at these indices, in this order; reads no text."""
        return self._table.take_first_column(np.asarray(indices, dtype=np.int64))

    def positions(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index i64[n] of each id. Raises DrkitError for an unknown id."""
        indices = self.find(doc_ids)
        if (indices < 0).any():
            unknown = [doc_ids[int(i)] for i in np.flatnonzero(indices < 0)[:_SHOWN]]
            raise DrkitError(
                f"unknown passage {', '.join(map(repr, unknown))}; use the ids of the collection", where=self.folder
            )
        return indices

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index i64[n] of each id, or -1 if it is unknown.

        Many ids at once are found by one pass over the files, which matters where these do not fit memory. Remembers up
        to 131,072 ids, or those of the last call: ids mined for one query are often mined for others.
        """
        new = [doc_id for doc_id in dict.fromkeys(doc_ids) if doc_id not in self._known]
        if len(self._known) + len(new) > _REMEMBERED:
            self._known, new = {}, list(dict.fromkeys(doc_ids))
        if new:
            found = find_ids(new, self._hashes, self._indices, self._table.take_first_column)
            self._known.update(zip(new, found.tolist(), strict=True))
        return np.fromiter(map(self._known.__getitem__, doc_ids), np.int64, len(doc_ids))

    def duplicates(self) -> Iterator[tuple[str, int, int]]:
        """Iterate over (id, first index, later index) of every id that occurs twice."""
        return equal_ids(self._hashes, self._indices, self._table.take_first_column)


class QueryIds:
    """The ids of queries, by their indices.

    >>> QueryIds(["b", "a"]).find(["a", "c"]).tolist(), QueryIds(["b", "a"]).ids_at([1])
    ([1, -1], ['a'])
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = list(ids)
        self._known = {query_id: index for index, query_id in enumerate(self._ids)}

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index of each id, i64[n], or -1 if it is unknown."""
        return np.array([self._known.get(query_id, -1) for query_id in ids], dtype=np.int64)

    def ids_at(self, indices: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids at these indices, in this order."""
        return [self._ids[int(index)] for index in indices]


PASSAGES_FOLDER = "passages"
QUERIES_FILE, JUDGEMENTS, NEGATIVES_FILE = "queries.arrow", "judgements.arrow", "negatives.arrow"
SCORES_FILE, ANSWERS = "teacher-scores.arrow", "answers.arrow"


def open_collection(folder: Path, pseudo: Path | None = None) -> StoredCollection:
    """Open the collection that `write_collection` wrote to `folder`.

    pseudo: the folder of a further split, the queries that a run made from held-out passages.

    Raises DrkitError if it is missing or damaged, or, in a run, has changed since it was written.
    """
    folder = Path(folder)
    check_unchanged(folder)
    _LOGGER.info("opening the collection %s", folder)
    splits = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
    splits |= {PSEUDO: pseudo} if pseudo else {}
    collection = collection_of({PASSAGES_FOLDER: folder / PASSAGES_FOLDER, **splits})
    len(collection.corpus)
    return collection


def collection_of(folders: Mapping[str, Path]) -> StoredCollection:
    """Open what a stage reads of a collection: the folders `passages` and those of splits; other names are ignored."""
    splits = {split: folders[split] for split in (*SPLITS, PSEUDO) if split in folders}
    return StoredCollection(folders.get(PASSAGES_FOLDER), splits)


def read_labelled_queries(path: Path) -> Iterator[Query]:
    """Yield the queries in a split's `queries.arrow`."""
    return (Query(query_id, text) for query_id, text in MappedTable(path).rows())


class StoredCollection:
    """A collection on disk: `corpus`, and queries, judgements and given negatives by split.

    passages: the folder of the passages, or None; splits: the folders of the splits, by name.
    """

    def __init__(self, passages: Path | None, splits: Mapping[str, Path]) -> None:
        self._passages, self._splits = passages, dict(splits)

    @cached_property
    def corpus(self) -> StoredCorpus:
        """The passages. Raises DrkitError if they are missing."""
        if self._passages is None:
            raise DrkitError("this collection was opened without its passages; run the stage that writes them again")
        return StoredCorpus(self._passages)

    def splits(self) -> tuple[str, ...]:
        """Return the splits that have queries."""
        return tuple(self._splits)

    def queries(self, split: str) -> Iterator[Query]:
        """Yield the queries of a split; none if the split is missing."""
        return read_labelled_queries(self._splits[split] / QUERIES_FILE) if split in self._splits else iter(())

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Yield the judgements of a split; none if the split is missing."""
        return (Judgement(*row) for row in self._rows(split, JUDGEMENTS))

    def positives(self, split: str) -> dict[str, dict[str, int]]:
        """Return the judged positives: query id -> passage id -> relevance, in the order of the judgements."""
        found: dict[str, dict[str, int]] = {}
        for judgement in self.judgements(split):
            if judgement.relevance > 0:
                found.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.relevance
        return found

    def positives_by_text(self, split: str) -> dict[str, dict[str, int]]:
        """Return the positives of every query and of those with the same text, its own first; see `positives`.

        None of them may be a negative of the query.
        """
        judged = self.positives(split)
        alike: dict[bytes, list[str]] = {}
        for query in self.queries(split):
            alike.setdefault(text_hash(query.text), []).append(query.query_id)
        for query_ids in (ids for ids in alike.values() if len(ids) > 1):
            shared = {doc_id: grade for one in query_ids for doc_id, grade in judged.get(one, {}).items()}
            judged |= {one: {**judged.get(one, {}), **shared} for one in query_ids if shared}
        return judged

    def positive_indices(self, split: str) -> dict[str, NDArray[np.int64]]:
        """Return the judged positives by their indices in the corpus: query id -> indices i64[n]."""
        return self._indices_of(self.positives(split))

    def indices_by_text(self, split: str) -> dict[str, NDArray[np.int64]]:
        """Return `positives_by_text` by their indices in the corpus: query id -> indices i64[n]."""
        return self._indices_of(self.positives_by_text(split))

    def _indices_of(self, judged: Mapping[str, Mapping[str, int]]) -> dict[str, NDArray[np.int64]]:
        return {query: np.asarray(self.corpus.positions(list(docs))) for query, docs in judged.items()}

    def negatives(self, split: str) -> dict[str, list[str]]:
        """Return the collection's own negatives: query id -> passage ids, each once and never a judged positive.

        Negatives of the training file come first, in its order; then passages judged not relevant. Queries without
        negatives are left out.
        """
        positives = self.positives_by_text(split)
        found: dict[str, dict[str, None]] = {}
        irrelevant = ((item.query_id, item.doc_id) for item in self.judgements(split) if item.relevance <= 0)
        for query_id, doc_id in chain(self._rows(split, NEGATIVES_FILE), irrelevant):
            if doc_id not in positives.get(query_id, ()):
                found.setdefault(query_id, {})[doc_id] = None
        return {query_id: list(doc_ids) for query_id, doc_ids in found.items()}

    def teacher_scores(self, split: str) -> dict[str, dict[str, float]]:
        """Return the teacher's scores that came with the collection: query id -> passage id -> score."""
        found: dict[str, dict[str, float]] = {}
        for query_id, doc_id, score in self._rows(split, SCORES_FILE):
            found.setdefault(query_id, {}).setdefault(doc_id, score)
        return found

    def answers(self, split: str) -> dict[str, tuple[str, ...]]:
        """Return the answers that came with the training queries, by query id."""
        return {query_id: tuple(json.loads(text)) for query_id, text in self._rows(split, ANSWERS)}

    def _rows(self, split: str, name: str) -> Iterator[tuple[Any, ...]]:
        path = self._splits[split] / name if split in self._splits else None
        return MappedTable(path).rows() if path is not None and path.is_file() else iter(())


def id_hash(identifier: str) -> int:
    """Return the first 64 bits of an id's BLAKE2b; stored indexes hold them, so they must never change."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "little")


def equal_ids(
    hashes: NDArray[np.uint64], indices: NDArray[np.int64], ids_at: Callable[[NDArray[np.int64]], Sequence[str]]
) -> Iterator[tuple[str, int, int]]:
    """Yield (id, first index, later index) of every id that occurs twice; the arguments are those of `find_ids`."""
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        some = hashes[start : start + _HASHES_AT_ONCE + 1]
        for slot in np.flatnonzero(some[1:] == some[:-1]) + start:
            pair = np.asarray(indices[slot : slot + 2])
            first, later = ids_at(pair)
            if first == later:
                yield first, int(pair[0]), int(pair[1])


def find_ids(
    ids: Sequence[str],
    hashes: NDArray[np.uint64],
    indices: NDArray[np.int64],
    ids_at: Callable[[NDArray[np.int64]], Sequence[str]],
) -> NDArray[np.int64]:
    """Return the index i64[n] of each id, or -1 if it is unknown.

    hashes: of all known ids, sorted; indices: the index of the id behind each hash; ids_at: returns the ids at indices.

    >>> known = ["b", "a"]
    >>> hashes = np.array([id_hash(name) for name in known], dtype=np.uint64)
    >>> order = np.argsort(hashes)
    >>> find_ids(["a", "c"], hashes[order], order, lambda indices: [known[i] for i in indices]).tolist()
    [1, -1]
    """
    sought = np.fromiter(map(id_hash, ids), dtype=np.uint64, count=len(ids))
    # In the order of the hashes, which may be those of a mapped file.
    order = np.argsort(sought)
    slots, found = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    slots[order] = np.minimum(np.searchsorted(hashes, sought[order]), len(hashes) - 1)
    found[order] = np.where(hashes[slots[order]] == sought[order], indices[slots[order]], -1)
    hits = np.flatnonzero(found >= 0)
    for i, name in zip(hits.tolist(), ids_at(found[hits]), strict=True):
        if name != ids[i]:  # several ids share this hash
            same = np.asarray(indices[slots[i] : int(np.searchsorted(hashes, sought[i], side="right"))])
            found[i] = next((index for index, other in zip(same, ids_at(same), strict=True) if other == ids[i]), -1)
    return found
