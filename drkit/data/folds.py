"""Folds of cross-validation: which queries a training leaves out, to be ranked by it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from drkit.core.types import Query


def assign_folds(queries: Iterable[Query], folds: int) -> dict[str, int]:
    """Return the fold of each query, from 0, by query id: equally large folds, drawn by hashes of the texts.

    Queries of the same words share a fold, so none is learned from and ranked by the same retriever.

    >>> queries = [Query("q1", "Wing flutter"), Query("q2", "drag"), Query("q3", "wing  flutter")]
    >>> folds = assign_folds(queries, 2)
    >>> folds["q1"] == folds["q3"] != folds["q2"]
    True
    """
    texts = {query.query_id: " ".join(query.text.casefold().split()) for query in queries}
    drawn = sorted({*texts.values()}, key=lambda text: blake2b(text.encode(errors="replace")).digest())
    fold = {text: position % folds for position, text in enumerate(drawn)}
    return {query_id: fold[text] for query_id, text in texts.items()}
