"""The splits of a collection: those with queries of their own, and those that are a share of another one's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from attrs import evolve, frozen

from drkit.errors import UnknownNameError

SPLITS = ("train", "dev", "test")
# Queries that are looked at to see whether each share has one.
MOST_COUNTED = 1_000_000


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
    dev if it has no dev queries either. empty: splits that get no query of their share, of `counted` ones.
    """

    collection: str
    own: frozenset[str]
    held_out: Mapping[str, float]
    train_share: float = 0.0
    empty: frozenset[str] = frozenset()
    counted: int = 0

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
        """Return splits by a collection's shares; a share is ignored if the split has queries of its own."""
        own = frozenset(own)
        shares = {"dev": dev_share, "test": test_share} if "train" in own else {}
        held_out = {split: share for split, share in shares.items() if share and split not in own}
        return cls(collection, own, held_out, train_share if "test" in own and "train" not in own else 0.0)

    def names(self) -> tuple[str, ...]:
        """Return the splits: of train, dev, test, in this order."""
        taken = {*self.own, *self.held_out, *(("train", "dev") if self.train_share else ())}
        return tuple(split for split in SPLITS if split in taken - self.empty)

    def source(self, split: str) -> str:
        """Return the split whose queries `split` is taken from. Raises DrkitError for an unknown split."""
        if split not in self.names():
            raise UnknownNameError("split", split, self.names(), where=self.collection)
        if split in self.own:
            return split
        return "test" if self.train_share else "train"

    def membership(self, split: str) -> Callable[[str], bool]:
        """Return the function that says whether a query id of `source(split)` belongs to `split`."""
        source = self.source(split)
        if source == self._shared:
            return lambda query_id: self._split_of(query_id) == split
        return lambda _: True

    def filled(self, answered: Callable[[], Iterable[str]]) -> Splits:
        """Return the splits without those that are a share of another one, and get no query of it.

        answered: returns the ids of that one's queries with a relevant passage, which are read until each split has
        one. Shares that would leave no training query are not taken.
        """
        if not self._shared:
            return self
        missing = {split for split in self.names() if self.source(split) == self._shared}
        counted = 0
        for query_id in islice(answered(), MOST_COUNTED):
            counted += 1
            missing.discard(self._split_of(query_id))
            if not missing:
                return self
        if counted == MOST_COUNTED:
            return self
        if "train" in missing and self.held_out:
            return evolve(self, held_out={}, empty=frozenset(self.held_out), counted=counted)
        return evolve(self, empty=frozenset(missing), counted=counted)

    def notes(self) -> Iterator[str]:
        """Yield a note for each split that gets no query of its share."""
        of_test = self._shared == "test"
        for split in sorted(self.empty):
            advice = "set collection.train_share higher" if of_test else f"set collection.{split}_share higher"
            yield (
                f"no {split} queries: of the {self.counted:,} {'test' if of_test else 'training'} queries with a "
                f"relevant passage, none is in the share for {split}; {advice}, or give {split} queries of their own"
            )

    @property
    def _shared(self) -> str:
        """The split whose queries are shared out; empty if all splits have their own."""
        return "train" if self.held_out else "test" if self.train_share else ""

    def _split_of(self, query_id: str) -> str:
        if self.train_share:
            return self._taken_from_test(query_id)
        dev, test = (self.held_out.get(name, 0.0) for name in ("dev", "test"))
        return split_by_hash(query_id, dev_share=dev, test_share=test)

    def _taken_from_test(self, query_id: str) -> str:
        value = fraction(query_id)
        if value >= self.train_share:
            return "test"
        return "dev" if "dev" not in self.own and value < self.train_share / 10 else "train"
