"""A folder in the BEIR layout: corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv.

Nothing is held in memory but the ids of a split's queries. Ids that are given twice, and judgements that name
unknown ids, are found when the collection is written (`drkit.data.tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import BeirConfig
from drkit.data.lines import Record, file_summary, json_lines, judgement_lines
from drkit.data.splits import train_from_test
from drkit.errors import DrkitError, ProblemsError

_SPLITS = ("train", "dev", "test")
_LAYOUT = "expected: corpus.jsonl, queries.jsonl (each may end in .gz) and qrels/*.tsv with a header"


class BeirCollection:
    """Passages, queries and judgements of a BEIR folder.

    Where there is no train split, `train_share` of the test queries (by the hash of their ids) train, a tenth
    of them serving as dev where there is no dev split either; 0, the default, never trains on a test query.

    Raises DrkitError where a file of the layout is missing; bad lines are named as `file:line` when read.
    """

    def __init__(self, config: BeirConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError(f"collection beir: no path given; name a folder, as in `beir:PATH`; {_LAYOUT}")
        self.folder = Path(config.path).expanduser()
        self.name = f"beir:{self.folder.resolve().name}"
        if not self.folder.is_dir():
            found = "is no folder" if self.folder.exists() else "does not exist"
            raise DrkitError(f"collection beir: {self.folder} {found}; {_LAYOUT}")
        self._corpus, self._queries = self._layout()
        self._qrels = {s: p for s in _SPLITS if (p := self.folder / "qrels" / f"{s}.tsv").is_file()}
        if not self._qrels:
            raise DrkitError(
                f"collection beir: {self.folder}/qrels has none of train.tsv, dev.tsv, test.tsv; {_LAYOUT}"
            )

    def _layout(self) -> tuple[Path, Path]:
        problems, paths = [], []
        for name in ("corpus.jsonl", "queries.jsonl"):
            found = [p for p in (self.folder / name, self.folder / f"{name}.gz") if p.is_file()]
            paths += found[:1]
            if not found:
                problems.append(f"{self.folder / name} is missing; {_LAYOUT}")
        if problems:
            raise ProblemsError("collection beir", problems)
        return paths[0], paths[1]

    def passages(self) -> Iterator[Passage]:
        """Every line of the corpus; a title or a text may be absent or null, never another type."""
        for line in json_lines(self._corpus):
            yield Passage(line.id("_id"), line.text("text", default=""), line.text("title", default=""))

    def splits(self) -> tuple[str, ...]:
        """The splits that have judgements, those taken from test included."""
        taken = {"train", "dev"} if self._takes_from_test else set()
        return tuple(s for s in _SPLITS if s in self._qrels or s in taken)

    @property
    def _takes_from_test(self) -> bool:
        return self.config.train_share > 0 and "test" in self._qrels and "train" not in self._qrels

    def queries(self, split: str) -> Iterator[Query]:
        """The judged queries of a split, in the file's order. Raises DrkitError at an empty query."""
        return (query for _, query in self._numbered_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split, in the file's order."""
        return (judgement for _, _, judgement in self._numbered_judgements(split))

    def _numbered_queries(self, split: str) -> Iterator[tuple[int, Query]]:
        judged = {judgement.query_id for judgement in self.judgements(split)}
        for line in json_lines(self._queries):
            query = _query(line)
            if query.query_id in judged:
                yield line.number, query

    def _numbered_judgements(self, split: str) -> Iterator[tuple[Path, int, Judgement]]:
        if split not in self.splits():
            raise DrkitError(f"{self.folder} has no split {split!r}; it has {', '.join(self.splits())}")
        source = split if split in self._qrels else "test"
        for number, judgement in judgement_lines(self._qrels[source]):
            if self._split_of(judgement.query_id, source) == split:
                yield self._qrels[source], number, judgement

    def _split_of(self, query_id: str, source: str) -> str:
        if source != "test" or not self._takes_from_test:
            return source
        with_dev = "dev" not in self._qrels
        return train_from_test(query_id, train_share=self.config.train_share, with_dev=with_dev)

    def describe(self) -> Mapping[str, Any]:
        """The folder, and the size and SHA-256 of each of its files."""
        files = [self._corpus, self._queries, *self._qrels.values()]
        return {
            "collection": "beir",
            "path": str(self.folder.resolve()),
            "files": {str(p.relative_to(self.folder)): file_summary(p) for p in files},
            "train_share": self.config.train_share,
        }

    def locate(self, table: str, split: str, row: int) -> str:
        """Where row `row` of a table was read: `file:line`."""
        if table == "passages":
            return f"{self._corpus}:{row + 1}"
        if table == "queries":
            return next((f"{self._queries}:{n}" for n, _ in islice(self._numbered_queries(split), row, None)), "")
        rows = islice(self._numbered_judgements(split), row, None)
        return next((f"{path}:{number}" for path, number, _ in rows), "")


def _query(line: Record) -> Query:
    query = Query(line.id("_id"), line.text("text"))
    if not query.text.strip():
        raise DrkitError(f"{line}: the query {query.query_id!r} is empty; give it a text or delete the line")
    return query
