"""Stage: score the positives and mined negatives that a round draws for its queries with a cross-encoder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.errors import DrkitError
from drkit.recipe.schema import Training
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.data.corpus import StoredCollection
    from drkit.search import Reranker
    from drkit.train.teacher import Agreement, ScoreRequest, StoredScores


@frozen
class TeacherSettings:
    """The teacher: a cross-encoder's path or hub id, or empty for the run's own re-ranker.

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


def run(stage: StageRun[TeacherSettings]) -> Mapping[str, Any]:
    """Write `scores.arrow`; returns counts, speed, the hash of the weights, and the agreement."""
    from drkit.core import processes
    from drkit.core.files import CHECKPOINTS
    from drkit.data.corpus import collection_of
    from drkit.search.text_encoder import weights_hash
    from drkit.train.teacher import Agreement, ScoreBlocks, read_scores

    collection = collection_of(stage.inputs)
    teacher = _teacher(stage)
    requests = _requests(stage, collection)
    work = ScoreBlocks(
        scorer=teacher,
        teacher=weights_hash(teacher.model),
        corpus=collection.corpus,
        blocks=stage.folder / CHECKPOINTS,
        rank=processes.rank(),
        processes=processes.count(),
    )
    done = work.make(requests, stage.progress)
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
        "weights": work.teacher,
        **agreement.metrics(),
    }


def _teacher(stage: StageRun[TeacherSettings]) -> Reranker:
    """The run's request re-ranker, or another by path or hub id, on this process' device."""
    from drkit.core.processes import local_device
    from drkit.search import Reranker

    limit = stage.settings.max_length
    teacher = Reranker.load(stage.inputs.get("reranker", stage.settings.model), local_device())
    if limit and limit < teacher.model.max_length:
        teacher.model.cut_at(limit)
    return teacher


def _requests(stage: StageRun[TeacherSettings], collection: StoredCollection) -> list[ScoreRequest]:
    """Return the passages to score for every query: those that any draw of the round reads."""
    import numpy as np

    from drkit.core import processes
    from drkit.data.store import TokenStore
    from drkit.miners.mining import read_negatives
    from drkit.train.batches import Schedule
    from drkit.train.pairs import draw_queries, drawn_passages, training_pairs
    from drkit.train.teacher import ScoreRequest

    settings, queries = stage.settings, list(collection.queries("train"))
    mined = read_negatives(stage.inputs["negatives"]) if "negatives" in stage.inputs else {}
    pairs = training_pairs([query.query_id for query in queries], collection.positive_indices("train"), mined)
    if not len(pairs):
        raise DrkitError(
            "no training query has a passage judged relevant (score > 0), but a teacher needs at least one"
        )
    lengths, seed = TokenStore.open(stage.inputs["query-tokens"]).lengths, settings.seed
    drawn: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for draw in range(settings.draws):
        own = pairs.subset(draw_queries(len(pairs), settings.queries, seed=seed, draw=draw))
        batches = Schedule.of(settings.training, lengths[own.queries], seed=seed, processes=processes.count())
        passages = drawn_passages(own, batches, negatives=settings.negatives, seed=seed)
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


TEACHER = StageSpec(
    name="teacher-scores",
    version=2,
    settings=TeacherSettings,
    run=run,
    inputs={
        "passages": "the corpus",
        "train": "training queries and judgements",
        "query-tokens": "the training queries' tokens, whose lengths decide the batches",
        "negatives": "mined negatives",
        "reranker": "the run's own cross-encoder",
    },
    resumable=True,
    joint=True,
)
