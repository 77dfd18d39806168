"""Make the values of a column: by a model or a part, or from a file or the training rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core import processes
from drkit.core.files import CHECKPOINTS, digest
from drkit.core.spec import TEACHER, Kind
from drkit.data.column_sources import is_computed, is_scored, source_name
from drkit.data.corpus import StoredCollection, StoredCorpus, collection_of
from drkit.data.values import PASSAGE, QUERY, Value, computed_values
from drkit.runs.making.finetune import judged_pairs
from drkit.runs.making.reranker import loaded_teacher
from drkit.runs.stage import StageRun
from drkit.runs.stages.columns import ColumnSettings, missing_values
from drkit.train.batches import Schedule
from drkit.train.biencoder import draw_queries, drawn_passages, schedule_lengths
from drkit.train.columns import ColumnInfo, StoredColumn, read_column, write_values
from drkit.train.teacher import Agreement, ScoreBlocks, ScoreRequest

# Passages in memory at a time.
_PASSAGES = 4096


def make_column(stage: StageRun[ColumnSettings]) -> Mapping[str, Any]:
    """Write `values.arrow`; returns counts, a model's speed and hash, and the agreement of a teacher's scores."""
    collection, settings = collection_of(stage.inputs), stage.settings
    requests = _requests(stage, collection)
    pairs = sum(len(request.passages) for request in requests)
    done: Mapping[str, Any] = {}
    if is_scored(settings.source):
        done = _score(stage, collection, requests)
    elif processes.rank() == 0:
        info = ColumnInfo(source_name(settings.source), default=settings.default)
        queries = {query.query_id: index for index, query in enumerate(collection.queries("train"))}
        write_values(_values(stage, collection, requests), queries, collection.corpus, stage.folder, info)
        _check_complete(stage, collection, requests)
    agreement = Agreement()
    if settings.column == TEACHER and processes.rank() == 0:
        agreement = _agreement(read_column(stage.folder), requests, collection.positive_indices("train"))
        stage.progress.note(agreement.summary())
    return {"queries": len(requests), "pairs": pairs, **done, **agreement.metrics()}


def _score(
    stage: StageRun[ColumnSettings], collection: StoredCollection, requests: Sequence[ScoreRequest]
) -> Mapping[str, Any]:
    """Write the scores of a cross-encoder: the run's own re-ranker, or another by path or hub id."""
    model = stage.inputs.get("reranker") or _source(stage).model
    loaded = loaded_teacher(model, stage.settings.max_length)
    teacher = loaded.value
    work = ScoreBlocks(
        scorer=loaded,
        teacher=digest(teacher.identity()),
        corpus=collection.corpus,
        blocks=stage.folder / CHECKPOINTS,
        rank=processes.rank(),
        processes=processes.batch_processes(),
    )
    done = work.make(requests, stage.progress, stage.engine)
    processes.barrier()
    if work.rank == 0:
        work.join(requests, stage.folder)
    return {
        "pairs_per_second": round(done["scored"] / max(done["seconds"], 1e-9), 1),
        "max_length": teacher.model.max_length,
        "model": work.teacher,
    }


def _values(
    stage: StageRun[ColumnSettings], collection: StoredCollection, requests: Sequence[ScoreRequest]
) -> Iterator[Value]:
    """Yield the values that a part computes, those in a file, or the scores that come with the training rows."""
    source, chosen = _source(stage), stage.settings.source
    if not is_computed(chosen):
        yield from source.read(stage.settings.column, collection)
        return
    scope = stage.registry.get(Kind.COLUMN, chosen.use).scope_of(chosen.config)
    yield from computed_values(chosen.use, source, scope, _drawn(scope, requests, collection.corpus))


def _source(stage: StageRun[ColumnSettings]) -> Any:
    """Return the part that is, or has, the values of the column."""
    source = stage.resolved(stage.settings.source)
    return stage.registry.build(Kind.COLUMN, source.use, source.config)


def _drawn(scope: str, requests: Sequence[ScoreRequest], corpus: StoredCorpus) -> Iterator[Any]:
    """Yield the queries, the passages, or the pairs of both that a round draws, each once."""
    if scope == QUERY:
        yield from (request.query for request in requests)
    elif scope == PASSAGE:
        drawn = np.unique(np.concatenate([request.passages for request in requests]))
        for some in np.array_split(drawn, range(_PASSAGES, len(drawn), _PASSAGES)):
            yield from corpus.at(some)
    else:
        for request in requests:
            yield from ((request.query, passage) for passage in corpus.at(request.passages))


def _check_complete(
    stage: StageRun[ColumnSettings], collection: StoredCollection, requests: Sequence[ScoreRequest]
) -> None:
    """Raise DrkitError if anything that the training draws has neither a value nor a default."""
    column, source = read_column(stage.folder), stage.settings.source
    lacking = [(request, request.passages[column.lacks(request.index, request.passages)]) for request in requests]
    if count := sum(len(passages) for _, passages in lacking):
        request, passages = next((request, passages) for request, passages in lacking if len(passages))
        (doc_id,) = collection.corpus.ids_at(passages[:1])
        example = f"query {request.query.query_id!r} ({request.query.text!r:.60}) and passage {doc_id!r}"
        total = sum(len(one.passages) for one in requests)
        raise missing_values(stage.settings.column, source, count, total, example)


def _requests(stage: StageRun[ColumnSettings], collection: StoredCollection) -> list[ScoreRequest]:
    """Return the passages of every query whose values are needed: those that any draw of the round reads."""
    settings, queries = stage.settings, list(collection.queries("train"))
    pairs = judged_pairs(stage.inputs, collection, "a teacher")
    drawn: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for draw in range(settings.draws):
        own = pairs.subset(draw_queries(len(pairs), settings.queries, seed=settings.seed, draw=draw))
        batches = Schedule.of(settings.training, schedule_lengths(own), seed=settings.seed, compares=True)
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
    scores: StoredColumn, requests: Sequence[ScoreRequest], positives: Mapping[str, NDArray[np.int64]]
) -> Agreement:
    """Return the agreement of the teacher with the judgements, over all scored queries."""
    agreement = Agreement()
    for request in requests:
        found = scores.row(request.index)
        if found is not None:
            relevant = np.isin(found[0], positives[request.query.query_id])
            agreement.add(found[1][relevant].tolist(), found[1][~relevant].tolist())
    return agreement
