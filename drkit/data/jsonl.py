"""Texts alone, a JSON object or a table row each: enough for pre-training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import JsonlConfig
from drkit.data.lines import file_summary
from drkit.data.records import existing_file
from drkit.data.text_files import ID_NAMES, TEXT_FORMATS, TEXT_NAMES, TITLE_NAMES, Columns, read_texts
from drkit.errors import DrkitError


class JsonlCollection:
    """The texts of a `.jsonl`, `.tsv`, `.csv`, `.json` or `.parquet` file; it has no queries.

    A row without an id is named by its number. Raises DrkitError where the path is missing or is no file;
    a bad line is named as `file:line` when it is read.
    """

    def __init__(self, config: JsonlConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection jsonl: no path given; name a .jsonl, .tsv or .csv file, as in `jsonl:PATH`")
        self.path = existing_file(config.path, "collection jsonl", TEXT_FORMATS)
        self.name = f"jsonl:{self.path.name}"
        named = ((config.id_field, ID_NAMES), (config.text_field, TEXT_NAMES), (config.title_field, TITLE_NAMES))
        self._columns = Columns(*((own,) if own else usual for own, usual in named))

    def passages(self) -> Iterator[Passage]:
        """Every row's text, in the file's order."""
        return (passage for _, passage in read_texts(self.path, self._columns))

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
        return next((str(place) for place, _ in islice(read_texts(self.path, self._columns), row, None)), "")
