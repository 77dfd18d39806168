"""The stage `negatives`: hard negatives for every training query, by the previous retriever or by BM25."""

from __future__ import annotations

from attrs import frozen

from drkit.core.protocols import RankingDepth
from drkit.recipe.schema import Choice
from drkit.runs.stage import Stage, StageSpec, TextReading, from_recipe
from drkit.runs.stages.retriever import bm25_seconds, dense_work
from drkit.runs.work import Sizes, Work


@frozen
class NegativeSettings:
    """A chain of miners: a source, then filters; reading: how the retriever reads texts, None without one."""

    miners: tuple[Choice, ...]
    reading: TextReading | None
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    seed: int = from_recipe("seed")


# Seconds and bytes of each hit, and how many a source reads if it does not say.
_MINED, _HIT_BYTES, _DEPTH = 3.6e-6, 12.3, 200


def _mining_work(stage: Stage[NegativeSettings], sizes: Sizes) -> Work:
    """Count the source's searches: by the retriever if the stage reads one, else by BM25. Filters are left out."""
    config, queries = stage.settings.miners[0].config, sizes.count(str(stage.inputs["train"]))
    hits = queries * (config.depth if isinstance(config, RankingDepth) else _DEPTH)
    searched = dense_work(queries, sizes) if "index" in stage.inputs else Work(seconds=bm25_seconds(queries, sizes))
    return searched + Work(seconds=_MINED * hits, disk=_HIT_BYTES * hits)


NEGATIVES = StageSpec(
    name="negatives",
    version=3,
    settings=NegativeSettings,
    run="drkit.runs.steps.negatives:mine_negatives",
    inputs={
        "passages": "the passages to mine",
        "train": "training queries, judgements and given negatives",
        "encoder": "the previous retriever",
        "index": "its index",
        "reranker": "a cross-encoder, for filters",
    },
    resumable=True,
    folders=("negatives-*",),
    work=_mining_work,
)
