"""Static encoders: word embeddings without transformer layers, as masked LMs that work with every part.

A text is the mean, or the weighted mean, of the vectors of its tokens between [CLS] and [SEP], as in StaticEmbedding of
sentence-transformers. There are no positions, so decoders get sinusoids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from drkit.core.loading import check_tokenizer, explain_load_errors
from drkit.encoders.architectures import STATIC
from drkit.encoders.declarations import UnsupportedEncoderError
from drkit.encoders.token_weights import TokenWeights

_WEIGHTS, TABLE = "model.safetensors", "embedding.weight"
_CACHED_WORDS = 1 << 20


class StaticConfig(BertConfig):  # type: ignore[misc]
    """BERT's sizes, which decoders are built with; the encoder itself has no layers."""

    model_type = STATIC


class TokenEmbeddings(nn.Module):
    """The embedding layer: words and dropout; no positions, no LayerNorm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None) -> Tensor:
        """Return the embeddings f[B,L,D] of ids i64[B,L], or of given word vectors f[B,L,D]."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        embedded: Tensor = self.dropout(words)
        return embedded


class StaticModel(PreTrainedModel):  # type: ignore[misc]
    """The backbone: its last hidden states are the word embeddings."""

    config_class, base_model_prefix = StaticConfig, "static"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings, self.layers = TokenEmbeddings(config), nn.ModuleList()
        self.post_init()

    @classmethod
    def of(cls, table: Tensor) -> StaticModel:
        """Return the model of word vectors f[V,D]."""
        words, width = table.shape
        model = cls(StaticConfig(vocab_size=words, hidden_size=width, num_hidden_layers=0, pad_token_id=None))
        model.embeddings.word_embeddings.weight.data = table.float()
        return model

    def get_input_embeddings(self) -> nn.Module:
        """Return the word embeddings, where transformers looks for them."""
        return self.embeddings.word_embeddings

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **options: Any
    ) -> BaseModelOutput:
        """Return the word embeddings as the last hidden states, and as the only layer if layers are requested."""
        states = self.embeddings(input_ids, inputs_embeds)
        layers = (states,) if options.get("output_hidden_states") else None
        return BaseModelOutput(last_hidden_state=states, hidden_states=layers)

    def bags(self, rows: Sequence[Any], token_weights: TokenWeights | None) -> Tensor:
        """Return the vectors f[n,D] of n texts, given as token ids with [CLS] and [SEP]; an empty text is zeros.

        They are the same as those of the pooling `mean`, or `weighted` with token weights, and much faster.
        """
        content = [row[1:-1] for row in rows]
        lengths = np.fromiter(map(len, content), dtype=np.int64, count=len(content))
        table = self.embeddings.word_embeddings.weight
        ids, offsets = (
            torch.from_numpy(array).to(table.device)
            for array in (
                np.fromiter(chain.from_iterable(content), dtype=np.int64, count=int(lengths.sum())),
                np.cumsum(lengths) - lengths,
            )
        )
        return mean_of_bags(ids, offsets, table, token_weights)


def mean_of_bags(ids: Tensor, offsets: Tensor, table: Tensor, token_weights: TokenWeights | None) -> Tensor:
    """Return the mean word vector f[n,D] of n bags of tokens, weighted if there are token weights; of an empty bag, 0.

    ids i64[T]: the tokens, bag after bag; offsets i64[n]: where each bag begins; table f[V,D].
    """
    if token_weights is None:
        return F.embedding_bag(ids, table, offsets, mode="mean")
    weights = F.embedding(ids, token_weights.values().to(table.dtype)[:, None])[:, 0]
    sums = F.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=weights)
    lengths = offsets.diff(append=offsets.new_tensor([len(ids)]))
    bags = torch.arange(len(offsets), device=ids.device).repeat_interleave(lengths)
    return sums / weights.new_zeros(len(offsets)).index_add(0, bags, weights)[:, None].clamp(min=1e-9)


def fold_weights(table: Tensor, token_weights: TokenWeights | None) -> Tensor:
    """Return word vectors f[V,D] times their token weights: their mean has the direction of the weighted mean."""
    table = table.detach().cpu().float()
    return table if token_weights is None else table * token_weights.values().detach().cpu()[:, None]


class StaticForMaskedLM(PreTrainedModel):  # type: ignore[misc]
    """The masked LM: the backbone, and the projection tied to its word embeddings."""

    config_class, base_model_prefix = StaticConfig, "static"
    _tied_weights_keys = {"lm_head.weight": "static.embeddings.word_embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.static = StaticModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """Return the projection to the vocabulary, where transformers looks for the LM head."""
        return self.lm_head

    def forward(self, input_ids: Tensor | None = None, **options: Any) -> MaskedLMOutput:
        """Return the logits f[B,L,V]."""
        return MaskedLMOutput(logits=self.lm_head(self.static(input_ids, **options).last_hidden_state))


AutoConfig.register(STATIC, StaticConfig)
AutoModel.register(StaticConfig, StaticModel)
AutoModelForMaskedLM.register(StaticConfig, StaticForMaskedLM)


def load_static(folder: Path) -> tuple[StaticModel, Any]:
    """Load the word vectors and the tokenizer of a StaticEmbedding module.

    Raises DrkitError if a file is missing or invalid, and UnsupportedEncoderError if the tokenizer is not built like
    BERT's or the weights are not one vector for each token.
    """
    with explain_load_errors(str(folder), "load the static encoder in", "Export it again."):
        tensors = load_file(str(folder / _WEIGHTS))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        tokenizer.name_or_path = str(folder)  # for messages
        check_tokenizer(tokenizer, folder)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if set(found) != {TABLE} or len(found[TABLE]) != 2:
        raise UnsupportedEncoderError(
            f"{folder / _WEIGHTS} must contain one two-dimensional tensor, {TABLE}; got {found}. Export it again."
        )
    table = tensors[TABLE]
    splits = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"] or {}
    is_split = tokenizer.tokenize("a a") == 2 * tokenizer.tokenize("a")
    if splits.get("type") != "BertPreTokenizer" or tokenizer.num_special_tokens_to_add() != 2 or not is_split:
        raise UnsupportedEncoderError("unsupported tokenizer; drkit reads static encoders with BERT's", where=folder)
    return StaticModel.of(table).eval(), tokenizer


def fast_ids(tokenizer: Any) -> Callable[[str, int], list[int]]:
    """Return a function that tokenises a text at a length, with [CLS] and [SEP], from a cache of its words.

    Same ids as the tokenizer's, because BERT's splits at every space.
    """
    first, last = tokenizer("")["input_ids"]
    keeps_end = tokenizer.truncation_side == "left"
    backend = tokenizer.backend_tokenizer

    @lru_cache(maxsize=_CACHED_WORDS)
    def word_ids(word: str) -> tuple[int, ...]:
        return tuple(backend.encode(word, add_special_tokens=False).ids)

    def ids(text: str, length: int) -> list[int]:
        found = list(chain.from_iterable(map(word_ids, text.split(" "))))
        kept = found[max(len(found) - length + 2, 0) :] if keeps_end else found[: length - 2]
        return [first, *kept, last]

    return ids
