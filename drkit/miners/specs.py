"""Settings of all miners, and specs of those that drkit itself provides; imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen
from attrs.validators import and_, ge, gt, in_, le, optional

from drkit.core.citations import ANCE, BM25, DPR, FUSION, GPL, NV_RETRIEVER, ROCKETQA, STAR
from drkit.core.protocols import RefreshesNegatives
from drkit.core.settings import at_least, more_than, setting
from drkit.core.spec import Choice, ComponentSpec, Kind
from drkit.recipe.evaluation import IDENTIFIER_SPLITS, LANGUAGES, QUERY_LANGUAGES, SAME_LANGUAGE, UNKNOWN

_RANKS = re.compile(r"([1-9]\d*)-([1-9]\d*)")


@frozen
class Bm25Config:
    """Settings of `Bm25Miner`: negatives drawn from the top of BM25's ranking."""

    depth: int = setting(200, at_least(1), "how deep the ranking is read that negatives are drawn from")
    k1: float = setting(1.2, more_than(0), "BM25's term-frequency saturation")
    b: float = setting(0.75, and_(ge(0), le(1)), "BM25's length normalisation")
    language: str = setting("english", in_(LANGUAGES), "language of BM25's stemmer and stop words")
    query_language: str = setting(
        SAME_LANGUAGE, in_(QUERY_LANGUAGES), "language of the queries; same: that of the passages"
    )
    split_queries: str = setting(
        UNKNOWN,
        in_(IDENTIFIER_SPLITS),
        "identifiers in queries that are split: those that no passage has, always, never",
    )


@frozen
class DenseConfig:
    """Settings of `DenseMiner`: negatives drawn from the top of the ranking by the run's newest retriever."""

    depth: int = setting(200, at_least(1), "how deep the ranking is read that negatives are drawn from")
    skip: int = setting(0, at_least(0), "skip this many of the best-ranked passages")
    memory_mb: int = setting(64, at_least(1), "megabytes of hits held at once: how many queries are searched together")


@frozen
class MixedConfig:
    """Settings of `MixedMiner`: negatives drawn from the top of both BM25's and the retriever's ranking."""

    depth: int = setting(100, at_least(1), "how many passages of both rankings together negatives are drawn from")


@frozen
class HybridConfig:
    """Settings of `HybridMiner`: negatives drawn from the top of a ranking by weighted BM25 and retriever scores."""

    depth: int = setting(200, at_least(1), "how deep the fused ranking is read that negatives are drawn from")
    weight: float = setting(0.5, and_(ge(0), le(1)), "weight of the retriever's score; BM25's is the rest to 1")


@frozen
class RefreshConfig:
    """Settings of the miner `refresh`: mining again with the model in training, every few epochs (ANCE)."""

    every: int = setting(1, at_least(1), "epochs between two minings with the current model")
    depth: int = setting(200, at_least(1), "how deep the ranking is read that negatives are drawn from")
    skip: int = setting(0, at_least(0), "skip this many of the best-ranked passages")
    memory_mb: int = setting(64, at_least(1), "megabytes of hits held at once: how many queries are searched together")

    @property
    def refresh_every(self) -> int:
        """Epochs between two minings."""
        return self.every


@frozen
class RandomConfig:
    """Settings of `RandomMiner`: negatives drawn uniformly from the collection."""

    depth: int = setting(200, at_least(1), "how many passages are drawn per query")


@frozen
class RunFileConfig:
    """Settings of `RunFileMiner`: negatives drawn from the top of a ranking that another system wrote."""

    path: str = setting("", None, "a TREC run file, of any retriever")
    depth: int = setting(200, at_least(1), "how deep the ranking is read that negatives are drawn from")


@frozen
class GivenConfig:
    """Settings of `GivenMiner`: negatives that come with the collection's training queries."""

    depth: int = setting(1000, at_least(1), "how many of a query's own negatives are used")


@frozen
class MarginConfig:
    """Settings of `MarginFilter`: drops candidates that the source scores nearly as high as a positive."""

    absolute: float | None = setting(
        None, optional(at_least(0)), "drop candidates above the positive's score minus this"
    )
    share: float = setting(
        0.95,
        and_(gt(0), le(1)),
        "drop candidates above this share of the positive's score, if absolute is none",
    )
    positive: str = setting("max", in_(("max", "min")), "which positive counts: the highest- or lowest-scored")


def parse_ranks(text: str) -> tuple[int, int]:
    """Return `10-100` as (10, 100). Raises ValueError for anything else."""
    found = _RANKS.fullmatch(text.strip())
    if not found or int(found[1]) > int(found[2]):
        raise ValueError(f"ranks must be FIRST-LAST, counted from 1, as in 10-100; got {text!r}")
    return int(found[1]), int(found[2])


def _ranks(_instance: Any, _attribute: attrs.Attribute[Any], value: str) -> None:
    """Validate FIRST-LAST."""
    parse_ranks(value)


@frozen
class RanksConfig:
    """Settings of `RanksFilter`: keeps a range of ranks, so that the top, often unjudged answers, is left out."""

    keep: str = setting("10-100", _ranks, "first and last rank to keep, counted from 1 without the positives")


@frozen
class CrossEncoderFilterConfig:
    """Settings of `CrossEncoderFilter`: drops candidates that a cross-encoder takes for answers."""

    model: str = setting("", None, "path or hub id of a cross-encoder; empty: the run's re-ranker")
    margin: float | None = setting(
        0.0, optional(at_least(0)), "drop candidates above the positive's score minus this; none: off"
    )
    maximum: float | None = setting(None, optional(at_least(-1e9)), "drop candidates that it scores above this")
    positive: str = setting("max", in_(("max", "min")), "which positive counts: the highest- or lowest-scored")

    @property
    def requires(self) -> Mapping[str, None]:
        """The run's re-ranker, if no model is named."""
        return {} if self.model else {"reranker": None}


@frozen
class MaxScoreConfig:
    """Settings of `MaxScoreFilter`: drops candidates above a fixed score of the source."""

    maximum: float = setting(1.0, at_least(-1e9), "drop candidates that the source scores above this")


@frozen
class HasAnswerConfig:
    """Settings of `HasAnswerFilter`: drops candidates that contain a short answer of the query (DPR)."""

    path: str = setting("", None, "a file with the column answers, a list for each query; empty: the queries' own")


@frozen
class SameTextConfig:
    """Settings of `SameTextFilter`: drops copies of a judged positive under another id."""

    ignore_case: bool = setting(True, None, "treat texts that differ only in case as the same")


def _source(name: str, code: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    return ComponentSpec(Kind.MINER, name, f"drkit.miners.{code}", config, summary, **more)


def _filter(name: str, code: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    return _source(name, f"filters:{code}", config, f"Filter: {summary}", receives=("candidates",), **more)


_SOURCES = (
    _source(
        "bm25",
        "sources:Bm25Miner",
        Bm25Config,
        "The best-ranked unjudged passages of BM25",
        cite=BM25,
        extras=("bm25",),
    ),
    _source(
        "dense",
        "sources:DenseMiner",
        DenseConfig,
        "The best-ranked unjudged passages of a trained retriever",
        cite=STAR,
        requires=("retriever",),
    ),
    _source("given", "sources:GivenMiner", GivenConfig, "The negatives that the collection's own training file lists"),
    _source(
        "hybrid",
        "both_rankings:HybridMiner",
        HybridConfig,
        "The best-ranked passages by BM25's and a retriever's scores together",
        cite=FUSION,
        requires=("retriever",),
        extras=("bm25",),
    ),
    _source(
        "mixed",
        "both_rankings:MixedMiner",
        MixedConfig,
        "The best-ranked passages of BM25 and of a trained retriever, in turns",
        cite=GPL,
        requires=("retriever",),
        extras=("bm25",),
    ),
    _source("random", "sources:RandomMiner", RandomConfig, "Passages drawn at random from the collection"),
    _source(
        "refresh",
        "sources:DenseMiner",
        RefreshConfig,
        "Like dense, repeated every few epochs with the model in training",
        cite=ANCE,
    ),
    _source(
        "run-file",
        "sources:RunFileMiner",
        RunFileConfig,
        "The best-ranked unjudged passages of any TREC run file",
        shorthand="path",
        files=("path",),
    ),
)
FILTERS = (
    _filter(
        "cross-encoder-filter",
        "CrossEncoderFilter",
        CrossEncoderFilterConfig,
        "drops candidates that a cross-encoder takes for an answer",
        cite=ROCKETQA,
        shorthand="model",
        files=("model",),
    ),
    _filter(
        "has-answer",
        "HasAnswerFilter",
        HasAnswerConfig,
        "drops candidates that contain an answer of the query",
        cite=DPR,
        shorthand="path",
        files=("path",),
    ),
    _filter(
        "margin",
        "MarginFilter",
        MarginConfig,
        "drops candidates that score too close to the positive",
        cite=NV_RETRIEVER,
    ),
    _filter("max-score", "MaxScoreFilter", MaxScoreConfig, "drops candidates that score above a fixed number"),
    _filter("ranks", "RanksFilter", RanksConfig, "keeps ranks A to B", shorthand="keep"),
    _filter("same-text", "SameTextFilter", SameTextConfig, "drops copies of a positive under another id"),
)


def refresh_settings(choices: Sequence[Choice]) -> RefreshesNegatives | None:
    """Return the settings of the source if it mines again during training, otherwise None."""
    config = choices[0].config if choices else None
    return config if isinstance(config, RefreshesNegatives) else None


MINERS = (*_SOURCES, *FILTERS)
