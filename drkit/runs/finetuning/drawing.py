"""What is drawn: the queries of a round that trains on some of them, and the passages that stand in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from drkit.core.draws import Draws

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]


def draw_queries(queries: int, wanted: int, *, seed: int, draw: int = 0) -> Places:
    """Places i64, ascending, of `wanted` of so many queries, others for every `draw`; 0, or too many: all of them.

    >>> draw_queries(10, 3, seed=1).tolist(), draw_queries(2, 3, seed=1).tolist()
    ([4, 7, 8], [0, 1])
    """
    if not 0 < wanted < queries:
        return np.arange(queries)
    return np.sort(np.random.default_rng([seed, draw]).permutation(queries)[:wanted])


def draw_passages(
    positives: Sequence[Places], mined: Sequence[Places], draws: Draws, *, negatives: int
) -> tuple[Places, list[Places]]:
    """One positive i64[Q] of each query, and up to `negatives` of its mined passages, without repeats, a list a query.

    positives, mined: places in the corpus, a list a query; draws: of those queries. What a query gets depends on its
    own lists and draws alone; one with fewer mined passages gets all it has.
    """
    which = draws.uniform(1)[:, 0]
    one = np.array([p[int(u * len(p))] for p, u in zip(positives, which, strict=True)], dtype=np.int64)
    width = max((len(m) for m in mined), default=0)
    if not negatives or not width:
        return one, [np.empty(0, dtype=np.int64) for _ in mined]
    keys = draws.uniform(width)
    keys[np.arange(width)[None, :] >= np.array([len(m) for m in mined])[:, None]] = 2.0  # past a query's own list
    order = np.argsort(keys, axis=1)[:, :negatives]
    kept = np.take_along_axis(keys, order, axis=1) < 2.0
    return one, [m[row[keep]] for m, row, keep in zip(mined, order, kept, strict=True)]
