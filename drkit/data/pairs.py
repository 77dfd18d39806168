"""Training data of sentence-transformers and its like: files of queries, passages and negatives as texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import PairsConfig
from drkit.data.layouts import SPLIT_NAMES
from drkit.data.lines import Record, file_summary
from drkit.data.pair_rows import UNNAMED, PairColumns, PairTables
from drkit.data.records import FORMATS, existing_file, kind_of, records
from drkit.data.splits import HeldOut
from drkit.errors import DrkitError


class PairsCollection:
    """Pairs or triples of texts: a query, a passage that answers it, negatives where there are some.

    Formats: .jsonl, .json (a list of objects), .tsv, .csv, gzipped or not, and .parquet; a table has a header or the
    columns query, passage and negatives. Ids are made of the texts' hash. Without files for them, dev and test are
    shares of the training queries.

    Raises DrkitError where a file is missing; bad rows are named as `file:line` when read.
    """

    def __init__(self, config: PairsConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection pairs: no path given; name a training file or a folder, as in `pairs:PATH`")
        self._files = split_files(config.path, {"dev": config.dev, "test": config.test}, "collection pairs")
        self.name = f"pairs:{Path(config.path).expanduser().resolve().name}"
        columns = PairColumns(config.anchor, config.positive, config.negatives, config.score, config.min_score)
        self._tables = PairTables(
            {split: partial(_rows, paths, columns) for split, paths in self._files.items()},
            columns,
            HeldOut.of(self._files, dev=config.dev_share, test=config.test_share),
        )

    def passages(self) -> Iterator[Passage]:
        """Every passage of the files, positives and negatives, once."""
        return self._tables.passages()

    def splits(self) -> tuple[str, ...]:
        """Those with a file, and those taken from the training queries."""
        return self._tables.held_out.splits()

    def queries(self, split: str) -> Iterator[Query]:
        """The queries of a split, each once, in the file's order."""
        return self._tables.queries(split)

    def judgements(self, split: str) -> Iterator[Judgement]:
        """One a pair: relevance 1, or 0 where its score is too low."""
        return self._tables.judgements(split)

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """(query id, passage id) of the negatives in the file's columns."""
        return self._tables.negatives(split)

    def describe(self) -> Mapping[str, Any]:
        """The size and SHA-256 of each file, and the shares that were taken from the training queries."""
        files = [path for paths in self._files.values() for path in paths]
        return {
            "collection": "pairs",
            "files": {str(path.resolve()): file_summary(path) for path in files},
            "shares": dict(self._tables.held_out.shares),
        }

    def locate(self, table: str, split: str, row: int) -> str:
        """Where row `row` of a table was read: `file:line`."""
        return self._tables.locate(table, split, row)


def _rows(paths: list[Path], columns: PairColumns) -> Iterator[Record]:
    for path in paths:
        yield from records(path, columns.header, unnamed=UNNAMED)


def split_files(path: str, named: Mapping[str, str], what: str) -> dict[str, list[Path]]:
    """The files of each split: a training file, or what a folder has under the splits' names; and those that are named.

    In a folder `train.jsonl`, `train-00000-of-00002.parquet`, `validation.csv.gz` and so on. Raises DrkitError where
    one is missing, or a folder has no training file.
    """
    folder = Path(path).expanduser()
    files = {split: [existing_file(text, what)] for split, text in named.items() if text}
    if not folder.is_dir():
        return {"train": [existing_file(path, what)], **files}
    found = {split: _of_split(folder, names) for split, names in SPLIT_NAMES.items()}
    if not found["train"]:
        raise DrkitError(f"{what}: {folder} has no training file; expected: train with {', '.join(FORMATS)}, or .gz")
    return {**{split: paths for split, paths in found.items() if paths}, **files}


def _of_split(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The files that a split's name begins; of the first of `names` that has any."""
    candidates = sorted(path for path in folder.iterdir() if path.is_file() and kind_of(path) in FORMATS)
    for name in names:
        mine = [p for p in candidates if p.name.startswith(name) and p.name[len(name)] in ".-_"]
        if mine:
            return mine
    return []
