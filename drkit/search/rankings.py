"""Rankings of many queries: arrays (`Rankings`), the hits of one query (`Hits`), and files of both.

Files are TREC runs, safe for any id (see `drkit.data.qrels.encode_id`), or Arrow files of the same arrays. TREC scores
are written as the shortest decimal that reads back as the same float32. Ranks follow trec_eval: by score, ties by
document id in descending order.
"""

from __future__ import annotations

import math
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve, frozen
from numpy.typing import NDArray
from pyarrow import csv

from drkit.core.files import replacing
from drkit.data.arrays import arrow_file, read_batches
from drkit.data.qrels import decode_id, encode_id, encode_ids
from drkit.data.rows import LONGEST_LINE, batched, open_bytes
from drkit.encoders.folder import TORCH
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.search.vectors import DocIds

# These decide whether two vectors can be compared; lengths and prompts may differ between queries and passages.
COMPARABLE = ("weights", "config", "tokenizer", "pooling", "normalize")


class Hits(NamedTuple):
    """The passages found for one query, best first; possibly fewer than requested.

    >>> doc_ids, scores = Hits(("d1", "d2"), (2.5, 1.0))
    >>> Hits(doc_ids, scores).without({"d1"}).top(5)
    Hits(doc_ids=('d2',), scores=(1.0,))
    """

    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]

    @classmethod
    def at(cls, doc_ids: DocIds, positions: NDArray[np.int64], scores: NDArray[np.float32]) -> Hits:
        """Return the hits at these positions i64[n] of an index, with their scores f32[n]."""
        return cls(tuple(doc_ids.take(positions)), tuple(scores.tolist()))

    def pairs(self) -> Iterator[tuple[str, float]]:
        """Yield (doc_id, score), as `write_run` takes them."""
        return zip(self.doc_ids, self.scores, strict=True)

    def top(self, depth: int, skip: int = 0) -> Hits:
        """Return at most `depth` hits, starting at rank `skip` + 1."""
        return Hits(self.doc_ids[skip : skip + depth], self.scores[skip : skip + depth])

    def without(self, doc_ids: Iterable[str]) -> Hits:
        """Return the hits without these documents, in the same order."""
        excluded = frozenset(doc_ids)
        kept = [(d, s) for d, s in self.pairs() if d not in excluded]
        return Hits(tuple(d for d, _ in kept), tuple(s for _, s in kept))


def check_queries(texts: Sequence[str]) -> None:
    """Raise DrkitError if a query is empty."""
    empty = [number for number, text in enumerate(texts, start=1) if not text.strip()]
    if empty:
        which = "the query" if len(texts) == 1 else f"query {empty[0]} of {len(texts)}"
        raise DrkitError(f"{which} is empty; it must contain at least one word")


def check_same_encoder(made_by: Mapping[str, Any] | None, encoder: Mapping[str, Any], what: str) -> None:
    """Raise DrkitError if vectors of `made_by` (None: unknown) cannot be compared with those of `encoder`."""
    changed = [key for key in COMPARABLE if made_by is not None and made_by.get(key) != encoder.get(key)]
    backends = [(one or {}).get("backend", TORCH) for one in (made_by, encoder)]
    if changed and backends[0] != backends[1]:
        raise DrkitError(
            f"{what} was built with the backend {backends[0]}, and {backends[1]} encodes the queries: search with "
            f"--backend {backends[0]}, or encode the passages again"
        )
    unknown = [key for key in changed if key not in (made_by or {})]
    if unknown:
        raise DrkitError(
            f"{what} does not record the {' and the '.join(unknown)} of its encoder, because an older version of drkit "
            f"built it, so the encoder may be another one: encode the passages again"
        )
    if changed:
        raise DrkitError(
            f"{what} was built with another encoder ({', '.join(changed)} differ): "
            f"search with that encoder, or encode the passages again"
        )


def check_one_list_per_query(lists: int, queries: int) -> None:
    """Raise DrkitError unless there is exactly one list of documents per query."""
    if lists != queries:
        raise DrkitError(f"got {lists} lists of documents for {queries} queries; give one list per query")


RunRow: TypeAlias = "tuple[str, Iterable[tuple[str, float]]]"
# Hits of a query: their positions i64[n] in an index, and their scores f32[n].
Found: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.float32]]"
# Columns of a run file by their number; the second form is MS MARCO's.
_COLUMNS = {6: ("query", "Q0", "document", "rank", "score", "tag"), 3: ("query", "document", "rank")}
_EXPECTED = {6: "score must be a finite number", 3: "rank must be 1, 2, .. in three columns (query document rank)"}
# Bytes that are read at once, and queries that are written at once.
_BLOCK, _QUERIES = 8 << 20, 256
_ID = pa.large_string()
# The files of arrays: their names, how they begin, and their columns.
ARROW, _ARROW, _ARROW_COLUMNS = ".arrow", b"ARROW1", ("query_id", "doc_id", "score")


@frozen(eq=False, slots=False)
class Rankings:
    """The hits of Q queries as arrays; iterating yields a row (query_id, [(doc_id, score), ..]) for each query.

    starts: i64[Q+1], where the hits of each query begin, and their number H. documents: i32[H], rows of `doc_ids`.
    scores: f32[H], finite. doc_ids: an Arrow array of different strings. A query has each document at most once.
    """

    query_ids: Sequence[str]
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    scores: NDArray[np.float32]
    doc_ids: Any

    @classmethod
    def of(cls, rows: Iterable[RunRow]) -> Rankings:
        """Return the rankings of rows (query_id, [(doc_id, score), ..]), with hits in any order; `Rankings` unchanged.

        Raises DrkitError for a duplicate query or document, or a score that is not finite.

        >>> [*Rankings.of([("q", [("a", 1.0), ("b", 2.0)])]).ordered()]
        [('q', [('b', 2.0), ('a', 1.0)])]
        """
        if isinstance(rows, Rankings):
            return rows
        lists = [(query_id, list(hits)) for query_id, hits in rows]
        names = [doc_id for _, hits in lists for doc_id, _ in hits]
        found = _encoded(names)
        starts = np.cumsum([0, *(len(hits) for _, hits in lists)])
        scores = _float32([score for _, hits in lists for _, score in hits])
        made = cls([query_id for query_id, _ in lists], starts, _codes(found), scores, found.dictionary)
        made._check()
        return made

    @classmethod
    def at(
        cls, doc_ids: Any, query_ids: Sequence[str], found: Iterable[tuple[NDArray[Any], NDArray[np.float32]]]
    ) -> Rankings:
        """Return the rankings of queries that have found positions of an Arrow array of ids, with scores."""
        pairs = list(found)
        documents = np.concatenate([np.empty(0, np.int32), *(positions for positions, _ in pairs)])
        scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in pairs)])
        starts = np.cumsum([0, *(len(scores) for _, scores in pairs)])
        return cls(query_ids, starts, documents.astype(np.int32), scores, doc_ids)

    @classmethod
    def joined(cls, parts: Sequence[Rankings]) -> Rankings:
        """Return the rankings of all parts, in order."""
        if not parts:
            return cls.of(())
        alike = parts if len({id(one.doc_ids) for one in parts}) == 1 else _alike(parts)
        ends = np.cumsum([0, *(one.starts[-1] for one in parts)])
        starts = [one.starts[:-1] + end for one, end in zip(parts, ends[:-1], strict=True)]
        return cls(
            [query_id for one in parts for query_id in one.query_ids],
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate([one.documents for one in alike]),
            np.concatenate([one.scores for one in parts]),
            alike[0].doc_ids,
        )

    def __len__(self) -> int:
        return len(self.query_ids)

    def __iter__(self) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        return ((query_id, self.pairs(row)) for row, query_id in enumerate(self.query_ids))

    def pairs(self, row: int) -> list[tuple[str, float]]:
        """Return (doc_id, score) of each hit of a query."""
        return list(zip(self.names(row), self.row(row)[1].tolist(), strict=True))

    def names(self, row: int, depth: int | None = None) -> list[str]:
        """Return the ids of the first `depth` hits of a query (None: of all)."""
        found: list[str] = self.doc_ids.take(pa.array(self.row(row)[0][:depth])).to_pylist()
        return found

    def row(self, row: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the documents and the scores of a query; no hits for None."""
        hits = slice(*self.starts[row : row + 2]) if row is not None else slice(0)
        return self.documents[hits], self.scores[hits]

    def hits(self) -> list[Hits]:
        """Return the hits of each query, with their ids."""
        return [Hits(*(tuple(zip(*hits, strict=True)) or ((), ()))) for _, hits in self]

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id among `doc_ids`, or -1 if it is unknown."""
        return np.asarray(pc.index_in(pa.array(doc_ids, _ID), self.doc_ids).fill_null(-1).to_numpy(), np.int64)

    @cached_property
    def queries(self) -> NDArray[np.int64]:
        """i64[H], the row of each hit's query."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @cached_property
    def ranked(self) -> frozenset[str]:
        """The ids of the queries that have hits."""
        return frozenset(self.query_ids[row] for row in np.flatnonzero(np.diff(self.starts)).tolist())

    @property
    def is_own(self) -> NDArray[np.bool_]:
        """bool[H], whether a hit has its query's own id."""
        return np.asarray(self.documents == self.find(self.query_ids)[self.queries])

    def kept(self, hits: NDArray[np.bool_]) -> Rankings:
        """Return all queries with some of their hits, bool[H]."""
        starts = np.concatenate([[0], np.cumsum(hits)])[self.starts]
        return evolve(self, starts=starts, documents=self.documents[hits], scores=self.scores[hits])

    def top(self, depth: int) -> Rankings:
        """Return the first `depth` hits of each query."""
        return self.kept(np.arange(len(self.documents)) - self.starts[self.queries] < depth)

    def batches(self, size: int) -> Iterator[Rankings]:
        """Yield the rankings of `size` queries at a time."""
        for row in range(0, len(self), size):
            starts = self.starts[row : row + size + 1]
            hits = slice(starts[0], starts[-1])
            yield Rankings(
                self.query_ids[row : row + size],
                starts - starts[0],
                self.documents[hits],
                self.scores[hits],
                self.doc_ids,
            )

    def ordered(self) -> Rankings:
        """Return the hits of each query in trec_eval's order: by score, ties by document id in descending order."""
        same = self.queries[1:] == self.queries[:-1]
        if (same & (self.scores[1:] > self.scores[:-1])).any():
            hits = np.lexsort((-self.scores, self.queries))
            return self._in_order(hits)._ties_in_order()
        return self._ties_in_order()

    def _ties_in_order(self) -> Rankings:
        """Return the hits, whose scores already descend, with those of equal scores by their ids."""
        tied = np.zeros(len(self.scores), np.bool_)  # with the hit above
        tied[1:] = (self.queries[1:] == self.queries[:-1]) & (self.scores[1:] == self.scores[:-1])
        hits = np.flatnonzero(tied | np.append(tied[1:], False))
        used, documents = _used(self.documents[hits], len(self.doc_ids))
        keys = np.cumsum(~tied[hits]) * len(used) + descending(self.doc_ids.take(pa.array(used)))[documents]
        if (keys[1:] > keys[:-1]).all():
            return self
        order = np.arange(len(self.scores))
        order[hits] = hits[np.argsort(keys)]
        return self._in_order(order)

    def _in_order(self, hits: NDArray[np.int64]) -> Rankings:
        return evolve(self, documents=self.documents[hits], scores=self.scores[hits])

    def _check(self) -> None:
        """Raise DrkitError for a duplicate query or document, or a score that is not finite."""
        if len(set(self.query_ids)) < len(self):
            query_id = Counter(self.query_ids).most_common(1)[0][0]
            raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
        if not np.isfinite(self.scores).all():
            query_id, doc_id = self.ids_of(int(np.isfinite(self.scores).argmin()))
            raise DrkitError(f"query {query_id!r}: the score of {doc_id!r} is not finite")
        if (hit := self.duplicate()) is not None:
            raise DrkitError(f"query {self.ids_of(hit)[0]!r} has a duplicate document among its hits")

    def ids_of(self, hit: int) -> tuple[str, str]:
        """Return the ids of the query and the document of a hit."""
        return self.query_ids[int(self.queries[hit])], self.doc_ids[int(self.documents[hit])].as_py()

    def duplicate(self) -> int | None:
        """Return the first hit whose document its query has already, if there is one."""
        keys = self.queries * len(self.doc_ids) + self.documents
        ordered = np.sort(keys)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        order = np.argsort(keys, kind="stable")
        return int(order[1:][keys[order[1:]] == keys[order[:-1]]].min())


def shared(first: Rankings, second: Rankings) -> tuple[Rankings, Rankings]:
    """Return two rankings with the same `doc_ids`, in descending order of the ids as a run file has them."""
    one, two = _alike([first, second])
    ranks = descending(one.doc_ids)
    doc_ids = one.doc_ids.take(pa.array(np.argsort(ranks)))
    return tuple(evolve(a, documents=ranks[a.documents].astype(np.int32), doc_ids=doc_ids) for a in (one, two))  # type: ignore[return-value]


def descending(doc_ids: Any) -> NDArray[np.int64]:
    """Return the rank of each id of an Arrow array, i64[n], by its form in a run file, the last one first."""
    order = pc.array_sort_indices(pa.array(encode_ids(doc_ids.to_pylist()), _ID), order="descending").to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _used(documents: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of `count` documents occur, and the rows of the documents [n] among these, i64[n].

    They come in the order in which they occur, whatever order the parts of a ranking were joined in.
    """
    first = np.full(count, len(documents))
    first[documents[::-1]] = np.arange(len(documents))[::-1]
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(documents))]
    rows = np.empty(count, np.int64)
    rows[used] = np.arange(len(used))
    return used, rows[documents]


def _alike(parts: Sequence[Rankings]) -> list[Rankings]:
    """Return the same rankings with one array of document ids."""
    arrays = [pa.DictionaryArray.from_arrays(one.documents, one.doc_ids) for one in parts]
    chunks = pa.chunked_array(arrays).unify_dictionaries().chunks
    return [
        evolve(one, documents=_codes(found), doc_ids=chunks[0].dictionary)
        for one, found in zip(parts, chunks, strict=True)
    ]


def _encoded(names: Sequence[str]) -> Any:
    """Return the names as a dictionary array. Raises DrkitError for one that is not valid Unicode."""
    try:
        return pa.array(names, _ID).dictionary_encode()
    except UnicodeEncodeError:
        encode_ids(names)
        raise


def _codes(array: Any) -> NDArray[np.int32]:
    return np.asarray(array.indices.to_numpy())


def write_run(path: Path, rows: Iterable[RunRow], tag: str) -> int:
    """Write rankings as a TREC run, or as arrays if the file's name ends with `.arrow`; returns the number of queries.

    rows: `Rankings`, or rows (query_id, [(doc_id, score), ..]).

    Raises DrkitError for an empty id, a duplicate query or document, or a score that is not finite.
    """
    return write_blocks(path, [rows] if isinstance(rows, Rankings) else map(Rankings.of, batched(rows, _QUERIES)), tag)


def write_blocks(path: Path, blocks: Iterable[Rankings], tag: str) -> int:
    """Write the rankings of some queries at a time, as `write_run` does; a TREC run is written as they come."""
    path, label, seen = Path(path), encode_id(tag), set[str]()
    noted = _noted(blocks, seen)
    if path.suffix == ARROW:
        write_rankings(path, Rankings.joined(list(noted)))
        return len(seen)
    with replacing(path) as temporary, temporary.open("wb") as file:
        for block in noted:
            file.writelines(_lines(some.ordered(), label) for some in block.batches(_QUERIES))
    return len(seen)


def _noted(blocks: Iterable[Rankings], seen: set[str]) -> Iterator[Rankings]:
    """Yield the blocks and add their queries to `seen`. Raises DrkitError if one occurs twice."""
    for block in blocks:
        for query_id in block.query_ids:
            if query_id in seen:
                raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
            seen.add(query_id)
        yield block


def write_rankings(path: Path, rankings: Rankings) -> None:
    """Write rankings as an Arrow file, each query's best first: `query_id`, and lists of `doc_id` and `score`.

    `read_run` reads it; other programs read it as a table with one row per query.
    """
    rankings = rankings.ordered()
    used, documents = _used(rankings.documents, len(rankings.doc_ids))
    doc_ids = pa.DictionaryArray.from_arrays(documents.astype(np.int32), rankings.doc_ids.take(pa.array(used)))
    lists = [pa.LargeListArray.from_arrays(rankings.starts, one) for one in (doc_ids, pa.array(rankings.scores))]
    columns = dict(zip(_ARROW_COLUMNS, [pa.array(rankings.query_ids, _ID), *lists], strict=True))
    batch = pa.record_batch(columns)
    with arrow_file(path, batch.schema) as writer:
        writer.write_batch(batch)


def read_run(path: Path) -> Rankings:
    """Read rankings: an Arrow file of drkit, memory-mapped, or a TREC run, whose hits stay in the order of the file.

    A run has TREC's six columns, or MS MARCO's three (query, document, rank), whose score is 1 / rank. It may be
    compressed (.gz, .zst), or a pipe. Memory: 8 bytes for each hit, and the ids once.

    Raises DrkitError, with file and line, for an invalid line, or a query whose lines are not consecutive.
    """
    path = Path(path)
    blocks = _blocks(path)
    head = next(blocks, None)
    if head is None:
        return Rankings.of(())
    if head[1].startswith(_ARROW):
        return _read_rankings(path)
    top = _split(head[1].partition(b"\n")[0].decode(errors="replace"))
    names = _COLUMNS[3 if len(top) == 3 else 6]
    parts = [
        _parse(names, block) or _parse_by_line(path, names, first, block) for first, block in chain([head], blocks)
    ]
    queries, documents, scores = zip(*parts, strict=True)
    return _checked(path, _decoded(queries), _decoded(documents), np.concatenate(scores))


def _lines(rankings: Rankings, label: str) -> bytes:
    """Return the lines of some queries, joined by Arrow.

    It writes the shortest decimal that reads back as the same float32, many times faster than str.
    """
    used, documents = _used(rankings.documents, len(rankings.doc_ids))
    doc_ids = encode_ids(rankings.doc_ids.take(pa.array(used)).to_pylist())
    if "" in doc_ids:
        encode_id("")
    query_ids = pa.array([encode_id(query_id) for query_id in rankings.query_ids], _ID)
    ranks = np.arange(1, len(documents) + 1) - rankings.starts[rankings.queries]
    scores = pa.array(rankings.scores).cast(_ID)
    if (rankings.scores == np.trunc(rankings.scores)).any():
        whole = pc.invert(pc.match_substring_regex(scores, "[.e]"))
        scores = pc.if_else(whole, pc.binary_join_element_wise(scores, *_texts("0", ".")), scores)
    columns = (pa.array(doc_ids, _ID).take(pa.array(documents)), pa.array(ranks).cast(_ID), scores)
    first, last, between = _texts("Q0", f"{label}\n", "\t")
    lines = pc.binary_join_element_wise(query_ids.take(pa.array(rankings.queries)), first, *columns, last, between)
    return bytes(lines.buffers()[2]) if len(lines) else b""


def _texts(*texts: str) -> Iterator[Any]:
    return (pa.scalar(text, _ID) for text in texts)


def _float32(scores: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float32]:
    """Return scores as trec_eval stores them; a number too large for float32 is infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(scores, dtype=np.float64).astype(np.float32)


# The lines of a block: queries and documents as written, in dictionary arrays in chunks, and scores f32[n].
_Parsed: TypeAlias = "tuple[Any, Any, NDArray[np.float32]]"


def _parse(names: Sequence[str], block: bytes) -> _Parsed | None:
    """Read lines as drkit and most tools write them, many times as fast as `_parse_by_line`.

    None: something is unusual, or wrong, and must be read line by line.
    """
    delimiter, number = "\t" if b"\t" in block else " ", "score" if "score" in names else "rank"
    characters = np.frombuffer(block, np.uint8)
    ends_cell = (characters == ord(delimiter)) | (characters == ord("\n"))
    has_empty_cell = (ends_cell[1:] & ends_cell[:-1]).any() or ends_cell[:1].any()
    is_spaced = delimiter == "\t" and b" " in block
    # Arrow would remove a byte order mark.
    if has_empty_cell or is_spaced or b"\x00" in block or b"\r" in block or block.startswith(BOM_UTF8):
        return None
    ids = pa.dictionary(pa.int32(), pa.string())
    types = {"query": ids, "document": ids, number: pa.float64() if number == "score" else pa.int64()}
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=names, block_size=1 << 20),
            csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=False, null_values=[]
            ),
        )
    except pa.ArrowInvalid:
        return None
    scores = _scores(table[number].to_numpy(), names)
    return (table["query"], table["document"], scores) if np.isfinite(scores).all() else None


def _parse_by_line(path: Path, names: Sequence[str], first: int, block: bytes) -> _Parsed:
    columns = list(zip(*(cells for _, cells in _columns(path, names, first, block)), strict=True))
    written = columns[names.index("score" if "score" in names else "rank")]
    scores = _scores(np.array([_number(text) for text in written]), names)
    if not np.isfinite(scores).all():
        wrong = int(np.isfinite(scores).argmin())
        raise DrkitError(f"{_EXPECTED[len(names)]}, got {written[wrong]!r:.80}", where=f"{path}:{first + wrong}")
    queries, documents = (
        pa.chunked_array([pa.array(columns[names.index(name)], pa.string()).dictionary_encode()])
        for name in ("query", "document")
    )
    return queries, documents, scores


def _scores(numbers: NDArray[Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return the scores of lines, NaN for an invalid rank; numbers: their scores, or their ranks."""
    if "score" in names:
        return _float32(numbers)
    ranks = np.asarray(numbers, np.float64)
    return _float32(np.where((ranks >= 1) & (ranks == np.floor(ranks)), 1 / np.maximum(ranks, 1), np.nan))


def _decoded(written: Iterable[Any]) -> Any:
    """Return ids of a file, in dictionary arrays in chunks, as one array of what they stand for."""
    joined = pa.chunked_array([chunk for column in written for chunk in column.chunks]).unify_dictionaries()
    found = joined.combine_chunks()
    names = found.dictionary.to_pylist()
    if any("%" in name for name in names):
        names = [decode_id(name) for name in names]
    ids = pa.array(names, _ID).dictionary_encode()
    return pa.DictionaryArray.from_arrays(ids.indices.take(found.indices), ids.dictionary)


def _checked(path: Path, queries: Any, documents: Any, scores: NDArray[np.float32]) -> Rankings:
    """Return the rankings of a file's lines. Raises DrkitError for a duplicate, naming the line."""
    rows = _codes(queries)
    starts = np.concatenate([[0], np.flatnonzero(rows[1:] != rows[:-1]) + 1, [len(rows)]])
    query_ids = queries.dictionary.take(pa.array(rows[starts[:-1]])).to_pylist()
    if len(query_ids) > len(queries.dictionary):
        seen = set[str]()
        for query_id, start in zip(query_ids, starts[:-1], strict=True):
            if query_id in seen:
                raise DrkitError(
                    f"query {query_id!r} occurs twice; all lines of a query must be consecutive",
                    where=f"{path}:{start + 1}",
                )
            seen.add(query_id)
    rankings = Rankings(query_ids, starts, _codes(documents), scores, documents.dictionary)
    if (line := rankings.duplicate()) is not None:
        query_id, name = rankings.ids_of(line)
        raise DrkitError(
            f"duplicate document {name!r} for query {query_id!r}; list each document once", where=f"{path}:{line + 1}"
        )
    return rankings


def _read_rankings(path: Path) -> Rankings:
    """Read a file of `write_rankings`. Raises DrkitError for any other Arrow file."""
    batches = read_batches(path)
    if len(batches) != 1 or tuple(batches[0].schema.names) != _ARROW_COLUMNS:
        raise DrkitError("not a file of rankings; give one of a run, or a TREC run", where=path)
    query_ids, documents, scores = batches[0].columns
    return Rankings(
        query_ids.to_pylist(),
        scores.offsets.to_numpy(),
        _codes(documents.values),
        scores.values.to_numpy(),
        documents.values.dictionary,
    )


def _number(text: str) -> float:
    """Return a score, or NaN if it is not a number in ASCII digits."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file in blocks of whole lines, each with the number of its first line."""
    number = 1
    with open_bytes(path) as file:
        try:
            while block := file.read(_BLOCK):
                block += file.readline(LONGEST_LINE)
                yield number, block.removeprefix(BOM_UTF8) if number == 1 else block
                number += block.count(b"\n")
        except (OSError, EOFError, zlib.error) as error:
            raise DrkitError(f"cannot be read after line {number - 1} ({error})", where=path) from None


def _columns(path: Path, names: Sequence[str], first: int, block: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, columns)."""
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), start=first):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise DrkitError(
                f"not UTF-8 text ({error.reason} at byte {error.start})", where=f"{path}:{number}"
            ) from None
        columns = _split(text)
        if len(columns) != len(names):
            raise DrkitError(
                f"expected {len(names)} columns ({' '.join(names)}), got {len(columns)}: {text!r:.80}",
                where=f"{path}:{number}",
            )
        yield number, columns


def _split(line: str) -> list[str]:
    """Return the columns of a line, split only at blanks and tabs: ids may contain other white space."""
    return [cell for cell in line.strip(" \t\r").replace("\t", " ").split(" ") if cell]
