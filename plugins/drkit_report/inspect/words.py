"""Inspect a bottleneck: the word distribution that a bag-of-words decoder predicts from a text's vector.

Source: CPDAE table 4, which sums the probabilities of a word's pieces.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from drkit.core.protocols import WordDistribution
from drkit.core.registry import Installed
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, TokenBatch
from drkit.data.spelling import token_text
from drkit.errors import DrkitError
from drkit.recipe.schema import Pretrain
from drkit.runs.manifest import read_manifest
from drkit.train.checkpoints import DECODER, load_encoder, load_part, part_file
from drkit_report.inspect.source import Piece, TextSource, run_source

PRETRAINED = "pretrained"
_ADVICE = "`drkit compose --decoder bow` makes a run with such a decoder"


@frozen
class Word:
    """A word and its share of the distribution."""

    text: str
    probability: float
    in_text: bool = True


@frozen
class InspectedWords:
    """The result of `drkit inspect words`.

    top: the most probable entries of the vocabulary, best first. words: the words of the text, in order, with the
    probabilities of their pieces summed. own_share: probability of the entries that occur in the text. vocabulary: its
    size.
    """

    top: tuple[Word, ...]
    words: tuple[Word, ...]
    own_share: float
    vocabulary: int


def inspect_words(text: str, run: Path, parts: Installed, *, top: int = 20) -> InspectedWords:
    """Predict the word distribution of an unmasked text with a run's pre-trained encoder and decoder.

    Raises DrkitError if the text is empty, pre-training is not finished, or the decoder does not predict words.
    """
    if not text.strip():
        raise DrkitError("the text is empty; give one or two sentences")
    source = run_source(run, parts)
    tokens, pieces = source.read(text)
    shares = _distribution(tokens, source, parts)
    own = set(tokens.ids[0, 1:-1].tolist())
    best = torch.topk(shares, min(top, len(shares)))
    return InspectedWords(
        top=tuple(
            Word(token_text(source.tokenizer, token), value, token in own)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ),
        words=_own_words(tokens, pieces, shares),
        own_share=float(shares[sorted(own)].sum()),
        vocabulary=len(shares),
    )


def _distribution(tokens: TokenBatch, source: TextSource, parts: Installed) -> Tensor:
    """Return the word distribution f32[V] of a batch of one text."""
    folder, recipe = source.folder / PRETRAINED, source.recipe
    if recipe.pretrain is None:
        raise DrkitError(f"the run {source.folder} has no pre-training; {_ADVICE}")
    name = decoder_of_words(recipe.pretrain, parts)
    if name is None:
        used = ", ".join(repr(task.decoder.use) for task in recipe.pretrain.decoders.values()) or "none"
        raise DrkitError(f"no decoder of {source.folder} predicts words (decoders: {used}); {_ADVICE}")
    chosen = recipe.pretrain.decoders[name].decoder
    if read_manifest(folder) is None:
        raise DrkitError(f"{source.folder} has not finished pre-training; resume it with `drkit run {source.folder}`")
    encoder = load_encoder(folder, pooling=recipe.pretraining_pooling.use).eval()
    context = BuildContext(backbone=encoder.info(source.tokenizer), tokenizer=source.tokenizer, seed=recipe.seed)
    decoder = parts.registry.build(Kind.DECODER, chosen.use, chosen.config, context)
    module: Any = decoder
    if not isinstance(decoder, WordDistribution):
        raise DrkitError(f"the decoder {chosen.use!r} lacks the method word_distribution(bottleneck)")
    load_part(module, part_file(folder, DECODER, name))
    with torch.no_grad():
        shares: Tensor = module.eval().word_distribution(encoder.encode(tokens.ids, tokens.attention).bottleneck)
    return shares[0].float()


def decoder_of_words(pretrain: Pretrain, parts: Installed) -> str | None:
    """Return the name of the first decoder that predicts words; None without one."""
    decoders = {name: task.decoder for name, task in pretrain.decoders.items()}
    return next(
        (
            name
            for name, one in decoders.items()
            if "vocab_logits" in parts.registry.get(Kind.DECODER, one.use).provides_of(one.config)
        ),
        None,
    )


def _own_words(tokens: TokenBatch, pieces: tuple[Piece, ...], shares: Tensor) -> tuple[Word, ...]:
    """Return the words of the text, without special tokens."""
    numbers, values = tokens.words[0, 1:-1].tolist(), shares[tokens.ids[0, 1:-1]].tolist()
    words = []
    for number, group in groupby(zip(numbers, pieces, values, strict=True), key=lambda item: item[0]):
        members = list(group)
        if number >= 0:
            words.append(Word("".join(p.text for _, p, _ in members), sum(value for _, _, value in members)))
    return tuple(words)
