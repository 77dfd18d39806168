"""Answers of questions, and whether a text contains one: the same tokens in a row, as in DPR's answer matching.

Texts are decomposed (NFD) and case-folded; tokens are runs of letters, digits and marks, and other visible characters
one by one. An answer without tokens is in no text. Source: Karpukhin et al. 2020, section 3.2.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path

from drkit.data.columns import NamedColumns
from drkit.data.rows import read_rows
from drkit.data.topics import answers_of
from drkit.errors import DrkitError

_QUERY_IDS = ("query_id", "_id", "id")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+|[!-~]")


def read_answers(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the answers of each query of a file: rows such as `{"query_id": "q1", "answers": ["Ada Lovelace"]}`.

    Raises DrkitError for a row without the id of a query or its answers.
    """
    found = {}
    for row in read_rows(path, NamedColumns([_QUERY_IDS, ("answers",)])):
        answers = answers_of(row)
        if answers is None:
            given = row.values.get(row.first(["answers"]))
            raise DrkitError(f"'answers' must be a list of texts, got {given!r:.60}", where=row)
        found[row.id(row.first(_QUERY_IDS))] = answers
    return found


def answer_tokens(answers: Iterable[str]) -> list[str]:
    """Return the tokens of each answer that has any; a text whose tokens contain one of them has an answer."""
    return [tokens for tokens in map(spaced_tokens, answers) if tokens.strip()]


def spaced_tokens(text: str) -> str:
    """Return the tokens of a text, with a space around each.

    >>> spaced_tokens("It's no. 5"), spaced_tokens(" 5 ") in spaced_tokens("no. 5!")
    (" it ' s no . 5 ", True)
    """
    folded = unicodedata.normalize("NFD", text).casefold()
    if folded.isascii():
        tokens = _ASCII_TOKEN.findall(folded)
    else:
        runs = [(kind, "".join(run)) for kind, run in groupby(folded, key=_kind_of)]
        tokens = [token for kind, run in runs if kind for token in ([run] if kind == "word" else run)]
    return f" {' '.join(tokens)} "


@cache
def _kind_of(character: str) -> str:
    """Return whether a character is part of a `word` or a `sign` of its own; empty for separators and controls."""
    category = unicodedata.category(character)[0]
    return "word" if category in "LNM" else "" if category in "ZC" else "sign"
