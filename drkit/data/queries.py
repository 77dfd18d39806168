"""Candidate queries of every text, tokenised: from a file, from a model, or else the text's own best spans.

A text that no query was given for keeps its extractive ones, so that every text has a context.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.extractive import extractive_queries
from drkit.data.signals import SignalValues
from drkit.data.store import TokenStore, TokenWriter, encoded
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.data.texts import NamedTexts

FILE = "candidates.arrow"
LENGTH = 12  # tokens of an extractive query: a short question
_TEXTS_AT_ONCE = 4096

Slice = tuple[TokenStore, int, int]


@frozen(eq=False)
class Given:
    """Queries that stand for texts: a store of them, and the place of each one's text, i64[queries], in any order."""

    store: TokenStore
    texts: NDArray[np.int64]


def write_candidates(
    texts: TokenStore,
    importance: SignalValues,
    tokenizer: Any,
    folder: Path,
    *,
    count: int,
    max_length: int,
    given: Given | None = None,
) -> dict[str, int]:
    """Write at most `count` candidate queries of every text to `folder`: the first given ones, else extractive ones.

    Memory: 16 bytes a given query. Returns counts: texts, queries, extractive (texts without a given query), surplus
    (given queries beyond `count`).
    """
    order = _by_text(given)
    sorted_texts = given.texts[order] if given else order
    counts = {"texts": len(texts), "queries": 0, "extractive": 0, "surplus": 0}
    folder = Path(folder)
    with (
        TokenWriter(folder, tokenizer, max_length=max_length) as writer,
        ArrayWriter(folder / FILE, {"counts": np.int32}) as arrays,
    ):
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            places = np.arange(start, min(start + _TEXTS_AT_ONCE, len(texts)))
            borders = np.searchsorted(sorted_texts, [*places, places[-1] + 1])
            own = np.diff(borders) == 0
            ranges = extractive_queries(texts, importance, places[own], count=count, length=min(LENGTH, max_length - 2))
            rows = [
                [(texts, *span) for span in next(ranges)] if first == last else _given(given, order[first:last], count)
                for first, last in pairwise(borders.tolist())
            ]
            _append(writer, [query for row in rows for query in row])
            arrays.append(counts=np.array([len(row) for row in rows]))
            counts["queries"] += sum(map(len, rows))
            counts["extractive"] += int(own.sum())
            counts["surplus"] += int(np.maximum(np.diff(borders) - count, 0).sum())
    return counts


def _by_text(given: Given | None) -> NDArray[np.int64]:
    """The places of the given queries that are not empty, in the order of their texts, first given first."""
    if given is None:
        return np.empty(0, np.int64)
    order = np.argsort(given.texts, kind="stable")
    return order[np.diff(given.store.offsets)[order] > 0]


def _given(given: Given | None, places: NDArray[np.int64], count: int) -> list[Slice]:
    assert given is not None
    starts, stops = given.store.offsets[places[:count]], given.store.offsets[places[:count] + 1]
    return [(given.store, int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def _append(writer: TokenWriter, slices: Sequence[Slice]) -> None:
    writer.append(
        [store.flat_ids[start:stop].tolist() for store, start, stop in slices],
        [store.flat_words[start:stop].tolist() for store, start, stop in slices],
    )


def tokenise_given(
    pairs: Iterable[tuple[str, str]], texts: NamedTexts, tokenizer: Any, folder: Path, *, max_length: int
) -> tuple[Given, dict[str, int]]:
    """The tokens of (text's name, query) pairs, in a store in `folder`; a passage's query stands for all its spans.

    Memory: 8 bytes a query. Returns counts: given (queries), unknown (queries of names that no text has).

    Raises DrkitError where no query is one of these texts'.
    """
    counts, places, shown = {"given": 0, "unknown": 0}, array("q"), ""
    stream = iter(pairs)
    with TokenWriter(folder, tokenizer, max_length=max_length) as writer:
        while batch := list(islice(stream, _TEXTS_AT_ONCE)):
            found = texts.find([name for name, _ in batch])
            encodings = [e for part in encoded((query for _, query in batch), tokenizer) for e in part]
            repeated = [e for e, mine in zip(encodings, found, strict=True) for _ in mine]
            writer.append([e.ids[: max_length - 2] for e in repeated], [e.word_ids[: max_length - 2] for e in repeated])
            places.extend(place for mine in found for place in mine.tolist())
            counts["given"] += len(batch)
            counts["unknown"] += sum(not len(mine) for mine in found)
            shown = shown or batch[0][0]
    if not places:
        known = next(iter(texts))[0]
        raise DrkitError(
            f"none of the {counts['given']:,} given queries is of a text of this collection: their ids are like "
            f"{shown!r}, the collection's like {known!r}"
        )
    return Given(TokenStore.open(folder), np.frombuffer(places, dtype=np.int64)), counts


class Queries:
    """Candidate queries of every text; picklable, mapped.

    `store`: all of them, tokenised. `offsets` i64[texts + 1]: those of text i are at offsets[i] .. offsets[i + 1], one
    at least.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.store = TokenStore.open(self.folder)
        counts = Arrays(self.folder / FILE)["counts"]
        self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @classmethod
    def open(cls, folder: Path) -> Queries:
        """What `write_candidates` wrote to `folder`. Raises DrkitError where it is not there."""
        return cls(folder)

    def __reduce__(self) -> tuple[type[Queries], tuple[Path]]:
        return Queries, (self.folder,)

    def __len__(self) -> int:
        return len(self.offsets) - 1
