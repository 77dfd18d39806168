"""Queries of a collection that are shown as examples, none of which names somebody."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drkit.data.corpus import StoredCollection

# An e-mail address, or a notice of copyright.
_PERSONAL = re.compile(r"\w@[\w-]+(\.[\w-]+)*\.[A-Za-z]{2,}\b|\b[Cc]opyright (\([cC]\)|\u00a9|\d)")
_READ = 400  # queries, from which examples are chosen
_SHORTEST, _LONGEST = 4, 10  # words of an example, if there are such


def names_somebody(text: str) -> bool:
    """Return whether a text has an e-mail address or a notice of copyright.

    >>> names_somebody("By Jane <jane@example.org>"), names_somebody("copy a @ b.c")
    (True, False)
    """
    return _PERSONAL.search(text) is not None


def example_queries(collection: StoredCollection, split: str, count: int) -> list[str]:
    """Return up to `count` queries of a split, on one line each: short ones that name nobody, spread over the first."""
    texts = (" ".join(query.text.split()) for query in islice(collection.queries(split), _READ))
    shown = [text for text in dict.fromkeys(texts) if text and not names_somebody(text)]
    short = [text for text in shown if _SHORTEST <= len(text.split()) <= _LONGEST] or shown
    return short[:: max(1, len(short) // count)][:count]
