"""The words of a text in any script.

Marks (vowel signs, accents) belong to the letter before them. Scripts without spaces between words (Chinese, Japanese,
Thai, Lao, Khmer, Burmese) have no words to find: they give each pair of neighbouring characters, as Lucene's
CJKAnalyzer does, and so does Korean, whose words carry endings.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise

import regex

_WORD = re.compile(r"\w+")
# A token of a WordPiece vocabulary of 8,000 entries is about two thirds of an English word.
_TOKENS_PER_WORD = 1.5
# Thai, Lao; Burmese; Hangul; Khmer; Tai scripts; kana and CJK.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005-\u3007\u3040-\u318f"
    "\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\ua9e0-\ua9ff\uaa60-\uaadf\uac00-\ud7ff\uf900-\ufaff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
# Vowel points and cantillation of Hebrew, vowels of Arabic, and its tatweel: texts have them or not.
_OPTIONAL = "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u0652\u0670\u06d6-\u06ed"
# Letters of scripts without spaces, Korean left out, as a class of the package regex; Line_Break=SA: Thai, Lao, Khmer,
# Burmese and their neighbours, where a dictionary is needed to find words.
UNSPACED_LETTERS = (
    r"\p{Line_Break=SA}\p{Script=Tibetan}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Bopomofo}"
)
# A word as readers count them: about two letters where no spaces separate words.
_COUNTED = regex.compile(rf"(?:[{UNSPACED_LETTERS}]\p{{M}}*){{1,2}}[^\s\w]*|[^\s{UNSPACED_LETTERS}]+")
# Soft hyphens, joiners and marks of direction, which are not seen, and break no word.
INVISIBLE = "\u00ad\u061c\u200c-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
_LEFT_OUT = re.compile(f"[{_OPTIONAL}{INVISIBLE}]")


def find_words(text: str) -> list[str]:
    r"""Return the words of a text, as `\w+` finds them in ASCII; pairs of characters where no spaces separate words.

    Compatible forms are made equal (NFKC: accents in one code point or two, wide letters, ligatures). Vowel points of
    Hebrew and Arabic are left out.

    >>> find_words("co-operate: \u0939\u093f\u0928\u094d\u0926\u0940 \u65e5\u672c\u8a9eOK")
    ['co', 'operate', 'हिन्दी', '日本', '本語', 'OK']
    """
    if text.isascii():
        return _WORD.findall(text)
    word, run = _patterns()[:2]
    found: list[str] = []
    for whole in word.findall(_LEFT_OUT.sub("", unicodedata.normalize("NFKC", text))):
        if whole.isascii():
            found.append(whole)
            continue
        for number, piece in enumerate(run.split(whole)):
            found += _pairs(piece) if number % 2 else [piece] * bool(piece)
    return found


def _pairs(run: str) -> list[str]:
    """Return the pairs of neighbouring characters, marks included, in a script without spaces; or a single one."""
    characters = _patterns()[2].findall(run)
    return [first + second for first, second in pairwise(characters)] or characters


def is_unspaced(word: str) -> bool:
    """Return whether a word is (a pair of) characters of a script without spaces between words."""
    return not word.isascii() and _patterns()[1].match(word) is not None


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of the words of a text as they are written: what spaces separate, with punctuation.

    In scripts without spaces, two neighbouring letters count as a word.

    >>> [text[a:b] for text in ["It works.", "日本語OK"] for a, b in word_spans(text)]
    ['It', 'works.', '日本', '語', 'OK']
    """
    return [found.span() for found in _COUNTED.finditer(text)]


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: from its words, or from its characters where words are not separated."""
    words = [word for word in find_words(text) if not is_unspaced(word)]
    unspaced = 0 if text.isascii() else len(_patterns()[2].findall(text))  # marks are not counted
    return round(_TOKENS_PER_WORD * len(words)) + unspaced


def has_lasting_mark(character: str) -> bool:
    """Return whether a word becomes another one if BERT's normaliser strips the accents of this character.

    Vowel signs of Indic scripts and Thai, voiced kana, and Hangul, which it takes apart; accents of Latin, Greek and
    Cyrillic letters, and points of Hebrew and Arabic are not.
    """
    pieces = unicodedata.normalize("NFD", character)
    return ("\uac00" <= character <= "\ud7a3") or any(
        unicodedata.category(piece) == "Mn" and piece > "\u036f" and not _LEFT_OUT.match(piece) for piece in pieces
    )


def word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word with its marks, or of a run of words in a script without spaces."""
    return _patterns()[0]


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    r"""Return patterns of a word, of a run without spaces, and of one of its characters; `re` has no class of marks."""
    marks = "".join(
        filter(lambda character: unicodedata.category(character)[0] == "M", map(chr, range(0x300, 0x1F000)))
    )
    character = f"[{_UNSPACED}][{marks}]*"
    # The look ahead is for speed: most words end at a blank.
    word = rf"\w+(?:(?![\x00-\u02ff])[{marks}]+\w*)*"
    return re.compile(word), re.compile(f"((?:{character})+)"), re.compile(character)
