"""Cross-entropy over the vocabulary, at target positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from drkit.core.types import StepOutput

if TYPE_CHECKING:
    from drkit.core.types import BuildContext, TokenStates
    from drkit.losses.config import MlmLossConfig


class MlmLoss:
    """The masked-language-model loss: a mean over the target tokens of the batch, not over its texts.

    | input | shape | what |
    |---|---|---|
    | token_states.states | f[N,D] | states at the targets, before the LM head |
    | token_states.labels | i64[N] | the tokens to rebuild |
    | token_states.heads | | the LM head to apply |

    With N = 0 the loss is 0 and still has a graph. Metrics: `targets`, N.

    Source: BERT (Devlin et al. 2019), section 3.1; the decoder's loss in all masked auto-encoders.
    """

    def __init__(self, config: MlmLossConfig | None = None, context: BuildContext | None = None) -> None:
        self.config, self.context = config, context

    def __call__(self, *, token_states: TokenStates) -> StepOutput:
        """The loss of one branch, the encoder's or the decoder's."""
        labels = token_states.labels
        loss = token_states.heads.lm_loss(token_states.states, labels)
        return StepOutput(loss=loss, metrics={"targets": torch.tensor(len(labels), device=labels.device)})
