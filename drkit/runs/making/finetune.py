"""Fine-tune one retriever, with its negatives mined again and validated where the recipe asks for it.

Hard negatives enter in `judged_pairs`; `drkit/train/biencoder.py` says what becomes of them, and what a step costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from drkit.batching.specs import RANDOM
from drkit.core import processes
from drkit.core.files import CHECKPOINTS
from drkit.core.processes import local_device
from drkit.core.progress import Progress
from drkit.core.protocols import RefreshesBatches
from drkit.core.quantities import counted
from drkit.core.spec import QUERY_VECTORS, Kind
from drkit.core.types import BuildContext
from drkit.data.corpus import QueryIds, StoredCollection, collection_of
from drkit.data.data_set_names import data_set_of
from drkit.data.folds import assign_folds
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.miners.chain import mining_requests, read_negatives
from drkit.miners.specs import refresh_settings
from drkit.runs.making.batches import part_batches
from drkit.runs.making.retriever import encoders_of
from drkit.runs.stage import StageRun
from drkit.runs.stages.finetune import FinetuneSettings
from drkit.search import Reranker
from drkit.train.batches import EpochBatches, Schedule, StepSize, batches_per_epoch, describe_batch, drawn
from drkit.train.biencoder import (
    BiEncoder,
    PairCollator,
    TrainingPairs,
    draw_queries,
    drawn_passages,
    effective_batch,
    schedule_lengths,
    training_pairs,
    uses_in_batch_negatives,
)
from drkit.train.callbacks import KeepCheckpoints
from drkit.train.checkpoints import load_encoder, load_encoder_with, load_tokenizer, passage_folder, save_encoders
from drkit.train.columns import AnyColumn, read_column
from drkit.train.logs import mean_metric
from drkit.train.refresh import BatchRefresher, ChainMiner, Refresher
from drkit.train.trainer import train_in
from drkit.train.validation import DevQueries, ValidationCallback, validation_task
from drkit.train.vector_columns import StoredVectors


def finetune(stage: StageRun[FinetuneSettings]) -> Mapping[str, Any]:
    """Write the retriever's checkpoint; returns steps, loss, and the effective batch and negatives."""
    settings = stage.settings
    tokenizer, collection = load_tokenizer(str(stage.inputs["start"])), collection_of(stage.inputs)
    collate = _collator(stage, collection)
    module = _bi_encoder(stage, tokenizer, collection, collate.columns)
    refresher = _refresher(stage, module, tokenizer, collate, collection)
    collate = evolve(collate, refreshed=refresher)
    source = _batches(stage, module, tokenizer, collate, collection)
    validations = _validations(stage, module, tokenizer, collate, collection)
    again = [source] if isinstance(source, BatchRefresher) else []
    if collate.columns:
        _check_columns(stage, collate, source)
    if not refresher:
        stage.progress.note(describe_batch(effective_batch(collate, settings.training, settings.loss)))
    folders = {step: stage.folder / f"{stage.name}@{step}" for step in settings.keep_steps or ()}
    keeping = KeepCheckpoints(folders, partial(save_encoders, module, tokenizer), "finetune.keep_steps")
    result = train_in(
        stage.folder,
        module,
        collate,
        training=settings.training,
        lengths=schedule_lengths(collate.pairs),
        seed=settings.seed,
        rates=_rates(stage, collection, collate.pairs),
        progress=stage.progress,
        callbacks=[*([refresher] if refresher else []), *again, *validations, keeping],
        source=source,
    )
    save_encoders(module, tokenizer, stage.folder)
    effective = effective_batch(collate, settings.training, settings.loss)
    metrics = {**result.metrics, **effective}
    if uses_in_batch_negatives(settings.loss):
        counted = metrics["negatives_counted"] = round(mean_metric(result.log, "negatives"), 1)
        stage.progress.note(f"negatives per query, without copies and judged positives: {counted:,}")
    if refresher:  # the mined negatives are known only now
        stage.progress.note(describe_batch(effective))
        metrics["refreshed"] = refresher.metrics()
    return {**metrics, **{key: value for callback in validations for key, value in callback.result().items()}}


def _bi_encoder(
    stage: StageRun[FinetuneSettings], tokenizer: Any, collection: StoredCollection, columns: Mapping[str, AnyColumn]
) -> BiEncoder:
    settings, start = stage.settings, stage.inputs["start"]

    def load(folder: Path) -> MaskedLmEncoder:
        if settings.pooling is None:
            return load_encoder(folder, pooling=settings.reading.pooling)
        how = {"tokenizer": tokenizer, "seed": settings.seed, "registry": stage.registry}
        return load_encoder_with(folder, settings.pooling, **how)

    encoder = load(start)
    vectors = {name: one.dimension for name, one in columns.items() if isinstance(one, StoredVectors)}
    context = BuildContext(
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        registry=stage.registry,
        vector_sizes={**encoder.vector_sizes, "bottleneck": encoder.dimension, **vectors},
        ids={
            "query": QueryIds([query.query_id for query in collection.queries("train")]),
            "passage": collection.corpus,
        },
        seed=settings.seed,
    )
    loss = stage.registry.build(Kind.LOSS, settings.loss.use, settings.loss.config, context)
    separate = settings.encoders == "separate"
    passages = load(passage_folder(start)) if separate else None
    return BiEncoder(encoder, loss, passage_encoder=passages)


def _collator(stage: StageRun[FinetuneSettings], collection: StoredCollection) -> PairCollator:
    settings, inputs, pairs, own = stage.settings, stage.inputs, _pairs(stage, collection), None
    if settings.exclude_self:
        ids = [query.query_id for query in collection.queries("train")]
        own = collection.corpus.find([ids[index] for index in pairs.queries.tolist()])
    return PairCollator(
        pairs=pairs,
        queries=TokenStore.open(inputs["query-tokens"]),
        passages=TokenStore.open(inputs["tokens"]),
        negatives=settings.negatives,
        seed=settings.seed,
        columns=_columns_in(inputs),
        passage_length=settings.longest,
        self_passages=own,
    )


def _rates(
    stage: StageRun[FinetuneSettings], collection: StoredCollection, pairs: TrainingPairs
) -> NDArray[np.float64] | None:
    """Return how often an epoch draws each query, f64[n], at most once; None: all of them once."""
    weights = stage.settings.weights
    if not weights or stage.settings.batches != RANDOM:
        return None
    ids = [query.query_id for query in collection.queries("train")]
    found = np.array([weights[data_set_of(ids[index])] for index in pairs.queries.tolist()], dtype=np.float64)
    return np.asarray(found / found.max())


def _batches(
    stage: StageRun[FinetuneSettings],
    module: BiEncoder,
    tokenizer: Any,
    collate: PairCollator,
    collection: StoredCollection,
) -> EpochBatches | None:
    """Return what composes the batches; None if they are random."""
    settings, pairs = stage.settings, collate.pairs
    batches = part_batches(settings.batches, stage.registry, pairs, collection, stage.inputs, seed=settings.seed)
    spec, config = stage.registry.get(Kind.BATCHES, settings.batches.use), settings.batches.config
    if batches is None or QUERY_VECTORS not in spec.receives_of(config):
        return batches
    schedule = Schedule.of(settings.training, schedule_lengths(pairs), seed=settings.seed, compares=True)
    texts = [query.text for query in collection.queries("train")]
    return BatchRefresher(
        batches,
        module,
        encoders_of(module, tokenizer, settings.reading),
        folder=stage.folder / CHECKPOINTS,
        texts=[texts[index] for index in pairs.queries.tolist()],
        every=config.refresh_every if isinstance(config, RefreshesBatches) else 1,
        size=min(schedule.batch_size, len(pairs)),
        per_epoch=batches_per_epoch(len(pairs), schedule.batch_size),
    )


def _check_columns(stage: StageRun[FinetuneSettings], collate: PairCollator, source: EpochBatches | None) -> None:
    """Raise DrkitError if a column lacks a value that this training draws."""
    settings, pairs = stage.settings, collate.pairs
    shared = processes.batch_processes()
    rates = _rates(stage, collection_of(stage.inputs), pairs)
    schedule = Schedule.of(
        settings.training, schedule_lengths(pairs), seed=settings.seed, compares=True, source=source, rates=rates
    )
    batches = schedule.all_examples() if isinstance(source, BatchRefresher) else schedule
    drawn = drawn_passages(pairs, batches, negatives=collate.negatives, seed=collate.seed)
    for name, column in collate.columns.items():
        missing = sum(
            int(column.lacks(query, passages).sum())
            for query, passages in zip(pairs.queries.tolist(), drawn, strict=True)
        )
        if missing:
            raise DrkitError(
                f"{missing:,} of the {sum(map(len, drawn)):,} pairs that {stage.name} draws have no value in the "
                f"column {name!r}: it was made for batches of another number of processes. Run it with as many "
                f"processes as before ({shared} now), or remove {stage.inputs[f'column/{name}']} and run it "
                f"again."
            )


def _pairs(stage: StageRun[FinetuneSettings], collection: StoredCollection) -> TrainingPairs:
    """Return the training pairs of the round's queries; every `draw` has other queries."""
    settings = stage.settings
    pairs = known_pairs(stage.inputs, judged_pairs(stage.inputs, collection, "fine-tuning"), stage.progress)
    if settings.folds is not None:
        queries = list(collection.queries("train"))
        fold = assign_folds(queries, settings.folds)
        seen = [row for row, query in enumerate(pairs.queries) if fold[queries[query].query_id] != settings.fold]
        pairs = pairs.subset(np.array(seen, dtype=np.int64))
    if settings.queries > len(pairs):
        same = ", and every draw is the same" if settings.draws > 1 else ""
        stage.progress.note(
            f"using all {counted(len(pairs), 'training query')}, fewer than the {settings.queries:,} requested{same}"
        )
    return pairs.subset(draw_queries(len(pairs), settings.queries, seed=settings.seed, draw=settings.draw))


def judged_pairs(inputs: Mapping[str, Path], collection: StoredCollection, learner: str) -> TrainingPairs:
    """Return the training queries that have a positive, with their mined negatives if these are an input.

    Raises DrkitError if no query has a positive; learner: what needs one.
    """
    mined = read_negatives(inputs["negatives"]) if "negatives" in inputs else {}
    query_ids = [query.query_id for query in collection.queries("train")]
    relevant = collection.indices_by_text("train")
    pairs = training_pairs(query_ids, collection.positive_indices("train"), mined, relevant)
    if not len(pairs):
        raise DrkitError(
            f"no training query has a passage judged relevant (score > 0), but {learner} needs at least one"
        )
    return pairs


def _columns_in(inputs: Mapping[str, Path]) -> dict[str, AnyColumn]:
    """Open the columns among a stage's inputs, by name."""
    return {name.partition("/")[2]: read_column(path) for name, path in inputs.items() if "column/" in name}


def known_pairs(inputs: Mapping[str, Path], pairs: TrainingPairs, progress: Progress) -> TrainingPairs:
    """Return the pairs without those that a column drops (`unknown = "drop"`), and report their number.

    inputs: those of a stage, with columns as `column/NAME`. Raises DrkitError if no query is left.
    """
    for name, column in sorted(_columns_in(inputs).items()):
        if not column.drops_unknown:
            continue
        kept = pairs.known_to(column)
        queries, passages = len(pairs) - len(kept), _count_passages(pairs) - _count_passages(kept)
        if not len(kept):
            raise DrkitError(f"the column {name!r} has no value for any training query and its positives")
        if passages:
            progress.note(
                f"left out, without a value of {name}: {counted(queries, 'training query')}, "
                f"{counted(passages, 'pair')} of query and passage in all"
            )
        pairs = kept
    return pairs


def _count_passages(pairs: TrainingPairs) -> int:
    return sum(map(len, chain(pairs.positives, pairs.negatives)))


def _refresher(
    stage: StageRun[FinetuneSettings],
    module: BiEncoder,
    tokenizer: Any,
    collate: PairCollator,
    collection: StoredCollection,
) -> Refresher | None:
    """Return the callback that mines again during training; None unless the miners begin with `refresh`."""
    settings = stage.settings
    refresh = refresh_settings(settings.miners)
    if refresh is None or not collate.negatives:
        return None
    queries = list(collection.queries("train"))
    ids = [queries[index].query_id for index in collate.pairs.queries]
    by_id = {request.query_id: request for request in mining_requests(collection, exclude_self=settings.exclude_self)}
    reranker = stage.inputs.get("reranker")
    miner = ChainMiner(
        encoder=encoders_of(module, tokenizer, settings.reading),
        passages=collate.passages,
        corpus=collection.corpus,
        requests=[by_id[query_id] for query_id in ids],
        choices=settings.miners,
        registry=stage.registry,
        scratch=stage.folder / CHECKPOINTS,
        data_sets=settings.data_sets,
        context=BuildContext(
            reranker=Reranker.load(reranker, local_device()) if reranker else None, seed=settings.seed
        ),
    )
    rates = _rates(stage, collection, collate.pairs)
    return Refresher(
        miner,
        collection.corpus,
        folder=stage.folder / CHECKPOINTS,
        query_ids=ids,
        initial=collate.pairs.negatives if any(map(len, collate.pairs.negatives)) else None,
        every=refresh.refresh_every,
        per_epoch=batches_per_epoch(
            len(ids) if rates is None else int(drawn(rates).sum()),
            StepSize.of(settings.training, compares=True).batch,
        ),
    )


def _validations(
    stage: StageRun[FinetuneSettings],
    module: BiEncoder,
    tokenizer: Any,
    collate: PairCollator,
    collection: StoredCollection,
) -> list[ValidationCallback]:
    """Return the callback that validates during training, in a list that is empty if validation is off."""
    settings, validation = stage.settings, stage.settings.validation
    if validation is None:
        return []
    task = validation_task(collection, validation, seed=settings.seed, exclude_self=settings.exclude_self)
    encoder = encoders_of(module, tokenizer, settings.reading)
    queries = DevQueries(module, encoder, task, collate.passages, validation.measure)
    return [ValidationCallback(module, queries, validation, folder=stage.folder, progress=stage.progress)]
