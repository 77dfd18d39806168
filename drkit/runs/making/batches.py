"""The batches of a round: build the part, with what it receives of the training queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.batching.specs import RANDOM
from drkit.core.registry import Registry
from drkit.core.spec import BATCHING, Choice, Kind, provided_by
from drkit.core.types import BatchRows, BuildContext
from drkit.data.corpus import StoredCollection
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.train.batches import PartBatches
from drkit.train.biencoder import TrainingPairs
from drkit.train.columns import AnyColumn, read_column
from drkit.train.vector_columns import StoredVectors


def part_batches(
    choice: Choice,
    registry: Registry,
    pairs: TrainingPairs,
    collection: StoredCollection,
    inputs: Mapping[str, Path],
    *,
    seed: int,
) -> PartBatches | None:
    """Return the batches that a part makes of training pairs; None for random ones, which a schedule has by itself.

    Vectors of queries are not among the rows yet. inputs: those of the stage.
    """
    if choice == RANDOM:
        return None
    spec = registry.get(Kind.BATCHES, choice.use)
    part = registry.build(Kind.BATCHES, choice.use, choice.config, BuildContext(seed=seed))
    rows = batch_rows(spec.receives_of(choice.config), pairs, collection, inputs)
    return PartBatches(part, rows, seed, f"batches {choice.use!r}")


def batch_rows(
    names: frozenset[str], pairs: TrainingPairs, collection: StoredCollection, inputs: Mapping[str, Path]
) -> BatchRows:
    """Return what batches receive, by name, of the queries of training pairs, but for their vectors.

    Raises DrkitError if a column has no value for one of them.
    """
    given: dict[str, Any] = {}
    ids = [query.query_id for query in collection.queries("train")] if names - {"query_lengths"} else []
    if "query_ids" in names:
        given["query_ids"] = [ids[index] for index in pairs.queries.tolist()]
    if "query_lengths" in names:
        given["query_lengths"] = TokenStore.open(inputs["query-tokens"]).lengths[pairs.queries]
    if "positive_ids" in names:
        found = iter(collection.corpus.ids_at(np.concatenate(pairs.positives)))
        given["positive_ids"] = [[next(found) for _ in own] for own in pairs.positives]
    columns = {
        name: _query_values(name, read_column(inputs[f"batches/{name}"]), pairs.queries, ids)
        for name in names - {*provided_by(BATCHING)}
    }
    return BatchRows(len(pairs), **given, columns=columns)


def _query_values(name: str, column: AnyColumn, queries: NDArray[np.int64], ids: list[str]) -> NDArray[Any]:
    """Return the values [n] of queries i64[n], by index, or their vectors f32[n,D]."""
    none = np.array([-1])
    for index in queries.tolist():
        if column.lacks(index, none)[0]:
            raise DrkitError(
                f"the column {name!r} has no value for the query {ids[index]!r}, but the batches need one for each: "
                f"add what is missing, or give the column a default: --set finetune.columns.{name}.default=0.0"
            )
    if isinstance(column, StoredVectors):
        return column.take(queries)
    return np.concatenate([column.lookup(index, none) for index in queries.tolist()])
