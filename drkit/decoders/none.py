"""No decoder: only the encoder's own loss, as a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from drkit.core.types import BuildContext, DecoderInput
from drkit.decoders.specs import NoDecoderConfig

if TYPE_CHECKING:
    from drkit.encoders.heads import Heads


class NoDecoder(nn.Module):
    """Rebuilds nothing and has no weights: plain masked language modelling, without a bottleneck."""

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: NoDecoderConfig, _context: BuildContext) -> None:
        super().__init__()
        self.config = config

    def rows(self, length: int) -> int:  # noqa: ARG002
        """Return 0: this decoder does not read the masker's view."""
        return 0

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, Any]:  # noqa: ARG002
        """Return an empty mapping."""
        return {}
