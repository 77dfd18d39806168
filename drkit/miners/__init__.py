"""Miners: where hard negatives come from."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.miners.bm25 import Bm25Miner
    from drkit.miners.chain import Chain, build_chain
    from drkit.miners.config import Bm25Config, DenseConfig, RandomConfig
    from drkit.miners.dense import DenseMiner
    from drkit.miners.random import RandomMiner

__all__ = [
    "Bm25Config",
    "Bm25Miner",
    "Chain",
    "DenseConfig",
    "DenseMiner",
    "RandomConfig",
    "RandomMiner",
    "build_chain",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Bm25Config": "config",
        "Bm25Miner": "bm25",
        "Chain": "chain",
        "build_chain": "chain",
        "DenseConfig": "config",
        "DenseMiner": "dense",
        "RandomConfig": "config",
        "RandomMiner": "random",
    },
)
