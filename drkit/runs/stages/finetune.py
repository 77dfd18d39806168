"""Stage: fine-tune one retriever on judged queries and mined negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve

from drkit.core.protocols import InBatchNegatives
from drkit.core.recipe import Finetune, Round
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.store import TokenStore
from drkit.data.tables import open_collection
from drkit.errors import DrkitError
from drkit.runs import processes
from drkit.runs.checkpoints import load_encoder, load_passage_encoder, save_encoders
from drkit.runs.finetuning.biencoder import BiEncoder
from drkit.runs.finetuning.drawing import draw_queries
from drkit.runs.finetuning.negatives import read_negatives
from drkit.runs.finetuning.pairs import PairCollator, TeacherScores, TrainingPairs, training_pairs
from drkit.runs.finetuning.refreshing import refresher_of
from drkit.runs.finetuning.validation import validating
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer
from drkit.runs.training.training import train_stage

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the retriever's checkpoint; returns steps, losses, and the batch and negatives it really had."""
    settings = round_settings(stage)
    tokenizer = load_tokenizer(str(_start(stage)))
    module, collate = _bi_encoder(stage, settings, tokenizer), _collator(stage, settings)
    refresher = refresher_of(stage, module, tokenizer, collate)
    collate = evolve(collate, refreshed=refresher)
    collection = open_collection(stage.inputs["collection"])
    validations = validating(stage, module, tokenizer, collection, settings.validation)
    if not refresher:
        stage.progress.note(_said(_effective(collate, settings)))
    result = train_stage(
        stage,
        module,
        collate,
        training=settings,
        lengths=collate.queries.lengths[collate.pairs.queries],
        callbacks=[*([refresher] if refresher else []), *validations],
    )
    save_encoders(module, tokenizer, stage.folder)
    effective = _effective(collate, settings)
    figures = {"steps": result.steps, "loss": result.loss, "seconds": result.seconds, **effective}
    if _in_batch(settings):
        figures["negatives_counted"] = round(_mean(result.log, "negatives"), 1)
        stage.progress.note(f"negatives a query, without copies and judged positives: {figures['negatives_counted']:,}")
    if refresher:  # what it mines is known by now
        stage.progress.note(_said(effective))
        figures["refreshed"] = refresher.figures()
    return {**figures, **{key: value for one in validations for key, value in one.result().items()}}


def _start(stage: StageRun) -> Path:
    return stage.inputs[stage.stage.settings["start"]]


def _bi_encoder(stage: StageRun, settings: Finetune, tokenizer: Any) -> BiEncoder:
    start, pooling = _start(stage), stage.recipe.encoder.pooling
    encoder = load_encoder(start, pooling=pooling)
    context = BuildContext(backbone=encoder.info(tokenizer), tokenizer=tokenizer, seed=stage.recipe.seed)
    loss = stage.registry.build(Kind.LOSS, settings.loss.use, settings.loss.config, context)
    separate = settings.encoders == "separate"
    passages = load_passage_encoder(start, pooling=pooling) if separate else None
    return BiEncoder(encoder, loss, passage_encoder=passages)


def _collator(stage: StageRun, settings: Finetune) -> PairCollator:
    tokens, pairs = stage.inputs["tokens"], _pairs(stage)
    return PairCollator(
        pairs=pairs,
        queries=TokenStore.open(tokens / "queries"),
        passages=TokenStore.open(tokens / "passages"),
        negatives=settings.negatives,
        seed=stage.recipe.seed,
        teacher=_teacher(stage),
        own=_own_passages(stage, pairs) if stage.recipe.evaluation.exclude_self else None,
    )


def _own_passages(stage: StageRun, pairs: TrainingPairs) -> NDArray[np.int64]:
    """Places i64[n] of the passages that have the queries' own ids; -1: there is none."""
    collection = open_collection(stage.inputs["collection"])
    ids = [query.query_id for query in collection.queries("train")]
    return np.asarray(collection.corpus.find([ids[place] for place in pairs.queries.tolist()]), dtype=np.int64)


def round_settings(stage: StageRun) -> Finetune:
    """The settings of the stage's own round."""
    assert stage.recipe.finetune is not None
    return stage.recipe.finetune.of(_round(stage))


def _round(stage: StageRun) -> Round:
    assert stage.recipe.finetune is not None
    return next(own for own in stage.recipe.finetune.rounds if own.name == stage.stage.settings["round"])


def _teacher(stage: StageRun) -> TeacherScores | None:
    name = stage.stage.settings["teacher"]
    if not name:
        return None
    from drkit.runs.finetuning.teacher_scores import read_scores

    return read_scores(stage.inputs[name])


def _pairs(stage: StageRun) -> TrainingPairs:
    collection = open_collection(stage.inputs["collection"])
    name = stage.stage.settings["negatives"]
    negatives = read_negatives(stage.inputs[name]) if name else {}
    positives = collection.positive_places("train")
    pairs = training_pairs([query.query_id for query in collection.queries("train")], positives, negatives)
    if not len(pairs):
        raise DrkitError(
            "no training query has a passage judged relevant (score > 0): there is nothing to fine-tune on"
        )
    return _drawn(pairs, stage)


def _drawn(pairs: TrainingPairs, stage: StageRun) -> TrainingPairs:
    """As many of the queries as the round trains on, another draw of them for every `draw`."""
    wanted = stage.stage.settings["queries"]
    if wanted > len(pairs):
        alike = ", and every draw is the same" if _round(stage).draws > 1 else ""
        stage.progress.note(
            f"{wanted:,} training queries were asked for, and there are {len(pairs):,}: all are used{alike}"
        )
    return pairs.subset(draw_queries(len(pairs), wanted, seed=stage.recipe.seed, draw=stage.stage.settings["draw"]))


def _said(effective: Mapping[str, Any]) -> str:
    return (
        f"{effective['training_queries']:,} training queries, {effective['queries_per_batch']:,} a batch; "
        f"negatives a query: {effective['negatives_per_query']:,} in the batch, "
        f"{effective['hard_negatives_per_query']:g} of them mined for it"
    )


def _effective(collate: PairCollator, settings: Finetune) -> dict[str, Any]:
    """The batch a step really sees: papers' numbers are lower elsewhere because nobody prints this.

    A batch is that of all processes together, whatever chunks it is read in; accumulation adds up gradients of several,
    and no negatives.
    """
    queries = min(settings.per_device_train_batch_size * processes.count(), len(collate.pairs))
    lists = collate.refreshed(0) if collate.refreshed else collate.pairs.negatives
    mined = np.array([min(len(n), collate.negatives) for n in lists])
    hard = float(mined.mean())
    return {
        "training_queries": len(collate.pairs),
        "processes": processes.count(),
        "queries_per_batch": queries,
        "queries_per_step": queries * settings.gradient_accumulation_steps,
        "hard_negatives_per_query": round(hard, 3),
        "negatives_per_query": round(queries * (1 + hard) - 1 if _in_batch(settings) else hard, 1),
    }


def _in_batch(settings: Finetune) -> bool:
    """Whether a query stands against the passages of others."""
    config = settings.loss.config
    return config.in_batch if isinstance(config, InBatchNegatives) else True


def _mean(log: Sequence[Mapping[str, Any]], figure: str) -> float:
    """The mean of a figure over all steps: a line of the log has that of the steps since the line before."""
    steps = np.diff([0, *(line["step"] for line in log)])
    return float(np.average([line[figure] for line in log], weights=steps))
