"""Losses at tokens: predict the original token (MLM), or whether a generator replaced it (RTD)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.core.types import BuildContext, StepOutput, TextStates, TokenStates
from drkit.decoders.layers import sizes_of
from drkit.decoders.replaced_token_detection import ReplacedHead
from drkit.encoders.heads import seeded
from drkit.losses.specs import MlmLossConfig, RtdConfig


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


def evenly_spaced(count: int, share: float) -> Tensor:
    """Return ceil(count * share) evenly spaced indices below `count`, i64; masks are random, so this needs no draw.

    >>> evenly_spaced(10, 0.3).tolist()
    [0, 3, 6]
    """
    kept = math.ceil(count * share - 1e-9)
    return (torch.arange(kept) * (count / max(kept, 1))).long()


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

    def __init__(self, config: RtdConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = config

    def __call__(self, *, replaced_logits: Tensor, replaced: Tensor) -> StepOutput:
        """Return the loss of a decoder that scores tokens."""
        was, count = replaced.to(replaced_logits.dtype), len(replaced)
        summed = F.binary_cross_entropy_with_logits(replaced_logits, was, reduction="sum")
        metrics = {"targets": torch.tensor(count, device=was.device), "replaced": was.sum() / max(count, 1)}
        return StepOutput(loss=summed / max(count, 1), metrics=metrics)

    def items(self, *, replaced_logits: Tensor, replaced: Tensor) -> Tensor:  # noqa: ARG002
        """Return the number of tokens in the mean, i64[]."""
        return torch.tensor(len(replaced), device=replaced.device)


class EncoderRtdLoss(nn.Module):
    """Replaced-token detection by the encoder: the loss has its own head on the states of maskable tokens.

    | input | shape | what |
    |---|---|---|
    | text_states.states | f[B,L,D] | the encoder's states |
    | text_states.tokens | | the clean text |
    | replaced | bool[N] | whether the encoder read a replaced token, at the N maskable ones |

    Its head is trained with the encoder, and dropped after pre-training.
    """

    def __init__(self, config: RtdConfig, context: BuildContext) -> None:
        super().__init__()
        self.loss = RtdLoss(config)
        with seeded(context.seed, "replaced-token detection of the encoder"):
            self.head = ReplacedHead(sizes_of(context))

    def forward(self, *, text_states: TextStates, replaced: Tensor) -> StepOutput:
        """Return the loss of the encoder's branch."""
        states = text_states.states[text_states.tokens.maskable]
        return self.loss(replaced_logits=self.head(states), replaced=replaced)

    def items(self, *, text_states: TextStates, replaced: Tensor) -> Tensor:  # noqa: ARG002
        """Return the number of tokens in the mean, i64[]."""
        return torch.tensor(len(replaced), device=replaced.device)
