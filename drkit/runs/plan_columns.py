"""Refuse a column in the plan if its file lacks values that the training is certain to read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from drkit.core import processes
from drkit.core.protocols import CarriesNegatives
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.data.values import PAIR, PASSAGE, QUERY, read_values
from drkit.errors import DrkitError
from drkit.miners.specs import refresh_settings
from drkit.recipe.schema import (
    GIVEN,
    JUDGED,
    Choice,
    Column,
    ColumnChoice,
    Finetune,
    Round,
    column_file,
    default_option,
)
from drkit.runs.stage import PlanBuilder
from drkit.runs.stages.columns import missing_values
from drkit.train.batches import Schedule

# Bytes of a file that a plan reads, in seconds; the values of longer ones are checked before the training.
_READ_IN_PLAN = 64 * 2**20


def column_scope(name: str, source: ColumnChoice, registry: Registry) -> str:
    """Return what a column has a value for: a `query`, a `passage` or a `pair`, as scores have.

    A part declares it; of a file, the first row is read.
    """
    if isinstance(source, Choice):
        return registry.get(Kind.COLUMN, source.use).scope_of(source.config)
    path = column_file(source)
    first = next(read_values(path, name), None) if path else None
    return first.per if first else PAIR


def refuse_missing_values(builder: PlanBuilder, current: Round, settings: Finetune, name: str, column: Column) -> None:
    """Raise DrkitError if a column without a default has no value for a pair that the round is certain to draw.

    The values of a part are not known yet. Reads the file, and the collection's judgements. Memory: the certain pairs.
    """
    per, path = column_scope(name, column.use, builder.registry), column_file(column.use)
    if column.default is not None:
        return
    if per != QUERY and refresh_settings(current.miners):
        raise DrkitError(
            f"the column {name!r} needs a default: 'refresh' draws passages that are not known before the training. "
            f"{default_option(name, column.use)}"
        )
    if path is None or current.pairs != JUDGED or current.queries or path.stat().st_size > _READ_IN_PLAN:
        return
    certain = {
        (query_id if per != PASSAGE else "", doc_id if per != QUERY else "")
        for query_id, doc_id in _certain_pairs(builder, current, settings)
    }
    missing = dict.fromkeys(sorted(certain))
    for value in read_values(path, name):
        missing.pop((value.query_id, value.doc_id), None)
    if missing:
        query_id, doc_id = next(iter(missing))
        named = [*([f"query {query_id!r}"] if query_id else []), *([f"passage {doc_id!r}"] if doc_id else [])]
        raise missing_values(name, column.use, len(missing), len(certain), " and ".join(named))


def _certain_pairs(builder: PlanBuilder, current: Round, settings: Finetune) -> Iterator[tuple[str, str]]:
    """Yield the pairs of queries and passages, by id, that a round draws whatever its miners find.

    They are the only positive of a query that is in any batch, and its given negatives if it draws all of them.
    """
    choice = builder.recipe.collection
    collection = builder.registry.build(Kind.COLLECTION, choice.use, choice.config)
    positives: dict[str, set[str]] = {}
    negatives: dict[str, set[str]] = {}
    for one in collection.judgements("train"):
        (positives if one.relevance > 0 else negatives).setdefault(one.query_id, set()).add(one.doc_id)
    listed = collection.negatives("train") if isinstance(collection, CarriesNegatives) else ()
    for query_id, doc_id in listed:
        negatives.setdefault(query_id, set()).add(doc_id)
    judged = [query.query_id for query in collection.queries("train") if query.query_id in positives]
    lengths = np.zeros(len(judged), dtype=np.int32)
    batches = Schedule.of(settings, lengths, seed=builder.recipe.seed, processes=processes.count())
    is_given = [miner.use for miner in current.miners] == [GIVEN] and settings.negatives > 0
    for row in {row for _, row in chain.from_iterable(batches)}:
        own = positives[judged[row]]
        others = negatives.get(judged[row], set()) - own if is_given else set()
        drawn = [*(own if len(own) == 1 else ()), *(others if len(others) <= settings.negatives else ())]
        yield from ((judged[row], doc_id) for doc_id in drawn)
