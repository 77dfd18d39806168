"""The flat index gives what a full sort gives; files round trip."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.files import WRITTEN
from drkit.errors import DrkitError
from drkit.search import flat
from drkit.search.flat import FlatIndex
from tests.refusals import refused


def vectors(count, dimension, seed=0):
    made = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def by_full_sort(query, matrix, ids, depth):
    scores = [np.float32(np.sum(row.astype(np.float64) * query.astype(np.float64))) for row in matrix]
    order = sorted(range(len(ids)), key=lambda i: (-scores[i], i))[:depth]
    return [ids[i] for i in order], [float(scores[i]) for i in order]


@pytest.mark.parametrize("depth", [1, 7, 300, 5000])
def test_search_is_a_full_sort(depth):
    matrix, ids = vectors(300, 24), [f"d{i}" for i in range(300)]
    queries = vectors(5, 24, seed=1)
    for query, hits in zip(queries, FlatIndex.build(matrix, ids).search(queries, depth), strict=True):
        doc_ids, scores = by_full_sort(query, matrix, ids, depth)
        assert list(hits.doc_ids) == doc_ids
        np.testing.assert_allclose(hits.scores, scores, atol=1e-6)


@pytest.mark.parametrize("allowed", ["none", "tf32"])  # tf32: as transformers does for its argument of this name
def test_products_are_full_float32_whoever_allowed_less(allowed):
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    backend.fp32_precision = allowed
    try:
        with flat.full_float32():
            assert backend.fp32_precision == "ieee"
        assert backend.fp32_precision == allowed
    finally:
        backend.fp32_precision = before


def test_ties_are_ordered_by_position_however_many():
    matrix = np.repeat(vectors(3, 8), [150, 150, 1], axis=0)
    order = np.random.default_rng(0).permutation(len(matrix))
    index = FlatIndex.build(matrix[order], [str(i) for i in range(len(matrix))])
    (hits,) = index.search(matrix[:1], 10)
    assert [int(d) for d in hits.doc_ids] == np.flatnonzero(order < 150)[:10].tolist()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 70), st.integers(0, 10_000))
def test_coarse_values_with_many_equal_scores_are_a_full_sort_too(count, dimension, depth, seed):
    matrix = np.round(vectors(count, dimension, seed) * 2) / 2
    queries, ids = vectors(4, dimension, seed + 1), [f"d{i}" for i in range(count)]
    for query, hits in zip(queries, FlatIndex.build(matrix, ids).search(queries, depth), strict=True):
        doc_ids, scores = by_full_sort(query, matrix, ids, depth)
        assert (list(hits.doc_ids), list(hits.scores)) == (doc_ids, scores)


@pytest.mark.parametrize("spread", [1e-4, 1e-6, 0], ids=["close", "closer than a rounding", "equal"])
@pytest.mark.parametrize("angle", ["orthogonal", "alike"])
def test_the_first_hits_do_not_depend_on_the_depth_where_scores_are_closer_than_the_errors_of_their_sums(spread, angle):
    # Sums of 384 products whose parts cancel are off by more than a share of the sum.
    random = np.random.default_rng(1)
    query = random.normal(size=384).astype(np.float32)
    matrix = random.normal(size=(1 if angle == "alike" else 3000, 384)) + spread * random.normal(size=(3000, 384))
    if angle == "orthogonal":
        matrix -= np.outer(matrix @ query - spread * random.normal(size=3000), query) / (query @ query)
    matrix, ids = matrix.astype(np.float32), [f"d{i}" for i in range(3000)]
    index = FlatIndex.build(matrix, ids)
    for depth in (1, 2, 10, 100, 3000):
        (hits,) = index.search(query[None], depth)
        doc_ids, _ = by_full_sort(query, matrix, ids, depth)
        assert list(hits.doc_ids) == doc_ids, depth


def test_the_vectors_are_gone_through_in_pieces(monkeypatch):
    matrix, ids, queries = vectors(100, 8), [str(i) for i in range(100)], vectors(3, 8, seed=2)
    whole = FlatIndex.build(matrix, ids).search(queries, 20)
    monkeypatch.setattr(flat, "_ROWS", 7)
    assert FlatIndex.build(matrix, ids).search(queries, 20) == whole


def test_an_answer_does_not_depend_on_the_other_queries():
    index = FlatIndex.build(vectors(200, 16), [str(i) for i in range(200)])
    queries = vectors(9, 16, seed=3)
    assert index.search(queries, 5) == [index.search(query[None], 5)[0] for query in queries]


def test_a_saved_index_answers_as_before(tmp_path):
    matrix, ids = vectors(50, 8), [f"id {i} é" for i in range(50)]
    index = FlatIndex.build(matrix, ids)
    index.save(tmp_path / "index")
    index.save(tmp_path / "index")
    assert [p.name for p in tmp_path.iterdir()] == ["index"]
    loaded = FlatIndex.load(tmp_path / "index")
    assert isinstance(loaded.vectors, np.memmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of memory that it must not write to
        assert loaded.search(matrix, 9) == index.search(matrix, 9)


@pytest.mark.parametrize(
    ("matrix", "ids", "message"),
    [
        (np.empty((0, 4), np.float32), [], "N > 0"),
        (np.ones((2, 4), np.float32), ["a"], "1 .*ids .*2 vectors"),
        (np.ones((2, 4), np.float32), ["a", "a"], "duplicate .*'a'"),
        (np.array([[1, 2], [np.nan, 1]], np.float32), ["a", "b"], "'b' .*finite"),
    ],
)
def test_what_cannot_be_indexed(matrix, ids, message):
    with pytest.raises(DrkitError, match=message):
        FlatIndex.build(matrix, ids)


def test_broken_folders_and_wrong_queries(tmp_path):
    index = FlatIndex.build(vectors(5, 4), list("abcde"))
    with pytest.raises(DrkitError, match=r"\[Q, 4\], got \(1, 3\)"):
        index.search(vectors(1, 3), 2)
    with pytest.raises(DrkitError, match=r"depth .*1, got 0"):
        index.search(vectors(1, 4), 0)
    with pytest.raises(DrkitError, match=r"missing vectors\.npy, ids\.arrow, index\.json.*`drkit index`"):
        FlatIndex.load(tmp_path)
    index.save(tmp_path / "i")
    np.save(tmp_path / "i" / "vectors.npy", vectors(4, 4))
    with refused("bytes, expected", "`drkit index`", where="/i/vectors.npy"):
        FlatIndex.load(tmp_path / "i")
    (tmp_path / "i" / WRITTEN).unlink()  # an index without a record of its files
    with refused("5 ids", "(4, 4)", "`drkit index`", where="/i"):
        FlatIndex.load(tmp_path / "i")
    (tmp_path / "i" / "ids.arrow").write_bytes(b"broken")
    with pytest.raises(DrkitError, match=r"/i/ids\.arrow: .*`drkit index`"):
        FlatIndex.load(tmp_path / "i")
