"""Files of texts and of queries, each line with an id: JSON Lines or tables, under the names that people use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from drkit.core.types import Passage, Query
from drkit.data.lines import Record
from drkit.data.records import SEPARATORS, cells_of, kind_of, records
from drkit.errors import DrkitError

TEXT_FORMATS = (".jsonl", ".json", ".tsv", ".csv", ".parquet")
ID_NAMES = ("_id", "id", "docid", "doc_id", "docno", "pid")
TEXT_NAMES = ("text", "contents", "passage", "body")
TITLE_NAMES = ("title",)
QUERY_ID_NAMES = ("_id", "id", "query_id", "query-id", "qid")
QUERY_NAMES = ("text", "query", "question", "title")


@frozen
class Columns:
    """What id, text and title may be called; the first one present counts. A row without an id has its number."""

    ids: Sequence[str] = ID_NAMES
    texts: Sequence[str] = TEXT_NAMES
    titles: Sequence[str] = TITLE_NAMES

    def header(self, cells: Sequence[str]) -> Sequence[str] | None:
        """The names in a table's first line, where a text's and an id's are among them; one alone may be a value."""
        named = [any(name in cells for name in names) for names in (self.texts, self.ids)]
        return cells if all(named) or (named[0] and (len(cells) == 1 or len(self.texts) == 1)) else None


def read_texts(path: Path, columns: Columns | None = None) -> Iterator[tuple[Record, Passage]]:
    """The texts of a file with where they stand.

    Tables have a header with the names of id and text, or the columns text; id, text; or id, text, title. A title or,
    where there is a title, a text may be missing. Raises DrkitError naming `file:line`.
    """
    columns = columns or Columns()
    for row in records(path, columns.header, unnamed=_unnamed(path, columns)):
        yield row, passage_of(row, columns)


def _unnamed(path: Path, columns: Columns) -> Sequence[str]:
    """The names of a table's columns without a header: by how many the first line has."""
    if kind_of(path) not in SEPARATORS:
        return ()
    width = next((len(cells) for _, cells in cells_of(path)), 0)
    return (columns.texts[0],) if width == 1 else (columns.ids[0], columns.texts[0], columns.titles[0])


def passage_of(row: Record, columns: Columns) -> Passage:
    """The text in a row. Raises DrkitError where it has none, or its id is empty."""
    titles = [name for name in columns.titles if row.record.get(name) is not None]
    title = row.text(titles[0]) if titles else ""
    texts = [name for name in columns.texts if row.record.get(name) is not None]
    text = row.text(texts[0]) if texts else "" if title else row.text(row.first(columns.texts))
    named = [name for name in columns.ids if name in row.record]
    return Passage(row.id(named[0]) if named else str(row.number), text, title)


def read_queries_of(path: Path) -> Iterator[tuple[Record, Query]]:
    """The queries of a file with where they stand: JSON Lines, or a table of id and text.

    Raises DrkitError naming `file:line` at a query without an id or a text.
    """
    named = Columns(ids=QUERY_ID_NAMES, texts=QUERY_NAMES)
    for row in records(path, lambda cells: cells if set(named.ids) & set(cells) else None, unnamed=("id", "text")):
        yield row, query_of(row)


def query_of(row: Record, *, ids: Sequence[str] = QUERY_ID_NAMES, texts: Sequence[str] = QUERY_NAMES) -> Query:
    """The query in a row. Raises DrkitError where its id or text is missing or empty."""
    query = Query(row.id(row.first(ids)), row.text(row.first(texts)))
    return refuse_empty(query, row)


def refuse_empty(query: Query, where: object) -> Query:
    """The query itself. Raises DrkitError where it has no text."""
    if not query.text.strip():
        raise DrkitError(f"{where}: the query {query.query_id!r} is empty; give it a text or delete it")
    return query
