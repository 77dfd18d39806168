"""Stages of the re-ranker: train it, and let it (or another cross-encoder) teach.

`reranker` trains a cross-encoder that re-ranks and teaches; `teacher-scores` scores the positives and mined negatives
that a round draws for its queries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.files import LOG, TRAINING, digest
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.recipe.schema import GIVEN, Choice, Training
from drkit.runs.stage import Stage, StageRun, StageSpec, from_recipe
from drkit.runs.stages.finetune import judged_pairs
from drkit.runs.work import BERT_BASE, ModelSize, Sizes, Work, count_examples, reading_work, stored_size, training_work

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from drkit.core.engine import Loaded
    from drkit.data.corpus import StoredCollection
    from drkit.search import Reranker
    from drkit.train.biencoder import TrainingPairs
    from drkit.train.teacher import Agreement, ScoreRequest, StoredScores


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


def train_reranker(stage: StageRun[RerankerSettings]) -> Mapping[str, Any]:
    """Write the cross-encoder; returns steps, loss, and the effective groups."""
    import numpy as np

    from drkit.core import processes
    from drkit.core.types import BuildContext
    from drkit.data.corpus import collection_of
    from drkit.encoders import CrossEncoder
    from drkit.train.biencoder import passage_counts, query_counts
    from drkit.train.reranker import GroupCollator, GroupRanker
    from drkit.train.trainer import train_in

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
    from drkit.encoders.architectures import longest_text
    from drkit.encoders.masked_lm import read_config

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
    import numpy as np

    from drkit.miners.chain import read_negatives
    from drkit.train.biencoder import training_pairs

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


def _reranker_work(stage: Stage[RerankerSettings], sizes: Sizes) -> Work:
    settings = stage.settings
    passages, model = 1 + settings.negatives, sizes.reranker
    examples = count_examples(settings.training, sizes.count(str(stage.inputs["train"])))
    pair = _pair_tokens(sizes, settings.max_length)
    learnt = passages / settings.forward_factor
    work = training_work(
        model, settings.training, examples=examples, texts=learnt, tokens=learnt * pair, length=settings.max_length
    )
    first = scoring_work(model, examples * passages, settings.max_length, sizes)
    return work + first if settings.forward_factor > 1 else work


def scoring_work(model: ModelSize, pairs: float, max_length: int | None, sizes: Sizes) -> Work:
    """Return the work of a cross-encoder that scores so many pairs of a query and a passage."""
    tokens = _pair_tokens(sizes, max_length)
    return reading_work(model, pairs * tokens, tokens)


def _pair_tokens(sizes: Sizes, max_length: int | None) -> float:
    both = sizes.collection.query_tokens() + sizes.collection.passage_tokens(max_length)
    return min(max_length or both, both)


RERANKER = StageSpec(
    name="reranker",
    version=2,
    settings=RerankerSettings,
    run=train_reranker,
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


@frozen
class TeacherSettings:
    """The teacher: a cross-encoder's path or hub id, empty for the run's own re-ranker, `given` for training rows.

    max_length: tokens per pair, None for the teacher's own limit. queries, draws: number of training queries per draw
    (0: all) and of draws, as in the round; seed: of those draws. training: the steps and batches of the round (see
    `Training.schedule_only`), which with `negatives` per query decide the pairs that it reads.
    """

    model: str
    max_length: int | None
    queries: int
    draws: int
    training: Training
    negatives: int
    seed: int = from_recipe("seed")


def score_pairs(stage: StageRun[TeacherSettings]) -> Mapping[str, Any]:
    """Write `scores.arrow`; returns counts, speed, the hash of the teacher's identity, and the agreement."""
    from drkit.core import processes
    from drkit.core.engine import LocalEngine
    from drkit.core.files import CHECKPOINTS
    from drkit.data.corpus import collection_of
    from drkit.train.teacher import Agreement, ScoreBlocks, read_scores

    collection = collection_of(stage.inputs)
    if stage.settings.model == GIVEN:
        return _given_scores(stage, collection)
    # The run's own re-ranker, or another by path or hub id.
    model = stage.inputs.get("reranker", stage.settings.model)
    loaded = loaded_teacher(model, stage.settings.max_length)
    teacher = loaded.value
    requests = _requests(stage, collection)
    work = ScoreBlocks(
        scorer=teacher,
        teacher=digest(teacher.identity()),
        corpus=collection.corpus,
        blocks=stage.folder / CHECKPOINTS,
        rank=processes.rank(),
        processes=processes.count(),
    )
    if isinstance(stage.engine, LocalEngine):
        done = work.make(requests, stage.progress)
        processes.barrier()
    else:
        done = work.make_on(stage.engine, loaded, requests, stage.progress)
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
    from drkit.core import processes
    from drkit.train.teacher import Agreement, read_scores, write_given

    requests, agreement = _requests(stage, collection), Agreement()
    if processes.rank() == 0:
        write_given(requests, collection.teacher_scores("train"), collection.corpus, stage.folder)
        agreement = _agreement(read_scores(stage.folder), requests, collection.positive_indices("train"))
        stage.progress.note(agreement.summary())
    pairs = sum(len(request.passages) for request in requests)
    return {"queries": len(requests), "pairs": pairs, **agreement.metrics()}


def load_teacher(model: str | Path, max_length: int | None) -> Reranker:
    """Load a cross-encoder by path or hub id onto the device of this process; max_length: see `TeacherSettings`."""
    from drkit.core.processes import local_device
    from drkit.search import Reranker

    teacher = Reranker.load(model, local_device())
    if max_length and max_length < teacher.model.max_length:
        teacher.model.cut_at(max_length)
    return teacher


def loaded_teacher(model: str | Path, max_length: int | None = None) -> Loaded[Reranker]:
    """Return a cross-encoder, loaded here, for the tasks of an engine, which load it once each; see `load_teacher`."""
    from drkit.core.engine import Loaded

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
    import numpy as np

    from drkit.core import processes
    from drkit.train.batches import Schedule
    from drkit.train.biencoder import draw_queries, drawn_passages, schedule_lengths
    from drkit.train.teacher import ScoreRequest

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
    import numpy as np

    from drkit.train.teacher import Agreement

    agreement = Agreement()
    for request in requests:
        found = scores.row(request.index)
        if found is not None:
            relevant = np.isin(found[0], positives[request.query.query_id])
            agreement.add(found[1][relevant].tolist(), found[1][~relevant].tolist())
    return agreement


# Bytes of a score.
_PAIR_BYTES = 8.0


def _teacher_work(stage: Stage[TeacherSettings], sizes: Sizes) -> Work:
    settings = stage.settings
    queries = settings.queries or sizes.count(str(stage.inputs["train"]))
    pairs = settings.draws * count_examples(settings.training, queries) * (1 + settings.negatives)
    kept = Work(disk=_PAIR_BYTES * pairs)
    if settings.model == GIVEN:
        return kept
    model = (stored_size(settings.model) or BERT_BASE) if settings.model else sizes.reranker
    return kept + scoring_work(model, pairs, settings.max_length, sizes)


TEACHER = StageSpec(
    name="teacher-scores",
    version=3,
    settings=TeacherSettings,
    run=score_pairs,
    inputs={
        "passages": "the corpus",
        "train": "training queries and judgements",
        "negatives": "mined negatives",
        "reranker": "the run's own cross-encoder",
    },
    resumable=True,
    joint=True,
    folders=("teacher-*",),
    work=_teacher_work,
)
