"""Pairs of texts and a corpus without ids, as sentence-transformers has them, in the form that miners read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkit.core.protocols import ScoringRetriever
from drkit.core.types import MiningRequest, Passage
from drkit.errors import DrkitError
from drkit.search.hits import Hits

_ID_COLUMNS = ("doc_id", "_id", "id")


class TextPairs:
    """The distinct anchors of pairs, in their order, with the ids of all their positives in a `TextCorpus`."""

    def __init__(self, data: Iterable[Any], corpus: TextCorpus) -> None:
        self.positives: dict[str, list[str]] = {}
        for anchor, positive in read_pairs(data):
            doc_ids, doc_id = self.positives.setdefault(anchor, []), corpus.add(positive)
            if doc_id not in doc_ids:
                doc_ids.append(doc_id)
        if not self.positives:
            raise DrkitError("the data is empty; give at least one pair (anchor, positive) of texts")

    def requests(self) -> Iterator[MiningRequest]:
        """Yield a mining request for each anchor."""
        for number, (anchor, doc_ids) in enumerate(self.positives.items()):
            yield MiningRequest(str(number), anchor, frozenset(doc_ids))


def read_pairs(data: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield (anchor, positive): the columns of these names, or else the first two, of a Dataset, mappings or tuples.

    Raises DrkitError with the row's number if a row is not a pair of texts.

    >>> list(read_pairs([("a", "b"), {"query": "c", "answer": "d"}, {"positive": "f", "anchor": "e"}]))
    [('a', 'b'), ('c', 'd'), ('e', 'f')]
    """
    for number, row in enumerate(data, start=1):
        pair = _pair(row)
        if len(pair) < 2 or not all(isinstance(text, str) for text in pair):
            raise DrkitError(
                f"row {number} of the data must be a pair of texts, got {row!r:.80}; give (anchor, positive), or a "
                f"Dataset with these columns (one split, not all of them)"
            )
        yield pair[0], pair[1]


def _pair(row: Any) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        names = ("anchor", "positive") if {"anchor", "positive"} <= row.keys() else tuple(row)[:2]
        return tuple(row[name] for name in names)
    return tuple(row[:2]) if isinstance(row, (tuple, list)) else ()


class TextCorpus:
    """Distinct texts as a `Corpus`: a passage's id is its index, as a string. Memory: the texts.

    A text may also have ids of the caller's own; several ids may name one text.

    >>> corpus = TextCorpus()
    >>> corpus.add("a text", given_id="x"), corpus.add("another"), corpus.add("a text", given_id="y")
    ('0', '1', '0')
    >>> len(corpus), corpus.find_given("y"), corpus.given_id_of("1")
    (2, '0', None)
    """

    def __init__(self) -> None:
        self._doc_ids: dict[str, str] = {}
        self._texts: list[str] = []
        self._by_given_id: dict[str, str] = {}
        self._given_ids: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[Passage]:
        return (Passage(str(index), text) for index, text in enumerate(self._texts))

    def add(self, text: str, *, given_id: str | None = None) -> str:
        """Add a text if it is new, and return its id; given_id: the caller's id of the text."""
        doc_id = self._doc_ids.setdefault(text, str(len(self._texts)))
        if int(doc_id) == len(self._texts):
            self._texts.append(text)
        if given_id is not None:
            self._by_given_id[given_id] = doc_id
            self._given_ids.setdefault(doc_id, given_id)
        return doc_id

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in this order."""
        return [Passage(doc_id, self._texts[int(doc_id)]) for doc_id in doc_ids]

    def find_given(self, given_id: str) -> str | None:
        """Return the id of the text that the caller calls `given_id`, or None if it is unknown."""
        return self._by_given_id.get(given_id)

    def given_id_of(self, doc_id: str) -> str | None:
        """Return the caller's first id of a text, or None if it has none."""
        return self._given_ids.get(doc_id)

    @property
    def has_given_ids(self) -> bool:
        """Whether the caller gave any text an id."""
        return bool(self._by_given_id)


def read_corpus(corpus: Iterable[Any]) -> Iterator[tuple[str | None, str]]:
    """Yield (id or None, text) of texts, a mapping of id to text, passages, or rows with a column `text`.

    Raises DrkitError with the passage's number for anything else.

    >>> list(read_corpus({"d1": "one"})), list(read_corpus([{"_id": "d2", "title": "A", "text": "two"}, "three"]))
    ([('d1', 'one')], [('d2', 'A two'), (None, 'three')])
    """
    for number, item in enumerate(corpus.items() if isinstance(corpus, Mapping) else corpus, start=1):
        given_id, text = (None, item) if isinstance(item, str) else _id_and_text(item)
        if not isinstance(text, str):
            raise DrkitError(
                f"passage {number} of the corpus is {item!r:.80}; give texts, a mapping of id to text, or rows with "
                f"a column `text`"
            )
        yield given_id, text


def _id_and_text(item: Any) -> tuple[str | None, Any]:
    if isinstance(item, tuple):
        return item if len(item) == 2 else (None, None)
    if isinstance(item, Mapping):
        given_id = next((str(item[name]) for name in _ID_COLUMNS if name in item), None)
        text = item.get("text", next(iter(item.values())) if len(item) == 1 else None)
        return given_id, Passage("", text, item.get("title") or "").content if isinstance(text, str) else None
    return getattr(item, "doc_id", None), getattr(item, "content", None)


class TextCorpusRetriever:
    """Wraps a retriever that finds the caller's ids, so that it returns ids of a `TextCorpus`."""

    def __init__(self, retriever: Any, corpus: TextCorpus) -> None:
        self._retriever, self._corpus = retriever, corpus
        if isinstance(retriever, ScoringRetriever):
            self.score = self._score

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text; a hit that the corpus lacks has the id None."""
        found = self._retriever.search(texts, depth)
        return [Hits(tuple(map(self._corpus.find_given, ids)), tuple(scores)) for ids, scores in found]  # type: ignore[arg-type]

    def _score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        given_ids = [[self._corpus.given_id_of(doc_id) for doc_id in of_text] for of_text in doc_ids]
        scores = self._retriever.score(texts, [[name for name in names if name is not None] for names in given_ids])
        remaining = [iter(of_text) for of_text in scores]
        return [
            [math.nan if name is None else next(of_text) for name in names]
            for names, of_text in zip(given_ids, remaining, strict=True)
        ]
