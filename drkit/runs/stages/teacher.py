"""Stage: score the positives and mined negatives of a round's queries with a cross-encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.errors import DrkitError
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.data.tables import StoredCollection
    from drkit.search import Reranker
    from drkit.train.teacher import Agreement, ScoreRequest, StoredScores


@frozen
class TeacherSettings:
    """The teacher: a cross-encoder's path or hub id, or empty for the run's own re-ranker.

    max_length: tokens per pair, None for the teacher's own limit. queries, draws: number of training queries per draw
    (0: all) and of draws, as in the round; seed: of those draws.
    """

    model: str
    max_length: int | None
    queries: int
    draws: int
    seed: int = from_recipe("seed")


def run(stage: StageRun[TeacherSettings]) -> Mapping[str, Any]:
    """Write `scores.arrow`; returns counts, speed, the hash of the weights, and the agreement."""
    from drkit.core import processes
    from drkit.core.files import CHECKPOINTS
    from drkit.data.tables import collection_of
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
    """Return the passages to score for every query that any draw of the round trains on."""
    import numpy as np

    from drkit.train.negatives import read_negatives
    from drkit.train.pairs import draw_queries
    from drkit.train.teacher import score_requests

    settings = stage.settings
    mined = read_negatives(stage.inputs["negatives"]) if "negatives" in stage.inputs else {}
    found = score_requests(list(collection.queries("train")), collection.positive_indices("train"), mined)
    if not found:
        raise DrkitError(
            "no training query has a passage judged relevant (score > 0), but a teacher needs at least one"
        )
    draws = settings.draws if settings.queries else 0
    drawn = [draw_queries(len(found), settings.queries, seed=settings.seed, draw=draw) for draw in range(draws)]
    return [found[index] for index in np.unique(np.concatenate(drawn))] if drawn else found


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
    version=1,
    settings=TeacherSettings,
    run=run,
    inputs={
        "passages": "the corpus",
        "train": "training queries and judgements",
        "negatives": "mined negatives",
        "reranker": "the run's own cross-encoder",
    },
    resumable=True,
    joint=True,
)
