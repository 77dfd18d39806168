"""Miners: where hard negatives come from, and filters that drop some of them.

`chain.py` runs a source and its filters for all queries. `drkit/train/biencoder.py` says how negatives enter training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.miners.both_rankings import HybridMiner as HybridMiner
    from drkit.miners.both_rankings import MixedMiner as MixedMiner
    from drkit.miners.chain import Chain as Chain
    from drkit.miners.chain import build_chain as build_chain
    from drkit.miners.chain import mine as mine
    from drkit.miners.chain import parse_chain as parse_chain
    from drkit.miners.filters import CrossEncoderFilter as CrossEncoderFilter
    from drkit.miners.filters import HasAnswerFilter as HasAnswerFilter
    from drkit.miners.filters import MarginFilter as MarginFilter
    from drkit.miners.filters import MaxScoreFilter as MaxScoreFilter
    from drkit.miners.filters import RanksFilter as RanksFilter
    from drkit.miners.filters import SameTextFilter as SameTextFilter
    from drkit.miners.sources import Bm25Miner as Bm25Miner
    from drkit.miners.sources import DenseMiner as DenseMiner
    from drkit.miners.sources import GivenMiner as GivenMiner
    from drkit.miners.sources import RandomMiner as RandomMiner
    from drkit.miners.sources import RunFileMiner as RunFileMiner
    from drkit.miners.specs import Bm25Config as Bm25Config
    from drkit.miners.specs import CrossEncoderFilterConfig as CrossEncoderFilterConfig
    from drkit.miners.specs import DenseConfig as DenseConfig
    from drkit.miners.specs import GivenConfig as GivenConfig
    from drkit.miners.specs import HasAnswerConfig as HasAnswerConfig
    from drkit.miners.specs import HybridConfig as HybridConfig
    from drkit.miners.specs import MarginConfig as MarginConfig
    from drkit.miners.specs import MaxScoreConfig as MaxScoreConfig
    from drkit.miners.specs import MixedConfig as MixedConfig
    from drkit.miners.specs import RandomConfig as RandomConfig
    from drkit.miners.specs import RanksConfig as RanksConfig
    from drkit.miners.specs import RefreshConfig as RefreshConfig
    from drkit.miners.specs import RunFileConfig as RunFileConfig
    from drkit.miners.specs import SameTextConfig as SameTextConfig

lazy_exports(__name__)
