"""Replace masked words by samples of a small masked language model; every original token is a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from drkit.core.files import local_path
from drkit.core.loading import load_pretrained
from drkit.core.types import BuildContext, MaskedView, StepOutput, TokenBatch, Views
from drkit.errors import DrkitError
from drkit.maskers.specs import GeneratorConfig, UniformConfig
from drkit.maskers.uniform import UniformMasker
from drkit.maskers.views import NO_TARGET, vocabulary_size

if TYPE_CHECKING:
    from drkit.core.draws import Draws
    from drkit.encoders.heads import Heads
    from drkit.encoders.masked_lm import MaskedLmEncoder

# Number of probabilities held at once while sampling: 32 MB in float64.
AT_ONCE = 2**22
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


class GeneratorMasker:
    """Masks whole words, for the decoder those of the encoder and more; a `GeneratorReplacer` fills them later.

    The masker runs no model: the views carry `noise`, a uniform number for each position, from which the generator
    samples on the device of the training. Every maskable token is a target on both sides. With `rows` the decoder reads
    the clean text through a nested visibility pattern (see `UniformMasker`), and only the encoder's view is replaced.

    Source: SimLM (Wang et al. 2023), section 3.1, equation 1.
    """

    def __init__(self, config: GeneratorConfig, context: BuildContext) -> None:
        self.config = config
        words = UniformConfig(
            encoder_ratio=config.encoder_ratio,
            decoder_ratio=config.decoder_ratio,
            nested=True,
            mask_token_share=(1.0, 0.0, 0.0),
        )
        self._words = UniformMasker(words, context)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> Views:
        """Return two views to be filled; `rows` > 0: the decoder's is a visibility pattern bool[B,rows,L]."""
        views = self._words(tokens, rng, rows=rows)
        encoder = with_sampling_noise(views.encoder, tokens, rng)
        return evolve(
            views, encoder=encoder, decoder=views.decoder if rows else with_sampling_noise(views.decoder, tokens, rng)
        )

    def encoder_view(self, tokens: TokenBatch, rng: Draws) -> MaskedView:
        """Return the encoder's view alone, to be filled."""
        return with_sampling_noise(self._words.encoder_view(tokens, rng), tokens, rng)

    def decoder_view(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> MaskedView:
        """Return the decoder's view alone, of any text: to be filled, or with `rows` a visibility pattern."""
        view = self._words.decoder_view(tokens, rng, rows)
        return view if rows else with_sampling_noise(view, tokens, rng)

    def replacer(self, context: BuildContext) -> GeneratorReplacer:
        """Return the module that fills these views with `context.generator`. Raises DrkitError if that does not fit."""
        return GeneratorReplacer(self.config, context)


def with_sampling_noise(view: MaskedView, tokens: TokenBatch, rng: Draws) -> MaskedView:
    """Return the view with every maskable token as a target, and a random number in [0, 1) at each hidden one."""
    labels = torch.where(tokens.maskable, tokens.ids, NO_TARGET)
    draws = torch.from_numpy(rng.uniform(tokens.ids.shape[1]))
    return evolve(view, labels=labels, noise=torch.where(view.labels != NO_TARGET, draws, -1.0))


class GeneratorReplacer(nn.Module):
    """Fills a view's hidden positions with samples of a masked LM's softmax (temperature 1), which may be the original.

    A sample is the inverse of the softmax's distribution function at the view's `noise`: without dropout it depends
    only on the text and its noise, not on the batch, the process or earlier samples.

    Frozen: no parameter requires a gradient, and the generator stays in evaluation mode even after `train()`. Joint and
    joint-random: it learns by its own MLM loss on the encoder's view; no gradient passes through the samples.

    Raises DrkitError without a generator, or if its vocabulary differs from the encoder's.
    """

    def __init__(self, config: GeneratorConfig, context: BuildContext) -> None:
        super().__init__()
        if context.generator is None or context.backbone is None:
            raise DrkitError(
                "the masker 'generator' needs a masked LM to fill its views; pass BuildContext.generator, as from "
                "MaskedLmEncoder.from_pretrained(..), together with the backbone (in a run, a stage provides both)"
            )
        check_vocabulary(context.generator, context)
        self.learns = config.variant != "frozen"
        self.weight = config.generator_weight
        self.words = vocabulary_size(context)
        self.generator: MaskedLmEncoder = context.generator
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

    def _own_loss(self, states: Tensor, labels: Tensor, heads: Heads) -> StepOutput:
        loss = heads.lm_loss(states, labels)
        metrics = {"mlm": loss.detach(), "targets": torch.tensor(len(labels), device=labels.device)}
        return StepOutput(loss=self.weight * loss, metrics=metrics)


@torch.no_grad()
def sample_words(states: Tensor, noise: Tensor, heads: Heads, words: int) -> Tensor:
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


def check_vocabulary(generator: MaskedLmEncoder, context: BuildContext) -> None:
    """Raise DrkitError, naming both, if a generator's vocabulary is not that of `context`.

    If the generator comes with a tokenizer, the id of every word is compared; otherwise only the number of words.
    """
    assert context.backbone is not None
    problem = _different_ids(_tokenizer_beside(generator), context.tokenizer)
    size, words = int(generator.config.vocab_size), vocabulary_size(context)
    if problem is None and size not in {words, context.backbone.vocab}:
        problem = f"has {size:,} words, but the encoder has {words:,}"
    if problem:
        path = str(getattr(context.tokenizer, "name_or_path", ""))
        whose = f"the tokenizer {path!r}" if path else "a tokenizer built in memory"
        raise DrkitError(
            f"the generator {_name(generator)} does not fit an encoder with {whose}: it {problem}. It must be a masked "
            f"LM with the encoder's vocabulary; leave `model` empty to have the run train one"
        )


def _different_ids(generators: Any, tokenizer: Any) -> str | None:
    """Describe the words whose ids differ between two tokenizers; empty: none; None: they cannot be compared."""
    if generators is None or not hasattr(tokenizer, "get_vocab"):
        return None
    theirs, ours = generators.get_vocab(), tokenizer.get_vocab()
    words = sorted(word for word in theirs.keys() | ours.keys() if theirs.get(word) != ours.get(word))
    if not words:
        return ""
    ids = f"{theirs.get(words[0], 'absent')}, expected {ours.get(words[0], 'absent')}"
    return f"has other ids for {len(words):,} words, such as {words[0]!r} ({ids})"


def _name(generator: MaskedLmEncoder) -> str:
    path = str(getattr(generator.config, "name_or_path", ""))
    return repr(path) if path else f"({generator.config.model_type}, built in memory)"


def _tokenizer_beside(generator: MaskedLmEncoder) -> Any:
    """Return the tokenizer of the folder or hub id that a generator was loaded from, or None."""
    path = str(getattr(generator.config, "name_or_path", ""))
    folder = local_path(path)
    if not path or (folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES)):
        return None
    try:
        return load_pretrained("AutoTokenizer", path, "load the tokenizer of")
    except DrkitError:
        return None
