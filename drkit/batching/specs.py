"""Settings and specs of the batches that drkit provides; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from attrs.validators import in_, min_len, optional

from drkit.core.citations import TAS_B
from drkit.core.settings import MOST, at_least, setting
from drkit.core.spec import QUERY_VECTORS, Choice, ComponentSpec, Kind, NoSettings
from drkit.errors import DrkitError

PROPORTIONAL, UNIFORM = FREQUENCIES = ("proportional", "uniform")
_FREQUENCY = "how often a batch is of each {0}: proportional to its queries, or uniform: all equally often"

# The batches of a recipe that names none.
RANDOM = Choice("random", NoSettings())


def _weights(_instance: Any, attribute: Any, value: Mapping[str, float]) -> None:
    """Validate weights: from 0, and not all 0."""
    if not all(0 <= weight <= MOST for weight in value.values()) or (value and not any(value.values())):
        raise ValueError(f"'{attribute.name}' must be numbers from 0 to {MOST:,}, not all 0; got {dict(value)}")


@frozen
class OneDataSetConfig:
    """Settings of `one-data-set`: each batch has queries of a single data set.

    The data set of a query is what stands before the first `/` of its id, or its value in a column.
    """

    column: str = setting("", None, "column of queries whose values are the data sets; empty: the NAME of ids NAME/ID")
    frequency: str = setting(PROPORTIONAL, in_(FREQUENCIES), _FREQUENCY.format("data set"))
    weights: dict[str, float] | None = setting(
        None, optional(_weights), "factors of these frequencies, by data set; 1 if not named, 0 leaves it out"
    )

    @property
    def receives(self) -> tuple[str, ...]:
        """The column, or the ids of queries."""
        return (self.column or "query_ids",)

    def check_query_id(self, query_id: str) -> None:
        """Raise DrkitError if an id has no data set, and no column has it."""
        if not self.column and "/" not in query_id:
            raise DrkitError(
                f"the query {query_id!r} has no data set: batches of one data set need ids NAME/ID, as several "
                f"collections have, or a column of queries: --set finetune.batches.column=NAME @ finetune.batches"
            )


@frozen
class ClustersConfig:
    """Settings of `clusters`: each batch has queries of one cluster, or a few (TAS-B)."""

    clusters: int = setting(100, at_least(2, 10**6), "clusters that k-means makes of the queries")
    per_batch: int = setting(1, at_least(1, 10**4), "clusters in a batch, each with an equal share of it")
    every: int = setting(1, at_least(1), "epochs between two clusterings with the encoder in training")
    frequency: str = setting(UNIFORM, in_(FREQUENCIES), _FREQUENCY.format("cluster"))
    iterations: int = setting(20, at_least(1, 1000), "iterations of k-means")

    @property
    def refresh_every(self) -> int:
        """Epochs between two clusterings."""
        return self.every


@frozen
class DocumentBatchesConfig:
    """Settings of `documents`: queries whose positives are of the same document together."""

    separator: str = setting(
        "#", min_len(1), "what stands in passage ids between the document and the number of the passage"
    )


def _spec(name: str, code: str, config: type, summary: str, **more: Any) -> ComponentSpec:
    return ComponentSpec(Kind.BATCHES, name, f"drkit.batching.parts:{code}", config, summary, **more)


BATCHES = (
    _spec("random", "Random", NoSettings, "Queries drawn at random, each once an epoch"),
    _spec("by-length", "ByLength", NoSettings, "Queries of similar length", receives=("query_lengths",)),
    _spec("one-data-set", "OneDataSet", OneDataSetConfig, "Queries of one of several data sets", shorthand="frequency"),
    _spec(
        "clusters",
        "Clusters",
        ClustersConfig,
        "Queries near each other, by the encoder in training",
        cite=TAS_B,
        receives=(QUERY_VECTORS,),
        extras=("cpu",),
    ),
    _spec(
        "documents",
        "Documents",
        DocumentBatchesConfig,
        "Queries whose positives are in the same document",
        receives=("positive_ids",),
    ),
)
