"""Stage: a cross-encoder's scores of the positives and mined negatives of every query that the round trains on."""

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
    """Who scores: a cross-encoder's path or hub id, empty for the run's own re-ranker.

    max_length: tokens a pair, None for as many as the teacher reads. queries, draws: as many of the training queries
    as the round draws (0: all); seed: of those draws.
    """

    model: str
    max_length: int | None
    queries: int
    draws: int
    seed: int = from_recipe("seed")


def run(stage: StageRun[TeacherSettings]) -> Mapping[str, Any]:
    """Write `scores.arrow`; returns how much was scored, how fast, by which weights."""
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
        agreement = _agreement(read_scores(stage.folder), requests, collection.positive_places("train"))
        stage.progress.note(agreement.in_words())
    return {
        "queries": len(requests),
        "pairs": sum(len(own.passages) for own in requests),
        "pairs_per_second": round(done["scored"] / max(done["seconds"], 1e-9), 1),
        "max_length": teacher.model.max_length,
        "weights": work.teacher,
        **agreement.metrics(),
    }


def _teacher(stage: StageRun[TeacherSettings]) -> Reranker:
    """The run's own re-ranker, or one by path or hub id, on this process' device."""
    from drkit.core.processes import local_device
    from drkit.search import Reranker

    limit = stage.settings.max_length
    teacher = Reranker.load(stage.inputs.get("reranker", stage.settings.model), local_device())
    if limit and limit < teacher.model.max_length:
        teacher.model.cut_at(limit)
    return teacher


def _requests(stage: StageRun[TeacherSettings], collection: StoredCollection) -> list[ScoreRequest]:
    """What is to be scored: every query that any draw of the round trains on, with its positives and negatives."""
    import numpy as np

    from drkit.train.negatives import read_negatives
    from drkit.train.pairs import draw_queries
    from drkit.train.teacher import score_requests

    settings = stage.settings
    mined = read_negatives(stage.inputs["negatives"]) if "negatives" in stage.inputs else {}
    found = score_requests(list(collection.queries("train")), collection.positive_places("train"), mined)
    if not found:
        raise DrkitError("no training query has a passage judged relevant (score > 0): a teacher needs at least one")
    draws = settings.draws if settings.queries else 0
    drawn = [draw_queries(len(found), settings.queries, seed=settings.seed, draw=draw) for draw in range(draws)]
    return [found[index] for index in np.unique(np.concatenate(drawn))] if drawn else found


def _agreement(
    scores: StoredScores, requests: list[ScoreRequest], positives: Mapping[str, NDArray[np.int64]]
) -> Agreement:
    """The teacher against the judgements, over all that it scored."""
    import numpy as np

    from drkit.train.teacher import Agreement

    counted = Agreement()
    for own in requests:
        found = scores.row(own.place)
        if found is not None:
            relevant = np.isin(found[0], positives[own.query.query_id])
            counted.add(found[1][relevant].tolist(), found[1][~relevant].tolist())
    return counted


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
