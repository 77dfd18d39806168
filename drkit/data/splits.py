"""Train, dev and test by the hash of a name: the same name falls into the same split wherever it is met."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from attrs import field, frozen

from drkit.errors import DrkitError


def fraction(name: str) -> float:
    """A number in [0, 1) that depends on `name` alone.

    >>> fraction("json.decoder") == fraction("json.decoder"), 0 <= fraction("json") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def split_by_hash(name: str, *, dev_share: float, test_share: float) -> str:
    """`test`, `dev` or `train`, in these shares of all names."""
    place = fraction(name)
    if place < test_share:
        return "test"
    return "dev" if place < test_share + dev_share else "train"


def train_from_test(query_id: str, *, train_share: float, with_dev: bool) -> str:
    """The split of a query of a collection that has only test queries.

    `train_share` of them are set apart; a tenth of these is `dev` where `with_dev`, the others are `train`.
    """
    place = fraction(query_id)
    if place >= train_share:
        return "test"
    return "dev" if with_dev and place < train_share / 10 else "train"


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@frozen
class HeldOut:
    """Splits with data of their own (`own`), and those that are a share of the training queries, by their ids' hash."""

    own: frozenset[str] = field(converter=_names)
    shares: Mapping[str, float] = field(factory=dict)

    @classmethod
    def of(cls, own: Mapping[str, object], *, dev: float, test: float) -> HeldOut:
        """With these shares of the training queries as dev and test, where they have no data of their own."""
        shares = {"dev": dev, "test": test} if "train" in own else {}
        return cls(own, {split: share for split, share in shares.items() if share and split not in own})

    def splits(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(split for split in ("train", "dev", "test") if split in self.own or split in self.shares)

    def source(self, split: str) -> str:
        """The split whose data a split is taken from. Raises DrkitError where there is no such split."""
        if split not in self.splits():
            raise DrkitError(f"there is no split {split!r}; there is {', '.join(self.splits()) or 'none'}")
        return split if split in self.own else "train"

    def contains(self, split: str, query_id: str) -> bool:
        """Whether a query of the source of `split` belongs to it."""
        if self.source(split) != "train":
            return True
        place = split_by_hash(query_id, dev_share=self.shares.get("dev", 0), test_share=self.shares.get("test", 0))
        return place == split
