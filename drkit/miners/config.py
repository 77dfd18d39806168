"""Settings of the miners; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, gt, le

from drkit.core.settings import setting


@frozen
class Bm25Config:
    """Settings of `Bm25Miner`."""

    depth: int = setting(200, ge(1), "how deep the ranking is that negatives are drawn from")
    k1: float = setting(1.2, gt(0), "BM25's term-frequency saturation")
    b: float = setting(0.75, and_(ge(0), le(1)), "BM25's length normalisation")


@frozen
class DenseConfig:
    """Settings of `DenseMiner`."""

    depth: int = setting(200, ge(1), "how deep the ranking is that negatives are drawn from")
    skip: int = setting(0, ge(0), "leave out this many of the best-ranked passages")


@frozen
class RandomConfig:
    """Settings of `RandomMiner`."""

    depth: int = setting(200, ge(1), "how many passages are drawn per query")
