"""Replaced-token detection: was this token replaced by the generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.decoders import sizes_of
from drkit.plugin import BuildContext, NoSettings, StepOutput, TextStates, seeded
from drkit_simlm.decoder import ReplacedHead


class RtdLoss:
    """Binary cross-entropy of one score per token: a mean over the tokens of the batch, 0 without tokens.

    | input | shape | what |
    |---|---|---|
    | replaced_logits | f[N] | above 0: predicted as replaced |
    | replaced | bool[N] | whether the token was replaced |

    Metrics: `targets`, N; `replaced`, the share that was replaced.

    Source: ELECTRA (Clark et al. 2020), section 2; SimLM (Wang et al. 2023), section 5.1.

    >>> out = RtdLoss()(replaced_logits=torch.zeros(4), replaced=torch.tensor([True, False, False, False]))
    >>> round(out.loss.item(), 4), out.metrics["replaced"].item()
    (0.6931, 0.25)
    """

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, *, replaced_logits: Tensor, replaced: Tensor) -> StepOutput:
        """Return the loss of a decoder that scores tokens."""
        was, count = replaced.to(replaced_logits.dtype), len(replaced)
        summed = F.binary_cross_entropy_with_logits(replaced_logits, was, reduction="sum")
        metrics = {"targets": torch.tensor(count, device=was.device), "replaced": was.sum() / max(count, 1)}
        return StepOutput(loss=summed / max(count, 1), metrics=metrics)

    def items(self, *, replaced_logits: Tensor, replaced: Tensor) -> Tensor:  # noqa: ARG002
        """Return the number of tokens in the mean, i64[]."""
        return torch.tensor(len(replaced), device=replaced.device)

    def accuracy(self, *, replaced_logits: Tensor, replaced: Tensor) -> tuple[float, float]:
        """Return the number of tokens correctly classified as original or replaced, and the number of tokens."""
        return float(((replaced_logits > 0) == replaced).sum()), replaced.numel()


class EncoderRtdLoss(nn.Module):
    """Replaced-token detection by the encoder: the loss has its own head on the states of maskable tokens.

    | input | shape | what |
    |---|---|---|
    | text_states.states | f[B,L,D] | the encoder's states |
    | text_states.tokens | | the clean text |
    | replaced | bool[N] | whether the encoder read a replaced token, at the N maskable ones |

    Its head is trained with the encoder, and dropped after pre-training.
    """

    def __init__(self, _config: NoSettings, context: BuildContext) -> None:
        super().__init__()
        self.loss = RtdLoss()
        with seeded(context.seed, "replaced-token detection of the encoder"):
            self.head = ReplacedHead(sizes_of(context))

    def forward(self, *, text_states: TextStates, replaced: Tensor) -> StepOutput:
        """Return the loss of the encoder's branch."""
        states = text_states.states[text_states.tokens.maskable]
        return self.loss(replaced_logits=self.head(states), replaced=replaced)

    def items(self, *, text_states: TextStates, replaced: Tensor) -> Tensor:  # noqa: ARG002
        """Return the number of tokens in the mean, i64[]."""
        return torch.tensor(len(replaced), device=replaced.device)
