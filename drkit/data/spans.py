"""Documents cut into spans: whole sentences in order, as many as fit the encoder.

A document is tokenised as a whole and its tokens are cut at sentence boundaries, so every token is kept once and in
order. Two spans of one document are a training pair (coCondenser; CoT-MAE), so a document of several sentences always
gives at least two spans.

Sentences are found by nltk's Punkt, trained on the texts themselves: it learns abbreviations, collocations and sentence
starters without supervision (Kiss and Strunk 2006). Nothing is downloaded. Ends that Punkt does not look for, such as
the Chinese full stop, are in `drkit.data.sentences`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from attrs import field, frozen
from numpy.typing import ArrayLike, NDArray

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.corpus import StoredCorpus
from drkit.data.sentences import cut_at_ends
from drkit.data.store import TokenWriter, encode_texts, prompt_tokens
from drkit.data.titles import Titles
from drkit.errors import DrkitError, import_extra

SPANS_FILE = "spans.arrow"
_PUNKT = "nltk.tokenize.punkt"
# Enough for Punkt's counts to settle, in about 100 MB of memory.
_SAMPLE_TEXTS, _SAMPLE_CHARACTERS, _SAMPLE_LONGEST = 5000, 2_000_000, 100_000


class SentenceSplitter(Protocol):
    """Finds the sentences of a text."""

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of every sentence in characters, in order, without the white space between them."""


class Punkt:
    """Sentences by a trained Punkt tokenizer, and by the ends of other scripts than Latin's. Picklable."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of every sentence in characters, in order, without the white space between them."""
        return list(cut_at_ends(text, self._tokenizer.span_tokenize(text)))


def train_punkt(texts: Iterable[str]) -> Punkt:
    """Train a model on these texts; the same texts give the same model. All are held in memory: pass a sample.

    Raises DrkitError if the texts have no words, and MissingExtraError without nltk.
    """
    punkt = import_extra(_PUNKT, "splitting sentences")
    kept = [text for text in texts if text.strip()]
    if not kept:
        raise DrkitError("cannot train a sentence model: the texts have no words")
    trainer = punkt.PunktTrainer()
    # As paragraphs of one text: abbreviations are judged by the counts of all of them.
    trainer.train("\n\n".join(kept))
    return Punkt(punkt.PunktSentenceTokenizer(trainer.get_params()))


def sample(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts up to 2 million characters in total, long ones truncated."""
    left = _SAMPLE_CHARACTERS
    for text in texts:
        yield text[: min(left, _SAMPLE_LONGEST)]
        left -= min(len(text), _SAMPLE_LONGEST)
        if left <= 0:
            return


def sample_positions(count: int, seed: int) -> list[int]:
    """Draw at most 5,000 of `count` positions by `seed`."""
    positions: list[int] = np.random.default_rng([seed, 0x5E]).permutation(count)[:_SAMPLE_TEXTS].tolist()
    return positions


def punkt_for(corpus: StoredCorpus, seed: int) -> Punkt:
    """Return a model that is trained on passages drawn by `seed`."""
    drawn = (passage.content for passage in corpus.at(sample_positions(len(corpus), seed)))
    return train_punkt(sample(drawn))


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

    Writes a `TokenStore` of all spans and their `Spans` to `folder`; memory stays flat. Sentences are packed in order.
    One that is too long is cut between words, and a word that is too long between tokens. The last two spans of a
    document are balanced. A document that would give one span is cut in two at the sentence boundary nearest its
    middle; an empty one gives none. Every span begins with `prompt`. Returns counts: documents, empty, alone (documents
    of one span, which is its own context), spans, sentences, tokens, cut_sentences.
    """
    counts = Counter(dict.fromkeys(("documents", "empty", "alone", "spans", "sentences", "tokens", "cut_sentences"), 0))
    columns = {"documents": np.int64, "begins": np.int64, "ends": np.int64}
    folder = Path(folder)
    with (
        TokenWriter(folder, tokenizer, max_length=max_length) as writer,
        ArrayWriter(folder / SPANS_FILE, columns) as arrays,
    ):
        before = prompt_tokens(prompt, tokenizer, max_length)
        no_words = np.full(len(before), -1)
        room = max_length - tokenizer.num_special_tokens_to_add() - len(before)
        for number, text, encoding in encode_texts(documents, tokenizer):
            (words,) = writer.words.of_encodings([encoding])
            spans = list(pairwise(_cuts(encoding, words.tolist(), splitter(text), room, counts)))
            ids, offsets = encoding.ids, encoding.offsets
            own = [np.concatenate([no_words, words[a:b]]) for a, b in spans]
            writer.append([[*before, *ids[a:b]] for a, b in spans], own)
            arrays.append(
                documents=np.full(len(spans), number),
                begins=np.array([offsets[a][0] for a, _ in spans]),
                ends=np.array([offsets[b - 1][1] for _, b in spans]),
            )
    return dict(counts)


def _cuts(
    encoding: Any, words: Sequence[int], sentences: Sequence[tuple[int, int]], limit: int, counts: Counter[str]
) -> list[int]:
    """Return the token positions at which the spans of a document begin, and the end of the last one."""
    boundaries = sentence_boundaries(encoding.offsets, sentences)
    cuts = pack(boundaries, words, limit)
    spans = len(cuts) - 1
    counts["documents"] += 1
    counts["empty"] += spans == 0
    counts["alone"] += spans == 1
    counts["spans"] += spans
    counts["sentences"] += len(boundaries) - 1
    counts["tokens"] += len(encoding.ids)
    counts["cut_sentences"] += sum(stop - start > limit for start, stop in pairwise(boundaries))
    return cuts


def sentence_boundaries(offsets: Sequence[tuple[int, int]], sentences: Sequence[tuple[int, int]]) -> list[int]:
    """Return the token positions at which sentences begin, from 0 to the number of tokens, strictly ascending.

    offsets: (start, end) of every token in characters; sentences: of every sentence. A token belongs to the first
    sentence that does not end before it; sentences without a token are ignored.

    >>> sentence_boundaries([(0, 2), (2, 3), (4, 6)], [(0, 3), (4, 6)])
    [0, 2, 3]
    """
    if not offsets:
        return [0]
    token_ends = np.maximum.accumulate([end for _, end in offsets])
    ends = [end for _, end in sentences]
    ends[-1:] = []  # whatever follows the last sentence belongs to it
    inner = np.searchsorted(token_ends, ends, side="right")
    return sorted({0, *inner.tolist(), len(offsets)})


def pack(boundaries: Sequence[int], words: Sequence[int], limit: int) -> list[int]:
    """Pack whole sentences into spans of at most `limit` tokens; return where spans begin, and the end of the last.

    boundaries: where sentences begin, and the end of the last one; words: the word of each token, -1 for none.

    >>> pack([0, 3, 6, 9, 10], range(10), limit=6), pack([0, 2, 6], range(6), limit=6)
    ([0, 6, 10], [0, 2, 6])
    """
    pieces = _pieces(boundaries, words, limit)
    cuts = pieces[:1]
    for stop, following in pairwise(pieces):
        if following - cuts[-1] > limit:
            cuts.append(stop)
    if len(pieces) > 1:
        cuts.append(pieces[-1])
    first = cuts[-3] if len(cuts) > 2 else cuts[0]
    return [*cuts[: max(len(cuts) - 2, 1)], *_balanced(first, pieces, limit)] if len(cuts) > 1 else cuts


def _balanced(first: int, pieces: Sequence[int], limit: int) -> list[int]:
    """Return the end of the tokens from `first` on, preceded by the boundary that halves them best, if any."""
    last = pieces[-1]
    inner = [cut for cut in pieces if first < cut < last and max(cut - first, last - cut) <= limit]
    middle = (first + last) / 2
    return [*([min(inner, key=lambda cut: abs(cut - middle))] if inner else []), last]


def _pieces(boundaries: Sequence[int], words: Sequence[int], limit: int) -> list[int]:
    """Return the boundaries, with cuts between them that divide sentences longer than `limit` evenly."""
    pieces = [boundaries[0]]
    for stop in boundaries[1:]:
        while (left := stop - pieces[-1]) > limit:
            pieces.append(_word_start(pieces[-1], -(-left // -(-left // limit)), words))
        pieces.append(stop)
    return pieces


def _word_start(start: int, size: int, words: Sequence[int]) -> int:
    """Return the last word start at most `size` tokens after `start`; in the middle of a word if the word is longer."""
    for position in range(start + size, start, -1):
        if words[position] < 0 or words[position] != words[position - 1]:
            return position
    return start + size


class Spans:
    """The document that each span of a store comes from; memory-mapped, picklable.

    `documents` i64[spans], ascending: the number that the document was given. `begins`, `ends` i64[spans]: the
    characters of the span in the document's text.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        arrays = Arrays(self.path)
        self.documents: NDArray[np.int64] = arrays["documents"]
        self.begins: NDArray[np.int64] = arrays["begins"]
        self.ends: NDArray[np.int64] = arrays["ends"]

    @classmethod
    def open(cls, folder: Path) -> Spans:
        """Open what `split_documents` wrote beside its store. Raises DrkitError if it is missing."""
        return cls(Path(folder) / SPANS_FILE)

    def __reduce__(self) -> tuple[type[Spans], tuple[Path]]:
        return Spans, (self.path,)

    def __len__(self) -> int:
        return len(self.documents)

    def of(self, documents: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first span of each document and its number of spans (0 if it is empty), i64[n] each."""
        first = np.searchsorted(self.documents, documents)
        return first, np.searchsorted(self.documents, documents, side="right") - first

    def names(self, doc_ids: Sequence[str]) -> Iterator[str]:
        """Yield the name of every span, `DOC#n`, n counted from 0 in its document; doc_ids: of the documents."""
        first, _ = self.of(self.documents)
        return (
            f"{doc_ids[d]}#{span - start}" for span, (d, start) in enumerate(zip(self.documents, first, strict=True))
        )


@frozen(eq=False)
class NamedTexts:
    """The texts that pre-training reads, with names: passages by their ids, or their spans as `DOC#n`.

    titles: how those of passages are read; spans are cut out of titles and texts that are joined.
    """

    corpus: StoredCorpus
    spans: Spans | None = None
    titles: Titles = field(factory=Titles)

    def __len__(self) -> int:
        return len(self.corpus) if self.spans is None else len(self.spans)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the (name, text) of each, in the order of their token store."""
        if self.spans is None:
            yield from ((passage.doc_id, self.titles.read(passage)) for passage in self.corpus)
            return
        for number, passage in enumerate(self.corpus):
            first, count = (int(value) for value in self.spans.of(number))
            own = slice(first, first + count)
            characters = zip(self.spans.begins[own].tolist(), self.spans.ends[own].tolist(), strict=True)
            for n, (begin, end) in enumerate(characters):
                yield f"{passage.doc_id}#{n}", passage.content[begin:end]

    def find(self, names: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the indices of the texts of each name, none if it is unknown; a passage's id names all its spans."""
        documents = self.corpus.find(names)
        if self.spans is None:
            return [np.array([index] if index >= 0 else [], dtype=np.int64) for index in documents]
        first, count = self.spans.of(documents)
        found = [np.arange(a, a + n) for a, n in zip(first, np.where(documents >= 0, count, 0), strict=True)]
        for row in np.flatnonzero(documents < 0):
            found[int(row)] = self._find_span(names[int(row)])
        return found

    def _find_span(self, name: str) -> NDArray[np.int64]:
        assert self.spans is not None
        doc_id, mark, number = name.rpartition("#")
        document = int(self.corpus.find([doc_id])[0]) if mark and number.isdecimal() else -1
        if document < 0:
            return np.empty(0, np.int64)
        first, count = (int(value) for value in self.spans.of(document))
        return np.array([first + int(number)] if int(number) < count else [], dtype=np.int64)
