"""Documents cut into spans: whole sentences, one after the other, as many as fit the encoder.

A document is tokenised whole and its tokens are cut at sentence borders, so every token is kept once and in order. Two
spans of one document are a pair (coCondenser; CoT-MAE): so a document of several sentences always gives two spans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.store import TokenStore, TokenWriter, encoded, prompt_tokens

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from drkit.data.sentences import SentenceSplitter

FILE = "spans.arrow"
_TEXTS_AT_ONCE = 1024


def split_documents(
    documents: Iterable[tuple[int, str]],
    tokenizer: Any,
    folder: Path,
    *,
    max_length: int,
    splitter: SentenceSplitter,
    prompt: str = "",
) -> dict[str, int]:
    """Cut (number, text) pairs, numbers ascending, into spans of at most `max_length` tokens, [CLS] and [SEP] included.

    Writes a `TokenStore` of all spans and a `Spans` beside it; memory stays flat. Sentences are packed in their order;
    one that is longer is cut between words, a longer word between tokens; the last two spans of a document are made
    even; a document that would give one span is cut in two at the sentence border nearest its middle. Empty documents
    give no span. `prompt` stands before every span. Returns counts: documents, empty, alone (documents of one span,
    their own context), spans, sentences, tokens, cut_sentences.
    """
    counts = Counter(dict.fromkeys(("documents", "empty", "alone", "spans", "sentences", "tokens", "cut_sentences"), 0))
    columns = {"documents": np.int64, "begins": np.int64, "ends": np.int64}
    stream = iter(documents)
    folder = Path(folder)
    with (
        TokenWriter(folder, tokenizer, max_length=max_length) as writer,
        ArrayWriter(folder / FILE, columns) as arrays,
    ):
        before = prompt_tokens(prompt, tokenizer, max_length)
        while batch := list(islice(stream, _TEXTS_AT_ONCE)):
            texts = [text for _, text in batch]
            encodings = [encoding for part in encoded(iter(texts), tokenizer) for encoding in part]
            for (number, text), encoding in zip(batch, encodings, strict=True):
                cuts = _cuts(text, encoding, splitter, max_length - 2 - len(before), counts)
                _write(number, encoding, cuts, (writer, arrays), before)
    return dict(counts)


def _cuts(text: str, encoding: Any, splitter: SentenceSplitter, limit: int, counts: Counter[str]) -> list[int]:
    """Token places at which the spans of one document begin, and where the last one ends."""
    borders = sentence_borders(encoding.offsets, splitter(text))
    cuts = pack(borders, encoding.word_ids, limit)
    spans = len(cuts) - 1
    counts["documents"] += 1
    counts["empty"] += spans == 0
    counts["alone"] += spans == 1
    counts["spans"] += spans
    counts["sentences"] += len(borders) - 1
    counts["tokens"] += len(encoding.ids)
    counts["cut_sentences"] += sum(stop - start > limit for start, stop in pairwise(borders))
    return cuts


def _write(
    number: int, encoding: Any, cuts: list[int], writers: tuple[TokenWriter, ArrayWriter], before: list[int]
) -> None:
    writer, arrays = writers
    spans = list(pairwise(cuts))
    ids, words, offsets = encoding.ids, encoding.word_ids, encoding.offsets
    wordless = [None] * len(before)
    writer.append([[*before, *ids[a:b]] for a, b in spans], [[*wordless, *words[a:b]] for a, b in spans])
    arrays.append(
        documents=np.full(len(spans), number),
        begins=np.array([offsets[a][0] for a, _ in spans]),
        ends=np.array([offsets[b - 1][1] for _, b in spans]),
    )


def sentence_borders(offsets: Sequence[tuple[int, int]], sentences: Sequence[tuple[int, int]]) -> list[int]:
    """Token places at which sentences begin, from 0 to the number of tokens, strictly ascending.

    offsets: (first, last + 1) character of every token; sentences: of every sentence. A token belongs to the first
    sentence that ends with it or later; a sentence without a token is none.

    >>> sentence_borders([(0, 2), (2, 3), (4, 6)], [(0, 3), (4, 6)])
    [0, 2, 3]
    """
    if not offsets:
        return [0]
    token_ends = np.maximum.accumulate([end for _, end in offsets])
    ends = [end for _, end in sentences]
    ends[-1:] = []  # whatever follows the last sentence belongs to it
    inner = np.searchsorted(token_ends, ends, side="right")
    return sorted({0, *inner.tolist(), len(offsets)})


def pack(borders: Sequence[int], words: Sequence[int | None], limit: int) -> list[int]:
    """Where spans of at most `limit` tokens begin, and the last one ends: whole sentences while they fit.

    borders: where sentences begin, and the last one ends; words: the word of each token.

    >>> pack([0, 3, 6, 9, 10], range(10), limit=6), pack([0, 2, 6], range(6), limit=6)
    ([0, 6, 10], [0, 2, 6])
    """
    pieces = _fitting(borders, words, limit)
    cuts = pieces[:1]
    for stop, after in pairwise(pieces):
        if after - cuts[-1] > limit:
            cuts.append(stop)
    if len(pieces) > 1:
        cuts.append(pieces[-1])
    first = cuts[-3] if len(cuts) > 2 else cuts[0]
    return [*cuts[: max(len(cuts) - 2, 1)], *_evened(first, pieces, limit)] if len(cuts) > 1 else cuts


def _evened(first: int, pieces: Sequence[int], limit: int) -> list[int]:
    """The end of the tokens from `first` on, and before it the border that cuts them most evenly, if there is one."""
    last = pieces[-1]
    inner = [cut for cut in pieces if first < cut < last and max(cut - first, last - cut) <= limit]
    middle = (first + last) / 2
    return [*([min(inner, key=lambda cut: abs(cut - middle))] if inner else []), last]


def _fitting(borders: Sequence[int], words: Sequence[int | None], limit: int) -> list[int]:
    """The borders, and between them places at which sentences longer than `limit` are cut, into like parts."""
    pieces = [borders[0]]
    for stop in borders[1:]:
        while (left := stop - pieces[-1]) > limit:
            pieces.append(_word_border(pieces[-1], -(-left // -(-left // limit)), words))
        pieces.append(stop)
    return pieces


def _word_border(start: int, size: int, words: Sequence[int | None]) -> int:
    """The last place at which a word begins, `size` tokens after `start` or less; mid-word where a word is longer."""
    for place in range(start + size, start, -1):
        if words[place] is None or words[place] != words[place - 1]:
            return place
    return start + size


class Spans:
    """Which document each span of a store comes from; picklable, mapped.

    `documents` i64[spans], ascending: the number that the document was given. `begins`, `ends` i64[spans]: the span's
    characters in the document's text.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        arrays = Arrays(self.path)
        self.documents: NDArray[np.int64] = arrays["documents"]
        self.begins: NDArray[np.int64] = arrays["begins"]
        self.ends: NDArray[np.int64] = arrays["ends"]

    @classmethod
    def open(cls, folder: Path) -> Spans:
        """What `split_documents` wrote beside its store. Raises DrkitError where there is none."""
        return cls(Path(folder) / FILE)

    def __reduce__(self) -> tuple[type[Spans], tuple[Path]]:
        return Spans, (self.path,)

    def __len__(self) -> int:
        return len(self.documents)

    def of(self, documents: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """i64[n] each: the first span of these documents, and how many each has (0: it is empty)."""
        first = np.searchsorted(self.documents, documents)
        return first, np.searchsorted(self.documents, documents, side="right") - first

    def names(self, doc_ids: Sequence[str]) -> Iterator[str]:
        """The id of every span, `DOC#n`, n counted from 0 within the document; doc_ids: of all documents, by number."""
        first, _ = self.of(self.documents)
        return (
            f"{doc_ids[d]}#{place - start}" for place, (d, start) in enumerate(zip(self.documents, first, strict=True))
        )


def open_spans(folder: Path) -> tuple[TokenStore, Spans]:
    """The store of all spans, and their documents."""
    return TokenStore.open(folder), Spans.open(folder)
