"""The texts that pre-training reads, as characters and by name: passages by their id, spans as `DOC#n`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from drkit.data.store import encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.data.corpus import StoredCorpus
    from drkit.data.spans import Spans

_TEXTS_AT_ONCE = 1024


@frozen(eq=False)
class NamedTexts:
    """The passages of a corpus, or the spans of its passages, in the order of their token store."""

    corpus: StoredCorpus
    spans: Spans | None = None

    def __len__(self) -> int:
        return len(self.corpus) if self.spans is None else len(self.spans)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """(name, text) of each."""
        if self.spans is None:
            yield from ((passage.doc_id, passage.content) for passage in self.corpus)
            return
        for number, passage in enumerate(self.corpus):
            first, count = (int(value) for value in self.spans.of(number))
            for n, (begin, end) in enumerate(self._characters(first, count)):
                yield f"{passage.doc_id}#{n}", passage.content[begin:end]

    def _characters(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        assert self.spans is not None
        chosen = slice(first, first + count)
        return zip(self.spans.begins[chosen].tolist(), self.spans.ends[chosen].tolist(), strict=True)

    def find(self, names: Sequence[str]) -> list[NDArray[np.int64]]:
        """The places of the texts of each name, none where it is unknown: a passage's id names all its spans."""
        documents = self.corpus.find(names)
        if self.spans is None:
            return [np.array([place] if place >= 0 else [], dtype=np.int64) for place in documents]
        first, count = self.spans.of(documents)
        found = [np.arange(a, a + n) for a, n in zip(first, np.where(documents >= 0, count, 0), strict=True)]
        for row in np.flatnonzero(documents < 0):
            found[int(row)] = self._span(names[int(row)])
        return found

    def _span(self, name: str) -> NDArray[np.int64]:
        assert self.spans is not None
        doc_id, mark, number = name.rpartition("#")
        place = int(self.corpus.find([doc_id])[0]) if mark and number.isdecimal() else -1
        if place < 0:
            return np.empty(0, np.int64)
        first, count = (int(value) for value in self.spans.of(place))
        return np.array([first + int(number)] if int(number) < count else [], dtype=np.int64)


def cut(texts: Iterator[tuple[str, str]], tokenizer: Any, max_length: int) -> Iterator[tuple[str, str]]:
    """(name, text) pairs, each text as far as its first `max_length` tokens go, [CLS] and [SEP] included."""
    while batch := list(islice(texts, _TEXTS_AT_ONCE)):
        encodings = [encoding for part in encoded((text for _, text in batch), tokenizer) for encoding in part]
        for (name, text), encoding in zip(batch, encodings, strict=True):
            kept = encoding.offsets[: max_length - 2]
            yield name, text[: kept[-1][1]] if kept else ""
