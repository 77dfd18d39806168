"""Make the values of a column: by a model or a part, or from a file or the training rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core import processes
from drkit.core.engine import Loaded
from drkit.core.files import CHECKPOINTS, digest
from drkit.core.loading import find_encoder_folder, load_sentence_transformer
from drkit.core.processes import Shard, local_device
from drkit.core.spec import TEACHER, Kind
from drkit.data.column_sources import (
    DROP_UNKNOWN,
    REFUSE_UNKNOWN,
    VectorsConfig,
    drops_unknown,
    is_computed,
    is_scored,
    source_name,
)
from drkit.data.corpus import QueryIds, StoredCollection, StoredCorpus, collection_of, read_labelled_queries
from drkit.data.values import PASSAGE, QUERY, Value, computed_values, computed_vectors
from drkit.encoders.declarations import MODULES, UnsupportedEncoderError, check_model_type, model_type
from drkit.runs.making.batches import part_batches
from drkit.runs.making.finetune import judged_pairs, known_pairs
from drkit.runs.making.reranker import loaded_teacher
from drkit.runs.stage import StageRun
from drkit.runs.stages.columns import ColumnSettings, holds_vectors, missing_values
from drkit.runs.stages.texts import ENCODED_FOLDER, EncodedSettings
from drkit.search import Storage, Vectors, encode_corpus
from drkit.search.dual_encoder import read_encoder
from drkit.search.encode import stored_texts
from drkit.search.sentence_encoder import SentenceTransformerEncoder
from drkit.search.vector_files import BY_TEXT, VectorSource, open_vectors
from drkit.train.batches import Example, Schedule
from drkit.train.biencoder import TrainingPairs, draw_queries, drawn_passages, schedule_lengths
from drkit.train.columns import ColumnInfo, StoredColumn, read_column, write_values
from drkit.train.teacher import Agreement, ScoreBlocks, ScoreRequest
from drkit.train.vector_columns import (
    ComputedVectors,
    VectorInfo,
    finder_of_ids,
    finder_of_texts,
    numbers_of,
    write_vector_column,
)

# Passages in memory at a time.
_PASSAGES = 4096


def make_column(stage: StageRun[ColumnSettings]) -> Mapping[str, Any]:
    """Write `values.arrow`; returns counts, a model's speed and hash, and the agreement of a teacher's scores."""
    collection, settings = collection_of(stage.inputs), stage.settings
    pairs_known = known_pairs(stage.inputs, judged_pairs(stage.inputs, collection, "a column"), stage.progress)
    requests = _requests(stage, collection, pairs_known)
    pairs = sum(len(request.passages) for request in requests)
    done: Mapping[str, Any] = {}
    if is_scored(settings.source):
        done = _score(stage, collection, requests)
    elif processes.rank() == 0:
        if holds_vectors(settings.source, stage.registry):
            done = _write_vectors(stage, collection, pairs_known)
        else:
            unknown = DROP_UNKNOWN if drops_unknown(settings.source) else REFUSE_UNKNOWN
            info = ColumnInfo(source_name(settings.source), default=settings.default, unknown=unknown)
            queries = {query.query_id: index for index, query in enumerate(collection.queries("train"))}
            write_values(_values(stage, collection, requests), queries, collection.corpus, stage.folder, info)
        if not drops_unknown(settings.source):
            _check_complete(stage, collection, requests)
    agreement = Agreement()
    if settings.column == TEACHER and processes.rank() == 0:
        scores = read_column(stage.folder)
        if isinstance(scores, StoredColumn):
            agreement = _agreement(scores, requests, collection.positive_indices("train"))
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


def _write_vectors(
    stage: StageRun[ColumnSettings], collection: StoredCollection, pairs: TrainingPairs
) -> Mapping[str, Any]:
    """Write the vectors of all queries, or of all passages that the round may draw; returns their numbers."""
    chosen, corpus = stage.settings.source, collection.corpus
    per = stage.registry.get(Kind.COLUMN, chosen.use).scope_of(chosen.config)
    ids = [query.query_id for query in collection.queries("train")]
    items, total = pairs.queries, len(ids)
    if per == PASSAGE:
        listed = [*pairs.positives, *pairs.negatives]
        items = np.arange(len(corpus)) if stage.settings.refreshed else np.unique(np.concatenate(listed))
        total = len(corpus)
    source: VectorSource
    finder = finder_of_ids(corpus.find if per == PASSAGE else QueryIds(ids).find)
    if is_computed(chosen):
        source = ComputedVectors(chosen.use, _numbered(stage, collection, per, items))
        finder = finder_of_ids(numbers_of)
    else:
        config = stage.resolved(chosen).config
        by, path = (config.by, config.path) if isinstance(config, VectorsConfig) else ("", stage.inputs["vectors"])
        source = open_vectors(path, of=per, by=by)
    if source.by == BY_TEXT:
        queries = collection.queries("train")
        finder = finder_of_texts((p.content for p in corpus) if per == PASSAGE else (q.text for q in queries))
    unknown = DROP_UNKNOWN if drops_unknown(chosen) else REFUSE_UNKNOWN
    info = VectorInfo(source_name(chosen), per, unknown)
    found = write_vector_column(source, finder, items, stage.folder, info, total=total)
    if found["unread"]:
        what = "passages" if per == PASSAGE else "training queries"
        stage.progress.note(f"{found['unread']:,} vectors of {info.source} are not of {what} that the round may draw")
    return {**found, "dimension": source.dimension}


def _numbered(
    stage: StageRun[ColumnSettings], collection: StoredCollection, per: str, items: NDArray[np.int64]
) -> Iterator[tuple[int, Any]]:
    """Yield the index and the vector of each query or passage that a part computes."""
    queries = list(collection.queries("train")) if per == QUERY else []

    def read() -> Iterator[Any]:
        for some in np.array_split(items, range(_PASSAGES, len(items), _PASSAGES)):
            yield from (queries[index] for index in some.tolist()) if per == QUERY else collection.corpus.at(some)

    numbers = {}
    for index in items.tolist() if per == QUERY else ():
        numbers[queries[index].query_id] = index
    for item, vector in computed_vectors(stage.settings.source.use, _source(stage), per, read()):
        index = numbers[item.query_id] if per == QUERY else int(collection.corpus.find([item.doc_id])[0])
        yield index, vector


def encode_for_columns(stage: StageRun[EncodedSettings]) -> Mapping[str, Any]:
    """Write the vectors of all passages or training queries by an encoder; returns their number and its speed.

    All processes, or the machines of the engine, encode shards, so that an interrupted stage can resume.
    """
    settings, joint = stage.settings, processes.process_count() > 1
    encoder = Loaded(load_teacher_encoder, settings.encoder)
    texts: Iterator[tuple[str, Any]]
    if settings.of == PASSAGE:
        corpus = StoredCorpus(stage.inputs["passages"])
        texts, total = stored_texts(corpus, None, encoder), len(corpus)
    else:
        queries = list(read_labelled_queries(stage.inputs["texts"]))
        texts, total = ((query.query_id, query.text) for query in queries), len(queries)
    made = encode_corpus(
        encoder,
        texts,
        stage.folder / ENCODED_FOLDER,
        storage=Storage(role="passages" if settings.of == PASSAGE else "queries"),
        shard=Shard.from_environment() if joint else Shard(),
        engine=stage.engine,
        on_progress=lambda done: stage.progress.advance(done, total, "texts"),
    )
    if joint:
        processes.barrier()
        if processes.rank():
            return {}
        made = Vectors.open(stage.folder / ENCODED_FOLDER)
    assert made is not None
    return {"vectors": len(made), "dimension": made.dimension, "encoder": digest(made.encoder)}


def load_teacher_encoder(path_or_id: str) -> Any:
    """Load an encoder by path or hub id, with the prompts and lengths that its folder declares.

    A folder with modules that drkit does not compute itself is opened by sentence-transformers, if that is installed.
    """
    folder, device = find_encoder_folder(path_or_id), local_device()
    if (folder / "encoder" / MODULES).is_file():  # a run
        folder = folder / "encoder"
    try:
        return read_encoder(folder, device).evolve(passages_per_document=None)
    except UnsupportedEncoderError:
        return SentenceTransformerEncoder(
            load_sentence_transformer(folder, device, model_type(check_model_type(folder)))
        )


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


def _requests(
    stage: StageRun[ColumnSettings], collection: StoredCollection, pairs: TrainingPairs
) -> list[ScoreRequest]:
    """Return the passages of every query whose values are needed: those that any draw of the round reads."""
    settings, queries = stage.settings, list(collection.queries("train"))
    drawn: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for draw in range(settings.draws):
        own = pairs.subset(draw_queries(len(pairs), settings.queries, seed=settings.seed, draw=draw))
        batches = _batches(stage, collection, own)
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


def _batches(
    stage: StageRun[ColumnSettings], collection: StoredCollection, pairs: TrainingPairs
) -> Iterable[Sequence[Example]]:
    """Return the batches that the training reads, or all that it may read."""
    settings, lengths, source = stage.settings, schedule_lengths(pairs), None
    if settings.batches is not None:
        source = part_batches(settings.batches, stage.registry, pairs, collection, stage.inputs, seed=settings.seed)
    schedule = Schedule.of(settings.training, lengths, seed=settings.seed, compares=True, source=source)
    return schedule.all_examples() if settings.batches is None else schedule


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
