"""Losses at tokens: predict the original token, from its own state, the one before it, or weighted by its text."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from drkit.core.spec import NoSettings
from drkit.core.types import BuildContext, StepOutput, TextStates, TokenStates
from drkit.encoders.heads import weighted_lm_loss
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


class MntpLoss:
    """The masked-LM loss with the shift of a causal LM: the state before a hidden token predicts it.

    | input | shape | what |
    |---|---|---|
    | preceding_states.states | f[N,D] | states one position before the targets, before the LM head |
    | preceding_states.labels | i64[N] | the original tokens |
    | preceding_states.heads | | the LM head to apply |

    A decoder-only model has learned to predict the next token, and keeps doing so. A token without one before it is not
    a target. `targets` as in `MlmLoss`.

    Source: LLM2Vec (BehnamGhader et al. 2024), masked next token prediction.
    """

    def __init__(self, config: MlmLossConfig | None = None, context: BuildContext | None = None) -> None:
        self._loss = MlmLoss(config, context)

    def __call__(self, *, preceding_states: TokenStates) -> StepOutput:
        """Return the loss of a batch."""
        return self._loss(token_states=preceding_states)

    def items(self, *, preceding_states: TokenStates) -> Tensor:
        """Return the number of targets that the mean runs over, i64[]."""
        return self._loss.items(token_states=preceding_states)

    def accuracy(self, *, preceding_states: TokenStates) -> tuple[float, float]:
        """Return the number of targets whose best-scored token is the original one, and the number of targets."""
        return self._loss.accuracy(token_states=preceding_states)


class MaskedDiffusionLoss:
    """`1/T sum_i 1/t_i CE_i` over the hidden tokens i: an upper bound of the negative log-likelihood of a token.

    | input | shape | what |
    |---|---|---|
    | token_states | f[N,D], i64[N] | states at the hidden tokens, the original tokens, and the LM head |
    | ratios | f[N] | t, the ratio that was drawn for the text of each |
    | text_states.tokens | | the clean texts, with T tokens that could have been hidden, in all |

    Metrics: `targets`, the number of hidden tokens.

    Source: LLaDA (Nie et al. 2025), pre-training; MDLM (Sahoo et al. 2024), with the linear schedule.
    """

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, *, token_states: TokenStates, ratios: Tensor, text_states: TextStates) -> StepOutput:
        """Return the loss of a batch."""
        states, labels = token_states.states, token_states.labels
        summed = weighted_lm_loss(states, labels, 1 / ratios, token_states.heads)
        tokens = self.items(token_states=token_states, ratios=ratios, text_states=text_states)
        return StepOutput(
            loss=summed / tokens.clamp(min=1), metrics={"targets": torch.tensor(len(labels), device=labels.device)}
        )

    def items(self, *, token_states: TokenStates, ratios: Tensor, text_states: TextStates) -> Tensor:  # noqa: ARG002
        """Return the number of tokens that could have been hidden, i64[]."""
        return text_states.tokens.maskable.sum()

    def accuracy(self, *, token_states: TokenStates, **_others: Any) -> tuple[float, float]:
        """Return the number of hidden tokens whose best-scored token is the original one, and their number."""
        return MlmLoss().accuracy(token_states=token_states)


def evenly_spaced(count: int, share: float) -> Tensor:
    """Return ceil(count * share) evenly spaced indices below `count`, i64; masks are random, so this needs no draw.

    >>> evenly_spaced(10, 0.3).tolist()
    [0, 3, 6]
    """
    kept = math.ceil(count * share - 1e-9)
    return (torch.arange(kept) * (count / max(kept, 1))).long()
