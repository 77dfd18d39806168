"""The batches that drkit provides; their settings are in `specs.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.batching.drawing import RowIndices, cut_batches, grouped_batches, random_batches
from drkit.batching.specs import PROPORTIONAL, ClustersConfig, DocumentBatchesConfig, OneDataSetConfig
from drkit.core.spec import NoSettings
from drkit.core.types import BatchRows, BuildContext
from drkit.errors import DrkitError, did_you_mean, import_extra

# Data sets that an error lists.
_LISTED = 10


class Random:
    """Queries drawn at random: every epoch is another permutation, without the queries that do not fill a batch."""

    def __init__(self, _config: NoSettings, _context: BuildContext | None = None) -> None: ...

    def __call__(self, rows: BatchRows, *, size: int, count: int, seed: int, epoch: int) -> list[RowIndices]:  # noqa: ARG002
        """Return the batches of an epoch."""
        return random_batches(len(rows), size=size, seed=seed, epoch=epoch)


class ByLength:
    """Queries of similar length together; those of equal length in random order, and the batches, too.

    The queries that do not fill a batch are drawn at random, others every epoch.
    """

    def __init__(self, _config: NoSettings, _context: BuildContext | None = None) -> None: ...

    def __call__(self, rows: BatchRows, *, size: int, count: int, seed: int, epoch: int) -> list[RowIndices]:
        """Return the batches of an epoch."""
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(rows))[: size * count]
        return cut_batches(order[np.argsort(rows.query_lengths[order], kind="stable")], size=size, rng=rng)


class OneDataSet:
    """Queries of one of several data sets: homogeneous batches.

    The data set of a query is the `NAME` of its id `NAME/ID`, or its value in a column. See `grouped_batches` for what
    an epoch reads of each.

    Raises DrkitError for an id without a data set, queries of a single one, and a weight of one that is not there.
    """

    def __init__(self, config: OneDataSetConfig, _context: BuildContext | None = None) -> None:
        self.config = config

    def __call__(self, rows: BatchRows, *, size: int, count: int, seed: int, epoch: int) -> list[RowIndices]:
        """Return the batches of an epoch."""
        names, groups = self.data_sets(rows)
        weights = _frequencies(groups, self.config.frequency) * self._factors(names)
        kept = np.flatnonzero(weights)
        chosen = [groups[index] for index in kept]
        return grouped_batches(chosen, weights[kept], size=size, count=count, seed=seed, epoch=epoch)

    def data_sets(self, rows: BatchRows) -> tuple[list[str], list[RowIndices]]:
        """Return the names of the data sets, sorted, and the rows of each."""
        column = self.config.column
        if column:
            values = rows.columns[column]
        else:
            for one in rows.query_ids:
                self.config.check_query_id(one)
            values = np.array([one.partition("/")[0] for one in rows.query_ids])
        found, numbers = np.unique(values, return_inverse=True)
        if len(found) < 2:
            raise DrkitError(
                f"all training queries are of one data set, {found[0]!s}: choose other batches, such as "
                f"--set finetune.batches.use=random"
            )
        return [str(name) for name in found], _groups(numbers)

    def _factors(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Return the factor f64 of the frequency of each data set."""
        weights = self.config.weights or {}
        if unknown := [name for name in weights if name not in names]:
            more = ".." if len(names) > _LISTED else ""
            raise DrkitError(
                f"no training query is of the data set {unknown[0]!r}{did_you_mean(unknown[0], names)} data sets: "
                f"{', '.join(names[:_LISTED])}{more} @ finetune.batches.weights"
            )
        factors = np.array([weights.get(name, 1.0) for name in names])
        if not factors.any():
            raise DrkitError("every data set has the weight 0 @ finetune.batches.weights")
        return factors


class Documents:
    """Queries whose positives are in the same document together, and those of neighbouring passages next to each other.

    The first positive of a query decides. Documents come in random order, and one may go on in the next batch; what
    does not fill the last batch is left out, other documents every epoch.
    """

    def __init__(self, config: DocumentBatchesConfig, _context: BuildContext | None = None) -> None:
        self.separator = config.separator
        self._known: tuple[BatchRows, RowIndices, RowIndices] | None = None

    def __call__(self, rows: BatchRows, *, size: int, count: int, seed: int, epoch: int) -> list[RowIndices]:  # noqa: ARG002
        """Return the batches of an epoch."""
        documents, passages = self._places(rows)
        rng = np.random.default_rng([seed, epoch])
        ranks = rng.permutation(documents.max() + 1)
        shuffled = rng.permutation(len(rows))
        order = shuffled[np.lexsort((passages[shuffled], ranks[documents[shuffled]]))]
        return cut_batches(order, size=size, rng=rng)

    def _places(self, rows: BatchRows) -> tuple[RowIndices, RowIndices]:
        """Return the number i64[n] of each query's document, and of the passage within it."""
        if self._known is None or self._known[0] is not rows:
            parts = [ids[0].rpartition(self.separator) for ids in rows.positive_ids]
            _, documents = np.unique([before or number for before, _, number in parts], return_inverse=True)
            passages = [int(number) if number.isdecimal() and len(number) < 10 else 0 for _, _, number in parts]
            self._known = rows, documents, np.array(passages, dtype=np.int64)
        return self._known[1:]


class Clusters:
    """Queries near each other: of one cluster by k-means of their vectors, or of a few (Hofstätter et al. 2021).

    The queries are clustered again every few epochs with the encoder in training. A cluster with fewer queries than its
    share of a batch is joined with the nearest one, so that all batches are full.
    """

    def __init__(self, config: ClustersConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        self._known: tuple[Any, int, list[RowIndices]] | None = None

    def __call__(self, rows: BatchRows, *, size: int, count: int, seed: int, epoch: int) -> list[RowIndices]:
        """Return the batches of an epoch; rows.query_vectors: of the first of the epochs with the same clusters."""
        config = self.config
        share = max(size // config.per_batch, 1)
        groups = self._clusters(rows, share, seed)
        return grouped_batches(
            groups,
            _frequencies(groups, config.frequency),
            size=size,
            count=count,
            seed=seed,
            epoch=epoch,
            per_batch=config.per_batch,
            first=epoch // config.every * config.every,
        )

    def _clusters(self, rows: BatchRows, share: int, seed: int) -> list[RowIndices]:
        """Return the rows of each cluster, at least `share`."""
        if self._known is None or self._known[0] is not rows.query_vectors or self._known[1] != share:
            vectors = np.ascontiguousarray(rows.query_vectors, dtype=np.float32)
            number = min(self.config.clusters, len(rows) // share)
            groups = k_means(vectors, number, iterations=self.config.iterations, seed=seed)
            self._known = rows.query_vectors, share, _joined_small(vectors, groups, share)
        return self._known[2]


def k_means(vectors: NDArray[np.float32], number: int, *, iterations: int, seed: int) -> list[RowIndices]:
    """Return the rows of each cluster of vectors f32[n,D] by faiss's k-means, without empty ones.

    Raises as `import_extra` does.
    """
    if number < 2:
        return [np.arange(len(vectors))]
    faiss = import_extra("faiss", "the batches 'clusters'")
    means = faiss.Kmeans(
        vectors.shape[1], number, niter=iterations, seed=seed % 2**31, min_points_per_centroid=1, verbose=False
    )
    means.train(vectors)
    _, nearest = means.index.search(vectors, 1)
    return _groups(np.unique(nearest[:, 0], return_inverse=True)[1])


def _joined_small(vectors: NDArray[np.float32], groups: list[RowIndices], least: int) -> list[RowIndices]:
    """Join every cluster of fewer than `least` rows with the cluster of the nearest mean, the smallest first."""
    groups = list(groups)
    means = np.stack([vectors[rows].mean(0) for rows in groups])
    while len(groups) > 1 and min(map(len, groups)) < least:
        small = min(range(len(groups)), key=lambda index: len(groups[index]))
        distances = ((means - means[small]) ** 2).sum(1)
        distances[small] = np.inf
        nearest = int(distances.argmin())
        groups[nearest] = np.concatenate([groups[nearest], groups[small]])
        means[nearest] = vectors[groups[nearest]].mean(0)
        del groups[small]
        means = np.delete(means, small, axis=0)
    return groups


def _groups(numbers: NDArray[np.intp]) -> list[RowIndices]:
    """Return the rows of each group; numbers i64[n]: the group of each row, each from 0 on at least once."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.cumsum(np.bincount(numbers))[:-1])


def _frequencies(groups: Sequence[RowIndices], frequency: str) -> NDArray[np.float64]:
    """Return how often a batch is of each group, f64[groups]: by its rows, or of all equally often."""
    return np.array([float(len(rows)) if frequency == PROPORTIONAL else 1.0 for rows in groups])
