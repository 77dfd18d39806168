"""TREC run and judgement files: streamed, written atomically, and safe for any id.

Columns are separated by white space, so white space and percent signs in ids are percent-encoded on writing (`a b` as
`a%20b`) and decoded on reading. Scores are written as the shortest decimal that reads back as the same float32. Ranks
follow trec_eval: by score, ties by document id in descending order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, unquote

import numpy as np

from drkit.core.files import replacing
from drkit.core.types import Judgement
from drkit.errors import DrkitError

RunRow: TypeAlias = "tuple[str, Iterable[tuple[str, float]]]"
Line: TypeAlias = "tuple[int, list[str]]"
_GRADE = re.compile(r"[+-]?\d{1,10}", re.ASCII)
_UNSAFE = re.compile(r"[\s%\x00-\x1f\x7f\ufeff]")


def write_run(path: Path, rows: Iterable[RunRow], tag: str) -> None:
    """Write a run of rows (query_id, [(doc_id, score), ..]), one query at a time.

    Raises DrkitError for an empty id, a duplicate query or document, or a score that is not finite.
    """
    label = encode_id(tag)
    seen: set[str] = set()
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, hits in rows:
            if query_id in seen:
                raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
            seen.add(query_id)
            file.writelines(_lines(query_id, hits, label))


def read_run(path: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Read each query of a run file with its (doc_id, score) pairs, in file order, one query in memory at a time.

    Raises DrkitError, with file and line, for an invalid line, or a query whose lines are not consecutive.
    """
    seen: set[str] = set()
    for line, name, documents, scores in _queries(Path(path)):
        query_id = decode_id(name)
        if query_id in seen:
            raise DrkitError(
                f"{path}:{line}: query {query_id!r} occurs twice; all lines of a query must be consecutive"
            )
        seen.add(query_id)
        found = zip(_documents(path, line, query_id, documents), _scores(path, line, scores), strict=True)
        yield query_id, list(found)


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
    for number, (query_id, _, doc_id, relevance) in _columns(Path(path), 4, "query 0 document relevance"):
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
    if not _UNSAFE.search(names) and names.isprintable():
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


def _lines(query_id: str, hits: Iterable[tuple[str, float]], label: str) -> Iterator[str]:
    import pyarrow as pa

    name, ranked = encode_id(query_id), _ranked(query_id, hits)
    # Arrow writes the shortest decimal that reads back as the same float32, many times faster than str.
    scores = pa.array([score for score, _ in ranked], pa.float32()).cast(pa.string()).to_pylist()
    for rank, (score, (_, doc_id)) in enumerate(zip(scores, ranked, strict=True), start=1):
        whole = "" if "." in score or "e" in score else ".0"
        yield f"{name}\tQ0\t{doc_id}\t{rank}\t{score}{whole}\t{label}\n"


def _ranked(query_id: str, hits: Iterable[tuple[str, float]]) -> list[tuple[float, str]]:
    """Return (score rounded to float32, encoded document id), in trec_eval's order."""
    pairs = list(hits)
    doc_ids = encode_ids([doc_id for doc_id, _ in pairs])
    if "" in doc_ids:
        encode_id("")
    if len(set(doc_ids)) < len(doc_ids):
        raise DrkitError(f"query {query_id!r} has a duplicate document among its hits")
    with np.errstate(over="ignore"):
        scores = np.array([score for _, score in pairs], dtype=np.float64).astype(np.float32)
    if not np.isfinite(scores).all():
        wrong = doc_ids[int(np.isfinite(scores).argmin())]
        raise DrkitError(f"query {query_id!r}: the score of {wrong!r} is not finite")
    return sorted(zip(scores.tolist(), doc_ids, strict=True), reverse=True)


def _queries(path: Path) -> Iterator[tuple[int, str, list[str], list[str]]]:
    """Yield (first line, query, documents, scores) of each query of a run file, all as they are written."""
    first, name, documents, scores = 0, "", list[str](), list[str]()
    for number, columns in _columns(path, 6, "query Q0 document rank score tag"):
        if columns[0] != name:
            if documents:
                yield first, name, documents, scores
            first, name, documents, scores = number, columns[0], [], []
        documents.append(columns[2])
        scores.append(columns[4])
    if documents:
        yield first, name, documents, scores


def _documents(path: Path, line: int, query_id: str, written: list[str]) -> list[str]:
    names = [decode_id(name) for name in written] if any("%" in name for name in written) else written
    if len(set(names)) < len(names):
        duplicate = next(i for i, name in enumerate(names) if name in names[:i])
        raise DrkitError(
            f"{path}:{line + duplicate}: duplicate document {names[duplicate]!r} for query {query_id!r}; "
            f"list each document once"
        )
    return names


def _scores(path: Path, line: int, written: list[str]) -> list[float]:
    """Return the scores as float32, as trec_eval stores them."""
    with np.errstate(over="ignore"):
        found = np.array([_number(text) for text in written], dtype=np.float64).astype(np.float32)
    if not np.isfinite(found).all():
        wrong = int(np.isfinite(found).argmin())
        raise DrkitError(f"{path}:{line + wrong}: score must be a finite number, got {written[wrong]!r}")
    scores: list[float] = found.tolist()
    return scores


def _number(text: str) -> float:
    """Return a score, or NaN if it is not a number in ASCII digits; quick, for a run has millions of lines."""
    try:
        return float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan


def _columns(path: Path, count: int, names: str) -> Iterator[Line]:
    """Yield (line number, columns), split only at blanks and tabs: ids may contain other white space."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                columns = line.rstrip("\r\n").split("\t")  # as drkit and most tools write them
                if len(columns) != count or "" in columns or " " in line:
                    columns = [c for c in line.strip(" \t\r\n").replace("\t", " ").split(" ") if c] or [""]
                if len(columns) != count:
                    given = len(columns) if columns != [""] else 0
                    raise DrkitError(f"{path}:{number}: expected {count} columns ({names}), got {given}")
                yield number, columns
    except UnicodeDecodeError as error:
        raise DrkitError(f"{path}: not a UTF-8 text file ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}") from None
