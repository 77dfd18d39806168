"""Rankings of many queries as arrays (`Rankings`), and the hits of one query (`Hits`).

Ranks follow trec_eval: by score, ties by document id in descending order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve, frozen
from numpy.typing import NDArray

from drkit.data.qrels import encode_ids
from drkit.data.rows import batched
from drkit.encoders.folder import TORCH
from drkit.errors import DrkitError
from drkit.search.vectors import DocIds

# What must be equal for two vectors to be comparable; lengths and prompts may differ between queries and passages.
COMPARABLE = ("weights", "config", "tokenizer", "pooling", "pooling_code", "normalize")


class Hits(NamedTuple):
    """The passages found for one query, best first; possibly fewer than requested.

    >>> doc_ids, scores = Hits(("d1", "d2"), (2.5, 1.0))
    >>> Hits(doc_ids, scores).without({"d1"})
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

    def without(self, doc_ids: Iterable[str]) -> Hits:
        """Return the hits without these documents, in the same order."""
        excluded = frozenset(doc_ids)
        kept = [(d, s) for d, s in self.pairs() if d not in excluded]
        return Hits(tuple(d for d, _ in kept), tuple(s for _, s in kept))


def check_query_texts(texts: Sequence[str]) -> None:
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
ID_TYPE = pa.large_string()


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
        found = _dictionary_encoded(names)
        starts = np.cumsum([0, *(len(hits) for _, hits in lists)])
        scores = as_float32([score for _, hits in lists for _, score in hits])
        made = cls([query_id for query_id, _ in lists], starts, codes(found), scores, found.dictionary)
        made.check()
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
    def joined(cls, rankings: Sequence[Rankings]) -> Rankings:
        """Return one `Rankings` of all queries, in order."""
        if not rankings:
            return cls.of(())
        alike = rankings if len({id(one.doc_ids) for one in rankings}) == 1 else _with_common_ids(rankings)
        ends = np.cumsum([0, *(one.starts[-1] for one in rankings)])
        starts = [one.starts[:-1] + end for one, end in zip(rankings, ends[:-1], strict=True)]
        return cls(
            [query_id for one in rankings for query_id in one.query_ids],
            np.concatenate([*starts, ends[-1:]]),
            np.concatenate([one.documents for one in alike]),
            np.concatenate([one.scores for one in rankings]),
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
        return [Hits(tuple(self.names(row)), tuple(self.row(row)[1].tolist())) for row in range(len(self))]

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id among `doc_ids`, or -1 if it is unknown."""
        return np.asarray(pc.index_in(pa.array(doc_ids, ID_TYPE), self.doc_ids).fill_null(-1).to_numpy(), np.int64)

    def ranks(self, rows: NDArray[np.int64], doc_ids: Sequence[str]) -> NDArray[np.float64]:
        """Return the rank f64[n], from 1, of a document among the hits of a query; infinite if it is not a hit.

        rows: i64[n], of the queries, -1 for one without hits. doc_ids: n, of the documents.
        """
        documents = self.find(doc_ids)
        known = np.flatnonzero((rows >= 0) & (documents >= 0))
        is_sought = np.zeros(len(self.doc_ids), np.bool_)
        is_sought[documents[known]] = True
        hits = np.flatnonzero(is_sought[self.documents])
        keys = self.queries[hits] * len(self.doc_ids) + self.documents[hits]
        hits, keys = hits[order := np.argsort(keys)], keys[order]
        sought = rows[known] * len(self.doc_ids) + documents[known]
        nearest = np.searchsorted(keys, sought)
        is_hit = np.append(keys, -1)[nearest] == sought
        found = hits[nearest[is_hit]]
        ranks = np.full(len(rows), np.inf)
        ranks[known[is_hit]] = found + 1 - self.starts[self.queries[found]]
        return ranks

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

    def with_ties_by(self, keys: NDArray[np.int64]) -> Rankings:
        """Return the hits with those of equal scores by ascending keys i64[H]; the rankings must be in order."""
        order = np.lexsort((keys, np.cumsum(~self._is_tied)))
        return evolve(self, documents=self.documents[order])

    @cached_property
    def _is_tied(self) -> NDArray[np.bool_]:
        """bool[H], whether a hit has the score of the hit above."""
        tied = np.zeros(len(self.scores), np.bool_)
        tied[1:] = (self.queries[1:] == self.queries[:-1]) & (self.scores[1:] == self.scores[:-1])
        return tied

    def _ties_in_order(self) -> Rankings:
        """Return the hits, whose scores already descend, with equal scores in the order of their ids."""
        tied = self._is_tied
        hits = np.flatnonzero(tied | np.append(tied[1:], False))
        used, documents = used_documents(self.documents[hits], len(self.doc_ids))
        keys = np.cumsum(~tied[hits]) * len(used) + descending(self.doc_ids.take(pa.array(used)))[documents]
        if (keys[1:] > keys[:-1]).all():
            return self
        order = np.arange(len(self.scores))
        order[hits] = hits[np.argsort(keys)]
        return self._in_order(order)

    def _in_order(self, hits: NDArray[np.int64]) -> Rankings:
        return evolve(self, documents=self.documents[hits], scores=self.scores[hits])

    def check(self) -> None:
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
        """Return the first hit whose document is also an earlier hit of its query; None without duplicates."""
        keys = self.queries * len(self.doc_ids) + self.documents
        ordered = np.sort(keys)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        order = np.argsort(keys, kind="stable")
        return int(order[1:][keys[order[1:]] == keys[order[:-1]]].min())


def share_doc_ids(first: Rankings, second: Rankings) -> tuple[Rankings, Rankings]:
    """Return two rankings with the same `doc_ids`, in descending order of the ids as a run file has them."""
    one, two = _with_common_ids([first, second])
    ranks = descending(one.doc_ids)
    doc_ids = one.doc_ids.take(pa.array(np.argsort(ranks)))
    return tuple(evolve(a, documents=ranks[a.documents].astype(np.int32), doc_ids=doc_ids) for a in (one, two))  # type: ignore[return-value]


def descending(doc_ids: Any) -> NDArray[np.int64]:
    """Return the rank of each id of an Arrow array, i64[n], by its form in a run file, the last one first."""
    order = pc.array_sort_indices(pa.array(encode_ids(doc_ids.to_pylist()), ID_TYPE), order="descending").to_numpy()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def used_documents(documents: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which of `count` documents occur, and the rows of the documents [n] among these, i64[n].

    They come in the order in which they occur, whatever order rankings were joined in.
    """
    first = np.full(count, len(documents))
    first[documents[::-1]] = np.arange(len(documents))[::-1]
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(documents))]
    rows = np.empty(count, np.int64)
    rows[used] = np.arange(len(used))
    return used, rows[documents]


def _with_common_ids(rankings: Sequence[Rankings]) -> list[Rankings]:
    """Return the same rankings with one array of document ids."""
    arrays = [pa.DictionaryArray.from_arrays(one.documents, one.doc_ids) for one in rankings]
    chunks = pa.chunked_array(arrays).unify_dictionaries().chunks
    return [
        evolve(one, documents=codes(found), doc_ids=chunks[0].dictionary)
        for one, found in zip(rankings, chunks, strict=True)
    ]


def _dictionary_encoded(names: Sequence[str]) -> Any:
    """Return the names as a dictionary array. Raises DrkitError for one that is not valid Unicode."""
    try:
        return pa.array(names, ID_TYPE).dictionary_encode()
    except UnicodeEncodeError:
        encode_ids(names)
        raise


def codes(array: Any) -> NDArray[np.int32]:
    """Return the row of each value of a dictionary array among its different values, i32[n]."""
    return np.asarray(array.indices.to_numpy())


def in_blocks(rows: Iterable[RunRow], size: int) -> Iterator[Rankings]:
    """Yield the rankings of `size` queries at a time; rows: `Rankings`, or rows (query_id, [(doc_id, score), ..])."""
    yield from rows.batches(size) if isinstance(rows, Rankings) else map(Rankings.of, batched(rows, size))


def as_float32(scores: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float32]:
    """Return scores as trec_eval stores them; a number too large for float32 is infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(scores, dtype=np.float64).astype(np.float32)
