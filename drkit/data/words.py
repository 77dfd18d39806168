"""Which tokens make up a word, where a fast tokenizer's own word numbers do not tell.

They come from the splitting before the vocabulary is applied, and that misses two things: a script without spaces
(Chinese, Japanese, Thai: a clause would be one word, and be hidden whole), and tokenizers that split nothing and mark
beginnings in the vocabulary alone (Gemma's, which multilingual ModernBERTs use: a text would be one word).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Thai to Tibetan, Myanmar, Khmer; kana and CJK with their punctuation.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_BEGINNING = "\u2581"  # the space of SentencePiece vocabularies


def word_borders(tokens: Iterable[str]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """bool[n] each: before and after which tokens of a vocabulary, or of a text, a word ends whatever its number is.

    >>> before, after = word_borders(["\u2581the", "re", "\u6f22\u5b57"])
    >>> before.tolist(), after.tolist()
    ([True, False, True], [False, False, True])
    """
    known = list(tokens)
    alone = np.array([bool(_UNSPACED.search(token)) for token in known], dtype=bool)
    begins = np.array([token.startswith(_BEGINNING) for token in known], dtype=bool)
    return begins | alone, alone


def vocabulary_borders(tokenizer: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """`word_borders` of a whole vocabulary, bool[V] each, by token id."""
    return word_borders(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))


def tells_words(tokenizer: Any) -> bool:
    """Whether a fast tokenizer finds two words in a text of two."""
    encoding = tokenizer("one two", add_special_tokens=False)
    before, _ = word_borders(encoding.tokens())
    return len(set(encoding.word_ids())) > 1 or bool(before[1:].any())


def numbered(
    words: NDArray[np.int64], starts: NDArray[np.int64], before: NDArray[np.bool_], after: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Words counted from 0 within each text, without gaps: no number exceeds the number of tokens.

    words i64[n]: numbers of the tokens' words, texts one after the other; starts: where a text begins; before, after
    bool[n]: borders beside those between different numbers.

    >>> none, first = np.zeros(5, dtype=bool), np.arange(5) == 0
    >>> numbered(np.array([4, 4, 7, 0, 0]), np.array([0, 3]), none, first).tolist()
    [0, 1, 2, 0, 0]
    """
    begins = before.copy()
    begins[1:] |= (words[1:] != words[:-1]) | after[:-1]
    begins[starts] = True
    counted = np.cumsum(begins, dtype=np.int64)
    lengths = np.diff(np.append(starts, len(words)))
    return np.asarray(counted - np.repeat(counted[starts], lengths))
