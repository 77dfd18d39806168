"""Predict which words occur in the text from the bottleneck alone, with no text to copy from."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.core.spec import NoSettings
from drkit.core.types import BuildContext, DecoderInput, TokenBatch
from drkit.decoders.layers import init_weights, sizes_of
from drkit.decoders.specs import BowDecoderConfig
from drkit.encoders.heads import Heads, seeded


class BowDecoder(nn.Module):
    """z = Linear(LayerNorm(GELU(Linear(h)))): a score for every word of the vocabulary.

    It has its own last layer [V,D] (the paper's is not tied to the embeddings). Each bias of that layer starts at the
    log-odds of `prior`: few words occur in a text, and from 0 the first steps would only learn that.

    Source: CPDAE section 3.1.2, equation 2.
    """

    def __init__(self, config: BowDecoderConfig, context: BuildContext) -> None:
        super().__init__()
        sizes = sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.hidden = nn.Linear(sizes.hidden, sizes.hidden)
            self.activation = nn.GELU()
            self.norm = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_eps)
            self.words = nn.Linear(sizes.hidden, sizes.vocab)
            init_weights(self, sizes.initializer_range)
            nn.init.constant_(self.words.bias, math.log(config.prior / (1 - config.prior)))

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return vocab_logits f[B,V] of the bottleneck, and words bool[B,V] of the clean text `inputs.tokens`."""
        logits = self.logits(inputs.encoded.bottleneck)
        return {"vocab_logits": logits, "words": word_mask(inputs.tokens, logits.shape[1])}

    def logits(self, bottleneck: Tensor) -> Tensor:
        """Return the scores f[B,V] of h f[B,D]."""
        scores: Tensor = self.words(self.norm(self.activation(self.hidden(bottleneck))))
        return scores

    def word_distribution(self, bottleneck: Tensor) -> Tensor:
        """Return the word distribution f[B,V] of h f[B,D], which CPDAE contrasts and shows in its table 4."""
        return word_distribution(self.logits(bottleneck))


class LmHeadDecoder(nn.Module):
    """z = the encoder's LM head applied to h: the vector is in the space of the words. It has no weights.

    Source: LLARA (Li et al. 2023): the text itself (EBAE), or the next one (EBAR), as its context says. Theirs are two
    vectors of a text, after a prompt each; these read one.
    """

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        super().__init__()

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, Tensor]:
        """Return vocab_logits f[B,V] of the bottleneck, and words bool[B,V] of the clean text `inputs.tokens`."""
        logits = heads.logits(inputs.encoded.bottleneck)
        return {"vocab_logits": logits, "words": word_mask(inputs.tokens, logits.shape[1])}


def word_distribution(vocab_logits: Tensor) -> Tensor:
    """Return sigmoid(z) / sum of sigmoid(z) over the vocabulary, f[..., V], at least in float32; rows sum to 1.

    CPDAE section 3.2.2.

    >>> word_distribution(torch.tensor([[0.0, 0.0, -200.0]])).tolist()
    [[0.5, 0.5, 0.0]]
    """
    exact = vocab_logits.to(torch.promote_types(vocab_logits.dtype, torch.float32))
    # sigmoid(z) = exp(log sigmoid(z)): a softmax keeps the ratio even if every probability is close to 0.
    return torch.softmax(F.logsigmoid(exact), dim=-1)


def word_mask(tokens: TokenBatch, vocab: int) -> Tensor:
    """Return which words occur in each text, bool[B,V]; special tokens do not count as words."""
    texts, positions = tokens.maskable.nonzero(as_tuple=True)
    words = torch.zeros(len(tokens.ids), vocab, dtype=torch.bool, device=tokens.ids.device)
    words[texts, tokens.ids[texts, positions]] = True
    return words
