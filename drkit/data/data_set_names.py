"""Ids of several data sets in one run: NAME/ID, those of a data set next to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# What separates the name of a data set from an id of its own.
_SEPARATOR = "/"


def data_set_id(name: str, identifier: str) -> str:
    """Return the id in the run of a passage or query of a data set.

    >>> data_set_id("nq", "q1")
    'nq/q1'
    """
    return f"{name}{_SEPARATOR}{identifier}"


def data_set_of(identifier: str) -> str:
    """Return the name of the data set that an id of a run belongs to.

    >>> data_set_of("nq/q/1")
    'nq'
    """
    return identifier.partition(_SEPARATOR)[0]


def ranges(names: Sequence[str], count: int, id_at: Callable[[int], str]) -> dict[str, range]:
    """Return the positions of each data set among `count` ids, which are in the order of the names.

    id_at: returns the id at a position; O(log count) of them are read for each name.

    >>> ids = ["a/1", "a/2", "b/1"]
    >>> ranges(["a", "b", "c"], 3, ids.__getitem__)
    {'a': range(0, 2), 'b': range(2, 3), 'c': range(3, 3)}
    """
    number = {name: position for position, name in enumerate(names)}
    starts: list[int] = []
    for sought in range(len(names)):
        low, high = starts[-1] if starts else 0, count
        while low < high:
            middle = (low + high) // 2
            if number[data_set_of(id_at(middle))] < sought:
                low = middle + 1
            else:
                high = middle
        starts.append(low)
    return {name: range(*ends) for name, *ends in zip(names, starts, [*starts[1:], count], strict=True)}
