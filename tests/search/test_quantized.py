"""Indexes of codes, one byte or one bit a number: near the exact ranking, rescored, saved, and refused if broken."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from click.testing import CliRunner

from drkit.core.files import WRITTEN
from drkit.errors import DrkitError
from drkit.search import FaissIndex, FaissSettings, FlatIndex, build_index, encode_corpus, open_index
from drkit.search.index import RESCORE, recall
from drkit.search.vectors import DocIds
from drkit_cli.main import cli
from tests.refusals import refused
from tests.search.test_kinds import IDS, MATRIX, clustered

pytest.importorskip("faiss")
QUANTIZED = ("int8", "binary")
QUERIES = clustered(40, seed=1)


@pytest.fixture(scope="module")
def exact():
    return FlatIndex.build(MATRIX, IDS)


def overlap(found, expected):
    return np.mean([len({*a.doc_ids} & {*b.doc_ids}) / len(b.doc_ids) for a, b in zip(found, expected, strict=True)])


@pytest.mark.parametrize(("kind", "rescore", "least"), [("int8", "vectors", 1.0), ("int8", "codes", 0.95)])
def test_bytes_lose_little(exact, kind, rescore, least):
    index = FaissIndex.build(MATRIX, IDS, kind=kind, settings=FaissSettings(rescore=rescore))
    assert recall(index, MATRIX, DocIds.of(IDS)) >= least
    assert overlap(index.search(QUERIES, 10), exact.search(QUERIES, 10)) >= least


def test_bits_find_candidates_and_vectors_put_them_in_order():
    matrix, found = clustered(dimension=128), {}
    queries = matrix[::75] + 0.5 * clustered(40, dimension=128, seed=1)
    expected = FlatIndex.build(matrix, IDS).search(queries, 10)
    for rescore in RESCORE:
        for candidates in (1, 4, 40):
            settings = FaissSettings(rescore=rescore, candidates=candidates)
            index = FaissIndex.build(matrix, IDS, kind="binary", settings=settings)
            found[rescore, candidates] = overlap(index.search(queries, 10), expected)
    assert found["vectors", 1] < found["vectors", 4] < found["vectors", 40]
    assert found["vectors", 40] >= 0.95
    assert found["vectors", 4] > found["codes", 4] > 0.3


@pytest.mark.parametrize("kind", QUANTIZED)
def test_with_all_as_candidates_the_ranking_is_the_exact_one(exact, kind):
    settings = FaissSettings(candidates=len(MATRIX))
    assert FaissIndex.build(MATRIX, IDS, kind=kind, settings=settings).search(QUERIES, 10) == exact.search(QUERIES, 10)


@pytest.mark.parametrize("rescore", RESCORE)
@pytest.mark.parametrize("kind", QUANTIZED)
def test_saved_loaded_and_one_by_one_it_answers_alike(tmp_path, kind, rescore):
    made = FaissIndex.build(MATRIX, IDS, kind=kind, settings=FaissSettings(rescore=rescore))
    made.save(tmp_path / "i")
    loaded = open_index(tmp_path / "i")
    assert isinstance(loaded, FaissIndex)
    assert (loaded.kind, len(loaded), loaded.dimension) == (kind, len(MATRIX), MATRIX.shape[1])
    found = made.search(QUERIES, 20)
    assert found == loaded.search(QUERIES, 20) == [loaded.search(query[None], 20)[0] for query in QUERIES]
    assert all(list(hits.scores) == sorted(hits.scores, reverse=True) for hits in found)
    ((first, unknown),) = loaded.score(QUERIES[:1], [[found[0].doc_ids[0], "none"]])
    assert first == pytest.approx(found[0].scores[0], abs=1e-6)
    assert math.isnan(unknown)


@pytest.mark.parametrize(("kind", "bits", "extra"), [("int8", 8, 0), ("binary", 1, 8)])
def test_without_vectors_it_is_as_small_as_its_codes(tmp_path, kind, bits, extra):
    FaissIndex.build(MATRIX, IDS, kind=kind, settings=FaissSettings(rescore="codes")).save(tmp_path / "i")
    size = (tmp_path / "i" / "index.faiss").stat().st_size
    assert size - MATRIX.size * bits / 8 - extra * len(MATRIX) < 1000
    assert not (tmp_path / "i" / "vectors.npy").exists()


def test_a_dimension_that_fills_no_byte_and_an_index_smaller_than_the_depth():
    odd = clustered(60, dimension=13)
    index = FaissIndex.build(odd, IDS[:60], kind="binary", settings=FaissSettings(rescore="codes"))
    (hits,) = index.search(odd[:1], 100)
    assert sorted(hits.doc_ids) == sorted(IDS[:60])
    ((own,),) = index.score(odd[:1], [[IDS[0]]])
    assert own == hits.scores[hits.doc_ids.index(IDS[0])] == pytest.approx(1, abs=0.1)


def test_broken_files_and_settings_of_another_kind_are_refused(tmp_path):
    FaissIndex.build(MATRIX[:50], IDS[:50], kind="binary").save(tmp_path / "i")
    FaissIndex.build(MATRIX[:40], IDS[:40], kind="binary").save(tmp_path / "j")
    (tmp_path / "j" / "vectors.npy").replace(tmp_path / "i" / "vectors.npy")
    with refused("bytes, expected", "`drkit index`", where="/i/vectors.npy"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / WRITTEN).unlink()  # an index without a record of its files
    with refused("50 ids", "50 codes", "`drkit index`", where="/i"):
        open_index(tmp_path / "i")
    (tmp_path / "i" / "index.faiss").write_bytes(b"no index")
    with pytest.raises(DrkitError, match=r"/i: .*no i.*`drkit index`"):
        open_index(tmp_path / "i")
    encode_corpus(Rows(), [(name, name) for name in IDS[:50]], tmp_path / "v")
    with pytest.raises(DrkitError, match=r"\bflat index .*settings"):
        build_index(tmp_path / "v", tmp_path / "k", settings=FaissSettings())


class Rows:
    """An encoder that knows the rows of MATRIX by their ids."""

    dimension = MATRIX.shape[1]

    def identity(self):
        return {"weights": "w", "pooling": "mean", "normalize": True}

    def encode_passages(self, texts):
        return MATRIX[[IDS.index(text) for text in texts]]


def test_the_command_builds_them_and_measures_their_recall(tmp_path):
    encode_corpus(Rows(), [(name, name) for name in IDS[:400]], tmp_path / "v")
    arguments = ["index", str(tmp_path / "v"), "--kind", "binary", "--candidates", "8", "-o", str(tmp_path / "i")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    index = open_index(tmp_path / "i")
    assert index.settings == {"factory": "RaBitQ", "parameters": "", "rescore": "vectors", "candidates": 8}
    assert index.facts["recall@10"] > 0.9
    done = CliRunner().invoke(cli, [one if one != "binary" else "flat" for one in arguments])
    assert "--candidates" in done.output
    done = CliRunner().invoke(cli, ["index", str(tmp_path / "v"), "--kind", "hnws", "-o", str(tmp_path / "j")])
    assert re.search("kind 'hnws': .*use one of flat, hnsw", str(done.exception))
