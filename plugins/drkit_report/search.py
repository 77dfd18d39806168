"""Search one or two runs with any of their systems: what is found, with judged passages and matching words marked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from attrs import field, frozen
from filelock import FileLock

from drkit.commands import best_system, data_sets_of, open_system, search_systems
from drkit.commands.records import RunRecord
from drkit.core.files import write_text
from drkit.core.types import Judgement
from drkit.data.corpus import StoredCollection
from drkit.data.examples import example_queries
from drkit.data.qrels import qrels_columns, read_qrels, write_qrels
from drkit.data.rows import read_lines
from drkit.data.words import find_words, word_pattern
from drkit.errors import DrkitError, UnknownNameError
from drkit.search.fusion import Searcher
from drkit_report.inspect.masks import stop_words

SHOWN = 10
_EXAMPLES = 5
_LONGEST = 800  # characters of a passage


@frozen
class Span:
    """A piece of a passage, and whether it is a word of the query."""

    text: str
    is_match: bool


@frozen
class FoundPassage:
    """A passage as it is shown: rank, id, score, the text in spans, and its judged grade (None: not judged).

    row: its index in the collection, which forms send: a page shows ids with control characters spelled out.
    """

    rank: int
    row: int
    doc_id: str
    score: float
    spans: tuple[Span, ...]
    grade: int | None


@frozen
class Ranking:
    """The passages that one system finds for a query."""

    system: str
    passages: tuple[FoundPassage, ...]


@frozen(slots=False, eq=False)
class KeptJudgements:
    """Judgements made on the page, in a qrels file; texts of queries outside the collection are in a file beside it."""

    path: Path
    _lock: Any = field(factory=Lock, init=False, repr=False)

    @cached_property
    def grades(self) -> dict[tuple[str, str], int]:
        """The kept grades by (query id, passage id). Raises DrkitError if the file is not one of judgements."""
        return self._read()

    def _read(self) -> dict[tuple[str, str], int]:
        if not self.path.is_file():
            return {}
        first = next((line for _, line in read_lines(self.path)), "")
        if first and len(qrels_columns(first)) != 4:  # another file would be rewritten in this form
            raise DrkitError(f"judgements are kept in TREC's four columns, got {first!r:.80}", where=f"{self.path}:1")
        return {(row.query_id, row.doc_id): row.relevance for row in read_qrels(self.path)}

    @property
    def queries(self) -> Path:
        """The file of typed queries, id and text by line."""
        return self.path.with_name(f"{self.path.name}.queries.tsv")

    def add(self, judgement: Judgement, text: str = "") -> None:
        """Keep a judgement in place of an earlier one of the same passage; text: of a query outside the collection.

        What other processes or an editor have written into the file stays. Raises OSError if it cannot be written, then
        the earlier grade stays, and DrkitError if the file does not hold judgements any more.
        """
        with self._lock, FileLock(self.path.with_name(f".{self.path.name}.lock")):
            grades = self._read()
            judged = {(judgement.query_id, judgement.doc_id): judgement.relevance}
            if text:
                known = self.queries.read_text(encoding="utf-8") if self.queries.is_file() else ""
                line = f"{judgement.query_id}\t{' '.join(text.split())}\n"
                if line not in known:
                    write_text(self.queries, known + line)
            rows = (Judgement(query, doc, grade) for (query, doc), grade in (grades | judged).items())
            write_qrels(self.path, rows)
            self.grades.update(grades | judged)


@frozen
class PageSystem:
    """A system that can be chosen on the page: its run, its name there, and its name on the page.

    data_set: whose passages it searches, in a run with several.
    """

    run: Path
    name: str
    label: str
    data_set: str | None = None


@frozen(slots=False, eq=False)
class SearchedRuns:
    """One or two runs over the same passages, and the judgements that are known.

    systems: by the keys that forms send. best: the keys of the systems that answer first, one of each run. kept:
    judgements made on the page.
    """

    collection: StoredCollection
    systems: Mapping[str, PageSystem]
    best: Sequence[str]
    kept: KeptJudgements
    _opened: dict[str, Searcher] = field(factory=dict, init=False, repr=False)
    _lock: Any = field(factory=Lock, init=False, repr=False)

    @classmethod
    def load(cls, runs: Sequence[RunRecord], qrels: Path) -> SearchedRuns:
        """Load the best system of each finished run; others are loaded when they are first chosen.

        Raises DrkitError if a run is not finished, or the runs have different passages.
        """
        first = runs[0]
        if first.collection is None:
            raise DrkitError(f"{first.folder} has no finished collection; resume it with `drkit run {first.folder}`")
        contents = {run.manifests["collection"].content("passages") for run in runs if "collection" in run.manifests}
        if len(contents) != 1:
            raise DrkitError("the runs have different passages; serve runs of the same collection")
        systems, best = {}, []
        for number, run in enumerate(runs, 1):
            prefix, named = f"{number}:" if number > 1 else "", f"{run.name}, " if len(runs) > 1 else ""
            sets: dict[str, str | None] = {f"@{name}": name for name in data_sets_of(run.folder)}
            sets = sets or {"": None}
            for end, name in sets.items():
                for one in search_systems(run.folder).values():
                    label = f"{named}{one.description}{f' ({name})' if name else ''}"
                    systems[f"{prefix}{one.name}{end}"] = PageSystem(run.folder, one.name, label, name)
            best.append(f"{prefix}{best_system(run.folder)}{next(iter(sets))}")
        kept = KeptJudgements(qrels)
        _ = kept.grades  # a file that cannot be read is an error now, not after the first click
        made = cls(first.collection, systems, best, kept)
        for key in best:
            made.searcher(key)
        return made

    def searcher(self, key: str) -> Searcher:
        """Return what searches for a system. Raises DrkitError for an unknown key, or if it cannot be opened."""
        if key not in self.systems:
            raise UnknownNameError("system", key, self.systems)
        if key not in self._opened:
            chosen = self.systems[key]
            self._opened[key] = open_system(chosen.run, chosen.name, data_set=chosen.data_set)
        return self._opened[key]

    @cached_property
    def examples(self) -> list[str]:
        """Queries to try, of the last split: test, if there is one."""
        splits = self.collection.splits()
        return example_queries(self.collection, splits[-1], _EXAMPLES) if splits else []

    @cached_property
    def query_ids(self) -> dict[str, str]:
        """The id of each query of the collection, by its text."""
        return {
            " ".join(query.text.split()): query.query_id
            for split in self.collection.splits()
            for query in self.collection.queries(split)
        }

    @cached_property
    def judged(self) -> dict[str, dict[str, int]]:
        """The collection's own grades, by query and passage."""
        found: dict[str, dict[str, int]] = {}
        for split in self.collection.splits():
            for judgement in self.collection.judgements(split):
                found.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.relevance
        return found

    def query_id(self, text: str) -> str:
        """Return the id of a query: the collection's, or one made from the text."""
        plain = " ".join(text.split())
        return self.query_ids.get(plain) or f"typed-{hashlib.blake2b(plain.encode(), digest_size=6).hexdigest()}"

    def judge(self, text: str, row: int, grade: int) -> None:
        """Keep a grade for the passage at an index. Raises DrkitError if it is missing."""
        if not 0 <= row < len(self.collection.corpus):
            raise DrkitError(f"unknown passage {row}: the collection has {len(self.collection.corpus):,}")
        doc_id = self.collection.corpus.at([row])[0].doc_id
        plain, query_id = " ".join(text.split()), self.query_id(text)
        self.kept.add(Judgement(query_id, doc_id, grade), "" if plain in self.query_ids else plain)

    def grades(self, text: str) -> dict[str, int]:
        """Return the known grades of a query's passages, by id: the collection's, and those made on the page."""
        query_id = self.query_id(text)
        kept = {doc_id: grade for (query, doc_id), grade in self.kept.grades.items() if query == query_id}
        return self.judged.get(query_id, {}) | kept

    def search(self, text: str, systems: Sequence[str] = (), depth: int = SHOWN) -> list[Ranking]:
        """Return the rankings of some systems for a query; of the best ones if none is named.

        Raises DrkitError for an empty query, or an unknown system.
        """
        grades, words = self.grades(text), _folded(text) - stop_words()
        rankings = []
        for key in dict.fromkeys(systems or self.best):
            with self._lock:  # models and indexes serve one search at a time
                (hits,) = self.searcher(key).search([text], depth)
            rows = self.collection.corpus.positions(list(hits.doc_ids)).tolist()
            passages = self.collection.corpus.at(rows)
            found = [
                FoundPassage(rank, row, doc_id, score, tuple(_spans(passage.content, words)), grades.get(doc_id))
                for rank, (row, (doc_id, score), passage) in enumerate(
                    zip(rows, hits.pairs(), passages, strict=True), 1
                )
            ]
            rankings.append(Ranking(self.systems[key].label, tuple(found)))
        return rankings


def _folded(text: str) -> set[str]:
    """Return the words of a text without case."""
    return {word.casefold() for word in find_words(text)}


def _spans(text: str, words: Set[str]) -> Iterator[Span]:
    """Yield a text in pieces, cut to a maximum length, with the words of a query apart."""
    shown, end = text[:_LONGEST], 0
    for found in word_pattern().finditer(shown):
        if (terms := _folded(found[0])) and terms <= words:
            yield Span(shown[end : found.start()], False)
            yield Span(found[0], True)
            end = found.end()
    yield Span(shown[end:] + (" \u2026" if len(text) > _LONGEST else ""), False)
