"""Replaced language modelling: the original token is told at every position, replaced or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.losses.config import ReplacedLmConfig
from drkit.losses.mlm import count_scored, token_cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.types import BuildContext, StepOutput, TokenStates


class ReplacedLmLoss:
    """Cross-entropy of the tokens before replacement, a mean over all targets of the batch.

    | input | shape | what |
    |---|---|---|
    | token_states.states | f[N,D] | states at the targets, before the LM head |
    | token_states.labels | i64[N] | the tokens before replacement |
    | token_states.heads | | the LM head to apply |

    What is a target is the masker's business, and `generator` makes every maskable token one. With `targets` below 1
    only that share of the N states is scored, evenly spread: the mean stays the same on average, and the vocabulary
    projection is most of a step. Metrics: `targets`, the number scored.

    Source: SimLM (Wang et al. 2023), section 3.1, equation 2.
    """

    def __init__(self, config: ReplacedLmConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = ReplacedLmConfig() if config is None else config

    def __call__(self, *, token_states: TokenStates) -> StepOutput:
        """The loss of one branch, the encoder's or the decoder's."""
        return token_cross_entropy(token_states, self.config.targets)

    def items(self, *, token_states: TokenStates) -> Tensor:
        """i64[]: how many targets the mean runs over."""
        return count_scored(token_states, self.config.targets)
