"""BEIR folders, and a file of texts alone, which is enough for pre-training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import (
    ID_COLUMNS,
    SPLITS,
    TEXT_COLUMNS,
    TITLE_COLUMNS,
    FileCollection,
    PassageColumns,
    Splits,
    judged_queries,
    query_of,
    read_judgements,
    read_passages,
)
from drkit.data.rows import Row, file_summary, read_jsonl, require_file
from drkit.data.specs import BeirConfig, JsonlConfig
from drkit.errors import DrkitError, ProblemsError

_LAYOUT = "expected: corpus.jsonl, queries.jsonl (each may end in .gz) and qrels/*.tsv with a header"


class BeirCollection(FileCollection):
    """Passages, judged queries and judgements of a BEIR folder. Only the ids of a split's queries are held in memory.

    Without a train split, `train_share` of the test queries (by the hash of their ids) become training queries, a
    tenth of them dev if there is no dev split. With 0, the default, no test query is ever trained on.

    Raises DrkitError if a file of the layout is missing; bad lines are named as `file:line` when they are read.
    """

    def __init__(self, config: BeirConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError(f"collection beir: no path given; name a folder, as in `beir:PATH`; {_LAYOUT}")
        self.folder = local_path(config.path)
        self.name = f"beir:{self.folder.resolve().name}"
        if not self.folder.is_dir():
            problem = "is not a folder" if self.folder.exists() else "does not exist"
            raise DrkitError(f"collection beir: {self.folder} {problem}; {_LAYOUT}")
        self._corpus, self._queries = self._find("corpus.jsonl", "queries.jsonl")
        self._qrels = {s: p for s in SPLITS if (p := self.folder / "qrels" / f"{s}.tsv").is_file()}
        if not self._qrels:
            raise DrkitError(
                f"collection beir: {self.folder}/qrels has none of train.tsv, dev.tsv, test.tsv; {_LAYOUT}"
            )

    def _find(self, *names: str) -> list[Path]:
        found = {name: [p for p in (self.folder / name, self.folder / f"{name}.gz") if p.is_file()] for name in names}
        missing = [f"{self.folder / name} is missing; {_LAYOUT}" for name, paths in found.items() if not paths]
        if missing:
            raise ProblemsError("collection beir", missing)
        return [paths[0] for paths in found.values()]

    @property
    def divided(self) -> Splits:
        """The splits with judgements, and those taken from the test queries."""
        return Splits.of(str(self.folder), self._qrels, train_share=self.config.train_share)

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """Every line of the corpus; title and text may be missing or null, but never of another type."""
        for row in read_jsonl(self._corpus):
            yield row, Passage(row.id("_id"), row.text("text", default=""), row.text("title", default=""))

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """The judged queries of a split. Raises DrkitError at an empty query."""
        queries = ((row, query_of(row, ids=("_id",), texts=("text",))) for row in read_jsonl(self._queries))
        return judged_queries(queries, self.judgements(split))

    def located_judgements(self, split: str) -> Iterator[tuple[str, Judgement]]:
        """The judgements of a split."""
        belongs = self.divided.membership(split)
        rows = read_judgements(self._qrels[self.divided.source(split)], beir=True)
        return ((where, judgement) for where, judgement in rows if belongs(judgement.query_id))

    def describe(self) -> Mapping[str, Any]:
        """The folder, and the size and SHA-256 of each of its files."""
        files = [self._corpus, self._queries, *self._qrels.values()]
        return {
            "collection": "beir",
            "path": str(self.folder.resolve()),
            "files": {str(path.relative_to(self.folder)): file_summary(path) for path in files},
            "train_share": self.config.train_share,
        }


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
