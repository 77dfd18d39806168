"""Encoder loss, decoder loss, CLS and gradients equal the recorded ones, for every recording at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM

from drkit.core.types import BackboneInfo, BuildContext, DecoderInput, MaskedView, TokenBatch
from drkit.decoders import EnhancedConfig, EnhancedDecoder
from drkit.decoders.enhanced import row_visibility
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.architectures import architecture
from drkit.encoders.heads import token_states
from drkit.losses import MlmLoss
from tests.goldens.recordings import DEFAULTS, NO_DROPOUT, SHARED, check_gradients
from tests.goldens.reference import retromae

HERE = Path(__file__).parent


def recordings() -> list[Path]:
    found = []
    for folder in (HERE, SHARED):
        for weights in sorted(folder.glob("retromae_*_weights.safetensors")):
            stem = weights.name.removesuffix("_weights.safetensors")
            found += sorted(folder.glob(f"{stem}_b*.safetensors"))
    return found


class Recording:
    """One recorded batch, and what drkit makes of it."""

    def __init__(self, path: Path) -> None:
        weights = path.with_name(path.name.rsplit("_b", 1)[0] + "_weights.safetensors")
        with safe_open(weights, "pt") as file:
            self.config = {**DEFAULTS, **json.loads(file.metadata()["config"]), **NO_DROPOUT}
        self.weights, tensors = load_file(weights), load_file(path)
        self.inputs = {k.removeprefix("in."): v for k, v in tensors.items() if k.startswith("in.")}
        self.wanted = {k.removeprefix("out."): v for k, v in tensors.items() if k.startswith("out.")}
        self.gradients = {k.removeprefix("grad."): v for k, v in tensors.items() if k.startswith("grad.")}
        self.metrics = json.loads(path.with_suffix(".json").read_text())["variants"]["main"]

    def encoder(self) -> MaskedLmEncoder:
        model = BertForMaskedLM(BertConfig(**self.config))
        own = {k.removeprefix("lm."): v for k, v in self.weights.items() if k.startswith("lm.")}
        missing, unexpected = model.load_state_dict(own, strict=False)
        assert not unexpected
        assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # tied
        return MaskedLmEncoder(model, pooling="cls")

    def decoder(self) -> EnhancedDecoder:
        decoder = EnhancedDecoder(EnhancedConfig(), BuildContext(backbone=self.backbone()))
        names = _decoder_names()
        missing, unexpected = decoder.load_state_dict({names[k]: self.weights[k] for k in names}, strict=False)
        assert not missing
        assert not unexpected
        return decoder

    def backbone(self) -> BackboneInfo:
        return BackboneInfo(
            hidden=self.config["hidden_size"],
            heads=self.config["num_attention_heads"],
            intermediate=self.config["intermediate_size"],
            layers=self.config["num_hidden_layers"],
            vocab=self.config["vocab_size"],
            max_positions=self.config["max_position_embeddings"],
            mask_id=4,
            pad_id=0,
            layer_norm_eps=self.config["layer_norm_eps"],
            dropout=self.config["hidden_dropout_prob"],
            activation=self.config["hidden_act"],
        )

    def view(self) -> MaskedView:
        return MaskedView(
            ids=self.inputs["decoder_input_ids"],
            labels=self.inputs["decoder_labels"],
            attention=self.inputs["encoder_attention_mask"].bool(),
            visible=self.inputs["decoder_attention_mask"].bool(),
        )

    def run(self, encoder: MaskedLmEncoder, decoder: EnhancedDecoder) -> dict[str, torch.Tensor]:
        """As a run does it: encoder, its own loss, decoder, its loss."""
        view, heads, loss = self.view(), encoder.heads(), MlmLoss()
        encoded = encoder.encode(self.inputs["encoder_input_ids"], view.attention)
        unused = torch.zeros_like(view.ids)
        tokens = TokenBatch(
            ids=view.ids, attention=view.attention, maskable=view.labels != -100, words=unused, keys=unused[:, 0]
        )
        found = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=view), heads)
        own = token_states(encoded.hidden, self.inputs["encoder_labels"], heads)
        losses = {"loss_enc": loss(token_states=own).loss, "loss_dec": loss(**found).loss}
        states = found["token_states"].states
        summed = losses["loss_enc"] + losses["loss_dec"]
        return {**losses, "loss": summed, "cls": encoded.bottleneck, "dec_hidden": states}


def _decoder_names() -> dict[str, str]:
    import attrs

    names = architecture("bert").layer
    mine = {getattr(names, f.name): f.name for f in attrs.fields(type(names))}
    return {f"c_head.{k}.{p}": f"layer.{v}.{p}" for k, v in mine.items() for p in ("weight", "bias")}


@pytest.fixture(scope="module", params=recordings(), ids=lambda path: path.stem)
def recording(request) -> Recording:
    return Recording(request.param)


def test_there_is_something_to_match():
    assert HERE / "retromae_small_b1.safetensors" in recordings()


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_losses_vectors_and_gradients(recording, training):
    encoder, decoder = recording.encoder().train(training), recording.decoder().train(training)
    got = recording.run(encoder, decoder)
    for name in ("loss_enc", "loss_dec", "loss", "cls"):
        torch.testing.assert_close(got[name], recording.wanted[name], rtol=1e-5, atol=1e-5)
    for name, value in recording.metrics["losses64"].items():
        assert got[name].item() == pytest.approx(value, rel=1e-5)
    if "dec_hidden" in recording.wanted:
        targets = recording.view().labels != -100
        torch.testing.assert_close(got["dec_hidden"], recording.wanted["dec_hidden"][targets], rtol=1e-5, atol=1e-5)

    got["loss"].backward()
    gradients = {f"lm.{name}": p.grad for name, p in encoder.model.named_parameters()}
    back = {mine: theirs for theirs, mine in _decoder_names().items()}
    gradients |= {back[name]: p.grad for name, p in decoder.named_parameters()}
    check_gradients(gradients, recording.gradients, recording.metrics)


def test_the_decoders_own_rules_change_nothing_at_targets(recording):
    view = recording.view()
    assert torch.equal(row_visibility(view)[view.labels != -100], view.visible[view.labels != -100])


def test_the_literal_reference_agrees(recording):
    exact = {name: value.double() for name, value in recording.weights.items()}
    out = retromae(exact, recording.config, recording.inputs)
    for name, value in recording.metrics["losses64"].items():
        assert out[name].item() == pytest.approx(value, rel=1e-9)
    torch.testing.assert_close(out["cls"].float(), recording.wanted["cls"], rtol=1e-5, atol=1e-5)
