"""What to type for a table whose columns are not known: the roles that its first rows allow, as lines of a shell."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from attrs import field, frozen

from drkit.data.columns import (
    ARTICLE,
    ASKED,
    ID_COLUMN,
    QUERY_COLUMN,
    SAMPLED_ROWS,
    TEXT_COLUMN,
    GivenColumns,
    is_known_name,
    looks_like_ids,
    matching,
)
from drkit.data.rows import read_rows
from drkit.errors import DrkitError


@frozen
class AnyColumns:
    """Columns of any names; without a header their numbers, from 1."""

    given: GivenColumns = field(factory=GivenColumns)

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether all cells are names that headers use."""
        return all(map(is_known_name, cells))

    def default_names(self, width: int) -> Sequence[str]:
        """Return the numbers of the columns."""
        return [str(number) for number in range(1, width + 1)]


def columns_line(roles: Mapping[str, str]) -> str:
    """Return the option that names columns by their roles, quoted for a shell.

    >>> columns_line({"query": "User Query", "text": "Answer"})
    "--columns 'query=User Query,text=Answer'"
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([f"{role}={name}" for role, name in roles.items()])
    return f"--columns {shlex.quote(line.getvalue())}"


def label_lines(path: Path | str, query: str, article: str) -> str:
    """Return what to type for a file of labels, which name articles of other texts."""
    columns, labels = (
        columns_line({QUERY_COLUMN: query, ARTICLE: article}),
        shlex.quote(f'collection.labels=["{path}"]'),
    )
    return (
        f"labelled:TEXTS --set {labels} {columns}, or drkit improve ENCODER --texts TEXTS --labels "
        f"{shlex.quote(str(path))} {columns}"
    )


def pair_advice(path: Path | str, query: str, text: str, *, are_ids: bool) -> str:
    """Return what to type for a table of queries beside texts, or beside what names them (are_ids)."""
    labels = f"For labels of other texts: {label_lines(path, query, text)}"
    if are_ids:
        return labels
    return (
        f"For queries and the texts that answer them: {columns_line({QUERY_COLUMN: query, TEXT_COLUMN: text})}. "
        f"For texts alone: jsonl:{path} {columns_line({TEXT_COLUMN: text})}. {labels}"
    )


def column_choices(path: Path) -> Iterator[str]:
    """Yield a line for each way to read a table, by the values of its first rows; none for any other file."""
    try:
        rows = list(islice(read_rows(path, AnyColumns(), guess=True), SAMPLED_ROWS))
    except DrkitError:
        return
    values = {name: [row.values.get(name) for row in rows] for name in (rows[0].values if rows else ()) if name}
    given = {name: [str(one) for one in found if one not in (None, "")] for name, found in values.items()}
    ids = [name for name, found in given.items() if found and looks_like_ids(found)]
    texts = [name for name, found in values.items() if name not in ids and any(isinstance(one, str) for one in found)]
    *others, text = sorted(texts, key=lambda name: median(map(len, given[name]))) or [""]
    query = next(iter(matching(tuple(others), ASKED)), others[0] if others else text)
    if others:
        yield f"queries, and the texts that answer them: {columns_line({QUERY_COLUMN: query, TEXT_COLUMN: text})}"
    if text and ids:
        yield f"texts and their ids: jsonl:{path} {columns_line({ID_COLUMN: ids[0], TEXT_COLUMN: text})}"
    elif text:
        yield f"texts: jsonl:{path} {columns_line({TEXT_COLUMN: text})}"
    if text and (article := ids[0] if ids else text if others else ""):
        yield f"labels, which name articles of other texts: {label_lines(path, query, article)}"
