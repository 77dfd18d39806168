"""Collections as TREC and MS MARCO publish them: a corpus file, topics and judgements by split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import (
    CORPUS_NAMES,
    QRELS_FORMATS,
    SPLITS,
    TOPIC_FORMATS,
    FileCollection,
    Splits,
    find_file,
    judged_queries,
    read_judgements,
    read_passages,
    read_topics,
)
from drkit.data.rows import FORMATS, Row, file_summary, require_file
from drkit.data.specs import TrecConfig
from drkit.errors import DrkitError, ProblemsError

_EXPECTED = (
    "a corpus (corpus.jsonl, collection.tsv, ..), topics (topics.test.tsv, queries.dev.tsv, ..) and judgements "
    "(qrels.test.txt, qrels.dev.tsv, ..)"
)


class TrecCollection(FileCollection):
    """A corpus, and topics and judgements by split; given one by one, or found in a folder by their names.

    Only judged topics are queries. One topic file may serve all splits. Without a train split, `train_share` of the
    test topics (by the hash of their ids) become training queries, a tenth of them dev if there is no dev split. With
    0, the default, no test topic is ever trained on.

    Raises DrkitError if a file is missing; bad lines are named as `file:line` when they are read.
    """

    def __init__(self, config: TrecConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        self.name = f"trec:{local_path(config.path or config.corpus).resolve().name}"
        given = local_path(config.path)
        folder = given if config.path and given.is_dir() else None
        if config.path and not given.exists():
            raise DrkitError(f"collection trec: {given} does not exist; expected: a folder with {_EXPECTED}")
        corpus = _given(config.corpus or (config.path if given.is_file() else ""), FORMATS)
        corpus = corpus or (find_file(folder, CORPUS_NAMES) if folder else None)
        self._qrels = _by_split(config, folder, ("qrels", "qrel"), QRELS_FORMATS)
        self._topics = _by_split(config, folder, ("topics", "queries"), TOPIC_FORMATS)
        problems = [] if corpus else ["no corpus: --set collection.corpus=FILE"]
        problems += [] if self._qrels else ["no judgements: --set collection.test_qrels=FILE"]
        problems += [
            f"no topics of {s}: --set collection.{s}_topics=FILE" for s in self._qrels if s not in self._topics
        ]
        if problems or corpus is None:
            raise ProblemsError(f"collection trec: {config.path}; expected: {_EXPECTED}", problems)
        self._corpus = corpus

    @property
    def divided(self) -> Splits:
        """The splits with judgements, and those taken from the test topics."""
        return Splits.of(self.name, self._qrels, train_share=self.config.train_share)

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """Every row of the corpus."""
        return read_passages(self._corpus)

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """The judged topics of a split."""
        topics = read_topics(self._topics[self.divided.source(split)], self.config.topic_field)
        return judged_queries(topics, self.judgements(split))

    def located_judgements(self, split: str) -> Iterator[tuple[str, Judgement]]:
        """The judgements of a split."""
        belongs = self.divided.membership(split)
        rows = read_judgements(self._qrels[self.divided.source(split)])
        return ((where, judgement) for where, judgement in rows if belongs(judgement.query_id))

    def describe(self) -> Mapping[str, Any]:
        """The size and SHA-256 of each file."""
        files = dict.fromkeys((self._corpus, *(self._topics[split] for split in self._qrels), *self._qrels.values()))
        return {
            "collection": "trec",
            "files": {str(path.resolve()): file_summary(path) for path in files},
            "train_share": self.config.train_share,
        }


def _by_split(
    config: TrecConfig, folder: Path | None, names: tuple[str, ...], formats: tuple[str, ...]
) -> dict[str, Path]:
    """Topic or qrels files; one whose name has no split holds the topics of all splits, or the judgements of test."""
    role = names[0]
    found = {split: _given(getattr(config, f"{split}_{role}"), formats) for split in SPLITS}
    if folder:
        common = find_file(folder, names, formats=formats)
        for split in SPLITS:
            found[split] = found[split] or find_file(folder, names, split, formats=formats)
            if role == "topics" or split == "test":
                found[split] = found[split] or common
    return {split: path for split, path in found.items() if path}


def _given(path: str, formats: tuple[str, ...]) -> Path | None:
    return require_file(path, "collection trec", formats) if path else None
