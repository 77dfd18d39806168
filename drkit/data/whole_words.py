"""Whole words in the tokens of any tokenizer: which neighbouring tokens are hidden, cut or counted together.

A fast tokenizer numbers words by the splitting that precedes its vocabulary. That is wrong in three cases:

- **Scripts without spaces** (Chinese, Japanese, Thai ..): a clause would be one word; every token is a word instead.
- **Marks**: the pattern of GPT-2, which RoBERTa and ModernBERT use, ends a word at each vowel sign or accent of its own
  code point. A mark belongs to the letter before it, and a letter after a mark goes on with the word.
- **No splitting** (Gemma's tokenizer, which multilingual ModernBERTs use): word starts are marked in the vocabulary
  alone.

Characters are read from the bytes that tokens stand for, because the tokens of byte-level vocabularies, and those for
single bytes in SentencePiece's, spell no character. Tokens that share a character are one word.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from drkit.data.special_tokens import special_ids
from drkit.data.spelling import WORD_START, is_byte_level, token_bytes
from drkit.data.words import INVISIBLE, UNSPACED_LETTERS

_SPACE, _JOINS, _LETTER, _UNSPACED, _LINKS, _NUMBER, _PICTURE, _ANY = (1 << bit for bit in range(8))
_CLASSES = {
    _SPACE: r"[\s\p{Z}]",
    _JOINS: rf"[\p{{M}}\p{{GCB=Extend}}\p{{GCB=SpacingMark}}\p{{GCB=ZWJ}}{INVISIBLE}]",
    _LETTER: r"\p{L}",
    _UNSPACED: rf"[{UNSPACED_LETTERS}\u3000-\u30ff]",  # with their punctuation
    _LINKS: r"[\p{CCC=9}\u200d]",  # viramas and the joiner, which tie the next letter to the one before
    _NUMBER: r"\p{N}",
    _PICTURE: r"\p{Extended_Pictographic}",
}


@cache
def _character_classes() -> NDArray[np.uint8]:
    """Return the classes of every code point, as bits."""
    classes = np.full(sys.maxunicode + 1, _ANY, dtype=np.uint8)
    every = "".join(map(chr, chain(range(0xD800), range(0xE000, len(classes)))))
    for bit, pattern in _CLASSES.items():
        for run in regex.finditer(f"(?:{pattern})+", every):
            # Code points of surrogates, which no text has, are left out of `every`.
            start, stop = (ord(every[at]) for at in (run.start(), run.end() - 1))
            classes[start : stop + 1] |= bit
    return classes


class WholeWords:
    """Numbers the words of texts, given as ids of a vocabulary.

    tokens: the vocabulary, by id. special_ids: of the tokens that spell no text; they are not words.
    """

    def __init__(self, tokens: Sequence[str], special_ids: Collection[int], *, byte_level: bool) -> None:
        special = set(special_ids)
        self._names = {number: tokens[number] for number in special if number < len(tokens)}
        spelled = [
            b"" if number in special else token_bytes(token, byte_level=byte_level)
            for number, token in enumerate(tokens)
        ]
        self._lengths = np.array([len(one) for one in spelled], dtype=np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._bytes = np.frombuffer(b"".join(spelled), dtype=np.uint8)
        self._begins = np.array([not byte_level and token.startswith(WORD_START) for token in tokens], dtype=bool)
        self._is_ascii = np.array([one.isascii() for one in spelled], dtype=bool)
        self._special = np.isin(np.arange(len(tokens)), np.fromiter(special, dtype=np.int64))

    @classmethod
    def of(cls, tokenizer: Any) -> WholeWords:
        """Return the words of a fast tokenizer."""
        tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        # Numbers may be missing from a vocabulary.
        names = [token or "" for token in tokens]
        return cls(names, special_ids(tokenizer), byte_level=is_byte_level(tokenizer))

    def of_encodings(self, encodings: Sequence[Any], prompt: int = 0) -> list[NDArray[np.int64]]:
        """Return the word i64[tokens] of each token of encoded texts, from 0, or -1.

        Tokens of the first `prompt` characters and special tokens have none.
        """
        lengths = np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64)
        ids = np.array([token for encoding in encodings for token in encoding.ids], dtype=np.int64)
        given = np.array(
            [-1 if word is None else word for encoding in encodings for word in encoding.word_ids], dtype=np.int64
        )
        stops = np.cumsum(lengths)
        gaps = np.zeros(len(ids), dtype=bool)
        for encoding, start, stop in zip(encodings, (stops - lengths).tolist(), stops.tolist(), strict=True):
            if prompt or not self._is_ascii[ids[start:stop]].all():
                gaps[start:stop], ends = read_offsets(encoding)
                if prompt:
                    given[start:stop][ends <= prompt] = -1
        words = self.number(ids, given, gaps, (stops - lengths)[lengths > 0])
        return np.split(words, stops[:-1]) if encodings else []

    def number(
        self, ids: NDArray[np.int64], given: NDArray[np.int64], gaps: NDArray[np.bool_], starts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the word i64[n] of each token of texts one after the other, from 0 in each text; -1 for none.

        given i64[n]: the tokenizer's own words, -1 for none; gaps bool[n]: before which tokens characters were left
        out, such as a space; starts: the first token of each text.
        """
        differs = np.ones(len(ids), dtype=bool)
        differs[1:] = given[1:] != given[:-1]
        differs[starts] = True
        begins = differs | self._begins[ids]
        if not self._is_ascii[ids].all():
            begins = self._read(ids, differs, gaps, starts).boundaries(begins)
        begins[starts] = True
        numbers = number_words(np.cumsum(begins), starts)
        numbers[(given < 0) | self._special[ids]] = -1
        return numbers

    def _read(
        self, ids: NDArray[np.int64], differs: NDArray[np.bool_], gaps: NDArray[np.bool_], starts: NDArray[np.int64]
    ) -> _Characters:
        lengths = self._lengths[ids]
        ends = np.cumsum(lengths)
        sources = np.repeat(self._starts[ids] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
        return _Characters(self._bytes[sources], ends - lengths, ends, differs, gaps, starts)

    def spell(self, ids: Sequence[int], words: Sequence[int]) -> tuple[str, NDArray[np.int64]]:
        """Return the text of tokens, with a space between words, and the span i64[tokens,2] of each token in it.

        A token for a part of a character has the span of the whole character.
        """
        text, spans = "", [np.empty((0, 2), dtype=np.int64)]
        borders = [0, *(n for n in range(1, len(ids)) if words[n] != words[n - 1]), len(ids)]
        for start, stop in pairwise(borders):
            text += " " * bool(text)
            spelled, own = self._spell_word(ids[start:stop])
            spans.append(own + len(text))
            text += spelled
        return text, np.concatenate(spans)

    def _spell_word(self, ids: Sequence[int]) -> tuple[str, NDArray[np.int64]]:
        pieces = [
            self._names[token].encode()
            if token in self._names
            else self._bytes[self._starts[token] : self._starts[token] + self._lengths[token]].tobytes()
            for token in ids
        ]
        content = b"".join(pieces)
        # A word at the end of a truncated text may end within a character.
        spelled = content.decode(errors="ignore")
        stops = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        spans = np.zeros((len(ids), 2), dtype=np.int64)
        if content:
            number = np.cumsum(_leads(np.frombuffer(content, dtype=np.uint8)))
            spans[:, 0] = number[np.minimum(np.append(0, stops[:-1]), len(content) - 1)] - 1
            spans[:, 1] = np.where(stops > 0, number[stops - 1], 0)
        left = len(spelled) - len(spelled.lstrip())
        spelled = spelled.strip()
        return spelled, np.clip(spans - left, 0, len(spelled))


class _Characters:
    """The characters of tokens, and what they say about the borders between words."""

    def __init__(
        self,
        content: NDArray[np.uint8],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        differs: NDArray[np.bool_],
        gaps: NDArray[np.bool_],
        starts: NDArray[np.int64],
    ) -> None:
        """Read content u8[bytes], the UTF-8 of all tokens; begins, ends i64[n]: the bytes of each; see `number`."""
        self.differs, self.gaps = differs, gaps
        classes = _classes_of(content)
        number = np.cumsum(_leads(content)) - 1  # of the character that each byte belongs to
        self.is_empty = begins == ends
        inside = np.minimum(begins, max(len(content) - 1, 0))
        self.is_part = ~self.is_empty & ~_leads(content)[inside]
        first, last = number[inside], number[np.maximum(ends - 1, 0)]
        self.first = np.where(self.is_empty, 0, classes[first])
        self.before = np.where(first > 0, classes[first - 1], 0)
        self.base = self._bases(classes, first, starts)
        counted = {bit: np.append(0, np.cumsum((classes & bit) > 0)) for bit in (_SPACE, _UNSPACED, _JOINS)}
        within = {bit: counts[last + 1] - counts[first] for bit, counts in counted.items()}
        self.is_unspaced = ~self.is_empty & (within[_UNSPACED] > 0)
        self.is_mark = ~self.is_empty & (within[_JOINS] == last + 1 - first)
        self.is_space = ~self.is_empty & (within[_SPACE] == last + 1 - first)

    @staticmethod
    def _bases(classes: NDArray[np.uint8], first: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the class of the last character before each token that is not a mark; 0 at the start of a text."""
        plain = np.where((classes & _JOINS) == 0, np.arange(len(classes)), -1)
        plain = np.maximum.accumulate(plain) if len(plain) else plain
        found = np.where(first > 0, plain[first - 1], -1)
        own = np.repeat(first[starts], np.diff(np.append(starts, len(first))))
        return np.where(found >= own, classes[found], 0).astype(np.uint8)

    def boundaries(self, begins: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return before which tokens a word begins, bool[n]; begins: without regard to characters."""
        after = np.append(False, self.is_unspaced[:-1])
        after_space = np.append(False, self.is_space[:-1])
        joined = self._joined()
        found = begins | after | (self.is_unspaced & ~after_space) | self._ends_at_punctuation(joined)
        return np.asarray(found & ~joined & ~self.is_part)

    def _joined(self) -> NDArray[np.bool_]:
        """Return which tokens go on with the word before: those that begin with a mark, or a letter after one."""
        marks, letters = (self.first & _JOINS) > 0, (self.first & _LETTER) > 0
        after_mark = (self.before & _JOINS) > 0
        of_letter = ((self.base & _LETTER) > 0) | (self.base == 0) | ((self.base & _SPACE) > 0)
        is_linked = (self.before & _LINKS) > 0
        goes_on = letters & of_letter & (((self.first & _UNSPACED) == 0) | is_linked)
        goes_on |= is_linked & ((self.first & _PICTURE) > 0)
        # Tokens of a mark and letters after it would make one word of a clause.
        marks &= self.is_mark | ~self.is_unspaced | ((self.first & _LINKS) > 0)
        joined = (marks & (self.before != 0) & ((self.before & _SPACE) == 0)) | (after_mark & goes_on)
        is_adjacent = ~self.gaps & ~self.is_empty & ~np.append(True, self.is_empty[:-1])
        return np.asarray(joined & is_adjacent)

    def _ends_at_punctuation(self, joined: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which tokens of punctuation the tokenizer put into one word with a mark of the letter before."""
        first_of_word = np.maximum.accumulate(np.where(self.differs, np.arange(len(joined)), 0))
        after_letter = ((self.before & _JOINS) > 0) & ((self.base & _LETTER) > 0)
        is_other = (self.first & (_LETTER | _NUMBER | _JOINS)) == 0
        return np.asarray(joined[first_of_word] & after_letter & is_other & ~self.is_empty)


def read_offsets(encoding: Any) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return before which tokens of an encoding characters were left out, bool[n], and where tokens end, i64[n]."""
    spans = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    return np.append(False, spans[1:, 0] > spans[:-1, 1])[: len(spans)], spans[:, 1]


def _leads(content: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which bytes of UTF-8 begin a character."""
    return np.asarray((content & 0xC0) != 0x80)


def _classes_of(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the classes of each character of UTF-8, 0 for an incomplete one."""
    leads = np.flatnonzero(_leads(content))
    lengths = np.diff(np.append(leads, len(content)))
    byte = content[leads].astype(np.int64)
    needed = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    codes = byte & np.array([0, 0x7F, 0x1F, 0x0F, 0x07])[needed]
    for place in range(1, 4):
        following = content[np.minimum(leads + place, len(content) - 1)].astype(np.int64) & 0x3F
        codes = np.where(place < needed, (codes << 6) | following, codes)
    classes = _character_classes()
    return np.where(lengths >= needed, classes[np.minimum(codes, len(classes) - 1)], 0).astype(np.uint8)


def number_words(words: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the words of each text from 0 without gaps, so that no number exceeds the number of tokens; i64[n].

    words i64[n]: the tokens' words as given, texts one after the other; starts: the first token of each text.

    >>> number_words(np.array([4, 4, 7, 0, 0]), np.array([0, 3])).tolist()
    [0, 0, 1, 0, 0]
    """
    begins = np.ones(len(words), dtype=bool)
    begins[1:] = words[1:] != words[:-1]
    begins[starts] = True
    counted = np.cumsum(begins, dtype=np.int64)
    lengths = np.diff(np.append(starts, len(words)))
    return np.asarray(counted - np.repeat(counted[starts], lengths))


def separates_words(tokenizer: Any) -> bool:
    """Return whether a fast tokenizer finds two words in a text of two words."""
    encoding = tokenizer("one two", add_special_tokens=False)
    return len(set(encoding.word_ids())) > 1 or any(token.startswith(WORD_START) for token in encoding.tokens()[1:])
