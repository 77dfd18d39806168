"""Miners: where hard negatives come from, and filters that leave some of them out."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.miners.bm25 import Bm25Miner
    from drkit.miners.chain import Chain, build_chain
    from drkit.miners.config import (
        Bm25Config,
        CrossEncoderFilterConfig,
        DenseConfig,
        GivenConfig,
        MarginConfig,
        MaxScoreConfig,
        RandomConfig,
        RanksConfig,
        RefreshConfig,
        RunFileConfig,
        SameTextConfig,
    )
    from drkit.miners.dense import DenseMiner
    from drkit.miners.filters import MarginFilter, MaxScoreFilter, RanksFilter
    from drkit.miners.given import GivenMiner
    from drkit.miners.hard_negatives import HardNegatives
    from drkit.miners.mining import chain_named, mine
    from drkit.miners.random import RandomMiner
    from drkit.miners.run_file import RunFileMiner
    from drkit.miners.texts import CrossEncoderFilter, SameTextFilter

__all__ = [
    "Bm25Config",
    "Bm25Miner",
    "Chain",
    "CrossEncoderFilter",
    "CrossEncoderFilterConfig",
    "DenseConfig",
    "DenseMiner",
    "GivenConfig",
    "GivenMiner",
    "HardNegatives",
    "MarginConfig",
    "MarginFilter",
    "MaxScoreConfig",
    "MaxScoreFilter",
    "RandomConfig",
    "RandomMiner",
    "RanksConfig",
    "RanksFilter",
    "RefreshConfig",
    "RunFileConfig",
    "RunFileMiner",
    "SameTextConfig",
    "SameTextFilter",
    "build_chain",
    "chain_named",
    "mine",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Bm25Config": "config",
        "Bm25Miner": "bm25",
        "Chain": "chain",
        "CrossEncoderFilter": "texts",
        "CrossEncoderFilterConfig": "config",
        "DenseConfig": "config",
        "DenseMiner": "dense",
        "GivenConfig": "config",
        "GivenMiner": "given",
        "HardNegatives": "hard_negatives",
        "MarginConfig": "config",
        "MarginFilter": "filters",
        "MaxScoreConfig": "config",
        "MaxScoreFilter": "filters",
        "RandomConfig": "config",
        "RandomMiner": "random",
        "RanksConfig": "config",
        "RanksFilter": "filters",
        "RefreshConfig": "config",
        "RunFileConfig": "config",
        "RunFileMiner": "run_file",
        "SameTextConfig": "config",
        "SameTextFilter": "texts",
        "build_chain": "chain",
        "chain_named": "mining",
        "mine": "mining",
    },
)
