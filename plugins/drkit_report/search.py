"""Search one or two runs side by side: what each system finds, with judged passages and matching words marked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from attrs import field, frozen
from filelock import FileLock

from drkit.commands.records import RunRecord
from drkit.core.files import write_text
from drkit.core.types import Judgement
from drkit.data.corpus import StoredCollection
from drkit.data.qrels import qrels_columns, read_qrels, write_qrels
from drkit.data.rows import read_lines
from drkit.data.words import find_words, word_pattern
from drkit.errors import DrkitError
from drkit.search import Bm25Retriever, HybridRetriever, Retriever
from drkit.search.fusion import Searcher
from drkit_report.inspect.masks import stop_words

SHOWN = 10
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


@frozen(slots=False, eq=False)
class SearchedRuns:
    """One or two runs over the same passages, and the judgements that are known.

    systems: what ranks, by its name on the page. kept: judgements made on the page.
    """

    collection: StoredCollection
    systems: Mapping[str, Searcher]
    kept: KeptJudgements
    _lock: Any = field(factory=Lock, init=False, repr=False)

    @classmethod
    def load(cls, runs: Sequence[RunRecord], qrels: Path) -> SearchedRuns:
        """Load the encoders and indexes of finished runs; the first run also ranks by BM25 and both, if it can.

        Raises DrkitError if a run is not finished, or the runs have different passages.
        """
        first = runs[0]
        if first.collection is None:
            raise DrkitError(f"{first.folder} has no finished collection; resume it with `drkit run {first.folder}`")
        contents = {run.manifests["collection"].content("passages") for run in runs if "collection" in run.manifests}
        if len(contents) != 1:
            raise DrkitError("the runs have different passages; serve runs of the same collection")
        systems: dict[str, Searcher] = {}
        if "hybrid" in first.manifests:
            hybrid = HybridRetriever.load(first.folder)
            systems = {first.name: hybrid.second, "BM25": hybrid.first, "hybrid": hybrid}
        else:
            systems[first.name] = Retriever.load(first.folder)
            if "bm25" in first.manifests:
                systems["BM25"] = Bm25Retriever.load(first.folder / "bm25")
        for other in runs[1:]:
            systems[other.name] = Retriever.load(other.folder)
        kept = KeptJudgements(qrels)
        _ = kept.grades  # a file that cannot be read is an error now, not after the first click
        return cls(first.collection, systems, kept)

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

    def search(self, text: str, depth: int = SHOWN) -> list[Ranking]:
        """Return the ranking of every system for a query. Raises DrkitError for an empty query."""
        query_id, words = self.query_id(text), _folded(text) - stop_words()
        grades = self.judged.get(query_id, {}) | {
            doc_id: grade for (query, doc_id), grade in self.kept.grades.items() if query == query_id
        }
        rankings = []
        for name, system in self.systems.items():
            with self._lock:  # models and indexes serve one search at a time
                (hits,) = system.search([text], depth)
            rows = self.collection.corpus.positions(list(hits.doc_ids)).tolist()
            passages = self.collection.corpus.at(rows)
            found = [
                FoundPassage(rank, row, doc_id, score, tuple(_spans(passage.content, words)), grades.get(doc_id))
                for rank, (row, (doc_id, score), passage) in enumerate(
                    zip(rows, hits.pairs(), passages, strict=True), 1
                )
            ]
            rankings.append(Ranking(name, tuple(found)))
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
