"""Judgements in files (TREC's four columns, three, or a JSON dictionary), and ids of any kind in TREC files.

Columns of TREC files are separated by white space. An id with white space or control characters is therefore
percent-encoded and marked, `a b` as `a%20b%drkit`. Other ids are unchanged, percent signs included, and only
marked ids are decoded: `%22` in the id of another tool is part of the id.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from drkit.core.files import replacing
from drkit.core.types import HIGHEST_GRADE, Judgement
from drkit.data.rows import file_kind, parse_number, read_lines
from drkit.errors import DrkitError

_MARK = "%drkit"
_UNSAFE = re.compile(r"[\s\x00-\x1f\x7f\ufeff]")
_ENCODED = re.compile(r"^#|[\s%\x00-\x1f\x7f\ufeff]")
_BLANKS = re.compile(r"[ \t]+")
# How a JSON dictionary begins: with the dictionary of a query, or the end.
_DICTIONARY = re.compile(r"\s*\{\s*(\}|\"([^\"\\]|\\.)*\"\s*:\s*\{)")
_BEIR_JUDGEMENT = "'query-id<TAB>corpus-id<TAB>score'"
_JUDGEMENT = "'query 0 passage relevance' (TREC) or 'query passage relevance', separated by tabs or spaces"


def encode_id(name: str) -> str:
    """Encode an id for a TREC file.

    Raises DrkitError for an empty id, or one that is not valid Unicode.

    >>> encode_id("os.path join 100%"), encode_id("<dbpedia:%22X%22>")
    ('os.path%20join%20100%25%drkit', '<dbpedia:%22X%22>')
    """
    if not name:
        raise DrkitError("cannot write an empty id to a TREC file; give every query and passage an id")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DrkitError(f"cannot write the id {name!r} to a TREC file: it is not valid Unicode") from None
    # An id that `decode_id` would change is marked too.
    return _quoted(name) + _MARK if _UNSAFE.search(name) or decode_id(name) != name else name


def encode_query_id(query_id: str) -> str:
    """Encode the id of a query for a TREC file, where a line that begins with `#` is a comment.

    Raises DrkitError as `encode_id` does.

    >>> encode_query_id("#1"), encode_query_id("1#")
    ('%231%drkit', '1#')
    """
    encoded = encode_id(query_id)
    return _quoted(query_id) + _MARK if encoded.startswith("#") else encoded


def encode_ids(doc_ids: Sequence[str]) -> Sequence[str]:
    """Return the ids as `write_run` writes them (an empty one stays empty), because trec_eval breaks ties by these."""
    names = "".join(doc_ids)
    # No white space but the blank is printable.
    if names.isprintable() and " " not in names and "%" not in names:
        return doc_ids
    return [encode_id(doc_id) if doc_id else "" for doc_id in doc_ids]


def decode_id(name: str) -> str:
    """Decode an id that `encode_id` marked; return anything else, such as an id of another tool, unchanged.

    >>> decode_id("os.path%20join%drkit"), decode_id("os.path%20join")
    ('os.path join', 'os.path%20join')
    """
    if not name.endswith(_MARK):
        return name
    try:
        decoded = unquote(name.removesuffix(_MARK), errors="strict")
    except UnicodeDecodeError:
        return name
    return decoded if _quoted(decoded) + _MARK == name else name


def _quoted(name: str) -> str:
    return _ENCODED.sub(lambda found: quote(found.group(), safe=""), name)


def write_qrels(path: Path, judgements: Iterable[Judgement]) -> None:
    """Write judgements in TREC's four columns: query id, subtopic (0 without one), document id, relevance.

    Raises DrkitError for an empty id.
    """
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(
            f"{encode_query_id(j.query_id)}\t{encode_id(j.subtopic)}\t{encode_id(j.doc_id)}\t{j.relevance}\n"
            for j in judgements
        )


def read_qrels(path: Path) -> Iterator[Judgement]:
    """Read the judgements of a file, as `read_judgements` does; it may be compressed (.gz, .zst), or a pipe.

    Raises DrkitError, with both lines, for a second judgement that contradicts the first.
    """
    seen: dict[tuple[str, str, str], tuple[int, str]] = {}
    for where, judgement in read_judgements(Path(path)):
        key, grade = (judgement.query_id, judgement.subtopic, judgement.doc_id), judgement.relevance
        before, first = seen.setdefault(key, (grade, where))
        if grade != before:
            raise DrkitError(
                f"document {judgement.doc_id!r} is judged twice for query {judgement.query_id!r}, as {before} "
                f"@ {first} and as {grade}; remove one of the two judgements",
                where=where,
            )
        yield judgement


def read_judgements(path: Path, *, beir: bool = False) -> Iterator[tuple[str, Judgement]]:
    """Stream (`file:line`, judgement) of a qrels file.

    Four columns as TREC has them, where the second is the subtopic, or three, with or without a header; `beir`: three,
    tab-separated, with a header. A line with tabs is split at tabs, so that ids may contain spaces; others at white
    space. Relevance is an integer, possibly negative. Unless `beir`: a line that begins with `#` is a comment, as in
    trec_eval 10, and the file may be a JSON dictionary `{query: {document: relevance}}`.

    Raises DrkitError naming `file:line` at any other line.
    """
    lines = read_lines(path)
    if beir:
        yield from _read_table(path, lines, beir=True)
        return
    first = next(lines, None)
    if first is None:
        return
    if file_kind(path) != ".json" and not first[1].lstrip().startswith("{"):
        yield from _read_table(path, chain([first], lines))
        return
    all_lines = [first, *lines]
    text = "\n".join(line for _, line in all_lines)
    if file_kind(path) == ".json" or is_dictionary(text):
        yield from _read_dictionary(path, text)
    else:
        yield from _read_table(path, all_lines)


def _read_table(path: Path, lines: Iterable[tuple[int, str]], *, beir: bool = False) -> Iterator[tuple[str, Judgement]]:
    header, is_first = "", True
    for number, line in lines:
        where = f"{path}:{number}"
        cells = line.split("\t") if beir else qrels_columns(line)
        if line.startswith("#") and not beir:
            refuse_ambiguous_comment(line, where, is_row=len(cells) in (3, 4) and _is_number(cells[-1]))
            continue
        if len(cells) not in ((3,) if beir else (3, 4)) or not cells[0] or not cells[-2]:
            raise DrkitError(f"expected {_BEIR_JUDGEMENT if beir else _JUDGEMENT}, got {line!r:.200}", where=where)
        numbers = cells[2:] if len(cells) == 3 else cells[1::2]
        if not is_first or any(map(_is_number, numbers)):  # else the line is a header
            if is_first and beir:
                raise DrkitError(f"expected the header {_BEIR_JUDGEMENT}, got a judgement", where=where)
            yield where, _judgement(cells, where)
            header = ""
        else:
            header = line
        is_first = False
    if header and not beir:
        raise DrkitError(f"expected {_JUDGEMENT}, got {header!r:.200} and no judgement below", where=f"{path}:1")


def _judgement(cells: Sequence[str], where: str) -> Judgement:
    subtopic = decode_id(cells[1]) or "0" if len(cells) == 4 else "0"
    return Judgement(decode_id(cells[0]), decode_id(cells[-2]), parse_relevance(cells[-1].strip(), where), subtopic)


def refuse_ambiguous_comment(line: str, where: str, *, is_row: bool) -> None:
    """Raise DrkitError for a line that is a comment for trec_eval 10, and a row for earlier versions.

    is_row: whether the line has the columns of a row. A row behind `#` and a blank is a comment.
    """
    name = line.split(maxsplit=1)[0]
    if is_row and name != "#":
        raise DrkitError(
            f"the line begins with #, as comments do, and may be of a query {name!r:.80}; delete it if it is a "
            f"comment (or write '# '), else write the id as {encode_query_id(name)!r:.80}",
            where=where,
        )


def is_dictionary(text: str) -> bool:
    """Return whether a text begins like a JSON dictionary of dictionaries.

    >>> is_dictionary('{"q1": {"d1": 1}}'), is_dictionary('{q} 0 d1 1')
    (True, False)
    """
    return _DICTIONARY.match(text) is not None


def read_dictionary(path: Path, text: str, values: str) -> Mapping[str, Mapping[str, int | float]]:
    """Return the numbers in a JSON dictionary `{query: {document: number}}`; values: what they are, for errors.

    Raises DrkitError for anything else: malformed JSON, a repeated or empty id, a value that is not a finite number.
    """
    expected = f"expected a JSON dictionary {{query: {{document: {values}}}}}"

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DrkitError(f"the key {twice!r:.80} occurs twice in one dictionary; remove one", where=path)
        return found

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DrkitError(f"malformed JSON ({error}); {expected}", where=path) from None
    if not isinstance(found, dict):
        raise DrkitError(f"{expected}, got {type(found).__name__}", where=path)
    for query_id, numbers in found.items():
        encode_id(query_id)
        where = f"{path}: query {query_id!r:.80}"
        if not isinstance(numbers, dict):
            raise DrkitError(f"{expected}, got {type(numbers).__name__} of the query", where=where)
        for doc_id, number in numbers.items():
            if not isinstance(number, (int, float)) or isinstance(number, bool) or not math.isfinite(number):
                raise DrkitError(f"the {values} of {doc_id!r:.80} is {number!r:.80}; {expected}", where=where)
            encode_id(doc_id)
    return found


def _read_dictionary(path: Path, text: str) -> Iterator[tuple[str, Judgement]]:
    for query_id, grades in read_dictionary(path, text, "relevance").items():
        where = f"{path}: query {query_id!r:.80}"
        for doc_id, grade in grades.items():
            yield where, Judgement(query_id, doc_id, parse_relevance(str(grade), where))


def qrels_columns(line: str) -> list[str]:
    r"""Split a line at tabs, or else at blanks and tabs; ids may contain other white space.

    >>> qrels_columns("q1\tdoc one\t1"), qrels_columns("q1 0  d1 1")
    (['q1', 'doc one', '1'], ['q1', '0', 'd1', '1'])
    """
    cells = line.split("\t")
    return cells if len(cells) in (3, 4) else _BLANKS.split(line.strip(" \t"))


def _is_number(text: str) -> bool:
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def parse_relevance(text: str, where: str) -> int:
    """Return a relevance written as `1` or `1.0`. Raises DrkitError if it is not an integer, or too large."""
    try:
        value = parse_number(text)
        whole = value == int(value) and -(2**31) <= value <= HIGHEST_GRADE
    except (ValueError, OverflowError):
        whole = False
    if not whole:
        raise DrkitError(
            f"the relevance {text!r:.80} is not a 32-bit integer of at most {HIGHEST_GRADE:,}", where=where
        )
    return int(value)
