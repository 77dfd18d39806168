"""No decoder: the encoder's own loss alone, as a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drkit.core.types import BuildContext, DecoderInput
    from drkit.decoders.specs import NoDecoderConfig
    from drkit.encoders.heads import Heads


class NoDecoder(nn.Module):
    """Rebuilds nothing and has no weights: what is left is plain masked language modelling, without a bottleneck."""

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: NoDecoderConfig, _context: BuildContext) -> None:
        super().__init__()
        self.config = config

    def rows(self, length: int) -> int:  # noqa: ARG002
        """It reads no view of the text."""
        return 0

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, Any]:  # noqa: ARG002
        """Nothing."""
        return {}
