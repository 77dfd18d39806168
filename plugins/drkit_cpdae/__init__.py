"""CPDAE: predict a text's words from its vector alone, and contrast the word distributions of its two maskings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.decoders.specs import BowDecoderConfig
from drkit.losses.specs import BowReconstructionConfig, JsContrastiveConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CPDAE = Citation(
    key="ma2022cpdae",
    title="A Contrastive Pre-training Approach to Learn Discriminative Autoencoder for Dense Retrieval",
    year=2022,
    url="https://arxiv.org/abs/2208.09846",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the bag-of-words decoder, the loss that trains it, and the contrast between its word distributions."""
    return [
        ComponentSpec(
            kind=Kind.DECODER,
            name="bow",
            target="drkit.decoders.bow:BowDecoder",
            config=BowDecoderConfig,
            summary="Predicts which words occur, from the bottleneck alone: an MLP",
            cite=CPDAE,
            provides=("vocab_logits", "words"),
            trained_by="bow-reconstruction",
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="bow-reconstruction",
            target="drkit.losses.bag_of_words:BowReconstructionLoss",
            config=BowReconstructionConfig,
            summary="Yes or no for every word of the vocabulary",
            cite=CPDAE,
            receives=("vocab_logits", "words"),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="js-contrastive",
            target="drkit.losses.self_contrastive:JsContrastiveLoss",
            config=JsContrastiveConfig,
            summary="Pulls word distributions of two maskings together, others apart",
            cite=CPDAE,
            receives=("vocab_logits", "partners"),
            scope="batch",
        ),
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe, its contrast of vectors, and its ablations."""
    folder = files("drkit_cpdae") / "recipes"
    return {name: folder / f"{name}.toml" for name in ("cpdae", "cpdae-r", "cpdae-no-cl", "cpdae-idf")}
