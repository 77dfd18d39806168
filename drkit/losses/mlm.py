"""Cross-entropy over the vocabulary at target positions: masked tokens, or every token where some were replaced."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from drkit.core.types import StepOutput
from drkit.losses.specs import MlmLossConfig, ReplacedLmConfig

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.types import BuildContext, TokenStates


class MlmLoss:
    """The masked-language-model loss: a mean over the target tokens of the batch, not over its texts.

    | input | shape | what |
    |---|---|---|
    | token_states.states | f[N,D] | states at the targets, before the LM head |
    | token_states.labels | i64[N] | the tokens to rebuild |
    | token_states.heads | | the LM head to apply |

    With `targets` below 1 only that share of the N states is scored: the vocabulary projection is most of a step.
    With N = 0 the loss is 0 and still has a graph. Metrics: `targets`, N.

    Source: BERT (Devlin et al. 2019), section 3.1; the decoder's loss in all masked auto-encoders.
    """

    def __init__(self, config: MlmLossConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = MlmLossConfig() if config is None else config

    def __call__(self, *, token_states: TokenStates) -> StepOutput:
        """The loss of one branch, the encoder's or the decoder's."""
        return token_cross_entropy(token_states, self.config.targets)

    def items(self, *, token_states: TokenStates) -> Tensor:
        """i64[]: how many targets the mean runs over."""
        return count_scored(token_states, self.config.targets)


def token_cross_entropy(token_states: TokenStates, share: float) -> StepOutput:
    """The mean cross-entropy over a share of the targets, evenly spread; metric: `targets`, how many were scored."""
    states, labels = token_states.states, token_states.labels
    if share < 1:
        kept = evenly_spread(len(labels), share).to(labels.device)
        states, labels = states[kept], labels[kept]
    loss = token_states.heads.lm_loss(states, labels)
    return StepOutput(loss=loss, metrics={"targets": torch.tensor(len(labels), device=labels.device)})


def count_scored(token_states: TokenStates, share: float) -> Tensor:
    """i64[]: how many targets `token_cross_entropy` scores."""
    labels = token_states.labels
    return torch.tensor(_scored(len(labels), share), device=labels.device)


def _scored(count: int, share: float) -> int:
    return math.ceil(count * share - 1e-9)


def evenly_spread(count: int, share: float) -> Tensor:
    """i64[ceil(count * share)]: places among `count`, at even distances; masks are random, so this needs no draw.

    >>> evenly_spread(10, 0.3).tolist()
    [0, 3, 6]
    """
    kept = _scored(count, share)
    return (torch.arange(kept) * (count / max(kept, 1))).long()


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
