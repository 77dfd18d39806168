"""Runs whose queries and passages have an encoder each: every pipeline's parts, to the folder that users load."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from drkit.commands import export_checkpoint, open_encoder
from drkit.core.files import digest
from drkit.runs.manifest import read_manifest
from drkit.search import DualEncoder, Retriever, read_run
from tests.runs.conftest import drkit
from tests.runs.test_processes import SETTINGS, judged  # noqa: F401

STAGES = ("retriever-1", "retriever-2", "retriever-distilled")


@pytest.fixture(scope="module")
def collection(judged, tmp_path_factory):  # noqa: F811
    """The same with a query to validate on."""
    folder = tmp_path_factory.mktemp("separate") / "collection"
    shutil.copytree(judged, folder)
    header, *train = (folder / "qrels/train.tsv").read_text().splitlines()
    for split, rows in {"train": train[:-2], "dev": train[-2:]}.items():
        (folder / f"qrels/{split}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(collection):
    """Three stages: one that is validated, one that goes on from it and mines while it trains, one distilled."""
    folder = collection.with_name("run")
    rounds = [
        "finetune.encoders=separate",
        "finetune.rounds.0.miners=[{use='bm25'}]",
        "finetune.rounds.1.miners=[{use='refresh', every=1}]",
        "finetune.rounds.1.start=previous",
        "finetune.max_steps=4",
        "finetune.batch_size=4",
        "finetune.validation.every=2",
        "evaluation.export=last",  # with so few steps, dev might choose the one encoder that they start from
        "reranker.max_steps=2",
        "reranker.depth=5",
    ]
    settings = [*(one for one in SETTINGS if "pretrain" not in one), *(f"--set={one}" for one in rounds)]
    drkit(
        "compose",
        f"--collection=beir:{collection}",
        "--pipeline=three-stage",
        "--set=pretrain=none",
        *settings,
        "--run-dir",
        folder,
    )
    return folder


def weights(folder):
    return load_file(folder / "model.safetensors")


def differ(one, two):
    return any(not torch.equal(weight, two[name]) for name, weight in one.items() if "embeddings" in name)


def test_each_has_its_own_from_one_start(run):
    start = weights(run / "initial")
    for stage in STAGES:
        queries, passages = weights(run / stage), weights(run / stage / "passage_encoder")
        assert differ(queries, passages)
        assert differ(queries, start)
        assert differ(passages, start)
        assert read_manifest(run / stage).metrics["validation"]["measure"] == "RR@10"
    mined = read_manifest(run / "retriever-2").metrics["refreshed"]["0"]
    assert mined["models"]["retriever"] == digest(open_encoder(run / "retriever-1", device="cpu").identity())


def test_what_is_searched_is_what_is_exported(run, collection):
    both = open_encoder(run, device="cpu")
    assert isinstance(both, DualEncoder)
    theirs = SentenceTransformer(str(run / "encoder"), device="cpu")
    questions = ["what did ada do for alan", "what did grace do for ada"]
    np.testing.assert_allclose(theirs.encode_query(questions), both.encode_queries(questions), atol=1e-6)
    np.testing.assert_allclose(theirs.encode_document(questions), both.encode_passages(questions), atol=1e-6)
    assert np.abs(both.encode_queries(questions) - both.encode_passages(questions)).max() > 1e-3
    ranked = dict(read_run(run / "runs/retriever-distilled.arrow"))
    lines = (collection / "queries.jsonl").read_text().splitlines()
    queries = {row["_id"]: row["text"] for row in map(json.loads, lines)}
    retriever = Retriever.load(run)
    for query, hits in ranked.items():
        (found,) = retriever.search([queries[query]], 5)
        np.testing.assert_allclose([score for _, score in hits[:5]], found.scores, atol=1e-5)


def test_a_checkpoint_is_exported_with_both(run, tmp_path):
    export_checkpoint(run / "retriever-1", tmp_path / "e")
    one, two = open_encoder(tmp_path / "e", device="cpu"), open_encoder(run / "retriever-1", device="cpu")
    assert one.identity() == two.identity()
    assert one.identity()["weights"] != open_encoder(run, device="cpu").identity()["weights"]


def test_one_of_two_is_named_where_one_is_wanted(run, collection):
    done = drkit("compose", f"--encoder={run / 'encoder'}", f"--collection=beir:{collection}", "--dry-run", check=False)
    assert done.returncode == 2
    assert "query_encoder and passage_encoder" in done.stderr
    done = drkit(
        "compose", f"--encoder={run / 'encoder/query_encoder'}", f"--collection=beir:{collection}", "--dry-run"
    )
    assert "query_encoder" in done.stdout
