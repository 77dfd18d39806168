"""Rankings of queries: the hits of one query (`Hits`), and files of runs.

Run files are streamed, written atomically, and safe for any id (see `drkit.data.qrels.encode_id`). Scores are written
as the shortest decimal that reads back as the same float32. Ranks follow trec_eval: by score, ties by document id in
descending order.
"""

from __future__ import annotations

import math
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from drkit.core.files import replacing
from drkit.data.qrels import encode_id, encode_ids, id_decoder
from drkit.data.rows import LONGEST_LINE, open_bytes
from drkit.encoders.folder import TORCH
from drkit.errors import DrkitError

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
# Columns of a run file by their number; the second form is MS MARCO's.
_COLUMNS = {6: ("query", "Q0", "document", "rank", "score", "tag"), 3: ("query", "document", "rank")}
_EXPECTED = {6: "score must be a finite number", 3: "rank must be 1, 2, .. in three columns (query document rank)"}
# Bytes that are read at once.
_BLOCK = 8 << 20


def write_run(path: Path, rows: Iterable[RunRow], tag: str) -> int:
    """Write a run of rows (query_id, [(doc_id, score), ..]), one query at a time; returns the number of queries.

    Raises DrkitError for an empty id, a duplicate query or document, or a score that is not finite.
    """
    written = 0
    with replacing(Path(path)) as temporary, temporary.open("wb") as file:
        for lines in run_lines(rows, tag):
            file.write(lines)
            written += 1
    return written


def run_lines(rows: Iterable[RunRow], tag: str) -> Iterator[bytes]:
    """Yield the lines of each query of a run. Raises DrkitError as `write_run` does."""
    label, seen = encode_id(tag), set[str]()
    for query_id, hits in rows:
        if query_id in seen:
            raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
        seen.add(query_id)
        yield _lines(query_id, hits, label)


def read_run(path: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Read each query of a run file with its (doc_id, score) pairs, in file order, one query in memory at a time.

    The file has TREC's six columns, or MS MARCO's three (query, document, rank), whose score is 1 / rank. It may be
    compressed (.gz, .zst), or a pipe.

    Raises DrkitError, with file and line, for an invalid line, or a query whose lines are not consecutive.
    """
    path, seen = Path(path), set[str]()
    blocks = _blocks(path)
    head = next(blocks, None)
    if head is None:
        return
    top = _split(head[1].partition(b"\n")[0].decode(errors="replace"))
    decode = id_decoder(path, "".join(top[-1:]))
    for lines in _queries(path, _COLUMNS[3 if len(top) == 3 else 6], chain([head], blocks)):
        query_id = decode(lines.query)
        if query_id in seen:
            raise DrkitError(
                f"query {query_id!r} occurs twice; all lines of a query must be consecutive",
                where=f"{path}:{lines.first}",
            )
        seen.add(query_id)
        yield query_id, list(zip(_documents(path, lines, decode), lines.scores.tolist(), strict=True))


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


def _queries(path: Path, names: Sequence[str], blocks: Iterable[tuple[int, bytes]]) -> Iterator[_Lines]:
    """Yield all lines of each query of a run file, which may lie in several blocks."""
    current = None
    found = ((_read_by_arrow(names, first, block), first, block) for first, block in blocks)
    by_block = (_read_by_line(path, names, first, block) if rows is None else rows for rows, first, block in found)
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


def _read_by_arrow(names: Sequence[str], first: int, block: bytes) -> list[_Lines] | None:
    """Read lines as drkit and most tools write them, several times as fast as `_read_by_line`.

    None: something is unusual, or wrong, and must be read line by line.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    delimiter = "\t" if b"\t" in block else " "
    unusual = (b"\x00", b" " if delimiter == "\t" else b"  ")
    has_bare_returns = b"\r" in block and block.count(b"\r") != block.count(b"\r\n")
    if has_bare_returns or any(one in block for one in unusual) or block.startswith(BOM_UTF8):  # which Arrow removes
        return None
    types = {name: pa.float64() if name == "score" else pa.string() for name in names}
    types |= {} if "score" in names else {"rank": pa.int64()}
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1),
            csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=types, strings_can_be_null=False, null_values=[]),
        ).combine_chunks()
    except pa.ArrowInvalid:
        return None
    scores = _scores(table["score" if "score" in names else "rank"].to_numpy(), names)
    has_empty = any(pc.any(pc.equal(table[name], "")).as_py() for name in names if types[name] == pa.string())
    if has_empty or not np.isfinite(scores).all():
        return None
    runs, documents = pc.run_end_encode(table["query"].chunk(0)), table["document"].to_pylist()
    queries, ends = runs.values.to_pylist(), runs.run_ends.to_pylist()
    return [
        _Lines(first + start, query, documents[start:end], scores[start:end])
        for query, start, end in zip(queries, [0, *ends[:-1]], ends, strict=True)
    ]


def _read_by_line(path: Path, names: Sequence[str], first: int, block: bytes) -> Iterator[_Lines]:
    rows = _columns(path, names, first, block)
    document, number = names.index("document"), names.index("score" if "score" in names else "rank")
    for name, group in groupby(rows, key=lambda row: row[1][0]):
        lines = list(group)
        start, written = lines[0][0], [columns[number] for _, columns in lines]
        scores = _scores(np.array([_number(text) for text in written]), names)
        if not np.isfinite(scores).all():
            wrong = int(np.isfinite(scores).argmin())
            raise DrkitError(f"{_EXPECTED[len(names)]}, got {written[wrong]!r:.80}", where=f"{path}:{start + wrong}")
        yield _Lines(start, name, [columns[document] for _, columns in lines], scores)


def _scores(numbers: NDArray[Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return the scores of lines, NaN for an invalid rank; numbers: their scores, or their ranks."""
    if "score" in names:
        return _float32(numbers)
    ranks = np.asarray(numbers, np.float64)
    return _float32(np.where((ranks >= 1) & (ranks == np.floor(ranks)), 1 / np.maximum(ranks, 1), np.nan))


def _documents(path: Path, lines: _Lines, decode: Callable[[str], str]) -> list[str]:
    """Return the decoded ids of the documents."""
    written = lines.documents
    names = [decode(name) for name in written] if "%" in "".join(written) else written
    if len(set(names)) < len(names):
        duplicate = next(i for i, name in enumerate(names) if name in names[:i])
        raise DrkitError(
            f"duplicate document {names[duplicate]!r} for query {decode(lines.query)!r}; list each document once",
            where=f"{path}:{lines.first + duplicate}",
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
