"""Approximate indexes: near the exact ranking on clustered data, saved, mapped, refused where they cannot fit."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from drkit.errors import DrkitError
from drkit.search import FlatIndex, Hnsw, HnswIndex, IvfPq, IvfPqIndex, open_index
from drkit.search.index import recall
from drkit.search.vectors import DocIds

pytest.importorskip("faiss")


def clustered(count=3000, dimension=32, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((30, dimension))
    made = centres[rng.integers(30, size=count)] + 0.4 * rng.standard_normal((count, dimension))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


MATRIX = clustered()
IDS = [f"d {i} é" for i in range(len(MATRIX))]


@pytest.mark.parametrize(
    ("made", "least"),
    [
        (HnswIndex.build(MATRIX, IDS), 0.97),
        (HnswIndex.build(MATRIX, IDS, settings=Hnsw(half=True)), 0.95),
        (IvfPqIndex.build(MATRIX, IDS, settings=IvfPq(code_bytes=16)), 0.6),
    ],
)
def test_they_find_most_of_what_is_exact_and_answer_as_before_when_loaded(tmp_path, made, least):
    assert recall(made, MATRIX, DocIds.of(IDS)) >= least
    made.save(tmp_path / "i")
    loaded = open_index(tmp_path / "i")
    assert type(loaded) is type(made)
    assert len(loaded) == len(MATRIX)
    queries = clustered(5, seed=1)
    found = made.search(queries, 20)
    assert found == loaded.search(queries, 20) == [loaded.search(query[None], 20)[0] for query in queries]
    exact = FlatIndex.build(MATRIX, IDS)
    hits, truth = found[0], exact.search(queries, 20)[0]
    assert len(set(hits.doc_ids) & set(truth.doc_ids)) >= 20 * (least - 0.2)
    assert list(hits.scores) == sorted(hits.scores, reverse=True)
    ((first, unknown),) = loaded.score(queries[:1], [[hits.doc_ids[0], "none"]])
    assert first == pytest.approx(hits.scores[0], abs=1e-5)
    assert math.isnan(unknown)


def test_recall_of_the_exact_index_is_one_also_among_equal_vectors():
    matrix = np.repeat(clustered(50), 20, axis=0)
    ids = [str(i) for i in range(len(matrix))]
    assert recall(FlatIndex.build(matrix, ids), matrix, DocIds.of(ids)) == 1


def test_fewer_hits_than_asked_for_are_no_hits_of_the_last_document():
    matrix = clustered(300)
    ids = [str(i) for i in range(300)]
    index = IvfPqIndex.build(matrix, ids, settings=IvfPq(lists=7, probes=1))
    for hits in index.search(matrix[:20], 300):
        assert 0 < len(hits.doc_ids) < 300
        assert len(set(hits.doc_ids)) == len(hits.doc_ids)
    (all_of_them,) = HnswIndex.build(matrix[:5], ids[:5]).search(matrix[:1], 100)
    assert sorted(all_of_them.doc_ids) == ids[:5]
    one = HnswIndex.build(matrix[:1], ["only"])
    assert one.search(matrix[:1], 3)[0].doc_ids == ("only",)


@pytest.mark.parametrize(
    ("settings", "count", "message"),
    [
        (IvfPq(), 255, "needs at least 256 vectors to learn its codes, got 255"),
        (IvfPq(lists=400), 300, "400 lists are too many for 300 vectors"),
        (IvfPq(code_bytes=5), 300, "must divide the dimension of the vectors, 32; got 5"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(settings, count, message):
    with pytest.raises(DrkitError, match=message):
        IvfPqIndex.build(MATRIX[:count], IDS[:count], settings=settings)


def test_the_smallest_that_fits_and_an_odd_dimension():
    assert len(IvfPqIndex.build(MATRIX[:256], IDS[:256]).search(MATRIX[:1], 5)[0].doc_ids) == 5
    odd = np.ascontiguousarray(MATRIX[:300, :31])
    assert IvfPqIndex.build(odd, IDS[:300]).search(odd[:1], 1)[0].doc_ids


def test_broken_folders(tmp_path):
    HnswIndex.build(MATRIX[:20], IDS[:20]).save(tmp_path / "i")
    with pytest.raises(DrkitError, match="kind 'hnsw', not 'flat'"):
        FlatIndex.load(tmp_path / "i")
    with pytest.raises(DrkitError, match="kind 'hnsw', not 'ivf-pq'"):
        IvfPqIndex.load(tmp_path / "i")
    (tmp_path / "i" / "index.faiss").write_bytes(b"cut off")
    with pytest.raises(DrkitError, match="rebuild it with `drkit index`"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / "index.faiss").unlink()
    with pytest.raises(DrkitError, match=r"missing index\.faiss"):
        open_index(tmp_path / "i")
    about = json.loads((tmp_path / "i" / "index.json").read_text())
    (tmp_path / "i" / "index.json").write_text(json.dumps({**about, "kind": "tree"}))
    with pytest.raises(DrkitError, match="kind 'tree'; drkit supports flat, hnsw, ivf-pq"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / "index.json").write_text("[]")
    with pytest.raises(DrkitError, match="does not describe an index"):
        open_index(tmp_path / "i")


def test_a_collection_too_small_for_product_quantisation_is_told_before_anything_is_trained(tmp_path):
    from drkit.core.registry import installed
    from drkit.recipe.compose import ComposeRequest, compose
    from drkit.runs.stage import settings_from
    from drkit.runs.stages.texts import COLLECTION, CollectionSettings
    from drkit.runs.steps.texts import store_collection
    from tests.data.test_files import beir
    from tests.rerank.toys import stage_run

    folder = beir(tmp_path)
    for index, problem in (("flat", None), ("ivf-pq", "an ivf-pq index needs at least 256 vectors")):
        wanted = ComposeRequest(collection=f"beir:{folder}", settings=(f"evaluation.index={index}",))
        settings = settings_from(CollectionSettings, compose(wanted, installed()))
        stage = stage_run(COLLECTION, tmp_path / index, {}, settings)
        if problem is None:
            assert store_collection(stage)["passages"] > 0
        else:
            with pytest.raises(DrkitError, match=problem):
                store_collection(stage)
