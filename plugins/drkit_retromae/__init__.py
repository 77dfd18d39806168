"""RetroMAE: an aggressive one-layer decoder that rebuilds every token. DupMAE adds a bag of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.plugin import Citation, ComponentSpec, Kind, NoSettings, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

DUPMAE = Citation(
    key="xiao2023dupmae",
    title="RetroMAE-2: Duplex Masked Auto-Encoder For Pre-Training Retrieval-Oriented Language Models",
    year=2023,
    url="https://arxiv.org/abs/2211.08769",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return DupMAE's bag of words."""
    return [
        ComponentSpec(
            kind=Kind.LOSS,
            name="bag-of-words",
            target="drkit_retromae.loss:BagOfWordsLoss",
            config=NoSettings,
            summary="Predicts a text's words by each word's best score over its tokens",
            cite=DUPMAE,
            receives=("text_states",),
        ),
    ]


_RECIPES = ("retromae", "retromae-basic", "dupmae", "dupmae-lexical")


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return RetroMAE, its ablation without enhanced decoding, and DupMAE, also searched by vector and words."""
    folder = files("drkit_retromae") / "recipes"
    return {name: folder / f"{name}.toml" for name in _RECIPES}
