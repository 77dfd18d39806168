"""Rankings of queries: the hits of one query (`Hits`), and TREC files of runs and judgements.

TREC files are streamed, written atomically, and safe for any id. Columns are separated by white space, so white space
and percent signs in ids are percent-encoded on writing (`a b` as `a%20b`) and decoded on reading. Scores are written as
the shortest decimal that reads back as the same float32. Ranks follow trec_eval: by score, ties by document id in
descending order.
"""

from __future__ import annotations

import logging
import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from drkit.core.files import replacing
from drkit.core.types import Judgement
from drkit.data.rows import LONGEST_LINE
from drkit.encoders.folder import TORCH
from drkit.errors import DrkitError

_LOGGER = logging.getLogger(__name__)
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
_RUN, _QRELS = "query Q0 document rank score tag", "query 0 document relevance"
# Bytes that are read at once.
_BLOCK = 8 << 20
_GRADE = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_UNSAFE = re.compile(r"[\s%\x00-\x1f\x7f\ufeff]")


def write_run(path: Path, rows: Iterable[RunRow], tag: str) -> int:
    """Write a run of rows (query_id, [(doc_id, score), ..]), one query at a time; returns the number of queries.

    Raises DrkitError for an empty id, a duplicate query or document, or a score that is not finite.
    """
    label = encode_id(tag)
    seen: set[str] = set()
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        for query_id, hits in rows:
            if query_id in seen:
                raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
            seen.add(query_id)
            file.write(_lines(query_id, hits, label))
    return len(seen)


def read_run(path: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Read each query of a run file with its (doc_id, score) pairs, in file order, one query in memory at a time.

    Raises DrkitError, with file and line, for an invalid line, or a query whose lines are not consecutive.
    """
    seen: set[str] = set()
    for lines in _queries(Path(path)):
        query_id = decode_id(lines.query)
        if query_id in seen:
            raise DrkitError(
                f"{path}:{lines.first}: query {query_id!r} occurs twice; all lines of a query must be consecutive"
            )
        seen.add(query_id)
        yield query_id, list(zip(_documents(path, lines, query_id), lines.scores.tolist(), strict=True))


def write_qrels(path: Path, judgements: Iterable[Judgement]) -> None:
    """Write judgements in TREC's four columns: query id, 0, document id, relevance.

    Raises DrkitError for an empty id.
    """
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{encode_id(j.query_id)}\t0\t{encode_id(j.doc_id)}\t{j.relevance}\n" for j in judgements)


def read_qrels(path: Path) -> Iterator[Judgement]:
    """Read the judgements of a file in TREC's four columns.

    Raises DrkitError, with file and line, for an invalid line.
    """
    rows = (row for first, block in _blocks(Path(path)) for row in _columns(path, first, block, _QRELS))
    for number, (query_id, _, doc_id, relevance) in rows:
        if not _GRADE.fullmatch(relevance):
            raise DrkitError(f"{path}:{number}: relevance must be a whole number, got {relevance!r:.80}")
        yield Judgement(decode_id(query_id), decode_id(doc_id), int(relevance))


def encode_id(name: str) -> str:
    """Encode an id for a TREC file.

    Raises DrkitError for an empty id, or one that is not valid Unicode.

    >>> encode_id("os.path join 100%")
    'os.path%20join%20100%25'
    """
    if not name:
        raise DrkitError("cannot write an empty id to a TREC file; give every query and passage an id")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DrkitError(f"cannot write the id {name!r} to a TREC file: it is not valid Unicode") from None
    return _UNSAFE.sub(lambda found: quote(found.group(), safe=""), name)


def encode_ids(doc_ids: Sequence[str]) -> Sequence[str]:
    """Return the ids as `write_run` writes them (an empty one stays empty), because trec_eval breaks ties by these."""
    names = "".join(doc_ids)
    # No white space but the blank is printable.
    if names.isprintable() and " " not in names and "%" not in names:
        return doc_ids
    return [encode_id(doc_id) if doc_id else "" for doc_id in doc_ids]


def decode_id(name: str) -> str:
    """Decode an id that `encode_id` wrote; return anything else, such as an id of another tool, unchanged.

    >>> decode_id("os.path%20join"), decode_id("caf%E9")
    ('os.path join', 'caf%E9')
    """
    try:
        return unquote(name, errors="strict") if "%" in name else name
    except UnicodeDecodeError:
        return name


def _lines(query_id: str, hits: Iterable[tuple[str, float]], label: str) -> bytes:
    """Return the lines of a query, joined by Arrow.

    It writes the shortest decimal that reads back as the same float32, many times faster than str.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    name, (doc_ids, found) = encode_id(query_id), _ranked(query_id, hits)
    ranks = pa.array(np.arange(1, len(found) + 1)).cast(pa.string())
    scores = pa.array(found).cast(pa.string())
    if (found == np.trunc(found)).any():
        whole = pc.invert(pc.match_substring_regex(scores, "[.e]"))
        scores = pc.if_else(whole, pc.binary_join_element_wise(scores, "0", "."), scores)
    columns = (name, "Q0", pa.array(doc_ids, pa.string()), ranks, scores, f"{label}\n")
    lines = pc.binary_join_element_wise(*columns, "\t")
    return bytes(pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "")[0].as_buffer())


def _ranked(query_id: str, hits: Iterable[tuple[str, float]]) -> tuple[Sequence[str], NDArray[np.float32]]:
    """Return encoded document ids and their scores, in trec_eval's order."""
    pairs = list(hits)
    doc_ids = encode_ids([doc_id for doc_id, _ in pairs])
    if "" in doc_ids:
        encode_id("")
    if len(set(doc_ids)) < len(doc_ids):
        raise DrkitError(f"query {query_id!r} has a duplicate document among its hits")
    scores = _float32([score for _, score in pairs])
    if not np.isfinite(scores).all():
        wrong = doc_ids[int(np.isfinite(scores).argmin())]
        raise DrkitError(f"query {query_id!r}: the score of {wrong!r} is not finite")
    if not (scores[1:] < scores[:-1]).all():
        ordered = sorted(zip(scores.tolist(), doc_ids, strict=True), reverse=True)
        return [doc_id for _, doc_id in ordered], np.array([score for score, _ in ordered], np.float32)
    return doc_ids, scores


def _float32(scores: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float32]:
    """Return scores as trec_eval stores them; a number too large for float32 is infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(scores, dtype=np.float64).astype(np.float32)


class _Lines(NamedTuple):
    """Consecutive lines of one query: the number of the first, query and documents as written, scores f32[n]."""

    first: int
    query: str
    documents: list[str]
    scores: NDArray[np.float32]


def _queries(path: Path) -> Iterator[_Lines]:
    """Yield all lines of each query of a run file, which may lie in several blocks."""
    current = None
    found = ((_read_by_arrow(first, block), first, block) for first, block in _blocks(path))
    by_block = (_read_by_line(path, first, block) if rows is None else rows for rows, first, block in found)
    for lines in chain.from_iterable(by_block):
        if current is not None and lines.query == current.query:
            both = np.concatenate([current.scores, lines.scores])
            current = current._replace(documents=current.documents + lines.documents, scores=both)
            continue
        if current is not None:
            yield current
        current = lines
    if current is not None:
        yield current


def _read_by_arrow(first: int, block: bytes) -> list[_Lines] | None:
    """Read lines as drkit and most tools write them, several times as fast as `_read_by_line`.

    None: something is unusual, or wrong, and must be read line by line.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    if any(unusual in block for unusual in (b" ", b"\r", b"\x00")):
        return None
    names = _RUN.split()
    types = {name: pa.float64() if name == "score" else pa.string() for name in names}
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
            csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=types, strings_can_be_null=False, null_values=[]),
        ).combine_chunks()
    except pa.ArrowInvalid:
        return None
    scores = _float32(table["score"].to_numpy())
    has_empty = any(pc.any(pc.equal(table[name], "")).as_py() for name in names if name != "score")
    if has_empty or not np.isfinite(scores).all():
        return None
    runs, documents = pc.run_end_encode(table["query"].chunk(0)), table["document"].to_pylist()
    queries, ends = runs.values.to_pylist(), runs.run_ends.to_pylist()
    return [
        _Lines(first + start, query, documents[start:end], scores[start:end])
        for query, start, end in zip(queries, [0, *ends[:-1]], ends, strict=True)
    ]


def _read_by_line(path: Path, first: int, block: bytes) -> Iterator[_Lines]:
    rows = _columns(path, first, block, _RUN)
    for name, group in groupby(rows, key=lambda row: row[1][0]):
        lines = list(group)
        start, written = lines[0][0], [columns[4] for _, columns in lines]
        scores = _float32([_number(text) for text in written])
        if not np.isfinite(scores).all():
            wrong = int(np.isfinite(scores).argmin())
            raise DrkitError(f"{path}:{start + wrong}: score must be a finite number, got {written[wrong]!r}")
        yield _Lines(start, name, [columns[2] for _, columns in lines], scores)


def _documents(path: Path, lines: _Lines, query_id: str) -> list[str]:
    """Return the decoded ids of the documents."""
    written = lines.documents
    names = [decode_id(name) for name in written] if "%" in "".join(written) else written
    if len(set(names)) < len(names):
        duplicate = next(i for i, name in enumerate(names) if name in names[:i])
        raise DrkitError(
            f"{path}:{lines.first + duplicate}: duplicate document {names[duplicate]!r} for query {query_id!r}; "
            f"list each document once"
        )
    return names


def _number(text: str) -> float:
    """Return a score, or NaN if it is not a number in ASCII digits."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file in blocks of whole lines, each with the number of its first line."""
    number = 1
    _LOGGER.info("reading %s", path)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                block += file.readline(LONGEST_LINE)
                yield number, block.removeprefix(BOM_UTF8) if number == 1 else block
                number += block.count(b"\n")
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}") from None


def _columns(path: Path, first: int, block: bytes, names: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, columns), split only at blanks and tabs: ids may contain other white space."""
    count = len(names.split())
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), start=first):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise DrkitError(f"{path}:{number}: not UTF-8 text ({error.reason} at byte {error.start})") from None
        columns = text.rstrip("\r").split("\t")  # as drkit and most tools write them
        if len(columns) != count or "" in columns or " " in text:
            columns = [c for c in text.strip(" \t\r").replace("\t", " ").split(" ") if c]
        if len(columns) != count:
            raise DrkitError(f"{path}:{number}: expected {count} columns ({names}), got {len(columns)}")
        yield number, columns
