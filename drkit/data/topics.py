"""Topics, the queries of a file: TREC's `<top>`, topics in XML, JSON Lines, or a table of id and text.

Topics in markup differ in the names of their elements and in whether they close them. Here an element ends with its own
end, or where the next one of a `<top>` begins; its label (`Number:`, `Topic:`) is left out.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path

from attrs import field, frozen

from drkit.core.escaping import unescape
from drkit.core.types import Query
from drkit.data.columns import QUERY_COLUMN, QUERY_ID, QUERY_IDS, QUERY_NAMES, GivenColumns, columns_advice, matching
from drkit.data.rows import FORMATS, FileRow, file_kind, read_lines, read_rows
from drkit.errors import DrkitError

_LOGGER = logging.getLogger(__name__)
TOPIC_FORMATS = (*FORMATS, ".txt", ".topics", ".trec", ".xml")

# Elements that are a topic, the outermost first: TREC's ad hoc tracks; its web tracks and CLEF; Indri and CLEF eHealth.
_TOPICS = ("top", "topic", "query")
# Elements, or attributes of a topic, that have its id; and other names of the elements that settings name.
_NUMBERS = ("num", "number", "id", "identifier", "qid", "query_id", "topic_id", "topicid")
_ALIASES = {
    "title": ("title", "query", "text"),
    "desc": ("desc", "description", "question"),
    "narr": ("narr", "narrative"),
}
# Labels at the start of an element.
_LABELS = {
    "num": "number",
    "dom": "domain",
    "title": "topic",
    "desc": "description",
    "smry": "summary",
    "narr": "narrative",
    "con": r"concept(\(s\))?",
    "fac": r"factor(\(s\))?",
    "def": r"definition(\(s\))?",
    "nat": "nationality",
    "time": "time",
}
_MARKUP = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<raw>.*?)\]\]>|<[?!][^<>]*>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*)(?P<attributes>(?:\s[^<>]*?)?)(?P<empty>/?)>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_PREFIXED = re.compile(r"([A-Za-z]{1,3})-(.+)")


@frozen
class TopicColumns:
    """The columns of a table of queries: those that settings name, or those with the usual names."""

    given: GivenColumns = field(factory=GivenColumns)
    ids: Sequence[str] = QUERY_IDS
    texts: Sequence[str] = QUERY_NAMES

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a table's first line names the id."""
        given = self.given.is_header(cells)
        return bool(matching(tuple(cells), tuple(self.ids))) if given is None else given

    def default_names(self, width: int) -> Sequence[str]:
        """Return names for a table without a header: id and text, as MS MARCO's queries have them."""
        return self.given.default_names(width) or ("id", "text")

    def read(self, row: FileRow) -> Query:
        """Return the query in a row. Raises DrkitError if its id or text is missing or empty."""
        ids, texts = self.given.names(QUERY_ID, self.ids), self.given.names(QUERY_COLUMN, self.texts)
        advice = columns_advice(QUERY_ID, QUERY_COLUMN)
        text = row.text(row.first(texts, "query", advice))
        return require_text(Query(row.id(row.first(ids, "query's id", advice)), text, answers_of(row)), row)


def query_of(row: FileRow, *, ids: Sequence[str] = QUERY_IDS, texts: Sequence[str] = QUERY_NAMES) -> Query:
    """Return the query in a row. Raises DrkitError if its id or text is missing or empty."""
    return TopicColumns(ids=ids, texts=texts).read(row)


def answers_of(row: FileRow) -> tuple[str, ...] | None:
    """Return the answers of the question in a row: a text or a list of texts under `answers`; None for all else."""
    given = row.values.get(row.first(["answers"]))
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return None
    return tuple(row.check_unicode(one, "answers") for one in found)


def require_text(query: Query, where: object) -> Query:
    """Return the query. Raises DrkitError if its text is empty."""
    if not query.text.strip():
        raise DrkitError(f"the query {query.query_id!r} is empty; give it a text or delete it", where=where)
    return query


def read_topics(
    path: Path, element: str = "title", given: GivenColumns | None = None
) -> Iterator[tuple[FileRow, Query]]:
    """Stream the queries of a file: topics in markup (`element` is the query), JSON Lines, or a table (.txt: tabs).

    given: columns of a table that settings name. Raises DrkitError naming `file:line` at a topic without a number or
    without that element, or for no topics at all.
    """
    if not _is_markup(path):
        columns = TopicColumns(given or GivenColumns())
        return ((row, columns.read(row)) for row in read_rows(path, columns))
    return ((topic, _topic_query(topic, element)) for topic in _read_markup(path))


def topic_notes(path: Path, element: str = "title", given: GivenColumns | None = None) -> Iterator[str]:
    """Yield how a file of queries is read, where its header or its elements leave it open."""
    if _is_markup(path):
        for topic in islice(_read_markup(path), 1):
            name = _named(topic, element)
            if name and name != element:
                yield f"{path}: the query is <{name}>, the topics have no <{element}> (collection.topic_field)"
        return
    for row in islice(read_rows(path, TopicColumns(given or GivenColumns())), 1):
        if row.is_headless:
            yield (
                f"{path} has no header: its columns are read as {', '.join(row.values)}; a header line or "
                f"{columns_advice(QUERY_ID, QUERY_COLUMN)} says otherwise"
            )


def read_topic_file(path: Path) -> list[Query]:
    """Read all queries of a file, as `read_topics` does, and log how it is read if that is open.

    Topics without a title are read by their description. Raises DrkitError, with both lines, for a duplicate id.
    """
    element = _first_element(path) if _is_markup(path) else "title"
    for note in topic_notes(path, element):
        _LOGGER.warning("note: %s", note)
    found: dict[str, Query] = {}
    lines: dict[str, int] = {}
    for row, query in read_topics(path, element):
        if query.query_id in found:
            raise DrkitError(
                f"duplicate query id {query.query_id!r}, also on line {lines[query.query_id]}; give every query "
                f"its own id",
                where=row,
            )
        found[query.query_id], lines[query.query_id] = query, row.number
    return list(found.values())


def _is_markup(path: Path) -> bool:
    """Return whether a file has topics in markup; a .txt without a tag in its first line is a table with tabs."""
    kind = file_kind(path)
    if kind != ".txt":
        return kind not in FORMATS
    first = next((line for _, line in read_lines(path) if line.strip()), "")
    return "\t" not in first or first.lstrip().startswith("<")


def _first_element(path: Path) -> str:
    """Return `title`, or `desc` with a warning if the first topic has a description alone."""
    for topic in islice(_read_markup(path), 1):
        if not _named(topic, "title") and _named(topic, "desc"):
            _LOGGER.warning("note: %s: the topics have no <title>; their description is the query", path)
            return "desc"
    return "title"


def _read_markup(path: Path) -> Iterator[FileRow]:
    """Yield a row of the elements of each topic, by name in lower case; the number under `num`."""
    text = "\n".join(line for _, line in read_lines(path))
    starts = list(accumulate((len(line) + 1 for line in text.split("\n")), initial=0))
    tags = [found for found in _MARKUP.finditer(text) if found["name"] or found["raw"] is not None]
    names = {found["name"].lower() for found in tags if found["name"]}
    kind = next((name for name in _TOPICS if name in names), None)
    if kind is None:
        raise DrkitError(
            f"expected topics in {', '.join(f'<{name}>' for name in _TOPICS)}; topics in another format must be in a "
            f".tsv, .csv or .jsonl file",
            where=f"{path}:1",
        )
    reader = _TopicReader(path, kind)
    end = 0
    for found in tags:
        line = bisect_right(starts, found.start())
        is_first = not text[starts[line - 1] : found.start()].strip()
        reader.add_text(text[end : found.start()])
        yield from reader.add_tag(found, line, is_first=is_first)
        end = found.end()
    reader.finish()


class _TopicReader:
    """Collects the elements of one topic after the other; kind: the name of the element that is a topic."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.topic: FileRow | None = None
        self.open: list[str] = []

    def add_text(self, text: str, *, is_raw: bool = False) -> None:
        """Add text to the elements that are open; outside of them it is the topic's own. is_raw: without entities."""
        if self.topic is not None:
            text = text if is_raw else unescape(text)
            for name in self.open or [""]:
                before = self.topic.values.get(name, "")
                self.topic.values[name] = f"{before} {text}".strip()

    def add_tag(self, found: re.Match[str], line: int, *, is_first: bool) -> Iterator[FileRow]:
        """Begin or end an element, and yield a topic that ends; is_first: nothing is before it on its line."""
        if found["raw"] is not None:
            self.add_text(found["raw"], is_raw=True)
            return
        name, attributes = found["name"].lower(), _attributes(found["attributes"])
        if found["close"]:
            if name in self.open:
                del self.open[self.open.index(name) :]
            elif name == self.kind and self.topic is not None:
                yield _whole(self.topic)
                self.topic = None
        elif self.topic is None:
            if name == self.kind:
                number = next((attributes[one] for one in _NUMBERS if one in attributes), "")
                self.topic, self.open = FileRow(self.path, line, {"num": number} if number else {}), []
        elif name == self.kind and (name == "top" or not self.open):
            raise DrkitError(
                f"<{name}> inside the topic of line {self.topic.number}; close that one with </{name}>",
                where=f"{self.path}:{line}",
            )
        elif not found["empty"]:
            self._begin(name, attributes, is_first=is_first)

    def _begin(self, name: str, attributes: Mapping[str, str], *, is_first: bool) -> None:
        """Begin an element. In a `<top>` it ends the one before; elsewhere it is within those that are open."""
        is_own = is_first or not self.open or name in _LABELS or name in _NUMBERS or _PREFIXED.fullmatch(name)
        if self.kind == "top":
            if not is_own:  # a tag in a text, such as <i>
                return
            self.open = []
        language = attributes.get("lang") or attributes.get("xml:lang")
        self.open.append(f"{language.lower()}-{name}" if language else name)

    def finish(self) -> None:
        """Raise DrkitError for a topic that is never closed."""
        if self.topic is not None:
            raise DrkitError(f"this <{self.kind}> is never closed; the file may be truncated", where=self.topic)


def _whole(topic: FileRow) -> FileRow:
    """Return the topic; one without elements has its own text as the element `text`."""
    own = topic.values.pop("", "")
    if own and not topic.values.keys() - {*_NUMBERS}:
        topic.values["text"] = own
    return topic


def _attributes(text: str) -> dict[str, str]:
    return {name.lower(): unescape(one or other) for name, one, other in _ATTRIBUTE.findall(text)}


def _named(topic: FileRow, element: str) -> str:
    """Return the name of an element in a topic: itself, another name of it, or the only one with a language's prefix.

    Empty if the topic has none. Raises DrkitError for several languages.
    """
    names = _ALIASES.get(element.lower(), (element.lower(),))
    if found := next((name for name in names if topic.values.get(name)), ""):
        return found
    languages = [one for one in topic.values if (found_ := _PREFIXED.fullmatch(one)) and found_[2] in names]
    if len(languages) > 1:
        raise DrkitError(
            f"the topic has {' and '.join(f'<{name}>' for name in languages)}; choose one: "
            f"--set collection.topic_field={languages[0]}",
            where=topic,
        )
    return languages[0] if languages else ""


def _topic_query(topic: FileRow, element: str) -> Query:
    number = next((text for name in _NUMBERS if (text := _value(topic, name))), "")
    if not number:
        raise DrkitError("this topic has no <num>", where=topic)
    name = _named(topic, element)
    if not name:
        others = ", ".join(topic.values)
        choice = next((one for one in topic.values if one not in _NUMBERS), "desc")
        raise DrkitError(
            f"the topic {number!r} has no <{element}>; it has {others}. Choose another element: "
            f"--set collection.topic_field={choice}",
            where=topic,
        )
    return require_text(Query(number, _value(topic, name)), topic)


def _value(topic: FileRow, name: str) -> str:
    """Return the text of an element on one line, without its label."""
    text, base = topic.values.get(name, ""), name.rpartition("-")[2]
    label = _LABELS.get(base)
    return " ".join((re.sub(rf"^\s*{label}\s*:\s*", "", text, flags=re.IGNORECASE) if label else text).split())
