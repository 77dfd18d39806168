"""Pairs of texts as queries and passages: equal texts are one passage, whatever ids they come with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkit.core.protocols import Corpus, ScoringRetriever
from drkit.core.types import Mined, MiningRequest, Passage
from drkit.errors import DrkitError
from drkit.miners.chain import left
from drkit.search.retrieve import Hits

_IDS = ("doc_id", "_id", "id")


class TextCorpus:
    """Texts, each once, as a `Corpus`: a passage's id is its place. Memory: the texts.

    >>> corpus = TextCorpus()
    >>> corpus.add("a text", doc_id="x"), corpus.add("another"), corpus.add("a text", doc_id="y")
    ('0', '1', '0')
    >>> len(corpus), corpus.place_of("y"), corpus.id_of("1")
    (2, '0', None)
    """

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._texts: list[str] = []
        self._by_id: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[Passage]:
        return (Passage(str(place), text) for place, text in enumerate(self._texts))

    def add(self, text: str, *, doc_id: str | None = None) -> str:
        """The place of a text, old or new; doc_id: what others call it."""
        place = self._places.setdefault(text, str(len(self._texts)))
        if int(place) == len(self._texts):
            self._texts.append(text)
        if doc_id is not None:
            self._by_id[doc_id] = place
            self._ids.setdefault(place, doc_id)
        return place

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """The passages at these places, in this order."""
        return [Passage(place, self._texts[int(place)]) for place in doc_ids]

    def place_of(self, doc_id: str) -> str | None:
        """The place of what others call so."""
        return self._by_id.get(doc_id)

    def id_of(self, place: str) -> str | None:
        """What others call the text at a place."""
        return self._ids.get(place)

    @property
    def named(self) -> bool:
        """Whether any text has an id of others."""
        return bool(self._by_id)


class TextPairs:
    """The anchors of pairs, each once, in their order, and all their positives as places in a corpus."""

    def __init__(self, data: Iterable[Any], corpus: TextCorpus) -> None:
        self.positives: dict[str, list[str]] = {}
        for anchor, positive in read_pairs(data):
            known, place = self.positives.setdefault(anchor, []), corpus.add(positive)
            if place not in known:
                known.append(place)
        if not self.positives:
            raise DrkitError("there are no pairs to mine for; give (anchor, positive) texts")

    def requests(self) -> Iterator[MiningRequest]:
        """A request an anchor."""
        for number, (anchor, places) in enumerate(self.positives.items()):
            yield MiningRequest(str(number), anchor, frozenset(places))


class NotTheQuery:
    """A filter that drops the query's own text where it is a passage too (duplicate questions), as `query-itself`."""

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:
        """What reads otherwise than the query."""
        for request, found in mined:
            passages = corpus.get_many(found.doc_ids)
            yield left(found, [passage.content != request.text for passage in passages], "query-itself")


class ByText:
    """A retriever over ids of its own, as one over the places of a corpus; ids that the corpus lacks are no hits."""

    def __init__(self, retriever: Any, corpus: TextCorpus) -> None:
        self._retriever, self._corpus = retriever, corpus
        if isinstance(retriever, ScoringRetriever):
            self.score = self._score

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """The best `depth` passages of each text."""
        found = self._retriever.search(texts, depth)
        return [Hits(tuple(map(self._corpus.place_of, ids)), tuple(scores)) for ids, scores in found]  # type: ignore[arg-type]

    def _score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        theirs = [[self._corpus.id_of(place) for place in places] for places in doc_ids]
        given = self._retriever.score(texts, [[name for name in names if name is not None] for names in theirs])
        scores = [iter(own) for own in given]
        return [
            [math.nan if name is None else next(own) for name in names]
            for names, own in zip(theirs, scores, strict=True)
        ]


def read_pairs(data: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """(anchor, positive) of a Dataset's columns of these names, or its first two; of mappings alike; of tuples.

    Raises DrkitError, with the row's number, for what is no pair of texts.

    >>> list(read_pairs([("a", "b"), {"query": "c", "answer": "d"}, {"positive": "f", "anchor": "e"}]))
    [('a', 'b'), ('c', 'd'), ('e', 'f')]
    """
    for number, row in enumerate(data, start=1):
        pair = _pair(row)
        if len(pair) < 2 or not all(isinstance(text, str) for text in pair):
            raise DrkitError(
                f"row {number} of the data is {row!r:.80}, no pair of texts; give (anchor, positive), or a Dataset "
                f"with these columns (of several splits, one)"
            )
        yield pair[0], pair[1]


def read_corpus(corpus: Iterable[Any]) -> Iterator[tuple[str | None, str]]:
    """(id or None, text) of texts, of a mapping of id to text, of passages, or of rows with a column `text`.

    Raises DrkitError, with its number, for what is none of these.

    >>> list(read_corpus({"d1": "one"})), list(read_corpus([{"_id": "d2", "title": "A", "text": "two"}, "three"]))
    ([('d1', 'one')], [('d2', 'A two'), (None, 'three')])
    """
    for number, item in enumerate(corpus.items() if isinstance(corpus, Mapping) else corpus, start=1):
        doc_id, text = (None, item) if isinstance(item, str) else _named(item)
        if not isinstance(text, str):
            raise DrkitError(
                f"passage {number} of the corpus is {item!r:.80}; give texts, a mapping of id to text, or rows with "
                f"a column `text`"
            )
        yield doc_id, text


def _pair(row: Any) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        names = ("anchor", "positive") if {"anchor", "positive"} <= row.keys() else tuple(row)[:2]
        return tuple(row[name] for name in names)
    return tuple(row[:2]) if isinstance(row, (tuple, list)) else ()


def _named(item: Any) -> tuple[str | None, Any]:
    if isinstance(item, tuple):
        return item if len(item) == 2 else (None, None)
    if isinstance(item, Mapping):
        doc_id = next((str(item[name]) for name in _IDS if name in item), None)
        text = item.get("text", next(iter(item.values())) if len(item) == 1 else None)
        return doc_id, Passage("", text, item.get("title") or "").content if isinstance(text, str) else None
    return getattr(item, "doc_id", None), getattr(item, "content", None)
