"""Replace masked words by samples of a small masked language model; every original token is a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attrs import evolve
from torch import Tensor, nn

from drkit.encoders import MaskedLmEncoder, check_same_vocabulary
from drkit.maskers import UniformConfig, UniformMasker
from drkit.plugin import BuildContext, DrkitError, MaskedView, StepOutput, TokenBatch
from drkit.train import save_masked_lm
from drkit_simlm import GeneratorConfig

if TYPE_CHECKING:
    from drkit.plugin import Draws, LmHeads

# Number of probabilities held at once while sampling: 32 MB in float64.
AT_ONCE = 2**22


class GeneratorMasker:
    """Masks whole words, or tokens, at random; a `GeneratorReplacer` fills them later.

    The masker runs no model: the view carries `noise`, a uniform number for each hidden position, from which the
    generator samples on the device of the training. Every maskable token is a target. With `rows` the decoder reads the
    clean text through the visibility pattern of `UniformMasker`, and nothing is replaced.

    Source: SimLM (Wang et al. 2023), section 3.1, equation 1.
    """

    def __init__(self, config: GeneratorConfig, context: BuildContext) -> None:
        self.config = config
        masked = UniformConfig(ratio=config.ratio, unit=config.unit, mask_token_share=(1.0, 0.0, 0.0))
        self._masker = UniformMasker(masked, context)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0, nested: MaskedView | None = None) -> MaskedView:
        """Return a view of a batch, to be filled; `rows` > 0: a visibility pattern bool[B,rows,L]."""
        view = self._masker(tokens, rng, rows, nested)
        return view if rows else with_sampling_noise(view, tokens, rng)

    def replacer(self, context: BuildContext) -> GeneratorReplacer:
        """Return the module that fills its views with `context.generator`. Raises DrkitError if that does not fit."""
        return GeneratorReplacer(self.config, context)


def with_sampling_noise(view: MaskedView, tokens: TokenBatch, rng: Draws) -> MaskedView:
    """Return the view with every maskable token as a target, and a random number in [0, 1) at each hidden one."""
    labels = torch.where(tokens.maskable, tokens.ids, -100)
    draws = torch.from_numpy(rng.uniform(tokens.ids.shape[1]))
    return evolve(view, labels=labels, noise=torch.where(view.labels != -100, draws, -1.0))


class GeneratorReplacer(nn.Module):
    """Fills a view's hidden positions with samples of a masked LM's softmax (temperature 1), which may be the original.

    A sample is the inverse of the softmax's distribution function at the view's `noise`: without dropout it depends
    only on the text and its noise, not on the batch, the process or earlier samples.

    Frozen: no parameter requires a gradient, and the generator stays in evaluation mode even after `train()`. Joint and
    joint-random: it learns by its own MLM loss on the encoder's view (on the first one that it fills); no gradient
    passes through the samples.

    Raises DrkitError without a generator, or if its vocabulary differs from the encoder's.
    """

    def __init__(self, config: GeneratorConfig, context: BuildContext) -> None:
        super().__init__()
        generator = context.generator
        if not isinstance(generator, MaskedLmEncoder) or context.backbone is None:
            raise DrkitError(
                "the masker 'generator' needs a masked LM to fill its views; pass BuildContext.generator, as from "
                "MaskedLmEncoder.from_pretrained(..), together with the backbone (in a run, a stage provides both)"
            )
        check_same_vocabulary(generator, context)
        self.learns = config.variant != "frozen"
        self.weight = config.generator_weight
        self.words = context.vocabulary_size
        self.generator = generator
        self.tokenizer = context.tokenizer
        self.generator.requires_grad_(self.learns)
        self.train(self.learns)

    def train(self, mode: bool = True) -> GeneratorReplacer:
        """Set training mode; a frozen generator stays in evaluation mode."""
        return super().train(mode and self.learns)

    def forward(
        self, view: MaskedView, tokens: TokenBatch, *, learn: bool = False
    ) -> tuple[MaskedView, StepOutput | None]:
        """Return the view with its hidden positions filled and, if the generator learns, its own loss.

        The loss is already multiplied by `generator_weight`, ready to be added. Metrics: `mlm`, the loss without the
        weight; `targets`, the number of positions in its mean.

        Raises DrkitError if the view has no noise to sample from.
        """
        if view.noise is None:
            raise DrkitError("a view without noise cannot be filled; use a view of the masker 'generator'")
        masked = view.noise >= 0
        learning = learn and self.learns
        with torch.set_grad_enabled(learning and torch.is_grad_enabled()):
            states = self.generator(view.ids, view.attention)["hidden"][masked]
        heads, ids = self.generator.heads(), view.ids.clone()
        ids[masked] = sample_words(states.detach(), view.noise[masked], heads, self.words)
        filled = evolve(view, ids=ids)
        return filled, self._own_loss(states, tokens.ids[masked], heads) if learning else None

    def save(self, folder: Path) -> None:
        """Write the generator as a masked LM, for a checkpoint."""
        save_masked_lm(self.generator, self.tokenizer, folder)

    def load(self, folder: Path) -> None:
        """Load the weights that `save` wrote."""
        self.generator.load_state_dict(MaskedLmEncoder.from_pretrained(str(folder)).state_dict())

    def _own_loss(self, states: Tensor, labels: Tensor, heads: LmHeads) -> StepOutput:
        loss = heads.lm_loss(states, labels)
        metrics = {"mlm": loss.detach(), "targets": torch.tensor(len(labels), device=labels.device)}
        return StepOutput(loss=self.weight * loss, metrics=metrics)


@torch.no_grad()
def sample_words(states: Tensor, noise: Tensor, heads: LmHeads, words: int) -> Tensor:
    """Return for each state f[N,D] the first word i64[N] whose cumulative probability exceeds its noise f[N] in [0, 1).

    Only the first `words` rows of the embedding table are words. At most `AT_ONCE` probabilities are held at a time,
    for any N and vocabulary; they are summed in float64, so that rare words keep their probability.
    """
    rows, sampled = max(1, AT_ONCE // words), torch.empty(len(states), dtype=torch.long, device=noise.device)
    # One buffer for all chunks: buffers freed and allocated per chunk would pile up in the C library's heap.
    buffer = torch.empty(min(rows, len(states)), words, dtype=torch.float64, device=noise.device)
    for at in range(0, len(states), rows):
        logits = heads.logits(states[at : at + rows])[:, :words].float()
        below = torch.cumsum(logits.softmax(-1), -1, dtype=torch.float64, out=buffer[: len(logits)])
        thresholds = noise[at : at + rows, None].double() * below[:, -1:]
        sampled[at : at + rows] = torch.searchsorted(below, thresholds, right=True)[:, 0]
    return sampled
