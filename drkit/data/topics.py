"""Topics, the queries of a file: TREC's `<top>`, JSON Lines, or a table of id and text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from drkit.core.types import Query
from drkit.data.rows import FORMATS, NamedColumns, Row, file_kind, read_lines, read_rows
from drkit.errors import DrkitError

QUERY_ID_COLUMNS = ("_id", "id", "query_id", "query-id", "qid")
QUERY_COLUMNS = ("text", "query", "question", "title")
TOPIC_FORMATS = (*FORMATS, ".txt", ".topics", ".trec")

_START = re.compile(r"<top>", re.IGNORECASE)
_END = re.compile(r"(?<=</top>)", re.IGNORECASE)
_TAG = re.compile(r"<(num|title|desc|narr)>", re.IGNORECASE)
_ANY_TAG = re.compile(r"<[^<>]*>")
_LABEL = re.compile(r"^\s*(number|topic|description|narrative)\s*:\s*", re.IGNORECASE)


def query_of(row: Row, *, ids: Sequence[str] = QUERY_ID_COLUMNS, texts: Sequence[str] = QUERY_COLUMNS) -> Query:
    """Return the query in a row. Raises DrkitError if its id or text is missing or empty."""
    return require_text(Query(row.id(row.first(ids)), row.text(row.first(texts)), answers_of(row)), row)


def answers_of(row: Row) -> tuple[str, ...] | None:
    """Return the answers of the question in a row: a text or a list of texts under `answers`; None for all else."""
    given = row.values.get("answers")
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return None
    return tuple(row.check_unicode(one, "answers") for one in found)


def require_text(query: Query, where: object) -> Query:
    """Return the query. Raises DrkitError if its text is empty."""
    if not query.text.strip():
        raise DrkitError(f"the query {query.query_id!r} is empty; give it a text or delete it", where=where)
    return query


def read_topics(path: Path, element: str = "title") -> Iterator[tuple[Row, Query]]:
    """Stream the queries of a file: TREC's `<top>` (its `element` is the query), JSON Lines, or a table.

    Raises DrkitError naming `file:line` at a topic without a number or without that element, or for no topics at all.
    """
    if file_kind(path) in FORMATS:
        rows = read_rows(path, NamedColumns((QUERY_ID_COLUMNS,), ("id", "text")))
        return ((row, query_of(row)) for row in rows)
    return ((topic, _topic_query(topic, element)) for topic in _read_trec_topics(path))


def read_topic_file(path: Path) -> list[Query]:
    """Read all queries of a file, as `read_topics` does. Raises DrkitError, with both lines, for a duplicate id."""
    found: dict[str, Query] = {}
    lines: dict[str, int] = {}
    for row, query in read_topics(path):
        if query.query_id in found:
            raise DrkitError(
                f"duplicate query id {query.query_id!r}, also on line {lines[query.query_id]}; give every query "
                f"its own id",
                where=row,
            )
        found[query.query_id], lines[query.query_id] = query, row.number
    return list(found.values())


def _read_trec_topics(path: Path) -> Iterator[Row]:
    """Yield a row of its elements for each `<top>`; they are seldom closed."""
    has_topics = False
    topic: Row | None = None
    tag = ""
    # Several topics may be on one line.
    for number, line in ((number, one) for number, whole in read_lines(path) for one in _END.split(whole)):
        if _START.search(line):
            if topic is not None:
                raise DrkitError(
                    f"<top> inside the topic of line {topic.number}; close that one with </top>",
                    where=f"{path}:{number}",
                )
            topic, tag, has_topics = Row(path, number, {}), "", True
        if topic is None:
            continue
        for piece_tag, text in _pieces(line):
            tag = piece_tag or tag
            if tag:
                topic.values[tag] = f"{topic.values.get(tag, '')} {text}".strip()
        if "</top>" in line.lower():
            yield topic
            topic = None
    if topic is not None:
        raise DrkitError("this <top> is never closed; the file may be truncated", where=topic)
    if not has_topics:
        raise DrkitError(
            "expected topics in <top>; topics in another format must be in a .tsv, .csv or .jsonl file (ir_datasets "
            "reads those of TREC that are XML: irds:ID)",
            where=f"{path}:1",
        )


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield (tag, text) pieces of a line; the tag is empty if the text continues the previous one."""
    split: list[Any] = _TAG.split(line)
    for tag, text in zip(["", *split[1::2]], split[::2], strict=True):
        yield tag.lower(), _ANY_TAG.sub(" ", text).strip()


def _topic_query(topic: Row, element: str) -> Query:
    values = {name: " ".join(_LABEL.sub("", text).split()) for name, text in topic.values.items()}
    if not values.get("num"):
        raise DrkitError("this topic has no <num>", where=topic)
    if element not in values:
        names = ", ".join(filter(None, values))
        raise DrkitError(f"the topic {values['num']!r} has no <{element}>; it has {names}", where=topic)
    return require_text(Query(values["num"], values[element]), topic)
