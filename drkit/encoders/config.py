"""Sizes of an encoder that is trained from scratch; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, in_, lt

from drkit.core.settings import setting


@frozen
class BertSizes:
    """Sizes of a BERT that starts from random weights.

    Raises ValueError where `hidden` is not a multiple of `heads`.
    """

    hidden: int = setting(128, ge(1), "width of the hidden states")
    layers: int = setting(2, ge(1), "transformer layers")
    heads: int = setting(2, ge(1), "attention heads; they divide the width")
    intermediate: int = setting(512, ge(1), "width of the feed-forward layers")
    max_positions: int = setting(512, ge(2), "longest text in tokens")
    dropout: float = setting(0.1, and_(ge(0), lt(1)), "dropout of hidden states and attention")
    activation: str = setting(
        "gelu", in_(("gelu", "relu", "silu", "gelu_new")), "activation of the feed-forward layers"
    )

    lm_head: str = setting(
        "transform",
        in_(("transform", "tied")),
        "LM head: BERT's transform and tied projection, or the projection alone",
    )

    def __attrs_post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"'hidden' is a multiple of 'heads': {self.hidden} is no multiple of {self.heads}")
