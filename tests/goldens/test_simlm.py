"""SimLM's losses, states and gradients equal the recorded ones, frozen and trained generator, for every recording."""

from __future__ import annotations

import json
from contextlib import contextmanager

import attrs
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, ElectraConfig, ElectraForMaskedLM

from drkit.core.types import BackboneInfo, BuildContext, DecoderInput, MaskedView, TokenBatch
from drkit.decoders import MlmDecoder, MlmDecoderConfig
from drkit.decoders.layers import with_bottleneck
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.architectures import architecture
from drkit.encoders.heads import token_states
from drkit.losses import MlmLoss
from drkit_simlm import GeneratorConfig
from drkit_simlm.masker import GeneratorReplacer
from tests.goldens.recordings import DEFAULTS, NO_DROPOUT, SHARED, check_gradients

WEIGHT, MASK = 0.2, 4
VARIANTS = {"frozen_gen": "frozen", "trained_gen": "joint"}


def recordings():
    found = []
    for weights in sorted(SHARED.glob("simlm_rlm_*_weights.safetensors")):
        found += sorted(SHARED.glob(f"{weights.name.removesuffix('_weights.safetensors')}_b*.safetensors"))
    return found


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def layer_names() -> dict[str, str]:
    """drkit's names inside a decoder layer, by the authors'."""
    names = architecture("bert").layer
    return {
        f"{getattr(names, f.name)}.{p}": f"{f.name}.{p}" for f in attrs.fields(type(names)) for p in ("weight", "bias")
    }


class SimLm:
    """One recorded batch, and what drkit makes of it."""

    def __init__(self, path, variant: str) -> None:
        stem = path.name.rsplit("_b", 1)[0]
        with safe_open(path.with_name(f"{stem}_weights.safetensors"), "pt") as file:
            self.config = {**DEFAULTS, **json.loads(file.metadata()["config"]), **NO_DROPOUT}
        self.weights, tensors = load_file(path.with_name(f"{stem}_weights.safetensors")), load_file(path)
        self.inputs = under("in.", tensors)
        self.wanted, self.gradients = under(f"out.{variant}.", tensors), under(f"grad.{variant}.", tensors)
        self.metrics = json.loads(path.with_suffix(".json").read_text())["variants"][variant]
        self.learns = variant == "trained_gen"

    def encoder(self) -> MaskedLmEncoder:
        return self._loaded(BertForMaskedLM(BertConfig(**self.config)), "encoder.")

    def generator(self) -> MaskedLmEncoder:
        own = under("generator.", self.weights)
        words, width = own["electra.embeddings.word_embeddings.weight"].shape
        layers = {name.split(".")[3] for name in own if ".encoder.layer." in name}
        sizes = {
            "vocab_size": words,
            "embedding_size": width,
            "hidden_size": own["generator_predictions.dense.weight"].shape[1],
            "num_hidden_layers": len(layers),
            # A recording does not say; heads as wide as the encoder's fit.
            "num_attention_heads": width * self.config["num_attention_heads"] // self.config["hidden_size"],
            "intermediate_size": own["electra.encoder.layer.0.intermediate.dense.bias"].shape[0],
        }
        return self._loaded(ElectraForMaskedLM(ElectraConfig(**{**self.config, **sizes})), "generator.")

    def _loaded(self, model, prefix: str) -> MaskedLmEncoder:
        missing, unexpected = model.load_state_dict(under(prefix, self.weights), strict=False)
        assert not unexpected
        assert all("decoder." in name or "generator_lm_head.weight" in name for name in missing), missing  # tied
        return MaskedLmEncoder(model, pooling="cls")

    def decoder(self, context: BuildContext) -> MlmDecoder:
        own, names = under("decoder.", self.weights), layer_names()
        count = len({name.split(".")[0] for name in own})
        decoder = MlmDecoder(MlmDecoderConfig(layers=count, init="encoder-tail"), context)
        parts = (name.split(".", 1) for name in own)
        decoder.load_state_dict({f"layers.{number}.{names[rest]}": own[f"{number}.{rest}"] for number, rest in parts})
        return decoder

    def context(self, generator: MaskedLmEncoder | None = None) -> BuildContext:
        backbone = BackboneInfo(
            hidden=self.config["hidden_size"],
            heads=self.config["num_attention_heads"],
            intermediate=self.config["intermediate_size"],
            layers=self.config["num_hidden_layers"],
            vocab=self.config["vocab_size"],
            max_positions=self.config["max_position_embeddings"],
            mask_id=MASK,
            pad_id=0,
            layer_norm_eps=self.config["layer_norm_eps"],
            activation=self.config["hidden_act"],
        )
        return BuildContext(backbone=backbone, generator=generator)

    def tokens(self) -> TokenBatch:
        labels, attention = self.inputs["labels"], self.inputs["enc_attention_mask"].bool()
        maskable = labels != -100
        ids = torch.where(maskable, labels, self.inputs["enc_input_ids"])
        unused = torch.zeros_like(ids)
        return TokenBatch(ids=ids, attention=attention, maskable=maskable, words=unused, keys=unused[:, 0])

    def view(self, side: str) -> MaskedView:
        """What the masker hands over, with the noise by which the recorded samples are drawn from recorded logits."""
        below = self.wanted[f"gen_logits_{side}"].double().softmax(-1).cumsum(-1)
        at = self.inputs[f"{side}_sampled_input_ids"][..., None]
        lower = below.gather(-1, (at - 1).clamp(min=0)) * (at > 0)
        hidden = self.inputs[f"{side}_labels"] != -100
        return MaskedView(
            ids=self.inputs[f"{side}_input_ids"],
            labels=self.inputs["labels"],
            attention=self.inputs[f"{side}_attention_mask"].bool(),
            noise=torch.where(hidden, ((lower + below.gather(-1, at)) / 2)[..., 0], -1.0),
        )

    @contextmanager
    def segments(self, side: str, *models: MaskedLmEncoder):
        """A block in which encoders read the recorded segments (title and text); drkit's own texts are one segment."""
        given = {"token_type_ids": self.inputs[f"{side}_token_type_ids"]}
        hooks = [
            model.backbone.register_forward_pre_hook(
                lambda _, args, kwargs: (args, {**kwargs, **given}), with_kwargs=True
            )
            for model in models
        ]
        yield
        for hook in hooks:
            hook.remove()

    def run(self, encoder, decoder, replacer):
        """As a run does it: replace, encode, replace again, decode; both classify all original tokens."""
        tokens, heads, loss = self.tokens(), encoder.heads(), MlmLoss()
        with self.segments("enc", encoder, replacer.generator):
            view, learned = replacer(self.view("enc"), tokens, learn=True)
            encoded = encoder.encode(view.ids, view.attention)
        with self.segments("dec", replacer.generator):
            again, nothing = replacer(self.view("dec"), tokens, learn=False)
        assert nothing is None
        found = decoder(DecoderInput(encoded, tokens, again), heads)
        own = token_states(encoded.hidden, view.labels, heads)
        out = {"loss_enc": loss(token_states=own).loss, "loss_dec": loss(**found).loss}
        generated = torch.zeros(()) if learned is None else learned.metrics["mlm"]
        total = sum(out.values()) + (0 if learned is None else learned.loss)
        return (view, again, encoded, found), {**out, "loss_gen": generated, "loss": total, "cls": encoded.bottleneck}


@pytest.fixture(scope="module", params=recordings() or [None], ids=lambda path: path.stem if path else "none")
def path(request):
    if request.param is None:
        pytest.skip(f"no recordings of SimLM in {SHARED}")
    return request.param


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_samples_states_and_gradients(path, variant, training):
    recording = SimLm(path, variant)
    encoder = recording.encoder().train(training)
    context = recording.context(recording.generator())
    decoder = recording.decoder(context).train(training)
    replacer = GeneratorReplacer(GeneratorConfig(variant=VARIANTS[variant]), context).train(training)
    (view, again, encoded, found), got = recording.run(encoder, decoder, replacer)
    assert torch.equal(view.ids, recording.inputs["enc_sampled_input_ids"])
    assert torch.equal(again.ids, recording.inputs["dec_sampled_input_ids"])
    for name in ("loss_enc", "loss_dec", "loss_gen", "loss", "cls"):
        torch.testing.assert_close(got[name], recording.wanted[name], rtol=1e-5, atol=1e-5)
    for name, value in recording.metrics["losses64"].items():
        if name != "replace_ratio":
            assert got[name].item() == pytest.approx(value, rel=1e-5)
    real = view.attention
    torch.testing.assert_close(encoded.hidden[real], recording.wanted["enc_last_hidden"][real], rtol=1e-5, atol=1e-5)
    targets = view.labels != -100
    states = found["token_states"].states
    torch.testing.assert_close(states, recording.wanted["dec_hidden"][targets], rtol=1e-5, atol=1e-5)
    embedded = with_bottleneck(encoded.bottleneck, encoder.heads().embed(again.ids))
    torch.testing.assert_close(embedded[real], recording.wanted["dec_input"][real], rtol=1e-5, atol=1e-5)

    got["loss"].backward()
    gradients = _gradients(encoder, decoder, replacer)
    assert any(name.startswith("generator.") for name in gradients) == recording.learns
    check_gradients(gradients, recording.gradients, recording.metrics)


def _gradients(encoder, decoder, replacer) -> dict[str, Tensor]:
    back = {mine: theirs for theirs, mine in layer_names().items()}
    found = {f"encoder.{name}": p.grad for name, p in encoder.model.named_parameters()}
    for name, parameter in decoder.named_parameters():
        _, number, rest = name.split(".", 2)
        found[f"decoder.{number}.{back[rest]}"] = parameter.grad
    own = {f"generator.{name}": p.grad for name, p in replacer.generator.model.named_parameters()}
    return found | {name: grad for name, grad in own.items() if grad is not None}


def test_the_generators_logits(path):
    recording = SimLm(path, "frozen_gen")
    generator = recording.generator().eval()
    for side in ("enc", "dec"):
        view = recording.view(side)
        with torch.no_grad(), recording.segments(side, generator):
            logits = generator.heads().logits(generator(view.ids, view.attention)["hidden"])
        wanted = recording.wanted[f"gen_logits_{side}"]
        torch.testing.assert_close(logits[view.attention], wanted[view.attention], rtol=1e-5, atol=1e-5)


def test_the_recorded_masks_are_nested_and_the_rest_is_left_alone(path):
    inputs = SimLm(path, "frozen_gen").inputs
    encoder, decoder = (inputs[f"{side}_labels"] != -100 for side in ("enc", "dec"))
    assert not (encoder & ~decoder).any()
    for side, hidden in (("enc", encoder), ("dec", decoder)):
        assert torch.equal(inputs[f"{side}_sampled_input_ids"][~hidden], inputs[f"{side}_input_ids"][~hidden])


def test_a_decoder_starts_as_a_copy_of_the_last_layers(path):
    recording = SimLm(path, "frozen_gen")
    encoder = recording.encoder()
    decoder = MlmDecoder(MlmDecoderConfig(layers=2, init="encoder-tail"), recording.context())
    decoder.init_from(encoder)
    hidden = torch.randn(2, 5, recording.config["hidden_size"], generator=torch.Generator().manual_seed(1))
    visible = torch.ones(2, 1, 5, dtype=torch.bool)
    wanted, got = hidden, hidden
    for theirs, mine in zip(encoder.layers[-2:], decoder.layers, strict=True):
        wanted, got = theirs(wanted), mine(got, got, visible)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
