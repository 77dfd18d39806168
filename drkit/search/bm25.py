"""BM25 over words: bm25s, English stems, without stop words. The baseline row and the miner share it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import bm25s
import numpy as np
import Stemmer

from drkit.errors import DrkitError
from drkit.search.hits import Hits, batched, check_queries
from drkit.search.ids import DocIds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.core.types import Passage


class Bm25Retriever:
    """Ranks passages by BM25 (Lucene's variant: Kamphuis et al. 2020), every query by itself.

    k1 saturates term frequency, b normalises length. A passage that shares no term with the query is no hit;
    equal scores stand in the corpus's order. Same corpus, same answer.
    """

    def __init__(self, *, k1: float = 1.2, b: float = 0.75) -> None:
        stemmer = Stemmer.Stemmer("english")
        self._tokenizer = bm25s.tokenization.Tokenizer(stopwords="english", stemmer=stemmer)
        self._engine: Any = bm25s.BM25(k1=k1, b=b, method="lucene")
        self._ids: list[str] = []
        self._found: DocIds | None = None
        self._has_terms = False

    def __len__(self) -> int:
        return len(self._ids)

    def index(self, passages: Iterable[Passage]) -> Bm25Retriever:
        """Take in the passages, streamed; only ids and term numbers stay in memory.

        Raises DrkitError where there are none.
        """
        self._ids, self._found = [], None
        self._tokenizer.reset_vocab()
        terms = list(self._tokenizer.streaming_tokenize(self._contents(passages), allow_empty=False))
        if not self._ids:
            raise DrkitError("BM25 has no passages to index; is the collection empty?")
        self._has_terms = any(terms)
        if self._has_terms:
            vocabulary = self._tokenizer.get_vocab_dict()
            self._engine.index((terms, vocabulary), create_empty_token=False, show_progress=False)
        return self

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """The best `depth` passages of each text.

        Raises DrkitError for an empty text. A text of stop words or unknown words alone has no hits.
        """
        check_queries(texts)
        queries = self._tokenizer.streaming_tokenize(texts, update_vocab=False, allow_empty=False)
        return [self._hits(query, depth) for query in queries]

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """BM25 of each text with passages of its own; 0 where they share no term, NaN for an id that is not here.

        Raises DrkitError for an empty text, or where there are more or fewer lists than texts.
        """
        check_queries(texts)
        if len(texts) != len(doc_ids):
            raise DrkitError(f"{len(doc_ids)} lists of documents for {len(texts)} queries; give each query its own")
        queries = self._tokenizer.streaming_tokenize(texts, update_vocab=False, allow_empty=False)
        return [self._scores(query, self._by_name.find(names)) for query, names in zip(queries, doc_ids, strict=True)]

    def stream(self, texts: Iterable[str], depth: int, batch: int = 256) -> Iterator[Hits]:
        """`search` for any number of texts, a batch at a time."""
        for some in batched(texts, batch):
            yield from self.search(some, depth)

    @property
    def _by_name(self) -> DocIds:
        if self._found is None:
            self._found = DocIds.of(self._ids)
        return self._found

    def _contents(self, passages: Iterable[Passage]) -> Iterator[str]:
        for passage in passages:
            self._ids.append(passage.doc_id)
            yield passage.content

    def _scores(self, query: list[int], places: NDArray[np.int64]) -> list[float]:
        everywhere = np.zeros(len(self._ids), dtype=np.float32)
        if query and self._has_terms:
            everywhere = self._engine.get_scores_from_ids(query)
        return [float(everywhere[place]) if place >= 0 else math.nan for place in places]

    def _hits(self, query: list[int], depth: int) -> Hits:
        if not query or not self._has_terms:
            return Hits((), ())
        scores = self._engine.get_scores_from_ids(query)
        places = best_places(scores, depth)
        return Hits(tuple(self._ids[p] for p in places), tuple(scores[places].tolist()))


def best_places(scores: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
    """i64[<=depth]: the places of the largest positive scores f32[N], best first, ties by place.

    >>> best_places(np.array([1, 0, 2, 1], dtype=np.float32), 2).tolist()
    [2, 0]
    """
    places = np.flatnonzero(scores > 0)
    if len(places) > depth:
        least = np.partition(scores[places], -depth)[-depth]
        sure, tied = places[scores[places] > least], places[scores[places] == least]
        places = np.sort(np.concatenate([sure, tied[: depth - len(sure)]]))
    return places[np.argsort(-scores[places], kind="stable")]
