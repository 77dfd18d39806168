"""SimLM: rebuild words that a small language model replaced, in the encoder and, through one vector, in a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from attrs import frozen
from attrs.validators import in_

from drkit.core.citations import SIMLM
from drkit.decoders import MlmDecoderConfig
from drkit.losses import MlmLossConfig
from drkit.maskers import ratio_setting, unit_setting
from drkit.plugin import Citation, ComponentSpec, GeneratorSettings, Kind, NoSettings, at_least, hookimpl, setting

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

ELECTRA = Citation(
    key="clark2020electra",
    title="ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
    year=2020,
    url="https://arxiv.org/abs/2003.10555",
)
GENERATOR = GeneratorSettings()


@frozen
class GeneratorConfig:
    """Settings of `GeneratorMasker`: a small masked LM fills what is hidden (SimLM sections 3.1 and C)."""

    ratio: float = ratio_setting()
    unit: str = unit_setting()
    variant: str = setting(
        "frozen",
        in_(("frozen", "joint", "joint-random")),
        "frozen; trained jointly with the encoder; or jointly from random weights",
    )
    generator_weight: float = setting(0.2, at_least(0), "weight of the generator's own loss, if it is trained")
    model: str = setting("", None, "path or hub id of a masked LM with the same vocabulary; empty: the run trains one")
    generator_layers: int = setting(
        GENERATOR.layers, at_least(1, 512), "transformer layers of the generator that the run trains"
    )
    generator_hidden: int = setting(GENERATOR.hidden, at_least(8, 16_384), "its hidden size")
    generator_heads: int = setting(GENERATOR.heads, at_least(1, 512), "its attention heads")
    generator_intermediate: int = setting(GENERATOR.intermediate, at_least(8, 65_536), "its feed-forward size")
    generator_steps: int = setting(
        GENERATOR.steps, at_least(0), "optimizer steps the run trains it for; 0: a third of the steps of pre-training"
    )

    def __attrs_post_init__(self) -> None:
        if self.generator_hidden % self.generator_heads:
            raise ValueError(
                f"'generator_hidden' ({self.generator_hidden}) must be a multiple of 'generator_heads' "
                f"({self.generator_heads})"
            )

    @property
    def requires(self) -> Mapping[str, GeneratorSettings]:
        """A masked LM, which a stage of the run loads or trains with these settings."""
        return {
            "generator": GeneratorSettings(
                model=self.model,
                random=self.variant == "joint-random",
                weight=None if self.variant == "frozen" else self.generator_weight,
                layers=self.generator_layers,
                hidden=self.generator_hidden,
                heads=self.generator_heads,
                intermediate=self.generator_intermediate,
                steps=self.generator_steps,
            )
        }


PARTS = (
    ComponentSpec(
        kind=Kind.MASKER,
        name="generator",
        target="drkit_simlm.masker:GeneratorMasker",
        config=GeneratorConfig,
        summary="Whole words, replaced by samples of a masked LM",
        cite=SIMLM,
        provides=("view", "rows", "replaced"),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="autoencoder",
        target="drkit_simlm.decoder:AutoencoderDecoder",
        config=MlmDecoderConfig,
        summary="Every token from the bottleneck alone, without any context",
        cite=SIMLM,
        provides=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="replaced-token-detection",
        target="drkit_simlm.decoder:ReplacedTokenDetectionDecoder",
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
        target="drkit_simlm.loss:RtdLoss",
        config=NoSettings,
        summary="Binary cross-entropy: was this token replaced",
        cite=ELECTRA,
        receives=("replaced_logits", "replaced"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="encoder-rtd",
        target="drkit_simlm.loss:EncoderRtdLoss",
        config=NoSettings,
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
