"""Hard negatives for every training query, by the previous retriever or by BM25."""

from __future__ import annotations

from attrs import frozen

from drkit.core.files import local_path
from drkit.core.protocols import RankingDepth
from drkit.core.spec import Choice, Kind, is_stage_output
from drkit.data.column_sources import RERANKER
from drkit.data.rows import require_file
from drkit.encoders.card import EncoderCard
from drkit.errors import DrkitError
from drkit.miners.specs import (
    Bm25Config,
    HasAnswerConfig,
    HybridConfig,
    MixedConfig,
    RunFileConfig,
    refresh_settings,
)
from drkit.runs.stage import PlanBuilder, Stage, StageOutput, StageSpec, files_state, from_recipe
from drkit.runs.stages.queries import training_split
from drkit.runs.stages.retriever import add_index, reading_of, searching_stage, vectors_memory, words_memory
from drkit.runs.stages.texts import PASSAGES
from drkit.runs.work import Sizes, Work


@frozen
class NegativeSettings:
    """A chain of miners: a source, then filters; reading: how the retriever reads texts, None without one."""

    miners: tuple[Choice, ...]
    reading: EncoderCard | None
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    seed: int = from_recipe("seed")


# Bytes of each hit, and how many a source reads if it does not say.
_HIT_BYTES, _DEPTH = 12.3, 200


def _mining_work(stage: Stage[NegativeSettings], sizes: Sizes) -> Work:
    """Count the source's searches, by the retriever, by BM25 or by both; filters are left out."""
    source, queries = stage.settings.miners[0], sizes.count(str(stage.inputs["train"]))
    config, searches = source.config, "index" in stage.inputs
    if refresh_settings(stage.settings.miners) and not searches:  # all is mined during the training
        return Work()
    hits = queries * (config.depth if isinstance(config, RankingDepth) else _DEPTH)
    memory = vectors_memory(sizes) if searches else 0.0
    memory += words_memory(sizes) if isinstance(config, (Bm25Config, HybridConfig, MixedConfig)) else 0.0
    return Work(queries * sizes.passages, f"scores of {source.use}", memory=memory, disk=_HIT_BYTES * hits)


NEGATIVES = StageSpec(
    name="negatives",
    version=4,
    settings=NegativeSettings,
    run="drkit.runs.making.negatives:mine_negatives",
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


def _check_run_file(path: str, owner: str) -> None:
    """Raise DrkitError if the run file of a miner does not exist, or is empty."""
    file = local_path(path)
    problem = "does not exist" if not file.is_file() else "is empty" if not file.stat().st_size else ""
    if problem:
        raise DrkitError(f"the run file {path!r} {problem} (miner run-file of {owner})")


def plan_negatives(builder: PlanBuilder, owner: str, chain: tuple[Choice, ...], previous: str, pairs: str) -> str:
    """Add the stage that mines for a round or the re-ranker; reuses an equal stage if there is one."""
    for miner in chain:
        if isinstance(miner.config, RunFileConfig) and not is_stage_output(miner.config.path):
            _check_run_file(miner.config.path, owner)
        if isinstance(miner.config, HasAnswerConfig) and miner.config.path and not is_stage_output(miner.config.path):
            require_file(miner.config.path, f"has-answer of {owner}")
    inputs, searches = {"passages": PASSAGES, "train": training_split(builder, pairs)}, False
    required = required_by(builder, chain)
    if "retriever" in required:
        encoder = searching_stage(builder, previous)
        index = add_index(builder, encoder, "mined")
        inputs, searches = {**inputs, "encoder": StageOutput(encoder), "index": StageOutput(index)}, True
    if RERANKER in required:
        inputs = {**inputs, "reranker": StageOutput(RERANKER)}
    for stage in builder.stages.values():
        if stage.spec is NEGATIVES and stage.settings.miners == chain and _declared(stage) == inputs:
            return stage.name
    return builder.add(
        f"negatives-{owner}",
        NEGATIVES,
        f"hard negatives by {' > '.join(miner.use for miner in chain)}",
        inputs,
        sources=miner_files(builder, chain),
        extra={"miners": chain, "reading": reading_of(builder) if searches else None},
    )


def _declared(stage: Stage[NegativeSettings]) -> dict[str, StageOutput]:
    """Return the inputs of a stage without the outputs that its miners name."""
    return {name: output for name, output in stage.inputs.items() if not is_stage_output(name)}


def miner_files(builder: PlanBuilder, chain: tuple[Choice, ...]) -> dict[str, str]:
    """Return the states of the local files that miners read."""
    return {
        f"miners.{index}": files_state(builder.registry.get(Kind.MINER, miner.use), miner.config)
        for index, miner in enumerate(chain)
    }


def required_by(builder: PlanBuilder, chain: tuple[Choice, ...]) -> set[str]:
    """Return everything that the miners of a chain require from the run."""
    return {name for miner in chain for name in builder.registry.get(Kind.MINER, miner.use).requires_of(miner.config)}
