"""Stages of the evaluation: rank queries with every system, fuse the exported retriever with BM25, and measure.

`search` writes a file of rankings per system, re-rankers included; `hybrid` fuses two of them with a weight tuned on
dev queries; `evaluation` is the results table, with a paired t-test of every system against the row above.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from drkit.evaluate.names import HYBRID_NAME
from drkit.runs.stage import TRUNCATED, Stage, StageSpec, TextReading, from_recipe
from drkit.runs.stages.reranker import scoring_work
from drkit.runs.stages.retriever import bm25_seconds, dense_work
from drkit.runs.work import Sizes, Work


@frozen
class SearchSettings:
    """The systems: retrievers by name, and re-rankers with the retriever whose ranking they re-rank.

    parts: systems that search by one part of a retriever's vectors, with the retriever and the part. The inputs are
    `encoder/NAME`, `index/NAME` and `reranker/NAME`. BM25 comes first if its index is an input. split: whose queries
    they are.
    """

    retrievers: tuple[str, ...]
    reranked: Mapping[str, str]
    rerank_depth: int
    reading: TextReading
    depth: int = from_recipe("evaluation.depth")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    split: str = from_recipe("evaluation.split", observes=True)
    parts: Mapping[str, tuple[str, str]] = field(factory=dict)


# Seconds for each hit that is ranked, written and measured, or fused; bytes of a hit in a file of rankings.
_RANKED, _FUSED, _HIT_BYTES = 6e-7, 8.5e-7, 8.0
# Bytes of memory of each hit while rankings are fused.
_FUSED_BYTES = 30


def _search_work(stage: Stage[SearchSettings], sizes: Sizes) -> Work:
    settings, queries = stage.settings, sizes.count(str(stage.inputs["queries"]))
    dense, words, reranked = len(settings.retrievers), int("bm25" in stage.inputs), len(settings.reranked)
    hits = (dense + words + reranked) * queries * min(settings.depth, sizes.passages)
    pairs = reranked * queries * settings.rerank_depth
    ranked = Work(seconds=bm25_seconds(words * queries, sizes) + _RANKED * hits, disk=_HIT_BYTES * hits)
    scored = scoring_work(sizes.reranker, pairs, None, sizes) if pairs else Work()
    return dense_work(dense * queries, sizes) + ranked + scored


SEARCH = StageSpec(
    name="search",
    version=4,
    settings=SearchSettings,
    run="drkit.runs.steps.evaluation:search",
    inputs={
        "passages": "the corpus",
        "queries": "the queries to rank passages for",
        "bm25": "BM25's index",
        "encoder/*": "the encoder of a retriever",
        "index/*": "its index",
        "reranker/*": "a cross-encoder",
    },
    records=(TRUNCATED,),
    resumable=True,
    folders=("runs", "dev-runs", "choice-runs"),
    work=_search_work,
)


# The exported retriever's name in the search of the dev queries.
EXPORTED = "exported"
# The retriever's weight where no dev queries tune it. Where they do, .2 to .3 is best for retrievers trained without
# labels, and .3 to .6 are equally good for others (docs/experiments/default-run.md).
UNTUNED = 0.3


@frozen
class HybridSettings:
    """The measure that the retriever's weight is tuned for; None without dev queries."""

    measure: str | None
    depth: int = from_recipe("evaluation.depth")


def _fusion_work(stage: Stage[HybridSettings], sizes: Sizes) -> Work:
    depth = min(stage.settings.depth, sizes.passages)
    tuned = sizes.count(str(stage.inputs["dev"])) if stage.settings.measure else 0.0
    fused = 2 * depth * (sizes.evaluated + tuned)
    disk = _HIT_BYTES * depth * sizes.evaluated
    return Work(seconds=_FUSED * fused, memory=_FUSED_BYTES * fused, disk=disk)


HYBRID = StageSpec(
    name="hybrid",
    version=5,
    settings=HybridSettings,
    run="drkit.runs.steps.evaluation:fuse",
    inputs={
        "bm25": "BM25's rankings of the evaluated queries",
        "retriever/*": "a retriever's",
        "choice": "which retriever is exported, if there are several",
        "dev-runs": "the rankings of the dev queries by BM25 and the exported retriever",
        "dev": "the dev queries' judgements",
    },
    folders=(HYBRID_NAME,),
    work=_fusion_work,
)


@frozen
class UntunedSettings:
    """The exported retriever, whose weight no judged queries tune."""

    retriever: str
    depth: int = from_recipe("evaluation.depth")


UNTUNED_HYBRID = StageSpec(
    name="hybrid-untuned",
    version=1,
    settings=UntunedSettings,
    run="drkit.runs.steps.evaluation:keep_weight",
    inputs={"bm25": "BM25's index", "index": "the exported retriever's index"},
    folders=(HYBRID_NAME,),
)


@frozen
class EvaluationSettings:
    """Measures and systems; draws: the runs that are averaged for a system with several draws, by system.

    last: the last retriever; the input `choice` names the exported retriever, if there are several. is_smoke: whether
    every training is only tried.
    """

    systems: tuple[str, ...]
    draws: Mapping[str, tuple[str, ...]]
    last: str
    is_smoke: bool
    measures: tuple[str, ...] = from_recipe("evaluation.measures")
    split: str = from_recipe("evaluation.split")
    exclude_self: bool = from_recipe("evaluation.exclude_self")


EVALUATION = StageSpec(
    name="evaluation",
    version=4,
    settings=EvaluationSettings,
    run="drkit.runs.steps.evaluation:evaluate_systems",
    inputs={
        "judged": "the evaluated split of the collection",
        "runs": "the systems' rankings",
        "hybrid": "the fused ranking, and its weight",
        "choice": "which retriever is exported, if there are several",
    },
    folders=("evaluation",),
)
