"""Generate queries for every passage of a collection into a file, once for any number of runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from drkit.core.discovery import Installed
from drkit.core.processes import Shard
from drkit.core.spec import Kind
from drkit.data.generation import QueryModel, Sampling, generate_file
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose

if TYPE_CHECKING:
    from drkit.core.protocols import Progress

STAGE = "queries"


def generate_queries(
    request: ComposeRequest, model: str, path: Path, *, sampling: Sampling, parts: Installed, progress: Progress
) -> Path | None:
    """Generate queries for every passage of the requested collection; None while other processes still write theirs.

    RANK and WORLD_SIZE, set by torchrun, decide this process's share. Repeated calls resume.

    Raises DrkitError if the file is not JSON Lines, or the model is not a sequence-to-sequence model.
    """
    if path.suffix != ".jsonl":
        raise DrkitError(f"{path}: queries are written as JSON Lines; name the file {path.with_suffix('.jsonl').name}")
    choice = compose(request, parts).collection
    collection = parts.registry.build(Kind.COLLECTION, choice.use, choice.config)
    shard, started = Shard.from_environment(), time.perf_counter()
    progress.begin(STAGE, f"{sampling.count} a passage of {collection.name}, by {model}, {shard.label}")
    done = generate_file(
        ((passage.doc_id, passage.content) for passage in collection.passages()),
        QueryModel.open(model, sampling),
        path,
        shard=shard,
        on_progress=lambda count: progress.advance(count, None, "passages"),
    )
    progress.end(STAGE, time.perf_counter() - started)
    return done
