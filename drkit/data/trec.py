"""Collections as TREC and MS MARCO publish them: a corpus file, topics and judgements by split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import TrecConfig
from drkit.data.layouts import CORPUS_NAMES, SPLIT_NAMES, named_file
from drkit.data.lines import file_summary
from drkit.data.qrels_files import QRELS_FORMATS, TOPIC_FORMATS, read_judgements, read_topics
from drkit.data.records import existing_file, row_of
from drkit.data.splits import train_from_test
from drkit.data.text_files import TEXT_FORMATS, read_texts
from drkit.errors import DrkitError, ProblemsError

_EXPECTED = (
    "a corpus (corpus.jsonl, collection.tsv ..), topics (topics.test.tsv, queries.dev.tsv ..) and judgements "
    "(qrels.test.txt, qrels.dev.tsv ..)"
)


class TrecCollection:
    """A corpus, and for each split topics and judgements; named one by one, or found in a folder by their names.

    Only judged topics are queries. One file of topics may serve all splits. Without a train split, `train_share` of the
    test topics (by the hash of their ids) train, a tenth of them as dev where there is none; 0, the default, never
    trains on a test topic. Ids are taken as they stand.

    Raises DrkitError where a file is missing; bad lines are named as `file:line` when read.
    """

    def __init__(self, config: TrecConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        self._files = _Files.of(config)
        self.name = f"trec:{Path(config.path or config.corpus).expanduser().resolve().name}"

    def passages(self) -> Iterator[Passage]:
        """Every row of the corpus."""
        return (passage for _, passage in read_texts(self._files.corpus))

    def splits(self) -> tuple[str, ...]:
        """Those with judgements, those taken from test included."""
        taken = {"train", "dev"} if self._takes_from_test else set()
        return tuple(s for s in SPLIT_NAMES if s in self._files.qrels or s in taken)

    @property
    def _takes_from_test(self) -> bool:
        return self.config.train_share > 0 and "test" in self._files.qrels and "train" not in self._files.qrels

    def queries(self, split: str) -> Iterator[Query]:
        """The judged topics of a split, in the file's order."""
        return (query for _, query in self._placed_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split, in the file's order."""
        return (judgement for _, judgement in self._placed_judgements(split))

    def _placed_queries(self, split: str) -> Iterator[tuple[Any, Query]]:
        judged = {judgement.query_id for judgement in self.judgements(split)}
        for where, query in read_topics(self._files.topics[self._source(split)], self.config.topic_field):
            if query.query_id in judged:
                yield where, query

    def _placed_judgements(self, split: str) -> Iterator[tuple[str, Judgement]]:
        source = self._source(split)
        for where, judgement in read_judgements(self._files.qrels[source]):
            if self._split_of(judgement.query_id, source) == split:
                yield where, judgement

    def _source(self, split: str) -> str:
        if split not in self.splits():
            raise DrkitError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits())}")
        return split if split in self._files.qrels else "test"

    def _split_of(self, query_id: str, source: str) -> str:
        if source != "test" or not self._takes_from_test:
            return source
        with_dev = "dev" not in self._files.qrels
        return train_from_test(query_id, train_share=self.config.train_share, with_dev=with_dev)

    def describe(self) -> Mapping[str, Any]:
        """The size and SHA-256 of each file."""
        return {
            "collection": "trec",
            "files": {str(path.resolve()): file_summary(path) for path in self._files.paths},
            "train_share": self.config.train_share,
        }

    def locate(self, table: str, split: str, row: int) -> str:
        """Where row `row` of a table was read: `file:line`."""
        tables: Mapping[str, Callable[[], Iterator[tuple[Any, Any]]]] = {
            "passages": lambda: read_texts(self._files.corpus),
            "queries": lambda: self._placed_queries(split),
            "judgements": lambda: self._placed_judgements(split),
        }
        return row_of(tables[table](), row)


@frozen
class _Files:
    """The files of a collection: the corpus, topics and judgements by split."""

    corpus: Path
    topics: Mapping[str, Path]
    qrels: Mapping[str, Path]

    @classmethod
    def of(cls, config: TrecConfig) -> _Files:
        """What the settings name, and else what the folder has under its usual names."""
        named = Path(config.path).expanduser()
        folder = named if config.path and named.is_dir() else None
        if config.path and not named.exists():
            raise DrkitError(f"collection trec: {named} does not exist; expected: a folder with {_EXPECTED}")
        corpus = _one(config.corpus or (config.path if named.is_file() else ""), TEXT_FORMATS)
        corpus = corpus or (named_file(folder, CORPUS_NAMES) if folder else None)
        qrels = _by_split(config, folder, ("qrels", "qrel"), QRELS_FORMATS)
        topics = _by_split(config, folder, ("topics", "queries"), TOPIC_FORMATS)
        problems = [] if corpus else ["no corpus: --set collection.corpus=FILE"]
        problems += [] if qrels else ["no judgements: --set collection.test_qrels=FILE"]
        problems += [f"no topics of {s}: --set collection.{s}_topics=FILE" for s in qrels if s not in topics]
        if problems or corpus is None:
            raise ProblemsError(f"collection trec: {config.path}; expected: {_EXPECTED}", problems)
        return cls(corpus, topics, qrels)

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them, each once."""
        topics = (self.topics[split] for split in self.qrels)
        return tuple(dict.fromkeys((self.corpus, *topics, *self.qrels.values())))


def _by_split(
    config: TrecConfig, folder: Path | None, names: tuple[str, ...], formats: tuple[str, ...]
) -> dict[str, Path]:
    """Files of topics, or of judgements; one that names no split holds the topics of all, the judgements of test."""
    what = names[0]
    found = {split: _one(getattr(config, f"{split}_{what}"), formats) for split in SPLIT_NAMES}
    if folder:
        common = named_file(folder, names, formats=formats)
        for split in SPLIT_NAMES:
            found[split] = found[split] or named_file(folder, names, split, formats=formats)
            if what == "topics" or split == "test":
                found[split] = found[split] or common
    return {split: path for split, path in found.items() if path}


def _one(path: str, formats: tuple[str, ...]) -> Path | None:
    return existing_file(path, "collection trec", formats) if path else None
