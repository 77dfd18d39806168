"""SimLM: rebuild words that a small language model replaced, in the encoder and, through one vector, in a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.core.citations import SIMLM
from drkit.decoders.specs import MlmDecoderConfig
from drkit.losses.specs import MlmLossConfig, RtdConfig
from drkit.maskers.specs import GeneratorConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

ELECTRA = Citation(
    key="clark2020electra",
    title="ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
    year=2020,
    url="https://arxiv.org/abs/2003.10555",
)


PARTS = (
    ComponentSpec(
        kind=Kind.MASKER,
        name="generator",
        target="drkit.maskers.generator:GeneratorMasker",
        config=GeneratorConfig,
        summary="Whole words, nested views, replaced by samples of a masked LM",
        cite=SIMLM,
        provides=("view", "rows", "replaced"),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="autoencoder",
        target="drkit.decoders.mlm:AutoencoderDecoder",
        config=MlmDecoderConfig,
        summary="Every token from the bottleneck alone, without any context",
        cite=SIMLM,
        provides=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="replaced-token-detection",
        target="drkit.decoders.replaced_token_detection:ReplacedTokenDetectionDecoder",
        config=MlmDecoderConfig,
        summary="n transformer layers that detect which tokens were replaced",
        cite=SIMLM,
        receives=("view", "replaced"),
        provides=("replaced_logits", "replaced"),
        trained_by="rtd",
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="replaced-lm",
        target="drkit.losses.tokens:MlmLoss",
        config=MlmLossConfig,
        summary="Cross-entropy of the tokens before replacement, at all positions",
        cite=SIMLM,
        receives=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="rtd",
        target="drkit.losses.tokens:RtdLoss",
        config=RtdConfig,
        summary="Binary cross-entropy: was this token replaced",
        cite=ELECTRA,
        receives=("replaced_logits", "replaced"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="encoder-rtd",
        target="drkit.losses.tokens:EncoderRtdLoss",
        config=RtdConfig,
        summary="Replaced-token detection on the encoder's states, with its own head",
        cite=ELECTRA,
        receives=("text_states", "replaced"),
    ),
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the generator, replaced language modelling, and the other objectives of the paper's table 7."""
    return PARTS


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return SimLM, and the other objectives of its table 7."""
    folder = files("drkit_simlm") / "recipes"
    names = ("simlm", "simlm-mlm", "simlm-rtd", "simlm-autoencoder", "mlm-only")
    return {name: folder / f"{name}.toml" for name in names}
