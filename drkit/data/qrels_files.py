"""Files of judgements and topics as people have them: TREC's, BEIR's, MS MARCO's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drkit.core.types import Judgement, Query
from drkit.data.lines import Record, is_number, numbered_lines, whole_number
from drkit.data.records import FORMATS, kind_of
from drkit.data.text_files import read_queries_of, refuse_empty
from drkit.errors import DrkitError

QRELS_FORMATS = (".tsv", ".txt", ".qrels", ".qrel", ".trec")
TOPIC_FORMATS = (*FORMATS, ".txt", ".topics", ".trec", ".xml")
_WANTED = "'query 0 passage relevance' (TREC) or 'query passage relevance' is wanted, parted by tabs or spaces"
_START = re.compile(r"<top>", re.IGNORECASE)
_TAG = re.compile(r"<(num|title|desc|narr)>", re.IGNORECASE)
_ANY_TAG = re.compile(r"<[^<>]*>")
_LABEL = re.compile(r"^\s*(number|topic|description|narrative)\s*:\s*", re.IGNORECASE)


def read_judgements(path: Path) -> Iterator[tuple[str, Judgement]]:
    """(`file:line`, judgement) of every line: four columns as TREC has them, or three, with a header or without.

    Where a line has tabs they part it, so that ids may hold spaces; else white space does. Relevance is a whole number,
    negative too. Raises DrkitError naming `file:line` at any other line.
    """
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        cells = line.split("\t") if "\t" in line else line.split()
        if len(cells) not in (3, 4) or not cells[0] or not cells[-2]:
            raise DrkitError(f"{where}: {line!r:.200} found, {_WANTED}")
        if number == 1 and not is_number(cells[-1]):
            continue
        yield where, Judgement(cells[0], cells[-2], whole_number(cells[-1], where))


def read_topics(path: Path, part: str = "title") -> Iterator[tuple[Record, Query]]:
    """The queries of a file: `<top>` as TREC has them, of which `part` is the query; JSON Lines; or a table.

    Raises DrkitError naming `file:line` at a topic without a number or without that part.
    """
    if kind_of(path) in FORMATS:
        return read_queries_of(path)
    first = next((line for _, line in numbered_lines(path) if line.strip()), "")
    if _START.search(first) or first.lstrip().startswith("<"):
        return _topics(path, part)
    raise DrkitError(f"{path}:1: no <top> found; other topics are read from .tsv, .csv and .jsonl: rename the file")


def _topics(path: Path, part: str) -> Iterator[tuple[Record, Query]]:
    topic: Record | None = None
    tag = ""
    for number, line in numbered_lines(path):
        if _START.search(line):
            if topic is not None:
                raise DrkitError(
                    f"{path}:{number}: <top> within the topic of line {topic.number}; close it with </top>"
                )
            topic, tag = Record(path, number, {}), ""
        if topic is None:
            continue
        for piece_tag, text in _pieces(line):
            tag = piece_tag or tag
            if tag:
                topic.record[tag] = f"{topic.record.get(tag, '')} {text}".strip()
        if "</top>" in line.lower():
            yield topic, _topic(topic, part)
            topic = None
    if topic is not None:
        raise DrkitError(f"{topic}: this <top> is never closed; the file may be cut off")


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """(tag, text) of a line's parts; the tag is empty where the text goes on with the one before."""
    parts: list[Any] = _TAG.split(line)
    for tag, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        yield tag.lower(), _ANY_TAG.sub(" ", text).strip()


def _topic(topic: Record, part: str) -> Query:
    record = {name: " ".join(_LABEL.sub("", text).split()) for name, text in topic.record.items()}
    if not record.get("num"):
        raise DrkitError(f"{topic}: this topic has no <num>")
    if part not in record:
        raise DrkitError(f"{topic}: the topic {record['num']!r} has no <{part}>; it has {', '.join(record)}")
    return refuse_empty(Query(record["num"], record[part]), topic)
