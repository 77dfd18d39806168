"""TREC run and judgement files: streamed, atomic, and safe for any id.

The format is split at white space, so white space in an id, and the percent sign, are written percent-encoded
(`a b` as `a%20b`) and decoded on reading. Scores are written as the shortest decimal that reads back as the same
float32. Ranks follow the order in which trec_eval reads the file: by score, ties by doc id, the last id first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, unquote

import numpy as np

from drkit.core.files import replacing
from drkit.core.types import Judgement
from drkit.errors import DrkitError

RunRow: TypeAlias = "tuple[str, Iterable[tuple[str, float]]]"
Line: TypeAlias = "tuple[int, list[str]]"
_UNSAFE = re.compile(r"[\s%\x00-\x1f\x7f\ufeff]")


def write_run(path: Path, rows: Iterable[RunRow], tag: str) -> None:
    """Write a run, one query after another as `rows` gives them: (query_id, [(doc_id, score), ..]).

    Raises DrkitError for an empty id, a query or document given twice, or a score that is no finite number.
    """
    label = encode_id(tag)
    seen: set[str] = set()
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for query_id, hits in rows:
            if query_id in seen:
                raise DrkitError(f"query {query_id!r} comes twice in one run; give every query's hits in one row")
            seen.add(query_id)
            file.writelines(_lines(query_id, hits, label))


def read_run(path: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The queries of a run file with their (doc_id, score), in the file's order, one query in memory at a time.

    Raises DrkitError, with file and line, for a line that is no TREC run line, or a query in two places.
    """
    seen: set[str] = set()
    for name, lines in groupby(_columns(Path(path), 6, "query Q0 document rank score tag"), key=_first_column):
        query_id, held = decode_id(name), list(lines)
        if query_id in seen:
            raise DrkitError(f"{path}:{held[0][0]}: query {query_id!r} stands in two places; a run names each once")
        seen.add(query_id)
        yield query_id, list(zip(_documents(path, query_id, held), _scores(path, held), strict=True))


def write_qrels(path: Path, judgements: Iterable[Judgement]) -> None:
    """Write judgements: query id, 0, document id, relevance.

    Raises DrkitError for an empty id.
    """
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{encode_id(j.query_id)}\t0\t{encode_id(j.doc_id)}\t{j.relevance}\n" for j in judgements)


def read_qrels(path: Path) -> Iterator[Judgement]:
    """The judgements of a file in TREC's four columns.

    Raises DrkitError, with file and line, for a line that has another shape.
    """
    for number, (query_id, _, doc_id, relevance) in _columns(Path(path), 4, "query 0 document relevance"):
        try:
            grade = int(relevance)
        except ValueError:
            raise DrkitError(f"{path}:{number}: relevance {relevance!r} is no whole number") from None
        yield Judgement(decode_id(query_id), decode_id(doc_id), grade)


def encode_id(name: str) -> str:
    """An id as it stands in a file.

    Raises DrkitError for an empty id, or one that UTF-8 cannot write.

    >>> encode_id("os.path join 100%")
    'os.path%20join%20100%25'
    """
    if not name:
        raise DrkitError("an empty id cannot be written to a TREC file; give every query and passage an id")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DrkitError(f"the id {name!r} is no valid Unicode text and cannot be written to a TREC file") from None
    return _UNSAFE.sub(lambda found: quote(found.group(), safe=""), name)


def is_safe(names: str) -> bool:
    """Whether ids, one after the other, stand in a file as they are."""
    return not _UNSAFE.search(names) and names.isprintable()


def decode_id(name: str) -> str:
    """The id that `encode_id` wrote; what it cannot have written, of another tool's file, stands as it is.

    >>> decode_id("os.path%20join"), decode_id("caf%E9")
    ('os.path join', 'caf%E9')
    """
    try:
        return unquote(name, errors="strict") if "%" in name else name
    except UnicodeDecodeError:
        return name


def _lines(query_id: str, hits: Iterable[tuple[str, float]], label: str) -> Iterator[str]:
    name = encode_id(query_id)
    for rank, (doc_id, score) in enumerate(_ranked(query_id, hits), start=1):
        yield f"{name}\tQ0\t{doc_id}\t{rank}\t{score!s}\t{label}\n"


def _ranked(query_id: str, hits: Iterable[tuple[str, float]]) -> Sequence[tuple[str, np.float32]]:
    ranked = [(encode_id(doc_id), np.float32(score)) for doc_id, score in hits]
    if len({doc_id for doc_id, _ in ranked}) < len(ranked):
        raise DrkitError(f"query {query_id!r} has the same document twice among its hits")
    wrong = next((doc_id for doc_id, score in ranked if not math.isfinite(score)), None)
    if wrong is not None:
        raise DrkitError(f"query {query_id!r}: the score of {wrong!r} is no finite number")
    return sorted(ranked, key=lambda hit: (hit[1], hit[0]), reverse=True)


def _first_column(line: Line) -> str:
    return line[1][0]


def _documents(path: Path, query_id: str, lines: Sequence[Line]) -> list[str]:
    names = [decode_id(columns[2]) for _, columns in lines]
    if len(set(names)) < len(names):
        first = {name: place for place, name in reversed(list(enumerate(names)))}
        second = next(place for place, name in enumerate(names) if first[name] < place)
        raise DrkitError(
            f"{path}:{lines[second][0]}: query {query_id!r} names document {names[second]!r} twice; "
            f"a run names each once"
        )
    return names


def _scores(path: Path, lines: Sequence[Line]) -> list[float]:
    """The scores, as float32: what trec_eval keeps of them."""
    with np.errstate(over="ignore"):
        found = np.array([_number(columns[4]) for _, columns in lines]).astype(np.float32)
    if not np.isfinite(found).all():
        number, columns = lines[int(np.isfinite(found).argmin())]
        raise DrkitError(f"{path}:{number}: score {columns[4]!r} is no finite number")
    scores: list[float] = found.tolist()
    return scores


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _columns(path: Path, count: int, names: str) -> Iterator[Line]:
    """The lines of a file by number, split at blanks and tabs alone: ids may hold any other white space."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                columns = line.strip(" \t\r\n").replace("\t", " ").split(" ")
                if "" in columns:  # several of them in a row
                    columns = [column for column in columns if column] or [""]
                if len(columns) != count:
                    given = len(columns) if columns != [""] else 0
                    raise DrkitError(f"{path}:{number}: {given} columns where a line has {count}: {names}")
                yield number, columns
    except UnicodeDecodeError as error:
        raise DrkitError(f"{path}: not a UTF-8 text file ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}") from None
