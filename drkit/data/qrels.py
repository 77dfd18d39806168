"""Judgements in files (TREC's four columns, or three), and ids of any kind in TREC files.

Columns of TREC files are separated by white space. An id with white space or control characters is therefore
percent-encoded and marked, `a b` as `a%20b%drkit`. Other ids are unchanged, percent signs included, and only
marked ids are decoded: `%22` in the id of another tool is part of the id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from drkit.core.files import replacing
from drkit.core.types import HIGHEST_GRADE, Judgement
from drkit.data.rows import parse_number, read_lines
from drkit.errors import DrkitError

_MARK = "%drkit"
_UNSAFE = re.compile(r"[\s\x00-\x1f\x7f\ufeff]")
_ENCODED = re.compile(r"[\s%\x00-\x1f\x7f\ufeff]")
_BLANKS = re.compile(r"[ \t]+")
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
    """Write judgements in TREC's four columns: query id, 0, document id, relevance.

    Raises DrkitError for an empty id.
    """
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{encode_id(j.query_id)}\t0\t{encode_id(j.doc_id)}\t{j.relevance}\n" for j in judgements)


def read_qrels(path: Path) -> Iterator[Judgement]:
    """Read the judgements of a file, as `read_judgements` does; it may be compressed (.gz, .zst), or a pipe.

    Raises DrkitError, with both lines, for a second judgement that contradicts the first.
    """
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for where, judgement in read_judgements(Path(path)):
        key, grade = (judgement.query_id, judgement.doc_id), judgement.relevance
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

    Four columns as TREC has them, or three, with or without a header; `beir`: three, tab-separated, with a header.
    A line with tabs is split at tabs, so that ids may contain spaces; others at white space. Relevance is an integer,
    possibly negative. Raises DrkitError naming `file:line` at any other line.
    """
    header = ""
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        cells = line.split("\t") if beir else qrels_columns(line)
        if len(cells) not in ((3,) if beir else (3, 4)) or not cells[0] or not cells[-2]:
            raise DrkitError(f"expected {_BEIR_JUDGEMENT if beir else _JUDGEMENT}, got {line!r:.200}", where=where)
        numbers = cells[2:] if len(cells) == 3 else cells[1::2]
        if number > 1 or any(map(_is_number, numbers)):  # else the line is a header
            if number == 1 and beir:
                raise DrkitError(f"expected the header {_BEIR_JUDGEMENT}, got a judgement", where=where)
            yield where, Judgement(decode_id(cells[0]), decode_id(cells[-2]), parse_relevance(cells[-1].strip(), where))
            header = ""
        else:
            header = line
    if header and not beir:
        raise DrkitError(f"expected {_JUDGEMENT}, got {header!r:.200} and no judgement below", where=f"{path}:1")


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
        raise DrkitError(f"the score {text!r:.80} is not a 32-bit integer of at most {HIGHEST_GRADE:,}", where=where)
    return int(value)
