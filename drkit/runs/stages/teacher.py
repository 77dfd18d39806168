"""Stage: a cross-encoder's scores of the positives and mined negatives of every query that the round trains on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drkit.core.ranks import own_device
from drkit.data.tables import StoredCollection, open_collection
from drkit.errors import DrkitError
from drkit.runs import processes
from drkit.runs.finetuning.agreement import Agreement
from drkit.runs.finetuning.drawing import draw_queries
from drkit.runs.finetuning.negatives import read_negatives
from drkit.runs.finetuning.teacher_scores import Asked, ScoreBlocks, StoredScores, ask, read_scores
from drkit.runs.manifest import CHECKPOINTS
from drkit.runs.stage import StageRun
from drkit.search import Reranker
from drkit.search.text_encoder import weights_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `scores.arrow`; returns how much was scored, how fast, by which weights."""
    collection = open_collection(stage.inputs["collection"])
    teacher = _teacher(stage)
    asked = _asked(stage, collection)
    alone = not stage.stage.joint
    work = ScoreBlocks(
        scorer=teacher,
        teacher=weights_hash(teacher.model),
        corpus=collection.corpus,
        blocks=stage.folder / CHECKPOINTS,
        rank=0 if alone else processes.rank(),
        processes=1 if alone else processes.count(),
    )
    done = work.make(asked, stage.progress)
    if not alone:
        _wait()
    agreement = Agreement()
    if work.rank == 0:
        work.join(asked, stage.folder)
        agreement = _agreement(read_scores(stage.folder), asked, collection.positive_places("train"))
        stage.progress.note(agreement.told())
    return {
        "queries": len(asked),
        "pairs": sum(len(own.passages) for own in asked),
        "pairs_per_second": round(done["scored"] / max(done["seconds"], 1e-9), 1),
        "max_length": teacher.model.max_length,
        "weights": work.teacher,
        **agreement.figures(),
    }


def _teacher(stage: StageRun) -> Reranker:
    """The run's own re-ranker, or one by path or hub id, on this process' device."""
    name, limit = stage.stage.settings["reranker"], stage.stage.settings.get("max_length")
    teacher = Reranker.load(stage.inputs.get(name, name), own_device())
    if limit and limit < teacher.model.max_length:
        teacher.model.cut_at(limit)
    return teacher


def _asked(stage: StageRun, collection: StoredCollection) -> list[Asked]:
    name = stage.stage.settings["negatives"]
    mined = read_negatives(stage.inputs[name]) if name else {}
    asked = ask(list(collection.queries("train")), collection.positive_places("train"), mined)
    if not asked:
        raise DrkitError("no training query has a passage judged relevant (score > 0): there is nothing to score")
    return _drawn(asked, stage)


def _drawn(asked: list[Asked], stage: StageRun) -> list[Asked]:
    """The queries that any draw of the round trains on."""
    own = stage.stage.settings
    wanted = own.get("queries", 0)
    draws = [draw_queries(len(asked), wanted, seed=own["seed"], draw=n) for n in range(own["draws"] if wanted else 0)]
    return [asked[place] for place in np.unique(np.concatenate(draws))] if draws else asked


def _agreement(scores: StoredScores, asked: list[Asked], positives: Mapping[str, NDArray[np.int64]]) -> Agreement:
    """The teacher against the judgements, over all that it scored."""
    counted = Agreement()
    for own in asked:
        found = scores.row(own.place)
        if found is not None:
            relevant = np.isin(found[0], positives[own.query.query_id])
            counted.add(found[1][relevant].tolist(), found[1][~relevant].tolist())
    return counted


def _wait() -> None:
    """Until all processes have made their blocks."""
    import torch.distributed as dist

    if processes.count() > 1:
        dist.all_reduce(torch.zeros(1))  # a barrier that needs no device of its own
