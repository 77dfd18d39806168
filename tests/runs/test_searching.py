"""A run's encoders and index, by the separate commands: the same vectors, the same rankings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from drkit.commands import NamedCollection
from drkit.commands.inputs import export_checkpoint, open_encoder
from drkit.errors import DrkitError
from drkit.runs.manifest import read_manifest
from drkit.runs.survey import last_checkpoint
from drkit.search import TextEncoder, Vectors, open_index, read_run
from tests.refusals import unknown
from tests.runs.conftest import TINY, drkit

TEXTS = ["Return the name of the logger.", "", "a message with an attachment " * 20]


@pytest.fixture(scope="module")
def last(tiny_run):
    """The run and the stage that its encoder was exported from."""
    run, _ = tiny_run
    return run, read_manifest(run / "encoder").metrics["from"]


def test_every_checkpoint_of_a_run_opens_and_exports(last, tmp_path):
    from sentence_transformers import SentenceTransformer

    run, name = last
    encoder = open_encoder(run)
    assert last_checkpoint(run) == run / name
    assert open_encoder(run / name).identity() == encoder.identity()
    for source in (run, run / name, run / "pretrained"):
        export_checkpoint(source, tmp_path / "e")
        theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
        expected = open_encoder(source).encode_queries(TEXTS)
        np.testing.assert_allclose(TextEncoder.load(tmp_path / "e").encode_queries(TEXTS), expected, atol=1e-6)
        assert np.abs(theirs.encode_query(TEXTS[:2]) - expected[:2]).max() < 1e-5
    assert np.abs(open_encoder(run / "pretrained").encode_queries(TEXTS) - encoder.encode_queries(TEXTS)).max() > 1e-3
    with pytest.raises(DrkitError, match=r"retriever-9'; .*OWNER/NAME"):
        open_encoder(run / "retriever-9")
    with pytest.raises(DrkitError, match=r"/collection .*modules\.json"):
        open_encoder(run / "collection")


def test_the_commands_rank_as_the_run_did(last, tmp_path):
    run, name = last
    drkit("encode", "--encoder", run, "--collection", run, "--shard-size", 100, "-o", tmp_path / "v")
    drkit("index", tmp_path / "v", "-o", tmp_path / "i")
    common = ("--collection", run, "--split", "test", "-k", "100")
    drkit("search", tmp_path / "i", "--encoder", run / name, *common, "-o", tmp_path / "files.trec")
    drkit("search", run, "--system", name, "--split", "test", "-k", "100", "-o", tmp_path / "run.trec")
    by_files, by_run = (dict(read_run(tmp_path / f"{which}.trec")) for which in ("files", "run"))
    assert by_files.keys() == by_run.keys()
    of_the_run = next(iter((run / "runs").glob(f"*{name}*.arrow")), None) or run / "runs" / "retriever.arrow"
    for query_id, hits in read_run(of_the_run):
        for other in (by_files[query_id], by_run[query_id]):
            np.testing.assert_allclose([s for _, s in other], [s for _, s in hits], atol=2e-6)
    made = Vectors.open(tmp_path / "v")
    assert len(made.shards.files) > 2
    np.testing.assert_allclose(made.shards[:], open_index(run / "index").vectors[:], atol=1e-6)
    assert len(list(NamedCollection(str(run)).passages())) == len(made)
    with unknown("split", "nodev"):
        NamedCollection(str(run)).queries("nodev")


def test_a_run_with_an_approximate_index(tiny_run, tmp_path):
    run, _ = tiny_run
    parts = ("--masker", "pmi", "--decoder", "enhanced", *TINY, "--set=evaluation.index=hnsw")
    drkit("compose", *parts, "--run-dir", tmp_path / "hnsw", "--reuse", run)
    about = json.loads((tmp_path / "hnsw" / "index" / "index.json").read_text())
    manifest = read_manifest(tmp_path / "hnsw" / "index")
    assert about["kind"] == manifest.metrics["kind"] == "hnsw"
    assert manifest.metrics["recall@10"] > 0.9
    assert set(manifest.files) == {"index.json", "index.faiss", "ids.arrow"}
    assert not (tmp_path / "hnsw" / "index" / "checkpoints").exists()
    drkit("search", tmp_path / "hnsw", "return the name")
