"""Write a collection's passages, queries and judgements to Arrow files, and check them on the way.

`passages/` holds the texts and the index of their ids. Every split has its own folder with its queries, judgements and
negatives, so a stage that reads one split depends on no other.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from drkit.core.protocols import (
    CarriesNegatives,
    CarriesScores,
    Collection,
    LocatesRows,
)
from drkit.core.quantities import counted
from drkit.core.types import HIGHEST_GRADE
from drkit.data.arrays import arrow_file, record_batch
from drkit.data.collection import drops_unknown_ids
from drkit.data.corpus import (
    ANSWERS,
    JUDGEMENTS,
    NEGATIVES_FILE,
    PASSAGES_FOLDER,
    QUERIES_FILE,
    SCORES_FILE,
    TEXTS_FILE,
    IndexWriter,
    MappedTable,
    StoredCorpus,
    equal_ids,
    id_hash,
)
from drkit.data.data_sets import DataSets
from drkit.data.preview import QueryTexts, duplicate_query, no_positives
from drkit.data.rows import batched
from drkit.data.splits import SPLITS
from drkit.errors import DrkitError

SHOWN = 5
_ROWS = 4096
_Item = TypeVar("_Item")


class UnknownIdFilter:
    """Keeps the rows whose ids exist, and counts the others, which are an error unless the collection drops them."""

    def __init__(
        self,
        collection: Collection,
        corpus: StoredCorpus,
        queries: Mapping[str, set[str]],
        table: str = "judgements",
        *,
        drop: bool = False,
    ) -> None:
        self._collection, self._corpus, self._queries, self._table = collection, corpus, queries, table
        self._drop = drop or drops_unknown_ids(collection)
        self._shown: list[str] = []
        self.splits = tuple(queries)
        self.count = 0

    def __call__(self, items: Iterable[_Item], split: str, ids: Callable[[_Item], tuple[str, str]]) -> Iterator[_Item]:
        """Yield the rows of a split whose query and passage exist; ids: returns the (query id, passage id) of a row."""
        for batch in batched(enumerate(items), _ROWS):
            exists = self._corpus.find([ids(item)[1] for _, item in batch]) >= 0
            for (row, item), found in zip(batch, exists, strict=True):
                query_id, doc_id = ids(item)
                if not found:
                    self._report(f"unknown passage {doc_id!r}", split, row)
                elif query_id not in self._queries[split]:
                    self._report(f"unknown query {query_id!r}", split, row)
                else:
                    yield item

    def _report(self, what: str, split: str, row: int) -> None:
        self.count += 1
        if len(self._shown) < SHOWN:
            self._shown.append(f"{what} @ {locator(self._collection)(self._table, split, row)}")

    def finish(self) -> None:
        """Raise DrkitError if rows were left out, unless they are to be dropped."""
        if self.count and not self._drop:
            what = f"{self._table.removesuffix('s')}(s) with unknown ids"
            owner = "collections.NAME" if isinstance(self._collection, DataSets) else "collection"
            advice = f", or drop them with --set {owner}.unknown_judgements=drop"
            raise refusal(self._collection, what, self._shown, self.count, advice)


def refusal(collection: Collection, what: str, shown: Sequence[str], count: int, advice: str = "") -> DrkitError:
    """Return the error for `count` invalid rows, with the first ones in `shown`."""
    more = [f".. and {count - len(shown)} more"] if count > len(shown) else []
    lines = "".join(f"\n  - {line}" for line in [*shown, *more])
    return DrkitError(f"{collection.name}: {count} {what}; fix the ids or delete the lines{advice}:{lines}")


def locator(collection: Collection) -> Callable[[str, str, int], str]:
    """Return the collection's own `locate`, which gives `file:line` of a row, or a plain description of the row."""
    if isinstance(collection, LocatesRows):
        return collection.locate
    return lambda table, split, row: f"{split} {table} row {row + 1}".strip()


_TEXT = pa.large_string()
_PASSAGE_SCHEMA = pa.schema([("doc_id", _TEXT), ("title", _TEXT), ("text", _TEXT)])
_QUERY_SCHEMA = pa.schema([("query_id", _TEXT), ("text", _TEXT)])
# A list of answers is written as JSON.
_ANSWER_SCHEMA = pa.schema([("query_id", _TEXT), ("answers", _TEXT)])
_JUDGEMENT_SCHEMA = pa.schema([("query_id", _TEXT), ("doc_id", _TEXT), ("relevance", pa.int32())])
_NEGATIVE_SCHEMA = pa.schema([("query_id", _TEXT), ("doc_id", _TEXT)])
_SCORE_SCHEMA = pa.schema([*_NEGATIVE_SCHEMA, ("score", pa.float64())])


def write_collection(
    collection: Collection,
    folder: Path,
    *,
    splits: Sequence[str] | None = None,
    drop_unknown: bool = False,
) -> dict[str, Any]:
    """Stream a collection to `folder`, check it, and return its counts.

    splits: those to write; all if None. drop_unknown: drop judgements with unknown ids, whatever the collection's
    setting.

    Counts: passages, empty_passages (kept, but without words), queries, judgements and positives by split,
    dropped_judgements (only if they are dropped), repeated_queries (notes on texts that several queries have, only if
    there are any), and `content_sha256`, a hash of everything written. If the collection
    has a method `negatives(split)`, which yields (query id, passage id) pairs to train against, these are written and
    counted too. Memory: the ids of the queries, and 8 bytes per judgement.

    Raises DrkitError for a collection without passages, a duplicate id, a judgement of an unknown query or passage, or
    a split without a positive judgement. It names the first few rows, as `file:line` if the collection has `locate`.
    """
    folder = Path(folder)
    for name in (PASSAGES_FOLDER, *SPLITS):  # from an earlier collection
        shutil.rmtree(folder / name, ignore_errors=True)
    content = hashlib.sha256()
    counts = _write_passages(collection, folder / PASSAGES_FOLDER, content)
    corpus = StoredCorpus(folder / PASSAGES_FOLDER)
    texts = QueryTexts(collection.name)
    queries = _write_queries(collection, collection.splits() if splits is None else splits, folder, content, texts)
    counts["queries"] = {split: len(ids) for split, ids in queries.items()}
    if notes := list(texts.notes()):
        counts["repeated_queries"] = notes
    known = partial(UnknownIdFilter, collection, corpus, queries, drop=drop_unknown)
    judged = _write_judgements(collection, folder, known(), content)
    listed = _write_negatives(collection, folder, known(table="negatives"), content)
    scored = _write_scores(collection, folder, content) if "train" in queries else {}
    return {**counts, **judged, **listed, **scored, "content_sha256": content.hexdigest()}


def _write_passages(collection: Collection, folder: Path, content: Any) -> dict[str, Any]:
    empty = 0
    folder.mkdir(parents=True, exist_ok=True)
    with IndexWriter(folder) as index:
        with arrow_file(folder / TEXTS_FILE, _PASSAGE_SCHEMA) as writer:
            for some in batched(collection.passages(), _ROWS):
                rows = ((passage.doc_id, passage.title, passage.text) for passage in some)
                batch = record_batch(zip(*rows, strict=True), _PASSAGE_SCHEMA)
                writer.write_batch(batch)
                content.update(_content(batch))
                index.add(np.fromiter((id_hash(passage.doc_id) for passage in some), np.uint64, len(some)))
                empty += sum(not passage.content.strip() for passage in some)
        if not len(index):
            raise DrkitError(f"{collection.name} has no passages; give a collection with at least one text")
        if empty == len(index):
            raise DrkitError(
                f"{collection.name}: none of the {counted(empty, 'passage')} has a text; give the column or "
                f"field that has it"
            )
        index.finish()
    _refuse_duplicates(collection, StoredCorpus(folder).duplicates())
    return {"passages": len(index), "empty_passages": empty}


def refuse_duplicate_passages(collection: Collection) -> None:
    """Read the passages, and raise DrkitError with both lines if an id occurs twice. Memory: 8 bytes per passage."""
    hashes = np.array(array("Q", (id_hash(passage.doc_id) for passage in collection.passages())), np.uint64)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(same):
        rows = {*order[same].tolist(), *order[same + 1].tolist()}
        ids = {row: passage.doc_id for row, passage in enumerate(collection.passages()) if row in rows}
        _refuse_duplicates(collection, equal_ids(ordered, order, lambda found: [ids[row] for row in found.tolist()]))


def refuse_duplicate_queries(collection: Collection, split: str) -> None:
    """Read the queries of a split, and raise DrkitError with both lines if an id occurs twice."""
    seen: set[str] = set()
    for row, query in enumerate(collection.queries(split)):
        if query.query_id in seen:
            raise _duplicate_query(collection, query.query_id, split, (split, row))
        seen.add(query.query_id)


def _duplicate_query(collection: Collection, query_id: str, split: str, later: tuple[str, int]) -> DrkitError:
    """Return the error for a query of a split that occurs again in the split and row `later`."""
    first = next(row for row, query in enumerate(collection.queries(split)) if query.query_id == query_id)
    where = locator(collection)
    before, again = where("queries", split, first), where("queries", *later)
    return duplicate_query(collection.name, query_id, (split, before), (later[0], again))


def _refuse_duplicates(collection: Collection, duplicates: Iterator[tuple[str, int, int]]) -> None:
    where = locator(collection)
    shown = [
        f"{doc_id!r} @ {where('passages', '', first)} and {where('passages', '', later)}"
        for doc_id, first, later in islice(duplicates, SHOWN)
    ]
    if shown:
        raise refusal(collection, "duplicate passage id(s)", shown, len(shown) + sum(1 for _ in duplicates))


def _write_queries(
    collection: Collection, splits: Iterable[str], folder: Path, content: Any, texts: QueryTexts
) -> dict[str, set[str]]:
    """Write the queries, and the answers of training queries that have some; return the ids of each split.

    Ids are unique, so that training never sees a test query. texts: collects the queries.
    """
    ids: dict[str, set[str]] = {split: set() for split in splits}
    answers: dict[str, tuple[str, ...]] = {}

    def rows(split: str) -> Iterator[tuple[str, str]]:
        for row, query in enumerate(collection.queries(split)):
            before = next((s for s in ids if query.query_id in ids[s]), None)
            if before:
                raise _duplicate_query(collection, query.query_id, before, (split, row))
            ids[split].add(query.query_id)
            texts.count(query, split)
            if split == "train" and query.answers is not None:
                answers[query.query_id] = query.answers
            yield query.query_id, query.text

    for split in ids:
        _write(rows(split), folder / split / QUERIES_FILE, _QUERY_SCHEMA, content)
    if answers:
        lists = ((query_id, json.dumps(texts)) for query_id, texts in answers.items())
        _write(lists, folder / "train" / ANSWERS, _ANSWER_SCHEMA, content)
    return ids


def _write_judgements(collection: Collection, folder: Path, check: UnknownIdFilter, content: Any) -> dict[str, Any]:
    positives: dict[str, int] = {}
    pairs: dict[str, array[int]] = {}

    def rows(split: str) -> Iterator[tuple[str, str, int]]:
        positives[split] = 0
        hashes = pairs[split] = array("Q")
        for item in check(collection.judgements(split), split, lambda item: (item.query_id, item.doc_id)):
            if not -(2**31) <= item.relevance <= HIGHEST_GRADE:
                raise DrkitError(
                    f"{collection.name}: relevance {item.relevance} of passage {item.doc_id!r} for query "
                    f"{item.query_id!r}, in {split}; the highest supported grade is {HIGHEST_GRADE:,}"
                )
            hashes.append(id_hash(f"{item.query_id}\0{item.doc_id}"))
            positives[split] += item.relevance > 0
            yield item.query_id, item.doc_id, item.relevance

    for split in check.splits:
        _write(rows(split), folder / split / JUDGEMENTS, _JUDGEMENT_SCHEMA, content)
    check.finish()
    for split, hashes in pairs.items():
        table = MappedTable(folder / split / JUDGEMENTS)
        found = np.frombuffer(hashes, dtype=np.uint64)
        _refuse_contradictions(collection, split, found, table, is_thinned=check.count > 0)
    for split, number in positives.items():
        if not number:
            raise no_positives(collection.name, split)
    judgements = {split: len(hashes) for split, hashes in pairs.items()}
    return {"judgements": judgements, "positives": positives, "dropped_judgements": check.count}


def _refuse_contradictions(
    collection: Collection, split: str, hashes: NDArray[np.uint64], table: MappedTable, *, is_thinned: bool
) -> None:
    """Refuse different judgements of one query and passage; hashes u64[rows]: of the ids in each row.

    is_thinned: rows were dropped, so row numbers differ from those of the collection.
    """
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    where = partial(locator(collection), "judgements", split)
    shown, count = [], 0
    for first, later in zip(order[again], order[again + 1], strict=True):
        (query_id, doc_id, before), (*ids, relevance) = table.take(np.array([first, later]))
        if [query_id, doc_id] == ids and before != relevance:
            count += 1
            if count <= SHOWN:
                places = f"in {split}" if is_thinned else f"in {split} @ {where(int(first))} and {where(int(later))}"
                shown.append(
                    f"passage {doc_id!r} of query {query_id!r} has relevance {before} and {relevance}, {places}"
                )
    if count:
        raise refusal(collection, "judgement(s) that contradict an earlier judgement", shown, count)


def _write_negatives(collection: Collection, folder: Path, check: UnknownIdFilter, content: Any) -> dict[str, Any]:
    """Write the collection's own negatives by split; nothing if it has none."""
    if not isinstance(collection, CarriesNegatives):
        return {}
    counts: dict[str, int] = {}
    for split in check.splits:
        rows = check(collection.negatives(split), split, lambda pair: pair)
        counts[split] = _write(rows, folder / split / NEGATIVES_FILE, _NEGATIVE_SCHEMA, content)
    check.finish()
    return {"negatives": counts, "dropped_negatives": check.count}


def _write_scores(collection: Collection, folder: Path, content: Any) -> dict[str, Any]:
    """Write the teacher's scores that come with the training rows; without any, write no file."""
    if not isinstance(collection, CarriesScores):
        return {}
    if next(collection.teacher_scores("train"), None) is None:
        return {}
    scores = collection.teacher_scores("train")
    return {"teacher_scores": _write(scores, folder / "train" / SCORES_FILE, _SCORE_SCHEMA, content)}


def write_pairs(pairs: Iterable[tuple[str, int]], corpus: StoredCorpus, folder: Path) -> None:
    """Write (query, passage index) pairs to `folder` as a split: every query has an id and one relevant passage.

    Memory: 8 bytes per query.
    """
    indices, content = array("q"), hashlib.sha256()

    def queries() -> Iterator[tuple[str, str]]:
        for text, index in pairs:
            indices.append(index)
            yield f"pseudo-{len(indices)}", text

    _write(queries(), folder / QUERIES_FILE, _QUERY_SCHEMA, content)
    doc_ids = (doc_id for some in batched(indices, _ROWS) for doc_id in corpus.ids_at(some))
    judged = ((f"pseudo-{number}", doc_id, 1) for number, doc_id in enumerate(doc_ids, start=1))
    _write(judged, folder / JUDGEMENTS, _JUDGEMENT_SCHEMA, content)


def _write(rows: Iterator[tuple[Any, ...]], path: Path, schema: Any, content: Any) -> int:
    """Write rows to an Arrow file, and add them to the hash `content`; returns their number."""
    count = 0
    with arrow_file(path, schema) as writer:
        for some in batched(rows, _ROWS):
            batch = record_batch(zip(*some, strict=True), schema)
            writer.write_batch(batch)
            content.update(_content(batch))
            count += len(some)
    return count


def _content(batch: Any) -> Any:
    """Return the bytes of all rows, for the hash of the content."""
    rows = pc.binary_join_element_wise(*(column.cast(_TEXT) for column in batch.columns), pa.scalar("\0", _TEXT))
    lines = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pc.binary_join(lines, pa.scalar("\n", _TEXT))[0].as_buffer()
