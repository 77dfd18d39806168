"""Texts alone, one JSON object a line: enough for pre-training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import JsonlConfig
from drkit.data.lines import file_summary, json_lines
from drkit.errors import DrkitError


class JsonlCollection:
    """The texts of a `.jsonl` or `.jsonl.gz` file; it has no queries.

    A line without an id is named by its number. Raises DrkitError where the path is missing or is no file;
    a bad line is named as `file:line` when it is read.
    """

    def __init__(self, config: JsonlConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        self.path = Path(config.path).expanduser()
        if not config.path:
            raise DrkitError("collection jsonl: no path given; name a .jsonl or .jsonl.gz file, as in `jsonl:PATH`")
        if not self.path.is_file():
            found = "is a folder" if self.path.is_dir() else "does not exist"
            raise DrkitError(f"collection jsonl: {self.path} {found}; a .jsonl or .jsonl.gz file is expected")
        self.name = f"jsonl:{self.path.name}"

    def passages(self) -> Iterator[Passage]:
        """Every line's text, in the file's order."""
        for line in json_lines(self.path):
            named = self.config.id_field in line.record
            doc_id = line.id(self.config.id_field) if named else str(line.number)
            yield Passage(doc_id, line.text(self.config.text_field))

    def splits(self) -> tuple[str, ...]:
        """None: there are no queries."""
        return ()

    def queries(self, split: str) -> Iterator[Query]:
        """Raises DrkitError: there are none."""
        raise DrkitError(f"{self.path} has texts alone; it has no {split!r} queries")

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Raises DrkitError: there are none."""
        raise DrkitError(f"{self.path} has texts alone; it has no {split!r} judgements")

    def describe(self) -> Mapping[str, Any]:
        """The file's path, size and SHA-256."""
        return {"collection": "jsonl", "path": str(self.path.resolve()), **file_summary(self.path)}

    def locate(self, _table: str, _split: str, row: int) -> str:
        """Where row `row` of a table was read: `file:line`."""
        return f"{self.path}:{row + 1}"
