"""Condenser and coCondenser: losses, states and gradients equal the recorded ones, for every recording at hand."""

from __future__ import annotations

import pytest
import torch

from drkit.core.types import DecoderInput, MaskedView
from drkit.encoders.heads import token_states
from drkit.losses import MlmLoss
from drkit_condenser import CondenserConfig
from drkit_condenser.decoder import CondenserDecoder
from drkit_query_as_context.loss import SpanContrastiveLoss
from tests.goldens.recordings import Recorded, check_gradients, check_outputs, file_of, recordings, shown, text

FOUND = [*recordings("condenser"), *recordings("cocondenser")]


@pytest.fixture(scope="module", params=FOUND, ids=shown)
def recording(request) -> Recorded:
    return Recorded(file_of(request.param, "Condenser"))


def skip_layer(recording: Recorded, encoder) -> int:
    """The encoder layer whose states were recorded as those that the head reads."""
    every = tuple(range(recording.config["num_hidden_layers"] + 1))
    with torch.no_grad():
        encoded = encoder.encode(recording.inputs["input_ids"], recording.inputs["attention_mask"].bool(), every)
    distances = [(layer - recording.tensors["out.skip_hidden"]).abs().max() for layer in encoded.layers]
    return int(torch.stack(distances).argmin())


def run(recording: Recorded, encoder, decoder) -> dict[str, torch.Tensor]:
    """As a run does it: encoder, its own loss, the head and its loss; and the contrast where pairs were recorded."""
    ids, labels = recording.inputs["input_ids"], recording.inputs["labels"]
    view = MaskedView(ids=ids, labels=labels, attention=recording.inputs["attention_mask"].bool())
    heads, loss = encoder.heads(), MlmLoss()
    encoded = encoder.encode(ids, view.attention, decoder.needs_layers)
    # Of its own view and text it must read nothing: another text's are given.
    other = MaskedView(ids=ids.roll(1, 0), labels=labels.roll(1, 0), attention=view.attention.roll(1, 0))
    tokens = text(other.ids, other.attention)
    found = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=other, encoder_view=view), heads)
    got = {
        "loss_enc": loss(token_states=token_states(encoded.hidden, labels, heads)).loss,
        "loss_dec": loss(**found).loss,
    }
    if "out.loss_co" in recording.tensors:
        partners = torch.arange(len(ids)) ^ 1
        got["loss_co"] = SpanContrastiveLoss()(bottleneck=encoded.bottleneck, partners=partners).loss
        assert torch.equal(partners, recording.tensors["out.co_target"].long())
    got["loss"] = torch.stack([*got.values()]).sum()
    (skipped,) = encoded.layers
    wanted = recording.tensors["out.dec_hidden"][labels != -100]
    torch.testing.assert_close(found["token_states"].states, wanted, rtol=1e-5, atol=1e-5)
    return {**got, "cls": encoded.bottleneck, "skip_hidden": skipped, "enc_last_hidden": encoded.hidden}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_losses_vectors_and_gradients(recording, training):
    encoder = recording.encoder().train(training)
    settings = CondenserConfig(layers=recording.head_layers(), skip_from=skip_layer(recording, encoder))
    decoder = recording.load_head(CondenserDecoder(settings, recording.context())).train(training)
    got = run(recording, encoder, decoder)
    metrics = recording.variants["main"]
    check_outputs(got, recording.group("out."), metrics)
    got["loss"].backward()
    check_gradients(recording.gradients(encoder, decoder), recording.group("grad."), metrics)


def test_the_default_layer_is_half_of_the_encoders(recording):
    (layer,) = CondenserDecoder(CondenserConfig(), recording.context()).needs_layers
    assert layer == recording.config["num_hidden_layers"] // 2
