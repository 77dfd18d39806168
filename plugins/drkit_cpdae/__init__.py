"""CPDAE: predict a text's words from its vector alone, and contrast the word distributions of its two maskings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from attrs import frozen
from attrs.validators import in_

from drkit.core.citations import CPDAE
from drkit.plugin import ComponentSpec, Kind, hookimpl, more_than, setting

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@frozen
class JsContrastiveConfig:
    """Settings of `JsContrastiveLoss`: contrast of two views' word distributions (CPDAE section 3.2.2)."""

    temperature: float = setting(
        1.0, more_than(0), "divergences are divided by it; 0.5 is the paper's equation 7", schedulable=True
    )
    reduction: str = setting("sum", in_(("sum", "mean")), "over the rows of the batch: sum, as in the paper, or mean")


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the contrast between word distributions."""
    return [
        ComponentSpec(
            kind=Kind.LOSS,
            name="js-contrastive",
            target="drkit_cpdae.loss:JsContrastiveLoss",
            config=JsContrastiveConfig,
            summary="Pulls word distributions of two maskings together, others apart",
            cite=CPDAE,
            receives=("vocab_logits", "partners"),
        ),
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe, its contrast of vectors, and its ablations."""
    folder = files("drkit_cpdae") / "recipes"
    return {name: folder / f"{name}.toml" for name in ("cpdae", "cpdae-r", "cpdae-no-cl", "cpdae-idf")}
