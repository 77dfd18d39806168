"""Where sentences end in scripts whose full stop is not followed by a space, or is not a point.

Punkt looks for `.`, `?` and `!` before white space. Chinese and Japanese put no space after a sentence, and many
scripts have marks of their own: Unicode's Sentence_Terminal (CJK, Devanagari, Arabic, Ethiopic, Armenian, Khmer ..).
Thai and Lao have none: a space may end a clause as well, so nothing is cut there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import regex

from drkit.data.words import UNSPACED_LETTERS

# Beyond Unicode's property: Tibetan's shad, the wide point, and the Greek question mark.
_ENDS = r"[[\p{Sentence_Terminal}\p{SB=STerm}\u0f0d-\u0f11\uff0e\uff61\u037e]--[.!?]]"
_CLOSING = r"[\p{Pe}\p{Pf}'\ufe0f\p{M}]"
# Scripts without spaces, where a point of ASCII ends a sentence without one, too.
_UNSPACED = f"[{UNSPACED_LETTERS}]"
_CLOSINGS = regex.compile(rf"{_CLOSING}+")
_END = regex.compile(
    rf"(?V1)(?:{_ENDS}[.!?]*)+(?!(?<=\p{{N}}\uff0e)\p{{N}}){_CLOSING}*"  # 3.14 in wide characters is a number
    rf"|(?:[!?]+|(?<={_UNSPACED}{_CLOSING}*)[.!?]+){_CLOSING}*(?=\s*[\p{{Ps}}\p{{Pi}}]*{_UNSPACED})"
    rf"|(?<=\p{{Greek}}{_CLOSING}*);{_CLOSING}*(?=\s)"
    rf"|(?<=\w)[.!?]+[{_CLOSING}--['\p{{M}}]]+(?=\s+[^\s\p{{Ll}}])"
)


def cut_at_ends(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the sentences within spans of a text, without the white space between them.

    Quotes and brackets that close after an end belong to its sentence.

    >>> text = "他说「走吧。」她走了。"
    >>> [text[a:b] for a, b in cut_at_ends(text, [(0, len(text))])]
    ['他说「走吧。」', '她走了。']
    """
    for start, end in _with_closing(text, spans):
        for match in _END.finditer(text, start, end):
            stop = match.end()
            # A straight quote closes if it is the second of its sentence.
            if text[stop : stop + 1] == '"' and stop < end and text.count('"', start, stop) % 2:
                stop += 1
            yield from _trimmed(text, start, stop)
            start = max(start, stop)
        yield from _trimmed(text, start, end)


def _with_closing(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Move brackets that close at the start of a span to the end of the span before, if no space is between them."""
    held: tuple[int, int] | None = None
    for start, end in spans:
        if held is not None and held[1] == start and (closing := _CLOSINGS.match(text, start, end)):
            held, start = (held[0], closing.end()), closing.end()
        if held is not None:
            yield held
        held = (start, end)
    if held is not None:
        yield held


def _trimmed(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    inside = text[start:stop]
    if inside.strip():
        yield start + len(inside) - len(inside.lstrip()), start + len(inside.rstrip())
