"""The loss at tokens: predict the original token (MLM)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drkit.core.types import BuildContext, StepOutput, TokenStates
from drkit.losses.specs import MlmLossConfig


class MlmLoss:
    """The masked-language-modelling loss: a mean over the target tokens of the batch, not over its texts.

    | input | shape | what |
    |---|---|---|
    | token_states.states | f[N,D] | states at the targets, before the LM head |
    | token_states.labels | i64[N] | the original tokens |
    | token_states.heads | | the LM head to apply |

    The masker decides which positions are targets: masked tokens (the loss `mlm`), or every maskable token if a
    generator replaced some (`replaced-lm`). With `targets` below 1 only that share of the N states is scored, at even
    distances: the expected loss stays the same, and the vocabulary projection takes most of a step. With N = 0 the loss
    is 0 and still has a graph. Metrics: `targets`, the number of states scored.

    Source: BERT (Devlin et al. 2019), section 3.1; the decoder's loss in all masked auto-encoders. `replaced-lm` is
    SimLM (Wang et al. 2023), section 3.1, equation 2.
    """

    def __init__(self, config: MlmLossConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = MlmLossConfig() if config is None else config

    def __call__(self, *, token_states: TokenStates) -> StepOutput:
        """Return the loss of one branch, the encoder's or the decoder's."""
        states, labels = token_states.states, token_states.labels
        if self.config.targets < 1:
            scored = evenly_spaced(len(labels), self.config.targets).to(labels.device)
            states, labels = states[scored], labels[scored]
        loss = token_states.heads.lm_loss(states, labels)
        return StepOutput(loss=loss, metrics={"targets": torch.tensor(len(labels), device=labels.device)})

    def items(self, *, token_states: TokenStates) -> Tensor:
        """Return the number of targets that the mean runs over, i64[]."""
        labels = token_states.labels
        return torch.tensor(len(evenly_spaced(len(labels), self.config.targets)), device=labels.device)

    def accuracy(self, *, token_states: TokenStates) -> tuple[float, float]:
        """Return the number of targets whose best-scored token is the original one, and the number of targets."""
        heads: Any = token_states.heads
        count = len(token_states.labels)
        return float(heads.lm_accuracy(token_states.states, token_states.labels)) * count, count


def evenly_spaced(count: int, share: float) -> Tensor:
    """Return ceil(count * share) evenly spaced indices below `count`, i64; masks are random, so this needs no draw.

    >>> evenly_spaced(10, 0.3).tolist()
    [0, 3, 6]
    """
    kept = math.ceil(count * share - 1e-9)
    return (torch.arange(kept) * (count / max(kept, 1))).long()
