"""Stage: read the collection once, check it, and keep it as Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.core.spec import Kind
from drkit.data.writing import write_collection
from drkit.runs.stage import StageRun
from drkit.search.approximate import IvfPq, fitted


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes passages, queries and judgements; returns their counts and the collection's description."""
    choice = stage.recipe.collection
    collection = stage.registry.build(Kind.COLLECTION, choice.use, choice.config)
    counts = write_collection(collection, stage.folder)
    if counts["dropped_judgements"]:
        stage.progress.note(f"{counts['dropped_judgements']:,} judgements name unknown ids and were left out")
    if counts["empty_passages"]:
        stage.progress.note(f"{counts['empty_passages']:,} passages have no text: nothing can find them")
    if stage.recipe.evaluation.index == "ivf-pq":  # refused now, and not when everything is trained
        fitted(IvfPq(), counts["passages"], stage.recipe.encoder.hidden)
    return {**counts, "description": dict(collection.describe())}
