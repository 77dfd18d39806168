"""A file of texts alone, which is enough for pre-training and for pseudo-queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from drkit.core.types import BuildContext, Passage
from drkit.data.collection import FileCollection, Splits
from drkit.data.readers import ID_COLUMNS, TEXT_COLUMNS, TITLE_COLUMNS, PassageColumns, read_passages
from drkit.data.rows import Row, file_summary, require_file
from drkit.data.specs import JsonlConfig
from drkit.errors import DrkitError


class JsonlCollection(FileCollection):
    """The texts of a `.jsonl`, `.tsv`, `.csv`, `.json` or `.parquet` file; no queries.

    A row without an id is named by its number. Raises DrkitError if the path is missing or not a file; a bad line is
    named as `file:line` when it is read.
    """

    def __init__(self, config: JsonlConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection jsonl: no path given; name a .jsonl, .tsv or .csv file, as in `jsonl:PATH`")
        self.path = require_file(config.path, "collection jsonl")
        self.name = f"jsonl:{self.path.name}"
        named = ((config.id_field, ID_COLUMNS), (config.text_field, TEXT_COLUMNS), (config.title_field, TITLE_COLUMNS))
        self._columns = PassageColumns(*((chosen,) if chosen else usual for chosen, usual in named))

    @property
    def divided(self) -> Splits:
        """Return no splits: the collection has only texts."""
        return Splits.of(self.name, ())

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """The text of every row."""
        return read_passages(self.path, self._columns)

    def located_queries(self, split: str) -> NoReturn:
        """Raise DrkitError: the collection has only texts."""
        raise DrkitError(f"{self.path} has only texts, no {split!r} queries")

    def located_judgements(self, split: str) -> NoReturn:
        """Raise DrkitError: the collection has only texts."""
        raise DrkitError(f"{self.path} has only texts, no {split!r} judgements")

    def describe(self) -> Mapping[str, Any]:
        """The file's path, size and SHA-256."""
        return {"collection": "jsonl", "path": str(self.path.resolve()), **file_summary(self.path)}
