"""Train the re-ranker, and load a cross-encoder that teaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drkit.core import processes
from drkit.core.engine import Loaded
from drkit.core.files import digest
from drkit.core.processes import local_device
from drkit.core.quantities import counted
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.corpus import StoredCollection, collection_of
from drkit.encoders import CrossEncoder
from drkit.encoders.architectures import longest_text
from drkit.encoders.masked_lm import read_config
from drkit.errors import DrkitError
from drkit.miners.chain import read_negatives
from drkit.runs.stage import StageRun
from drkit.runs.stages.reranker import RerankerSettings
from drkit.search import Reranker
from drkit.train.batches import passage_counts, query_counts
from drkit.train.biencoder import (
    TrainingPairs,
    training_pairs,
)
from drkit.train.reranker import GroupCollator, GroupRanker
from drkit.train.trainer import train_in


def train_reranker(stage: StageRun[RerankerSettings]) -> Mapping[str, Any]:
    """Write the cross-encoder; returns steps, loss, and the effective groups."""
    settings = stage.settings
    start = settings.pretrained or str(stage.inputs["start"])
    layers = 0 if settings.pretrained else settings.layers
    encoder = CrossEncoder.start_from(
        start, max_length=_max_pair_length(stage, start), seed=settings.seed, layers=layers
    )
    context = BuildContext(tokenizer=encoder.tokenizer, seed=settings.seed)
    loss = stage.registry.build(Kind.LOSS, settings.loss.use, settings.loss.config, context)
    collection = collection_of(stage.inputs)
    queries = list(collection.queries("train"))
    pairs = _pairs(stage, collection, [query.query_id for query in queries])
    collate = GroupCollator(
        pairs=pairs,
        texts=[queries[index].text for index in pairs.queries],
        corpus=collection.corpus,
        tokens=encoder.pairs,
        negatives=settings.negatives,
        seed=settings.seed,
    )
    counts = query_counts(len(pairs), settings.training, compares=False)
    hard, scored = passage_counts(pairs.negatives, settings.negatives, counts["queries_per_batch"])
    effective = {**counts, "negatives_per_query": round(hard, 3), "pairs_per_batch": round(scored, 1)}
    stage.progress.note(
        f"{counted(len(pairs), 'training query')}, {counts['queries_per_batch']:,} per batch; "
        f"negatives per query: {effective['negatives_per_query']:g}, pairs per batch: {effective['pairs_per_batch']:,g}"
    )
    result = train_in(
        stage.folder,
        GroupRanker(encoder, loss, forward_factor=settings.forward_factor),
        collate,
        training=settings.training,
        lengths=np.ones(len(pairs), dtype=np.int32),  # groups are drawn every epoch, so their lengths are unknown
        seed=settings.seed,
        progress=stage.progress,
    )
    if processes.rank() == 0:
        encoder.save_into(stage.folder)
    return {**result.metrics, **effective}


def _max_pair_length(stage: StageRun[RerankerSettings], start: str) -> int:
    """Return the maximum length of pairs: `max_length`, limited by the positions of the encoder of the rounds."""
    max_length = stage.settings.max_length
    if stage.settings.pretrained:
        return max_length
    positions = longest_text(read_config(start, trust_remote_code=False))
    if max_length > positions:
        stage.progress.note(
            f"the re-ranker reads {positions} tokens per pair, because its encoder has {positions} positions"
        )
    return min(max_length, positions)


def _pairs(stage: StageRun[RerankerSettings], collection: StoredCollection, query_ids: Sequence[str]) -> TrainingPairs:
    """Return the judged queries with at least one negative; a listwise loss learns nothing from a positive alone."""
    negatives = read_negatives(stage.inputs["negatives"])
    positives, relevant = collection.positive_indices("train"), collection.indices_by_text("train")
    # A judged positive is never a negative, even if a source returns it as one.
    mined = {query: found[~np.isin(found, relevant.get(query, ()))] for query, found in negatives.items()}
    pairs = training_pairs(query_ids, positives, mined, relevant)
    kept = np.flatnonzero([len(found) > 0 for found in pairs.negatives])
    if not len(kept):
        raise DrkitError(
            "no training query has both a passage judged relevant and a mined negative, but the re-ranker needs both; "
            "relax the filters in reranker.miners, or use another source"
        )
    if len(kept) < len(pairs):
        stage.progress.note(
            f"{counted(len(pairs) - len(kept), 'query')} without a negative: not used to train the re-ranker"
        )
    return pairs.subset(kept)


def load_teacher(model: str | Path, max_length: int | None) -> Reranker:
    """Load a cross-encoder by path or hub id onto the device of this process; max_length: see `TeacherSettings`."""
    teacher = Reranker.load(model, local_device())
    if max_length and max_length < teacher.model.max_length:
        teacher.model.cut_at(max_length)
    return teacher


def loaded_teacher(model: str | Path, max_length: int | None = None) -> Loaded[Reranker]:
    """Return a cross-encoder, loaded here, for the tasks of an engine, which load it once each; see `load_teacher`."""
    loaded = Loaded(load_teacher, model, max_length)
    return loaded.checked(check_teacher, digest(loaded.value.identity()))


def check_teacher(teacher: Reranker, identity: str) -> Reranker:
    """Return the teacher that a worker has loaded. Raises DrkitError if its identity has another hash."""
    if digest(teacher.identity()) != identity:
        raise DrkitError(
            "a worker loaded another teacher than the one in the first process; mount the same file system on all "
            "machines"
        )
    return teacher
