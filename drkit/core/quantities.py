"""Numbers of things in messages: `1 query`, `1,400 queries`."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with what it counts, in the singular or the plural.

    one: the singular, perhaps with words before or a verb behind it. several: the plural, if it is not `one` with an s,
    or with ies for a y.

    >>> counted(1, "query"), counted(1400, "dev query"), counted(2, "passage has", "passages have")
    ('1 query', '1,400 dev queries', '2 passages have')
    """
    plural = several or (f"{one[:-1]}ies" if one.endswith("y") and one[-2] not in "aeo" else f"{one}s")
    return f"{number:,} {one if number == 1 else plural}"
