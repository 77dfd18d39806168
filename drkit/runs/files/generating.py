"""Queries of a whole collection by a model, as a file: made once, by as many processes as there are, for any run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from drkit.core.discovery import Installed
from drkit.core.layers import Wanted, compose
from drkit.core.ranks import Shard
from drkit.core.spec import Kind
from drkit.data.generation import QueryModel, Sampling, generate_file
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.runs.progress import Progress

STAGE = "queries"


def generate_for(
    wanted: Wanted, model: str, path: Path, *, sampling: Sampling, parts: Installed, progress: Progress
) -> Path | None:
    """Queries of every passage of the collection that is wanted, by `id`; None where other processes are at theirs.

    RANK and WORLD_SIZE, as torchrun sets them, say which share is this process' own. Called again it goes on.

    Raises DrkitError where the file is to be another kind than JSON Lines, or the model is no sequence-to-sequence one.
    """
    if path.suffix != ".jsonl":
        raise DrkitError(f"{path}: queries are written as JSON Lines; name it {path.with_suffix('.jsonl').name}")
    choice = compose(wanted, parts).collection
    collection = parts.registry.build(Kind.COLLECTION, choice.use, choice.config)
    shard, started = Shard.of_environment(), time.perf_counter()
    progress.begin(STAGE, f"{sampling.count} a passage of {collection.name}, by {model}, {shard.words}")
    done = generate_file(
        ((passage.doc_id, passage.content) for passage in collection.passages()),
        QueryModel.open(model, sampling),
        path,
        shard=shard,
        on_progress=lambda count: progress.advance(count, None, "passages"),
    )
    progress.end(STAGE, time.perf_counter() - started)
    return done
