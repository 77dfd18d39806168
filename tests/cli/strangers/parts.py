"""The parts of a stranger's plugin."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from drkit.core.types import StepOutput
from drkit.encoders.heads import seeded


class Flags:
    """`weight` at every token whose word begins with a capital, 0 elsewhere."""

    def __init__(self, config, _context=None):
        self.weight = config.weight

    def values(self, texts, _folder):
        """f32[tokens] a text."""
        for text, spans in texts.read():
            yield np.array([self.weight * text[begin : begin + 1].isupper() for begin, _ in spans], np.float32)


class Apart:
    """The log of the mean of a kernel between vectors, weighted by how unlike the numbers of flags are."""

    def __init__(self, config, _context):
        self.sharpness = config.partners

    def __call__(self, *, bottleneck, entity_flags):
        """Bottleneck f[B,D], entity_flags f[B,L]."""
        rows, counts = F.normalize(bottleneck, dim=1), entity_flags.sum(1)
        unlike = 1 + (counts[:, None] - counts).abs()
        kernel = (-self.sharpness * (2 - 2 * rows @ rows.T)).exp()
        return StepOutput(loss=(unlike * kernel).mean().log())


class Capitals(nn.Module):
    """Numbers of flags f[B], from the vector, for the texts that have any token."""

    needs_layers = ()

    def __init__(self, config, context):
        super().__init__()
        with seeded(context.seed, "decoder"):
            self.mix = nn.Sequential(
                nn.Linear(context.backbone.hidden, config.targets), nn.GELU(), nn.Linear(config.targets, 1)
            )

    def rows(self, _length):
        """It reads no masked text."""
        return 0

    def forward(self, inputs, _heads):
        """The numbers, as far as a text has flags or none."""
        known = torch.isfinite(inputs.tokens.signal("entity-flags")).all(1)
        return {"flag_counts": self.mix(inputs.encoded.bottleneck)[:, 0] * known}


class CountLoss:
    """Mean squared error of the number of flags."""

    def __init__(self, _config, _context):
        pass

    def __call__(self, *, flag_counts, entity_flags):
        """Flag_counts f[B], entity_flags f[B,L]."""
        return StepOutput(loss=(flag_counts - entity_flags.sum(1)).pow(2).mean())
