"""The re-ranker: a cross-encoder that re-ranks and teaches."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from drkit.core.files import LOG, TRAINING, path_state
from drkit.data.column_sources import RERANKER
from drkit.errors import DrkitError
from drkit.miners.specs import refresh_settings
from drkit.recipe.schema import Choice, Training
from drkit.runs.stage import PlanBuilder, Stage, StageOutput, StageSpec, from_recipe
from drkit.runs.stages.negatives import plan_negatives
from drkit.runs.stages.queries import training_split
from drkit.runs.stages.retriever import PlannedSystem
from drkit.runs.stages.texts import PASSAGES
from drkit.runs.work import ModelSize, Sizes, Work, count_examples, describe_schedule, reading_work, training_work


@frozen
class RerankerSettings:
    """How the cross-encoder is trained; pretrained: the model to start from, None for the input `start`."""

    pretrained: str | None = from_recipe("reranker.pretrained")
    layers: int = from_recipe("reranker.layers")
    training: Training = from_recipe("reranker")
    loss: Choice = from_recipe("reranker.loss")
    negatives: int = from_recipe("reranker.negatives")
    forward_factor: int = from_recipe("reranker.forward_factor")
    max_length: int = from_recipe("reranker.max_length")
    seed: int = from_recipe("seed")


def _reranker_work(stage: Stage[RerankerSettings], sizes: Sizes) -> Work:
    settings = stage.settings
    passages, model = 1 + settings.negatives, sizes.reranker
    examples = count_examples(settings.training, sizes.count(str(stage.inputs["train"])))
    pair = _pair_tokens(sizes, settings.max_length)
    learnt = passages / settings.forward_factor
    work = training_work(
        model,
        settings.training,
        examples=examples,
        texts=learnt,
        tokens=learnt * pair,
        length=settings.max_length,
        gpu=sizes.gpu,
    )
    first = scoring_work(model, examples * passages, settings.max_length, sizes)
    return work + first if settings.forward_factor > 1 else work


def scoring_work(model: ModelSize, pairs: float, max_length: int | None, sizes: Sizes) -> Work:
    """Return the work of scoring pairs of a query and a passage with a cross-encoder."""
    tokens = _pair_tokens(sizes, max_length)
    return reading_work(model, pairs * tokens, tokens)


def _pair_tokens(sizes: Sizes, max_length: int | None) -> float:
    both = sizes.collection.query_tokens() + sizes.collection.passage_tokens(max_length)
    return min(max_length or both, both)


TRAIN_RERANKER = StageSpec(
    name="reranker",
    version=3,
    settings=RerankerSettings,
    run="drkit.runs.making.reranker:train_reranker",
    inputs={
        "start": "the checkpoint that training starts from",
        "passages": "the corpus",
        "train": "training queries and judgements",
        "negatives": "mined negatives",
    },
    records=(LOG, TRAINING),
    resumable=True,
    joint=True,
    folders=("reranker",),
    work=_reranker_work,
)


def plan_reranker(builder: PlanBuilder, start: str, previous: str, pairs: str) -> PlannedSystem:
    """Add the stage that trains the re-ranker, and the negatives that it learns from."""
    reranker = builder.recipe.reranker
    assert reranker is not None
    if refresh_settings(reranker.miners):
        raise DrkitError(
            "the miner refresh searches with the model in training, but a re-ranker cannot search; use dense "
            "@ reranker.miners"
        )
    origin = previous if reranker.start == "previous" else start
    start_input: dict[str, Any] = {} if reranker.pretrained else {"start": StageOutput(origin)}
    negatives = plan_negatives(builder, RERANKER, reranker.miners, previous, pairs)
    schedule = describe_schedule(reranker, compares=False, table=RERANKER)
    stage = builder.add(
        RERANKER,
        TRAIN_RERANKER,
        f"train the cross-encoder from {reranker.pretrained or origin}, {schedule}",
        {
            **start_input,
            "passages": PASSAGES,
            "train": training_split(builder, pairs),
            "negatives": StageOutput(negatives),
        },
        sources={"reranker.pretrained": path_state(reranker.pretrained)},
        extra={"training": reranker.training_only()},
    )
    return PlannedSystem(RERANKER, (stage,), reranks=previous)
