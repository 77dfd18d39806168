"""Runs that encode in bfloat16: the encoder as it is, and a retriever that the run trains."""

import numpy as np
import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file

from drkit.commands import open_encoder
from drkit.data.corpus import StoredCorpus
from drkit.encoders import EncoderCard
from drkit.encoders.folder import PRECISIONS
from drkit.runs.making.retriever import load_text_encoder, write_encoder
from drkit.search import open_index
from tests.rerank.toys import checkpoint
from tests.runs.conftest import drkit

READING = EncoderCard("mean", "cosine", 16, 32)


@pytest.fixture(scope="module")
def run(beir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    write_encoder(load_text_encoder(checkpoint(folder / "lm"), READING, device="cpu"), folder / "made", {})
    settings = ("pretrain=none", "encoder.precision=bfloat16", "finetune.max_steps=2", "evaluation.depth=20")
    drkit(
        *("compose", "--pipeline", "texts", "--encoder", folder / "made", "--collection", f"beir:{beir}"),
        *(f"--set={one}" for one in (*settings, "pseudo_queries.sources=['crops']", "finetune.baselines=[]")),
        *("--run-dir", folder / "run"),
    )
    return folder / "run"


@pytest.mark.parametrize("name", ["as-it-is", "retriever-1"])
def test_passages_are_encoded_in_it(run, name):
    texts = [passage.content for passage in StoredCorpus(run / "collection/passages")]
    whole, half = (
        open_encoder(run / name, device="cpu", precision=precision).encode_passages(texts) for precision in PRECISIONS
    )
    made = np.load(run / f"index-{name}/vectors.npy")
    # The run has other batches, which may round sums differently.
    assert np.abs(made - half).mean() < 0.1 * np.abs(made - whole).mean()
    assert open_index(run / f"index-{name}").encoder["precision"] == PRECISIONS[1]


def test_the_exported_encoder_is_whole(run):
    weights = load_file(run / "encoder" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert open_encoder(run, device="cpu").identity()["precision"] == PRECISIONS[0]


@pytest.mark.parametrize(("similarity", "is_noted"), [("dot", True), ("cosine", False)])
def test_lengths_of_vectors_that_vary_under_dot_product_are_noted(similarity, is_noted, beir, tmp_path):
    reading = evolve(READING, similarity=similarity)
    write_encoder(load_text_encoder(checkpoint(tmp_path / "lm"), reading, device="cpu"), tmp_path / "made", {})
    done = drkit(
        *("compose", "--encoder", tmp_path / "made", "--collection", f"beir:{beir}", "--run-dir", tmp_path / "run"),
        *("--set=pretrain=none", "--set=finetune=none", "--set=evaluation.depth=20"),
    )
    lengths = np.linalg.norm(np.load(tmp_path / "run" / "index-as-it-is" / "vectors.npy"), axis=1)
    assert bool(lengths.std() > 0.02 * lengths.mean()) is is_noted
    printed = " ".join((done.stdout + done.stderr).split())
    assert (f"have lengths from {lengths.min():.3g} to {lengths.max():.3g}" in printed) is is_noted
