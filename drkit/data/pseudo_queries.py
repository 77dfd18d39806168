"""Pseudo-queries: training queries that are made from the passages themselves, without a model or a judgement.

Each source turns a batch of passages into the queries of each; which ones depends on the seed and the passage alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from attrs import frozen

from drkit.core.draws import Draws
from drkit.core.types import Passage
from drkit.data.arrays import SignalValues
from drkit.data.corpus import StoredCorpus
from drkit.data.queries import LENGTH, extractive_queries, read_queries
from drkit.data.spans import SentenceSplitter
from drkit.data.store import TokenStore, encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

SHORTEST, LONGEST = 4, 16  # words of a crop
_BATCH = 1024
# Added to the seed of a run, which is smaller, so that crops, sentences and masks are drawn independently.
_CROPS, _SENTENCES = 4 << 40, 5 << 40
_WORD = re.compile(r"\S+")


class QuerySource(Protocol):
    """Makes queries from passages."""

    def __call__(self, passages: Sequence[Passage], indices: Indices) -> list[list[str]]:
        """Return the queries of each passage; indices: of the passages in their corpus."""


@frozen
class Crops:
    """Runs of 4 to 16 words, drawn at random: independent cropping (Izacard et al. 2022, section 3.1) of the query.

    The passage stays whole.
    """

    count: int
    seed: int

    def __call__(self, passages: Sequence[Passage], indices: Indices) -> list[list[str]]:
        """Return `count` crops of each passage; equal ones once."""
        words = [[word.span() for word in _WORD.finditer(passage.content)] for passage in passages]
        totals = np.array([len(own) for own in words])[:, None]
        sizes, places = np.moveaxis(Draws(self.seed + _CROPS, 0, indices).uniform(2, self.count), 1, 0)
        lengths = np.minimum(SHORTEST + (sizes * (LONGEST - SHORTEST + 1)).astype(np.int64), totals)
        starts = (places * (totals - lengths + 1)).astype(np.int64)
        return [
            [passage.content[own[a][0] : own[a + n - 1][1]] for a, n in zip(first, size, strict=True) if n]
            for passage, own, first, size in zip(passages, words, starts.tolist(), lengths.tolist(), strict=True)
        ]


@frozen
class Sentences:
    """Sentences, drawn at random: the inverse cloze task (Lee et al. 2019) with the sentence left in its passage."""

    count: int
    seed: int
    splitter: SentenceSplitter

    def __call__(self, passages: Sequence[Passage], indices: Indices) -> list[list[str]]:
        """Return at most `count` sentences of each passage, in random order; none if it is a single sentence."""
        found = [[passage.content[a:b] for a, b in self.splitter(passage.content)] for passage in passages]
        longest = max(map(len, found), default=0)
        order = Draws(self.seed + _SENTENCES, 0, indices).uniform(longest)
        return [
            [own[i] for i in np.argsort(keys[: len(own)], kind="stable")[: self.count]] if len(own) > 1 else []
            for own, keys in zip(found, order, strict=True)
        ]


@frozen(eq=False)
class ImportantSpans:
    """The spans of highest mean importance (`extractive_queries`), as the passage spells them.

    store, importance: of the passages; prompt_tokens: their number before every text of the store.
    """

    count: int
    store: TokenStore
    importance: SignalValues
    tokenizer: Any
    prompt_tokens: int = 0

    def __call__(self, passages: Sequence[Passage], indices: Indices) -> list[list[str]]:
        """Return at most `count` spans of each passage, best first."""
        contents = [passage.content for passage in passages]
        encodings = [encoding for part in encoded(iter(contents), self.tokenizer) for encoding in part]
        ranges = extractive_queries(self.store, self.importance, indices, count=self.count, length=LENGTH)
        begins = self.store.offsets[indices] + self.prompt_tokens
        return [
            [text[e.offsets[max(a - begin, 0)][0] : e.offsets[b - begin - 1][1]] for a, b in own if b > begin]
            for text, e, own, begin in zip(contents, encodings, ranges, begins.tolist(), strict=True)
        ]


def titles(passages: Sequence[Passage], indices: Indices) -> list[list[str]]:  # noqa: ARG001
    """Return the title of each passage that has one."""
    return [[passage.title] if passage.title else [] for passage in passages]


def made_queries(corpus: StoredCorpus, source: QuerySource) -> Iterator[tuple[int, str]]:
    """Yield (passage index, query) of all passages, each query once per passage, none that is the whole passage."""
    stream, first = iter(corpus), 0
    while passages := list(islice(stream, _BATCH)):
        indices = np.arange(first, first + len(passages))
        for index, passage, queries in zip(indices.tolist(), passages, source(passages, indices), strict=True):
            for query in dict.fromkeys(" ".join(query.split()) for query in queries):
                if query and query != " ".join(passage.content.split()):
                    yield index, query
        first += len(passages)


def given_queries(corpus: StoredCorpus, path: Path) -> Iterator[tuple[int, str]]:
    """Yield (passage index, query) of a file of queries (see `read_queries`), -1 for an unknown passage."""
    stream = (pair for pair in read_queries(path) if pair[1].strip())
    while batch := list(islice(stream, _BATCH)):
        yield from zip(corpus.find([name for name, _ in batch]).tolist(), (query for _, query in batch), strict=True)
