"""Train, dev and test by the hash of a name: the same name falls into the same split wherever it is met."""

from __future__ import annotations

import hashlib


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
