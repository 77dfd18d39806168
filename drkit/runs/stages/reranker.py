"""Stage: train the cross-encoder that ranks anew and teaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from drkit.core.recipe import Reranker
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.tables import StoredCollection, open_collection
from drkit.encoders import CrossEncoder
from drkit.encoders.architectures import longest_text
from drkit.encoders.masked_lm import read_config
from drkit.errors import DrkitError
from drkit.runs import processes
from drkit.runs.finetuning.negatives import read_negatives
from drkit.runs.finetuning.pairs import TrainingPairs, training_pairs
from drkit.runs.finetuning.reranker import GroupCollator, GroupRanker
from drkit.runs.stage import StageRun
from drkit.runs.training.training import train_stage


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the cross-encoder; returns steps, losses, and the groups that it really had."""
    settings = stage.recipe.reranker
    assert settings is not None
    start = settings.pretrained or str(stage.inputs[stage.stage.settings["start"]])
    longest = _longest(stage, settings, start)
    layers = 0 if settings.pretrained else settings.layers
    encoder = CrossEncoder.start_from(start, max_length=longest, seed=stage.recipe.seed, layers=layers)
    context = BuildContext(tokenizer=encoder.tokenizer, seed=stage.recipe.seed)
    loss = stage.registry.build(Kind.LOSS, settings.loss.use, settings.loss.config, context)
    collection = open_collection(stage.inputs["collection"])
    queries = list(collection.queries("train"))
    pairs = _pairs(stage, collection, [query.query_id for query in queries])
    collate = GroupCollator(
        pairs=pairs,
        texts=[queries[place].text for place in pairs.queries],
        corpus=collection.corpus,
        tokens=encoder.pairs,
        negatives=settings.negatives,
        seed=stage.recipe.seed,
    )
    # Groups are drawn anew every epoch, so none is longer than another beforehand.
    lengths = np.ones(len(pairs), dtype=np.int32)
    ranker = GroupRanker(encoder, loss, forward_factor=settings.forward_factor)
    effective = _effective(pairs, settings)
    stage.progress.note(_said(effective))
    result = train_stage(stage, ranker, collate, training=settings, lengths=lengths)
    if processes.rank() == 0:
        encoder.save_into(stage.folder)
    return {"steps": result.steps, "loss": result.loss, "seconds": result.seconds, **effective}


def _longest(stage: StageRun, settings: Reranker, start: str) -> int:
    """Tokens a pair at most: where no encoder was asked for, no more than the rounds' own has positions for."""
    if settings.pretrained:
        return settings.max_length
    positions = longest_text(read_config(start, trust_remote_code=False))
    if settings.max_length > positions:
        stage.progress.note(f"the re-ranker reads {positions} tokens a pair, as many as the encoder has positions for")
    return min(settings.max_length, positions)


def _pairs(stage: StageRun, collection: StoredCollection, query_ids: list[str]) -> TrainingPairs:
    """The judged queries that have at least one negative: a positive alone teaches a listwise loss nothing."""
    negatives = read_negatives(stage.inputs[stage.stage.settings["negatives"]])
    positives = collection.positive_places("train")
    # Wherever the list comes from: what answers a query is no negative of it.
    mined = {query: own[~np.isin(own, positives.get(query, ()))] for query, own in negatives.items()}
    pairs = training_pairs(query_ids, positives, mined)
    kept = np.flatnonzero([len(own) > 0 for own in pairs.negatives])
    if not len(kept):
        raise DrkitError(
            "no training query has both a passage judged relevant and a mined negative: there is nothing to train the "
            "re-ranker on; loosen the filters behind reranker.miners, or take another source"
        )
    if len(kept) < len(pairs):
        stage.progress.note(
            f"{len(pairs) - len(kept):,} queries have no negative: the re-ranker is trained without them"
        )
    return pairs.subset(kept)


def _said(effective: Mapping[str, Any]) -> str:
    return (
        f"{effective['training_queries']:,} training queries, {effective['queries_per_batch']:,} a batch; "
        f"negatives a query: {effective['negatives_per_query']:g}, pairs a batch: {effective['pairs_per_batch']:,g}"
    )


def _effective(pairs: TrainingPairs, settings: Reranker) -> dict[str, Any]:
    """The batch a step really sees."""
    queries = min(settings.per_device_train_batch_size * processes.count(), len(pairs))
    hard = float(np.mean([min(len(own), settings.negatives) for own in pairs.negatives]))
    return {
        "training_queries": len(pairs),
        "processes": processes.count(),
        "queries_per_batch": queries,
        "queries_per_step": queries * settings.gradient_accumulation_steps,
        "negatives_per_query": round(hard, 3),
        "pairs_per_batch": round(queries * (1 + hard), 1),
    }
