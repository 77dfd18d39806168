"""DPR's training files: a JSON list of questions, each with passages as `positive_ctxs`, `hard_negative_ctxs` .."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drkit.core.types import Query
from drkit.data.pairs import text_id
from drkit.data.rows import FileRow, read_jsonl
from drkit.data.tevatron import TevatronCollection
from drkit.errors import DrkitError

_POSITIVES, _NEGATIVES = ("positive_ctxs",), ("hard_negative_ctxs", "negative_ctxs")
_PASSAGE_IDS = ("passage_id", "psg_id", "id", "docid")


class DprCollection(TevatronCollection):
    """The questions of DPR's training files, read as `TevatronCollection` reads its own.

    Equal questions are one query, whose id is the hash of its text. A passage without an id is named by the hash of its
    title and text. Negatives are the hard ones, then the others. With a corpus (psgs_w100.tsv), its passages are the
    collection.
    """

    subject = "dpr"
    formats = (".json", ".jsonl")

    def _read(self, path: Path) -> Iterator[FileRow]:
        return (FileRow(row.path, row.number, _as_tevatron(row)) for row in read_jsonl(path))

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the questions of a split, each once."""
        seen: set[str] = set()
        for where, query in super().located_queries(split):
            if query.query_id not in seen:
                seen.add(query.query_id)
                yield where, query


def _as_tevatron(row: FileRow) -> dict[str, Any]:
    """Return the question of a row with its passages, in Tevatron's names."""
    question = row.text(row.first(("question",))).strip()
    if not any(row.find(_POSITIVES)):
        raise DrkitError(f"no 'positive_ctxs'; keys: {', '.join(row.values)}", where=row)
    return {
        "query_id": text_id(question),
        "query": question,
        "answers": row.values.get("answers"),
        "positive_passages": list(_passages(row, _POSITIVES)),
        "negative_passages": list(_passages(row, _NEGATIVES)),
    }


def _passages(row: FileRow, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for name in row.find(names):
        found = row.values[name] or []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise DrkitError(f"{name!r} must be a list of passages with title and text, got {found!r:.60}", where=row)
        for number, one in enumerate(found, start=1):
            item = FileRow(f"{row}: {name}", number, one, "item")
            title, text = item.text("title", default=""), item.text("text")
            ids = [key for key in item.find(_PASSAGE_IDS) if one[key] not in (None, "")]
            doc_id = item.id(ids[0]) if ids else text_id(f"{title}\0{text}")
            yield {"docid": doc_id, "title": title, "text": text}
