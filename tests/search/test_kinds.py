"""Approximate indexes: near the exact ranking on clustered data, saved, mapped, refused where they cannot fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drkit.core.files import WRITTEN
from drkit.errors import DrkitError
from drkit.search import FaissIndex, FaissSettings, FlatIndex, open_index
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
    ("kind", "dtype", "settings", "least"),
    [
        ("hnsw", "float32", FaissSettings(), 0.97),
        ("hnsw", "float16", FaissSettings(), 0.95),
        ("ivf-pq", "float32", FaissSettings(rescore="vectors"), 0.8),
        ("IVF48,PQ16np", "float32", FaissSettings("nprobe=16", "codes"), 0.6),
        ("PCA16,SQ8", "float32", FaissSettings(), 0.8),
    ],
)
def test_they_find_most_of_what_is_exact_and_answer_as_before_when_loaded(tmp_path, kind, dtype, settings, least):
    made = FaissIndex.build(MATRIX.astype(dtype), IDS, kind=kind, settings=settings)
    assert recall(made, MATRIX, DocIds.of(IDS)) >= least
    made.save(tmp_path / "i")
    loaded = open_index(tmp_path / "i")
    assert (loaded.kind, loaded.settings) == (made.kind, made.settings)
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


@pytest.mark.parametrize("kind", ["hnsw", "int8", "binary", "PCA8,SQ8"])
def test_the_first_hits_of_a_few_are_those_of_ten(kind):
    random = np.random.default_rng(2)
    matrix = random.standard_normal((600, 32)).astype(np.float32)
    matrix[300:] = matrix[299]  # equal vectors, too
    index = FaissIndex.build(matrix, [str(i) for i in range(600)], kind=kind)
    queries = np.concatenate([random.standard_normal((50, 32)).astype(np.float32), matrix[299:301]])
    ten = index.search(queries, 10)
    for depth in (1, 2, 5):
        found = index.search(queries, depth)
        assert [hits.doc_ids for hits in found] == [hits.doc_ids[:depth] for hits in ten]


def test_fewer_hits_than_asked_for_are_no_hits_of_the_last_document():
    matrix = clustered(300)
    ids = [str(i) for i in range(300)]
    index = FaissIndex.build(matrix, ids, kind="IVF7,PQ4np", settings=FaissSettings(rescore="codes"))
    for hits in index.search(matrix[:20], 300):
        assert 0 < len(hits.doc_ids) < 300
        assert len(set(hits.doc_ids)) == len(hits.doc_ids)
    (all_of_them,) = FaissIndex.build(matrix[:5], ids[:5], kind="hnsw").search(matrix[:1], 100)
    assert sorted(all_of_them.doc_ids) == ids[:5]
    one = FaissIndex.build(matrix[:1], ["only"], kind="hnsw")
    assert one.search(matrix[:1], 3)[0].doc_ids == ("only",)


@pytest.mark.parametrize(
    ("kind", "settings", "count", "message"),
    [
        ("ivf-pq", None, 255, "256 vectors .*got 255"),
        ("IVF400,Flat", None, 300, "400 lists .*300 vectors"),
        ("IVF4,PQ5", None, 300, "kind 'IVF4,PQ5': .*subquantizers"),
        ("PQ8np", None, 20, "kind 'PQ8np': .*training points"),
        ("tree", None, 300, "kind 'tree': .*flat, hnsw"),
        (
            "hnsw",
            FaissSettings("nprobe=3"),
            300,
            "with 'efConstruction=200,efSearch=128,nprobe=3': .*nprobe",
        ),
        ("hnsw", FaissSettings("fast"), 300, "parameters fast"),
        ("IVF4,PQ8x4fs", FaissSettings(rescore="codes"), 300, "IVF4,PQ8x4fs"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(kind, settings, count, message):
    with pytest.raises(DrkitError, match=message):
        FaissIndex.build(MATRIX[:count], IDS[:count], kind=kind, settings=settings)


def test_the_smallest_that_fits_and_an_odd_dimension():
    assert len(FaissIndex.build(MATRIX[:256], IDS[:256], kind="ivf-pq").search(MATRIX[:1], 5)[0].doc_ids) == 5
    odd = np.ascontiguousarray(MATRIX[:300, :31])
    assert FaissIndex.build(odd, IDS[:300], kind="ivf-pq").search(odd[:1], 1)[0].doc_ids


def test_broken_folders(tmp_path):
    FaissIndex.build(MATRIX[:20], IDS[:20], kind="hnsw").save(tmp_path / "i")
    with pytest.raises(DrkitError, match="kind 'hnsw', not 'flat'"):
        FlatIndex.load(tmp_path / "i")
    (tmp_path / "i" / "index.faiss").write_bytes(b"cut off")
    with pytest.raises(DrkitError, match=r"/i/index\.faiss: has 7 bytes, expected .*`drkit index`"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / WRITTEN).unlink()  # an index without a record of its files
    with pytest.raises(DrkitError, match=r"/i: .*cut .*`drkit index`"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / "index.faiss").unlink()
    with pytest.raises(DrkitError, match=r"missing index\.faiss"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / "index.json").write_text("[]")
    with pytest.raises(DrkitError, match=r"index\.json .*`drkit index`"):
        open_index(tmp_path / "i")


def test_a_collection_too_small_for_product_quantisation_is_told_before_anything_is_trained(tmp_path):
    from drkit.core.registry import installed
    from drkit.recipe.compose import ComposeRequest, compose
    from drkit.runs.making.texts import store_collection
    from drkit.runs.stage import settings_from
    from drkit.runs.stages.texts import COLLECTION, CollectionSettings
    from tests.data.test_files import beir
    from tests.rerank.toys import stage_run

    folder = beir(tmp_path)
    for index, problem in (("flat", None), ("ivf-pq", "ivf-pq .*256")):
        wanted = ComposeRequest(collection=f"beir:{folder}", settings=(f"evaluation.index={index}",))
        settings = settings_from(CollectionSettings, compose(wanted, installed()))
        stage = stage_run(COLLECTION, tmp_path / index, {}, settings)
        if problem is None:
            assert store_collection(stage)["passages"] > 0
        else:
            with pytest.raises(DrkitError, match=problem):
                store_collection(stage)
