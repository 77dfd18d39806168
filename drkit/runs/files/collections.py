"""Collections by what a command is given: a run's folder, or a name as `drkit compose --collection` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drkit.core.discovery import installed
from drkit.core.layers import Wanted, compose
from drkit.core.protocols import Collection
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import read_manifest


def kept_collection(text: str) -> Path | None:
    """The folder of the collection that a run keeps, where a run's folder is given; None for anything else.

    Raises DrkitError where the run has not got that far.
    """
    run = Path(text)
    if read_manifest(run / "collection") is not None:
        return run / "collection"
    if (run / RECIPE).is_file():
        raise DrkitError(f"{run} has no finished collection; `drkit run {run}` goes on where it was cut off")
    return None


def named_collection(text: str, settings: Sequence[str] = ()) -> Collection:
    """The collection of a name such as `beir:FOLDER`, with its settings (`collection.limit=100`).

    Raises DrkitError as `drkit compose` does.
    """
    parts = installed()
    choice = compose(Wanted(collection=text, settings=tuple(settings)), parts).collection
    made: Collection = parts.registry.build(Kind.COLLECTION, choice.use, choice.config)
    return made
