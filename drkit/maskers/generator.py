"""Masked words are replaced by the samples of a small language model; what is to be told is every original token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from drkit.core.types import StepOutput
from drkit.errors import DrkitError
from drkit.maskers.specs import UniformConfig
from drkit.maskers.uniform import UniformMasker
from drkit.maskers.views import NO_TARGET

if TYPE_CHECKING:
    from drkit.core.draws import Draws
    from drkit.core.types import BuildContext, MaskedView, TokenBatch, Views
    from drkit.encoders.heads import Heads
    from drkit.encoders.masked_lm import MaskedLmEncoder
    from drkit.maskers.specs import GeneratorConfig

# Probabilities held at once while sampling: 32 MB in float64.
AT_ONCE = 2**22
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


class GeneratorMasker:
    """Whole words become [MASK], for the decoder those of the encoder and more; a `GeneratorReplacer` fills them later.

    No model runs here: the views carry `noise`, a uniform number for each position, by which the generator samples on
    the training's own device. Every maskable token is a target on both sides. With `rows` the decoder reads the clean
    text through a visibility pattern (nested, as `UniformMasker` has it), and only the encoder's view is replaced.

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
        """Two views of a batch, to be filled; `rows` > 0 gives the decoder's as a visibility pattern bool[B,rows,L]."""
        views = self._words(tokens, rng, rows=rows)
        encoder = to_be_filled(views.encoder, tokens, rng)
        return evolve(
            views, encoder=encoder, decoder=views.decoder if rows else to_be_filled(views.decoder, tokens, rng)
        )

    def encoder_view(self, tokens: TokenBatch, rng: Draws) -> MaskedView:
        """The encoder's view alone, to be filled."""
        return to_be_filled(self._words.encoder_view(tokens, rng), tokens, rng)

    def decoder_view(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> MaskedView:
        """The decoder's view alone, of any text: to be filled, or with `rows` a visibility pattern."""
        view = self._words.decoder_view(tokens, rng, rows)
        return view if rows else to_be_filled(view, tokens, rng)

    def replacer(self, context: BuildContext) -> GeneratorReplacer:
        """What fills these views: around `context.generator`, or DrkitError where it does not fit."""
        return GeneratorReplacer(self.config, context)


def to_be_filled(view: MaskedView, tokens: TokenBatch, rng: Draws) -> MaskedView:
    """The view with every maskable token as a target, and for each hidden one a number in [0, 1) to sample by."""
    labels = torch.where(tokens.maskable, tokens.ids, NO_TARGET)
    draws = torch.from_numpy(rng.uniform(tokens.ids.shape[1]))
    return evolve(view, labels=labels, noise=torch.where(view.labels != NO_TARGET, draws, -1.0))


class GeneratorReplacer(nn.Module):
    """Fills a view's hidden positions with samples of a masked LM's softmax (temperature 1), perhaps the original.

    The sample is the inverse of the softmax's distribution function at the view's `noise`: it depends on the text and
    its draw alone, not on the batch, the process or what was sampled before (with dropout it depends on that too).

    Frozen: no parameter asks for a gradient, and it stays in evaluation mode whatever `train()` is called. Joint and
    joint-random: it learns by its own MLM loss on the encoder's view; no gradient passes through the samples.

    Raises DrkitError where there is no generator, or its vocabulary is another one than the encoder's.
    """

    def __init__(self, config: GeneratorConfig, context: BuildContext) -> None:
        super().__init__()
        if context.generator is None or context.backbone is None:
            raise DrkitError(
                "the masker 'generator' fills its views by a masked LM: give BuildContext.generator, as from "
                "MaskedLmEncoder.from_pretrained(..), beside the backbone; in a run its stage makes one"
            )
        check_vocabulary(context.generator, context)
        self.learns = config.variant != "frozen"
        self.weight = config.generator_weight
        self.words = words_of(context)
        self.generator: MaskedLmEncoder = context.generator
        self.generator.requires_grad_(self.learns)
        self.train(self.learns)

    def train(self, mode: bool = True) -> GeneratorReplacer:
        """Training mode, which a frozen generator never enters."""
        return super().train(mode and self.learns)

    def forward(
        self, view: MaskedView, tokens: TokenBatch, *, learn: bool = False
    ) -> tuple[MaskedView, StepOutput | None]:
        """The view with its hidden positions filled, and where it learns its own loss.

        The loss is already multiplied by `generator_weight`, so that a training just adds it. Metrics: `mlm`, the same
        without the weight; `targets`, how many positions it is a mean over.

        Raises DrkitError where the view has no noise to sample by.
        """
        if view.noise is None:
            raise DrkitError("a view without noise cannot be filled: take one of the masker 'generator'")
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
    """i64[N]: for each state f[N,D] the first word where the distribution function exceeds its noise f[N] in [0, 1).

    Only the first `words` rows of the vocabulary are words. At most `AT_ONCE` probabilities are held at a time,
    whatever N and the vocabulary; the function is summed in float64, so that rare words keep their probability.
    """
    rows, sampled = max(1, AT_ONCE // words), torch.empty(len(states), dtype=torch.long, device=noise.device)
    # One buffer for all chunks: freed and allocated anew, they would pile up in the C library's heap.
    held = torch.empty(min(rows, len(states)), words, dtype=torch.float64, device=noise.device)
    for at in range(0, len(states), rows):
        logits = heads.logits(states[at : at + rows])[:, :words].float()
        below = torch.cumsum(logits.softmax(-1), -1, dtype=torch.float64, out=held[: len(logits)])
        wanted = noise[at : at + rows, None].double() * below[:, -1:]
        sampled[at : at + rows] = torch.searchsorted(below, wanted, right=True)[:, 0]
    return sampled


def words_of(context: BuildContext) -> int:
    """How many words there are: a model's embedding table may be longer than its vocabulary."""
    assert context.backbone is not None
    return context.backbone.vocab if context.tokenizer is None else min(context.backbone.vocab, len(context.tokenizer))


def check_vocabulary(generator: MaskedLmEncoder, context: BuildContext) -> None:
    """Raise DrkitError, naming both, where a generator's words are not those of `context`.

    Where the generator came with a tokenizer, the number of every word is compared; else only how many there are.
    """
    assert context.backbone is not None
    problem = _differing(_tokenizer_beside(generator), context.tokenizer)
    size, words = int(generator.config.vocab_size), words_of(context)
    if problem is None and size not in {words, context.backbone.vocab}:
        problem = f"has {size:,} words, the encoder {words:,}"
    if problem:
        raise DrkitError(
            f"the generator {_name(generator)} does not fit an encoder of {_tokenizer_name(context.tokenizer)}: it "
            f"{problem}. It must be a masked LM of the encoder's own vocabulary, such as one that the run trains "
            f"itself (model = '')"
        )


def _differing(own: Any, tokenizer: Any) -> str | None:
    """What two tokenizers number differently; empty: nothing; None: they cannot be compared."""
    if own is None or not hasattr(tokenizer, "get_vocab"):
        return None
    theirs, ours = own.get_vocab(), tokenizer.get_vocab()
    words = sorted(word for word in theirs.keys() | ours.keys() if theirs.get(word) != ours.get(word))
    if not words:
        return ""
    numbers = f"{_number(theirs, words[0])} against {_number(ours, words[0])}"
    return f"numbers {len(words):,} of its words differently, as {words[0]!r} ({numbers})"


def _number(vocabulary: dict[str, int], word: str) -> str:
    return str(vocabulary[word]) if word in vocabulary else "absent"


def _name(generator: MaskedLmEncoder) -> str:
    path = str(getattr(generator.config, "name_or_path", ""))
    return repr(path) if path else f"({generator.config.model_type}, made here)"


def _tokenizer_name(tokenizer: Any) -> str:
    path = str(getattr(tokenizer, "name_or_path", ""))
    return f"the tokenizer {path!r}" if path else "a tokenizer that was made here"


def _tokenizer_beside(generator: MaskedLmEncoder) -> Any:
    """The tokenizer of the folder or hub id that a generator was loaded from, or None."""
    from transformers import AutoTokenizer

    path = str(getattr(generator.config, "name_or_path", ""))
    folder = Path(path).expanduser()
    if not path or (folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES)):
        return None
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError):
        return None
