"""CPDAE, as its recipe composes it, against the formulas written out: losses, vectors, gradients."""

from __future__ import annotations

import attrs
import pytest
import torch

from drkit.core.draws import Draws
from drkit.testing.toys import VOCAB, toy_context, toy_tokenizer, toy_tokens
from drkit.train import gradients
from drkit.train.pretrain import PARTNER, stacked
from tests.references.conftest import CONFIG, assert_gradients, composed, reference_weights, small_encoder
from tests.references.cpdae import cpdae, vectors_contrast

SIZES = {**CONFIG, "vocab_size": VOCAB}
PLAIN = ("pretrain.encoder.losses.mlm.weight=1.0", "pretrain.encoder.losses.mlm.targets=1.0")
NAMES = {
    f"{mine}.{piece}": f"mlp.{mine}.{piece}" for mine in ("hidden", "norm", "words") for piece in ("weight", "bias")
}
LENGTHS = (14, 9, 12, 5)


def prepared(paper: str, dtype=torch.float64, settings=()):
    encoder = small_encoder(toy_tokenizer())
    module, masked = composed(paper, encoder, toy_context(), settings=(*PLAIN, *settings))
    tokens = toy_tokens(LENGTHS)
    both = stacked(tokens, attrs.evolve(tokens, keys=tokens.keys + PARTNER), pad_id=0)
    rows = len(LENGTHS)
    batch = {**masked(both, Draws(1, 0, both.keys.numpy())), "partners": torch.arange(2 * rows).roll(rows)}
    return module.to(dtype), batch


def step(module, batch, chunk: int = 0):
    module.zero_grad()
    return gradients.backward(
        module, batch, gradients.GradientStrategy(forward=module, backward=torch.Tensor.backward, chunk=chunk)
    )


def totals(paper: str, found) -> torch.Tensor:
    """The paper's equation 6, or its variant's."""
    total = found["rec"] + found["mlm"]
    if paper == "cpdae":
        total = total + 0.1 * found["words"]
    if paper == "cpdae-r":
        total = total + 0.1 * found["vectors"]
    return total


@pytest.mark.parametrize("chunk", [0, 3])
@pytest.mark.parametrize("paper", ["cpdae", "cpdae-r", "cpdae-no-cl", "cpdae-idf"])
def test_total_and_gradients(paper, chunk):
    module, batch = prepared(paper)
    loss, metrics = step(module, batch, chunk)
    weights = reference_weights(module, NAMES)
    idf = toy_context().signals["idf"].tolist() if paper == "cpdae-idf" else None
    found = cpdae(weights, SIZES, batch, idf)
    if paper == "cpdae-r":
        found["vectors"] = vectors_contrast(list(found["h"]), batch["partners"].tolist(), 0.05)
    total = totals(paper, found)
    # Sums of losses are kept in float32 by the run.
    assert loss.item() == pytest.approx(total.item(), rel=1e-6)
    assert metrics["main_bow-reconstruction_loss"].item() == pytest.approx(found["rec"].item(), rel=1e-6)
    assert metrics["encoder_mlm_loss"].item() == pytest.approx(found["mlm"].item(), rel=1e-6)
    if paper in ("cpdae", "cpdae-r"):
        wanted = found["words" if paper == "cpdae" else "vectors"].item()
        name = "main_contrast_loss" if paper == "cpdae" else "encoder_contrast_loss"
        assert metrics[name].item() == pytest.approx(wanted, rel=1e-9)
    total.backward()
    assert_gradients(module, weights, NAMES, rtol=1e-6)


def test_parts_in_float64_agree_to_the_last_digits():
    module, batch = prepared("cpdae")
    found = cpdae(reference_weights(module, NAMES), SIZES, batch)
    views, _ = module.filled_views(batch)
    outputs = module.outputs(module.encode(views, batch), views, batch)
    torch.testing.assert_close(outputs["encoder"]["bottleneck"], found["h"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(outputs["main"]["vocab_logits"], found["z"], rtol=1e-10, atol=1e-12)
    terms = {name: term.loss(**term.inputs(outputs[term.on])).loss for name, term in module.terms.items()}
    for name, wanted in (("main_bow-reconstruction", "rec"), ("encoder_mlm", "mlm"), ("main_contrast", "words")):
        assert terms[name].item() == pytest.approx(found[wanted].item(), rel=1e-11)


@pytest.mark.parametrize("paper", ["cpdae", "cpdae-r", "cpdae-idf"])
def test_in_float32_to_1e_5(paper):
    exact, batch = prepared(paper)
    module, _ = prepared(paper, torch.float32)
    wanted, expected_metrics = step(exact, batch)
    got, metrics = step(module, batch)
    assert got.item() == pytest.approx(wanted.item(), rel=1e-5)
    for name in ("main_bow-reconstruction_loss", "encoder_mlm_loss", "main_contrast_loss", "encoder_contrast_loss"):
        if name in metrics:
            assert metrics[name].item() == pytest.approx(expected_metrics[name].item(), rel=1e-5)
    for mine, theirs in zip(module.parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None and theirs.grad.norm() > 1e-6:
            assert (mine.grad - theirs.grad).norm() < 1e-4 * theirs.grad.norm()


def test_two_maskings_of_each_text_are_its_two_rows():
    _, batch = prepared("cpdae")
    rows = len(LENGTHS)
    assert torch.equal(batch["encoder.tokens.ids"][:rows], batch["encoder.tokens.ids"][rows:])
    assert not torch.equal(batch["encoder.ids"][:rows], batch["encoder.ids"][rows:])
    assert (batch["encoder.labels"] != -100).any(1).all()
