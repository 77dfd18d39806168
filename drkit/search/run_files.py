"""Files of rankings: TREC runs, safe for any id (see `drkit.data.qrels.encode_id`), Arrow files, or JSON dictionaries.

TREC scores are written as the shortest decimal that reads back as the same float32.
"""

from __future__ import annotations

import hashlib
import io
import math
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

from drkit.core.checksums import check_unchanged
from drkit.core.files import replacing
from drkit.data.arrays import arrow_file, read_batches
from drkit.data.qrels import (
    decode_id,
    encode_id,
    encode_ids,
    encode_query_id,
    is_dictionary,
    read_dictionary,
    refuse_ambiguous_comment,
)
from drkit.data.rows import LONGEST_LINE, file_kind, open_bytes
from drkit.errors import DrkitError
from drkit.search.rankings import ID_TYPE, Rankings, RunRow, as_float32, codes, in_blocks, used_documents

# Columns of a run file by their number; the second form is MS MARCO's.
_COLUMNS = {6: ("query", "Q0", "document", "rank", "score", "tag"), 3: ("query", "document", "rank")}
_NUMBERS = ("rank", "score")
_EXPECTED = {6: "score must be a finite number", 3: "rank must be 1, 2, .. in three columns (query document rank)"}
# Bytes that are read at once, and queries that are written at once.
_BLOCK, _QUERIES = 8 << 20, 256
# Bytes in which a JSON dictionary shows that it is one.
_HEAD = 1 << 16
# The files of arrays: their names, how they begin, and their columns.
ARROW, _ARROW, _ARROW_COLUMNS = ".arrow", b"ARROW1", ("query_id", "doc_id", "score")
_ARROW_TYPES = (ID_TYPE, pa.large_list(pa.dictionary(pa.int32(), ID_TYPE)), pa.large_list(pa.float32()))
_ARROW_SCHEMA = pa.schema(list(zip(_ARROW_COLUMNS, _ARROW_TYPES, strict=True)))
# The key of the hash of its content.
_CHECKSUM = b"drkit.checksum"


def write_run(path: Path, rows: Iterable[RunRow], tag: str) -> int:
    """Write rankings as a TREC run, or as arrays if the file's name ends with `.arrow`; returns the number of queries.

    rows: `Rankings`, or rows (query_id, [(doc_id, score), ..]).

    Raises DrkitError for an empty id, a duplicate query or document, or a score that is not finite.
    """
    return write_blocks(path, in_blocks(rows, _QUERIES), tag)


def write_blocks(path: Path, blocks: Iterable[Rankings], tag: str) -> int:
    """Write the rankings of some queries at a time, as `write_run` does; a TREC run is written as they come."""
    path, label, seen = Path(path), encode_id(tag), set[str]()

    def noted() -> Iterator[Rankings]:
        for block in blocks:
            for query_id in block.query_ids:
                if query_id in seen:
                    raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
                seen.add(query_id)
            yield block

    if path.suffix == ARROW:
        write_rankings(path, Rankings.joined(list(noted())))
        return len(seen)
    with replacing(path) as temporary, temporary.open("wb") as file:
        for block in noted():
            file.writelines(_lines(some.ordered(), label) for some in block.batches(_QUERIES))
    return len(seen)


def write_rankings(path: Path, rankings: Rankings) -> None:
    """Write rankings as an Arrow file, each query's best first: `query_id`, and lists of `doc_id` and `score`.

    `read_run` reads it, and compares it with the checksum that it carries; other programs read it as a table with one
    row per query.
    """
    rankings = rankings.ordered()
    used, documents = used_documents(rankings.documents, len(rankings.doc_ids))
    doc_ids = pa.DictionaryArray.from_arrays(documents.astype(np.int32), rankings.doc_ids.take(pa.array(used)))
    lists = [pa.LargeListArray.from_arrays(rankings.starts, one) for one in (doc_ids, pa.array(rankings.scores))]
    columns = dict(zip(_ARROW_COLUMNS, [pa.array(rankings.query_ids, ID_TYPE), *lists], strict=True))
    batch = pa.record_batch(columns)
    schema = batch.schema.with_metadata({_CHECKSUM: _content_hash(_rankings_of(batch))})
    with arrow_file(path, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def read_run(path: Path) -> Rankings:
    """Read rankings: an Arrow file of drkit, memory-mapped, a TREC run, or a JSON dictionary; hits keep their order.

    A run has TREC's six columns, or MS MARCO's three (query, document, rank), whose score is 1 / rank. As in trec_eval,
    words behind column 6 are ignored, a line that begins with `#` is a comment, and the lines of a query may be
    anywhere. A dictionary is `{query: {document: score}}`, as ranx and pytrec_eval have it. The file may be compressed
    (.gz, .zst), or a pipe. Memory: 8 bytes for each hit, and the ids once; a dictionary is read at once.

    Raises DrkitError, with file and line, for an invalid line; and if the file is damaged, or, in a run, has changed
    since it was written.
    """
    path = Path(path)
    check_unchanged(path)
    blocks = _blocks(path)
    head = next(blocks, None)
    if head is None:
        return Rankings.of(())
    if head[1].startswith(_ARROW):
        return _read_rankings(path)
    if file_kind(path) == ".json" or is_dictionary(head[1][:_HEAD].decode(errors="replace")):
        return _read_dictionary(path, b"".join(block for _, block in chain([head], blocks)))
    names, comments, parsed = _COLUMNS[_width(head[1])], list[int](), list[_Parsed]()
    for first, block in chain([head], blocks):
        parsed.append(_parse(names, block) or _parse_by_line(path, names, first, block, comments))
    queries, documents, scores = zip(*parsed, strict=True)
    return _checked(path, _decoded(queries), _decoded(documents), np.concatenate(scores), comments)


def _width(block: bytes) -> int:
    """Return the number of columns of a run, by its first line that is not a comment: 3 or 6."""
    lines = (line for line in io.BytesIO(block) if not line.startswith(b"#"))
    return 3 if len(_split(next(lines, b"").decode(errors="replace").rstrip("\n"))) == 3 else 6


def _read_dictionary(path: Path, data: bytes) -> Rankings:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DrkitError(f"not UTF-8 text ({error.reason} at byte {error.start})", where=path) from None
    return Rankings.of((query, scores.items()) for query, scores in read_dictionary(path, text, "score").items())


def _lines(rankings: Rankings, label: str) -> bytes:
    """Return the lines of some queries, joined by Arrow.

    It writes the shortest decimal that reads back as the same float32, many times faster than str.
    """
    used, documents = used_documents(rankings.documents, len(rankings.doc_ids))
    doc_ids = encode_ids(rankings.doc_ids.take(pa.array(used)).to_pylist())
    if "" in doc_ids:
        encode_id("")
    query_ids = pa.array([encode_query_id(query_id) for query_id in rankings.query_ids], ID_TYPE)
    ranks = np.arange(1, len(documents) + 1) - rankings.starts[rankings.queries]
    scores = pa.array(rankings.scores).cast(ID_TYPE)
    if (rankings.scores == np.trunc(rankings.scores)).any():
        whole = pc.invert(pc.match_substring_regex(scores, "[.e]"))
        scores = pc.if_else(whole, pc.binary_join_element_wise(scores, *_texts("0", ".")), scores)
    columns = (pa.array(doc_ids, ID_TYPE).take(pa.array(documents)), pa.array(ranks).cast(ID_TYPE), scores)
    first, last, between = _texts("Q0", f"{label}\n", "\t")
    lines = pc.binary_join_element_wise(query_ids.take(pa.array(rankings.queries)), first, *columns, last, between)
    return bytes(lines.buffers()[2]) if len(lines) else b""


def _texts(*texts: str) -> Iterator[Any]:
    return (pa.scalar(text, ID_TYPE) for text in texts)


# The lines of a block: queries and documents as written, in arrays in chunks, and scores f32[n].
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
    has_comment = block.startswith(b"#") or b"\n#" in block
    if has_empty_cell or is_spaced or has_comment or b"\x00" in block or b"\r" in block or block.startswith(BOM_UTF8):
        return None
    types = {"query": pa.string(), "document": pa.string(), number: pa.float64() if number == "score" else pa.int64()}
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


def _parse_by_line(path: Path, names: Sequence[str], first: int, block: bytes, comments: list[int]) -> _Parsed:
    """Read lines one by one; the numbers of those that are comments are added to `comments`."""
    rows = list(_rows(path, names, first, block, comments))
    written = [cells[names.index("score" if "score" in names else "rank")] for _, cells in rows]
    scores = _scores(np.array([_number(text) for text in written], np.float64), names)
    if not np.isfinite(scores).all():
        wrong = int(np.isfinite(scores).argmin())
        raise DrkitError(f"{_EXPECTED[len(names)]}, got {written[wrong]!r:.80}", where=f"{path}:{rows[wrong][0]}")
    queries, documents = (
        pa.chunked_array([pa.array([cells[names.index(name)] for _, cells in rows], pa.string())])
        for name in ("query", "document")
    )
    return queries, documents, scores


def _scores(numbers: NDArray[Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return the scores of lines, NaN for an invalid rank; numbers: their scores, or their ranks."""
    if "score" in names:
        return as_float32(numbers)
    ranks = np.asarray(numbers, np.float64)
    return as_float32(np.where((ranks >= 1) & (ranks == np.floor(ranks)), 1 / np.maximum(ranks, 1), np.nan))


def _decoded(written: Iterable[Any]) -> Any:
    """Return ids of a file, in arrays in chunks, as one dictionary array of what they stand for."""
    joined = pa.chunked_array([chunk for column in written for chunk in column.chunks])
    found = joined.dictionary_encode().combine_chunks()
    if not pc.any(pc.match_substring(found.dictionary, "%")).as_py():
        return pa.DictionaryArray.from_arrays(found.indices, found.dictionary.cast(ID_TYPE))
    ids = pa.array(map(decode_id, found.dictionary.to_pylist()), ID_TYPE).dictionary_encode()
    return pa.DictionaryArray.from_arrays(ids.indices.take(found.indices), ids.dictionary)


def _checked(
    path: Path, queries: Any, documents: Any, scores: NDArray[np.float32], comments: Sequence[int]
) -> Rankings:
    """Return the rankings of a file's lines, grouped by query. Raises DrkitError for a duplicate, naming the line.

    comments: the numbers of the lines that are none of these.
    """
    rows, lines = codes(queries), np.arange(len(scores))  # rows are numbered as queries first occur
    if (rows[1:] < rows[:-1]).any():
        lines = np.argsort(rows, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(queries.dictionary)))])
    query_ids = queries.dictionary.to_pylist()
    rankings = Rankings(query_ids, starts, codes(documents)[lines], scores[lines], documents.dictionary)
    if (hit := rankings.duplicate()) is not None:
        query_id, name = rankings.ids_of(hit)
        number = int(lines[hit]) + 1
        for comment in comments:
            number += comment <= number
        raise DrkitError(
            f"duplicate document {name!r} for query {query_id!r}; list each document once", where=f"{path}:{number}"
        )
    return rankings


def _read_rankings(path: Path) -> Rankings:
    """Read a file of `write_rankings`. Raises DrkitError for any other Arrow file, and a damaged one."""
    advice = "give a file of rankings of a run, or a TREC run"
    batches = read_batches(path, advice)
    if len(batches) != 1 or not batches[0].schema.equals(_ARROW_SCHEMA):
        raise DrkitError(f"not a file of rankings; {advice}", where=path)
    _, documents, scores = batches[0].columns
    starts = scores.offsets.to_numpy()
    if not np.array_equal(starts, documents.offsets.to_numpy()) or {starts[0], len(scores.values) - starts[-1]} != {0}:
        raise DrkitError(f"the lists of documents and of scores do not match; {advice}", where=path)
    rankings = _rankings_of(batches[0])
    written = (batches[0].schema.metadata or {}).get(_CHECKSUM)
    if written is None:  # of an older drkit, or another program
        _check_rankings(rankings, path, advice)
    elif written.decode(errors="replace") != _content_hash(rankings):
        raise DrkitError(
            "the rankings have changed since they were written (their checksum differs); make the file again, or "
            "restore it from a copy",
            where=path,
        )
    return rankings


def _rankings_of(batch: Any) -> Rankings:
    """Return the rankings in a record batch of `write_rankings`."""
    query_ids, documents, scores = batch.columns
    return Rankings(
        query_ids.to_pylist(),
        scores.offsets.to_numpy(),
        codes(documents.values),
        scores.values.to_numpy(),
        documents.values.dictionary,
    )


def _check_rankings(rankings: Rankings, path: Path, advice: str) -> None:
    """Raise DrkitError for what a file of rankings must not have: a duplicate, an empty id, a score not finite."""
    if "" in rankings.query_ids or pc.any(pc.equal(rankings.doc_ids, "")).as_py():
        raise DrkitError(f"an id is empty; {advice}", where=path)
    if pc.count_distinct(rankings.doc_ids).as_py() < len(rankings.doc_ids):
        raise DrkitError(f"an id occurs twice among the documents; {advice}", where=path)
    try:
        rankings.check()
    except DrkitError as error:
        raise DrkitError(f"{error}; {advice}", where=path) from None


def _content_hash(rankings: Rankings) -> str:
    """Return the hash of all ids, lists and scores."""
    state = hashlib.blake2b(digest_size=16)
    for ids in (pa.array(rankings.query_ids, ID_TYPE), rankings.doc_ids):
        state.update(pc.binary_length(ids).to_numpy(zero_copy_only=False).tobytes())
        everything = pa.LargeListArray.from_arrays(pa.array([0, len(ids)], pa.int64()), ids)
        state.update(pc.binary_join(everything, pa.scalar("", ID_TYPE))[0].as_buffer())
    for array in (rankings.starts, rankings.documents, rankings.scores):
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


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
                number += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
        except (OSError, EOFError, zlib.error) as error:
            raise DrkitError(f"cannot be read after line {number - 1} ({error})", where=path) from None


def _rows(
    path: Path, names: Sequence[str], first: int, block: bytes, comments: list[int]
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, columns); the numbers of comments are added to `comments`."""
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n"), start=first):
        where = f"{path}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise DrkitError(f"not UTF-8 text ({error.reason} at byte {error.start})", where=where) from None
        columns = _split(text)
        if text.startswith("#"):
            refuse_ambiguous_comment(text, where, is_row=_is_row(columns, names))
            comments.append(number)
        elif _is_row(columns, names) or len(columns) == len(names):
            yield number, columns
        else:
            raise DrkitError(
                f"expected {len(names)} columns ({' '.join(names)}), got {len(columns)}: {text!r:.80}", where=where
            )


def _is_row(columns: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether columns are a row: words may follow TREC's sixth, if the fourth and fifth are numbers."""
    enough = len(columns) >= len(names) if len(names) == 6 else len(columns) == len(names)
    return enough and all(math.isfinite(_number(columns[i])) for i, name in enumerate(names) if name in _NUMBERS)


def _split(line: str) -> list[str]:
    """Return the columns of a line, split only at blanks and tabs: ids may contain other white space."""
    return [cell for cell in line.strip(" \t\r").replace("\t", " ").split(" ") if cell]
