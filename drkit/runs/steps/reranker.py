"""Train the re-ranker, and score pairs with a teacher."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core import processes
from drkit.core.engine import Loaded
from drkit.core.files import CHECKPOINTS, digest
from drkit.core.processes import local_device
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.corpus import StoredCollection, collection_of
from drkit.encoders import CrossEncoder
from drkit.encoders.architectures import longest_text
from drkit.encoders.masked_lm import read_config
from drkit.errors import DrkitError
from drkit.miners.chain import read_negatives
from drkit.recipe.schema import GIVEN
from drkit.runs.stage import StageRun
from drkit.runs.stages.reranker import RerankerSettings, TeacherSettings
from drkit.runs.steps.finetune import judged_pairs
from drkit.search import Reranker
from drkit.train.batches import Schedule
from drkit.train.biencoder import (
    TrainingPairs,
    draw_queries,
    drawn_passages,
    passage_counts,
    query_counts,
    schedule_lengths,
    training_pairs,
)
from drkit.train.reranker import GroupCollator, GroupRanker
from drkit.train.teacher import Agreement, ScoreBlocks, ScoreRequest, StoredScores, read_scores, write_given
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
    counts = query_counts(len(pairs), settings.training)
    hard, scored = passage_counts(pairs.negatives, settings.negatives, counts["queries_per_batch"])
    effective = {**counts, "negatives_per_query": round(hard, 3), "pairs_per_batch": round(scored, 1)}
    stage.progress.note(
        f"{len(pairs):,} training queries, {counts['queries_per_batch']:,} per batch; "
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
    positives = collection.positive_indices("train")
    # A judged positive is never a negative, even if a source returns it as one.
    mined = {query: found[~np.isin(found, positives.get(query, ()))] for query, found in negatives.items()}
    pairs = training_pairs(query_ids, positives, mined)
    kept = np.flatnonzero([len(found) > 0 for found in pairs.negatives])
    if not len(kept):
        raise DrkitError(
            "no training query has both a passage judged relevant and a mined negative, but the re-ranker needs both; "
            "relax the filters in reranker.miners, or use another source"
        )
    if len(kept) < len(pairs):
        stage.progress.note(
            f"{len(pairs) - len(kept):,} queries without a negative are not used to train the re-ranker"
        )
    return pairs.subset(kept)


def score_pairs(stage: StageRun[TeacherSettings]) -> Mapping[str, Any]:
    """Write `scores.arrow`; returns counts, speed, the hash of the teacher's identity, and the agreement."""
    collection = collection_of(stage.inputs)
    if stage.settings.model == GIVEN:
        return _given_scores(stage, collection)
    # The run's own re-ranker, or another by path or hub id.
    model = stage.inputs.get("reranker", stage.settings.model)
    loaded = loaded_teacher(model, stage.settings.max_length)
    teacher = loaded.value
    requests = _requests(stage, collection)
    work = ScoreBlocks(
        scorer=loaded,
        teacher=digest(teacher.identity()),
        corpus=collection.corpus,
        blocks=stage.folder / CHECKPOINTS,
        rank=processes.rank(),
        processes=processes.count(),
    )
    done = work.make(requests, stage.progress, stage.engine)
    processes.barrier()
    agreement = Agreement()
    if work.rank == 0:
        work.join(requests, stage.folder)
        agreement = _agreement(read_scores(stage.folder), requests, collection.positive_indices("train"))
        stage.progress.note(agreement.summary())
    return {
        "queries": len(requests),
        "pairs": sum(len(request.passages) for request in requests),
        "pairs_per_second": round(done["scored"] / max(done["seconds"], 1e-9), 1),
        "max_length": teacher.model.max_length,
        "model": work.teacher,
        **agreement.metrics(),
    }


def _given_scores(stage: StageRun[TeacherSettings], collection: StoredCollection) -> Mapping[str, Any]:
    """Write the scores that come with the training rows. Raises DrkitError if a pair that the round draws has none."""
    requests, agreement = _requests(stage, collection), Agreement()
    if processes.rank() == 0:
        write_given(requests, collection.teacher_scores("train"), collection.corpus, stage.folder)
        agreement = _agreement(read_scores(stage.folder), requests, collection.positive_indices("train"))
        stage.progress.note(agreement.summary())
    pairs = sum(len(request.passages) for request in requests)
    return {"queries": len(requests), "pairs": pairs, **agreement.metrics()}


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


def _requests(stage: StageRun[TeacherSettings], collection: StoredCollection) -> list[ScoreRequest]:
    """Return the passages to score for every query: those that any draw of the round reads."""
    settings, queries = stage.settings, list(collection.queries("train"))
    pairs = judged_pairs(stage.inputs, collection, "a teacher")
    drawn: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for draw in range(settings.draws):
        own = pairs.subset(draw_queries(len(pairs), settings.queries, seed=settings.seed, draw=draw))
        batches = Schedule.of(settings.training, schedule_lengths(own), seed=settings.seed, processes=processes.count())
        passages = drawn_passages(own, batches, negatives=settings.negatives, seed=settings.seed)
        for query, found in zip(own.queries.tolist(), passages, strict=True):
            drawn[query].append(found)
    requests = [ScoreRequest(query, queries[query], np.unique(np.concatenate(drawn[query]))) for query in sorted(drawn)]
    candidates = sum(map(len, [*pairs.positives, *pairs.negatives]))
    stage.progress.note(
        f"{sum(len(one.passages) for one in requests):,} pairs to score, those that the training draws from "
        f"{candidates:,} positives and mined negatives"
    )
    return [request for request in requests if len(request.passages)]


def _agreement(
    scores: StoredScores, requests: list[ScoreRequest], positives: Mapping[str, NDArray[np.int64]]
) -> Agreement:
    """Return the agreement of the teacher with the judgements, over all scored queries."""
    agreement = Agreement()
    for request in requests:
        found = scores.row(request.index)
        if found is not None:
            relevant = np.isin(found[0], positives[request.query.query_id])
            agreement.add(found[1][relevant].tolist(), found[1][~relevant].tolist())
    return agreement
