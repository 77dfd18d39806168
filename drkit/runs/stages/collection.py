"""Stage: read the collection once, check it, and store it as Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.core.spec import Kind
from drkit.recipe.schema import Choice
from drkit.runs.stage import StageRun, StageSpec, from_recipe


@frozen
class CollectionSettings:
    """The collection; index and hidden size are only used to check that it is large enough for the index."""

    collection: Choice = from_recipe("collection")
    index: str = from_recipe("evaluation.index", observes=True)
    hidden: int = from_recipe("encoder.hidden", observes=True)


def run(stage: StageRun[CollectionSettings]) -> Mapping[str, Any]:
    """Write passages, queries and judgements; returns their counts and the collection's description."""
    from drkit.data.writing import write_collection
    from drkit.search.index import IvfPq, fitted

    choice = stage.settings.collection
    collection = stage.registry.build(Kind.COLLECTION, choice.use, choice.config)
    counts = write_collection(collection, stage.folder)
    if counts["dropped_judgements"]:
        stage.progress.note(f"{counts['dropped_judgements']:,} judgements with unknown ids were left out")
    if counts["empty_passages"]:
        stage.progress.note(f"{counts['empty_passages']:,} passages have no text and can never be found")
    if stage.settings.index == "ivf-pq":  # fail now, not after training
        fitted(IvfPq(), counts["passages"], stage.settings.hidden)
    return {**counts, "description": dict(collection.describe())}


COLLECTION = StageSpec(name="collection", version=1, settings=CollectionSettings, run=run)
