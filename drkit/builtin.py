"""drkit's own parts, recipes and pipelines, as a plugin like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.data.specs import COLLECTIONS
from drkit.decoders.specs import MlmDecoderConfig, NoDecoderConfig
from drkit.losses.specs import LOSSES
from drkit.maskers.specs import UniformConfig
from drkit.miners.specs import MINERS
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl
from drkit.signals.specs import SIGNALS

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

BERT = Citation(
    key="devlin2019bert",
    title="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    year=2019,
    url="https://arxiv.org/abs/1810.04805",
)
MASKERS = (
    ComponentSpec(
        kind=Kind.MASKER,
        name="uniform",
        target="drkit.maskers.uniform:UniformMasker",
        config=UniformConfig,
        summary="Whole words at random, independent or nested views",
        cite=BERT,
        provides=("view", "rows"),
    ),
)
DECODERS = (
    ComponentSpec(
        kind=Kind.DECODER,
        name="mlm",
        target="drkit.decoders.mlm:MlmDecoder",
        config=MlmDecoderConfig,
        summary="n transformer layers on the bottleneck and the masked text",
        cite=BERT,
        receives=("view",),
        provides=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="none",
        target="drkit.decoders.none:NoDecoder",
        config=NoDecoderConfig,
        summary="No decoder: the encoder's own loss alone, a baseline",
        trained_by="none",
    ),
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the built-in maskers, decoders, losses, miners, collections and signals."""
    return [*MASKERS, *DECODERS, *LOSSES, *MINERS, *COLLECTIONS, *SIGNALS]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the recipe that `drkit compose` starts from without --paper."""
    return {"default": files("drkit") / "recipes" / "default.toml"}


@hookimpl
def drkit_pipelines() -> Mapping[str, Traversable]:
    """Return the fine-tuning pipelines, each of which can follow any pre-training."""
    folder = files("drkit") / "recipes" / "pipelines"
    names = ("ance", "dpr", "iterative", "low-resource", "three-stage", "two-stage")
    return {name: folder / f"{name}.toml" for name in names}
