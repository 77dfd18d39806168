"""What collections share: how queries are divided into splits, and rows that know where they were read."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from attrs import frozen

from drkit.core.types import Judgement, Passage, Query
from drkit.errors import DrkitError

SPLITS = ("train", "dev", "test")


def fraction(name: str) -> float:
    """Return a number in [0, 1) that depends on `name` alone.

    >>> fraction("json.decoder") == fraction("json.decoder"), 0 <= fraction("json") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def split_by_hash(name: str, *, dev_share: float, test_share: float) -> str:
    """Return `test`, `dev` or `train` for a name, so that test and dev get these shares of all names."""
    value = fraction(name)
    if value < test_share:
        return "test"
    return "dev" if value < test_share + dev_share else "train"


@frozen
class Splits:
    """Which splits a collection has, and which queries belong to each; decided by the hash of a query's id.

    collection: its name, for errors. own: splits with queries of their own. held_out: splits that are a share of the
    training queries. train_share: of the test queries, in a collection without training queries; a tenth of these are
    dev if it has no dev queries either.
    """

    collection: str
    own: frozenset[str]
    held_out: Mapping[str, float]
    train_share: float = 0.0

    @classmethod
    def of(
        cls,
        collection: str,
        own: Iterable[str],
        *,
        dev_share: float = 0.0,
        test_share: float = 0.0,
        train_share: float = 0.0,
    ) -> Splits:
        """Splits by the shares of a collection's settings; a share is ignored if the split has queries of its own."""
        own = frozenset(own)
        shares = {"dev": dev_share, "test": test_share} if "train" in own else {}
        held_out = {split: share for split, share in shares.items() if share and split not in own}
        return cls(collection, own, held_out, train_share if "test" in own and "train" not in own else 0.0)

    def names(self) -> tuple[str, ...]:
        """The splits: of train, dev, test, in this order."""
        taken = {*self.own, *self.held_out, *(("train", "dev") if self.train_share else ())}
        return tuple(split for split in SPLITS if split in taken)

    def source(self, split: str) -> str:
        """Return the split whose queries `split` is taken from. Raises DrkitError for an unknown split."""
        if split not in self.names():
            raise DrkitError(f"{self.collection} has no split {split!r}; it has {', '.join(self.names()) or 'none'}")
        if split in self.own:
            return split
        return "test" if self.train_share else "train"

    def membership(self, split: str) -> Callable[[str], bool]:
        """Return the function that says whether a query id of `source(split)` belongs to `split`."""
        source = self.source(split)
        if source == "test" and self.train_share:
            return lambda query_id: self._taken_from_test(query_id) == split
        if source == "train" and self.held_out:
            dev, test = (self.held_out.get(name, 0.0) for name in ("dev", "test"))
            return lambda query_id: split_by_hash(query_id, dev_share=dev, test_share=test) == split
        return lambda _: True

    def _taken_from_test(self, query_id: str) -> str:
        value = fraction(query_id)
        if value >= self.train_share:
            return "test"
        return "dev" if "dev" not in self.own and value < self.train_share / 10 else "train"


class FileCollection(ABC):
    """A collection read from files as (where, item) pairs; `where` prints as `file:line`.

    The readers of file formats subclass it because they differ in where rows come from and in nothing else. Each sets
    `name` and gives its splits and the four `located_` streams.
    """

    name: str

    @property
    @abstractmethod
    def divided(self) -> Splits:
        """The splits."""

    @abstractmethod
    def located_passages(self) -> Iterator[tuple[object, Passage]]:
        """Every passage."""

    @abstractmethod
    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """The queries of a split."""

    @abstractmethod
    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """The judgements of a split."""

    def located_negatives(self, _split: str) -> Iterator[tuple[object, tuple[str, str]]]:
        """(query id, passage id) of the negatives of a split; most formats have none."""
        return iter(())

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Facts for the manifest: what was read, with its size and SHA-256."""

    def splits(self) -> tuple[str, ...]:
        """The splits with queries, those taken from another split included."""
        return self.divided.names()

    def passages(self) -> Iterator[Passage]:
        """Stream every passage."""
        return (passage for _, passage in self.located_passages())

    def queries(self, split: str) -> Iterator[Query]:
        """Stream the queries of a split, in the order of the files."""
        return (query for _, query in self.located_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Stream the judgements of a split, in the order of the files."""
        return (judgement for _, judgement in self.located_judgements(split))

    def locate(self, table: str, split: str, row: int) -> str:
        """Return where row `row` of a table was read, as `file:line`; the table is read again."""
        if table == "passages":
            rows: Iterator[tuple[object, object]] = self.located_passages()
        elif table == "queries":
            rows = self.located_queries(split)
        else:
            rows = self.located_judgements(split) if table == "judgements" else self.located_negatives(split)
        return next((str(where) for where, _ in islice(rows, row, None)), "")


def judged_queries(
    queries: Iterable[tuple[object, Query]], judgements: Iterable[Judgement]
) -> Iterator[tuple[object, Query]]:
    """The queries that have a judgement; the ids of these are held in memory."""
    judged = {judgement.query_id for judgement in judgements}
    return ((where, query) for where, query in queries if query.query_id in judged)
