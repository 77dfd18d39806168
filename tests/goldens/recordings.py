"""What was recorded of the authors' code with a Condenser-like head, read back into drkit's parts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from drkit.core.types import BackboneInfo, BuildContext, TokenBatch
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.architectures import architecture

SHARED = Path(os.environ.get("DRKIT_SHARED") or Path(__file__).resolve().parents[2].parent / "shared") / "goldens"
DEFAULTS = {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # as all were recorded


def recordings(name: str, but: str = " ") -> list[Path | None]:
    """Every recorded batch of a method, or [None]; `but`: a longer name with the same start, to be excluded."""
    found: list[Path | None] = []
    for weights in sorted(SHARED.glob(f"{name}_*_weights.safetensors")):
        if not weights.name.startswith(f"{but}_"):
            found += sorted(SHARED.glob(f"{weights.name.removesuffix('_weights.safetensors')}_b*.safetensors"))
    return found or [None]


def shown(path: Path | None) -> str:
    return path.stem if path else "none"


def file_of(path: Path | None, what: str) -> Path:
    if path is None:
        pytest.skip(f"no recordings of {what} in {SHARED}")
    return path


class Recorded:
    """One recorded batch. `lm`: what the authors' names of the masked LM's weights start with."""

    def __init__(self, path: Path, lm: str = "lm.") -> None:
        weights = path.with_name(path.name.rsplit("_b", 1)[0] + "_weights.safetensors")
        with safe_open(weights, "pt") as file:
            self.config = {**DEFAULTS, **json.loads(file.metadata()["config"]), **NO_DROPOUT}
        self.weights, self.lm, self.tensors = load_file(weights), lm, load_file(path)
        self.inputs = self.group("in.")
        self.variants = json.loads(path.with_suffix(".json").read_text())["variants"]

    def group(self, prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}

    def encoder(self) -> MaskedLmEncoder:
        model = BertForMaskedLM(BertConfig(**self.config))
        heads = ("c_head", "d_head")
        own = {k.removeprefix(self.lm): v for k, v in self.weights.items() if not k.startswith(heads)}
        missing, unexpected = model.load_state_dict(own, strict=False)
        assert not unexpected
        assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # tied
        return MaskedLmEncoder(model, pooling="cls")

    def context(self) -> BuildContext:
        backbone = BackboneInfo(
            hidden=self.config["hidden_size"],
            heads=self.config["num_attention_heads"],
            intermediate=self.config["intermediate_size"],
            layers=self.config["num_hidden_layers"],
            vocab=self.config["vocab_size"],
            max_positions=self.config["max_position_embeddings"],
            mask_id=4,
            pad_id=0,
            layer_norm_eps=self.config["layer_norm_eps"],
            activation=self.config["hidden_act"],
        )
        return BuildContext(backbone=backbone)

    def head_layers(self) -> int:
        return 1 + max(int(name.split(".")[1]) for name in self.weights if name.startswith("c_head."))

    def head_names(self) -> dict[str, str]:
        """The authors' name of each weight of the BERT layers of the head, and drkit's."""
        names = architecture("bert").layer
        pieces = {getattr(names, field.name): field.name for field in attrs.fields(type(names))}
        return {
            f"c_head.{layer}.{theirs}.{kind}": f"layers.{layer}.{mine}.{kind}"
            for layer in range(self.head_layers())
            for theirs, mine in pieces.items()
            for kind in ("weight", "bias")
        }

    def load_head(self, decoder: nn.Module) -> nn.Module:
        decoder.load_state_dict({mine: self.weights[theirs] for theirs, mine in self.head_names().items()})
        return decoder

    def gradients(self, encoder: MaskedLmEncoder, head: nn.Module) -> dict[str, Tensor | None]:
        found = {f"{self.lm}{name}": p.grad for name, p in encoder.model.named_parameters()}
        back = {mine: theirs for theirs, mine in self.head_names().items()}
        return found | {back[name]: p.grad for name, p in head.named_parameters()}


def text(ids: Tensor, attention: Tensor) -> TokenBatch:
    """Clean texts `[CLS] .. [SEP]`, as a decoder gets them."""
    attention = attention.bool()
    indices, unused = torch.arange(ids.shape[1]), torch.zeros_like(ids)
    inner = attention & (indices > 0) & (indices < attention.sum(1, keepdim=True) - 1)
    return TokenBatch(ids=ids, attention=attention, maskable=inner, words=unused, keys=unused[:, 0])


def check_outputs(got: dict[str, Tensor], wanted: dict[str, Tensor], metrics: dict) -> None:
    """Losses and vectors to 1e-5, losses also against the recorded float64 ones."""
    for name, value in got.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    for name, value in metrics["losses64"].items():
        assert got[name].item() == pytest.approx(value, rel=1e-5), name


def check_gradients(got: dict[str, Tensor | None], wanted: dict[str, Tensor], metrics: dict) -> None:
    """Whole gradients to 1e-4 relative, and the norm of every other one."""
    assert wanted
    for name, value in wanted.items():
        error = (got[name] - value).norm() / value.norm()
        assert error < 1e-4, f"{name}: relative error {error:.2e}"
    norms = metrics["grad_norms"]
    largest = max(norms.values())
    assert set(norms) <= set(got)
    for name, value in norms.items():  # a gradient that is zero by its formula (a key's bias) is rounding noise
        assert got[name].norm().item() == pytest.approx(value, rel=1e-4, abs=1e-6 * largest), name
