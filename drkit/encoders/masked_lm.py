"""One adapter between drkit and Hugging Face's masked language models: hidden states, a bottleneck, borrowed heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drkit.core.types import Encoded
from drkit.encoders.architectures import architecture, longest_text
from drkit.encoders.config import BertSizes
from drkit.encoders.context import backbone_info
from drkit.encoders.fit import check_fit
from drkit.encoders.heads import Heads, tie_lm_head
from drkit.encoders.seeding import seeded
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.core.types import BackboneInfo

POOLINGS = ("cls", "mean")


class MaskedLmEncoder(nn.Module):
    """A masked LM that gives its hidden states and one vector per text; logits are the business of its heads.

    model: a Hugging Face masked LM of a known architecture. pooling: `cls`, the first token's last hidden
    state, or `mean`, the mean over all real tokens, special ones included (as sentence-transformers does it).
    similarity: `cosine` or `dot`, how its vectors are meant to be compared; kept for export.

    Raises DrkitError for an unknown pooling or architecture, or a model that lacks one of its pieces.
    """

    def __init__(self, model: nn.Module, *, pooling: str = "cls", similarity: str = "cosine") -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise DrkitError(f"no pooling named {pooling!r}; known: {', '.join(POOLINGS)}")
        config: Any = model.config
        self.config = config
        self.model: Any = model
        self.architecture = architecture(config.model_type)
        check_fit(model, self.architecture)
        self.pooling = pooling
        self.similarity = similarity

    @property
    def backbone(self) -> nn.Module:
        """The masked LM without its head."""
        base = self.model.base_model
        assert isinstance(base, nn.Module)
        return base

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's own transformer layers, first to last."""
        stack = self.backbone.get_submodule(self.architecture.layers)
        assert isinstance(stack, nn.ModuleList)
        return stack

    def forward(self, ids: Tensor, attention: Tensor, layers: tuple[int, ...] = ()) -> dict[str, Any]:
        """Plain tensors, as data parallelism wants them.

        ids i64[B,L], attention bool[B,L] -> bottleneck f[B,D], hidden f[B,L,D], and layers, a tuple of f[B,L,D]:
        the output of each layer asked for (0: the embeddings), through the encoder's last LayerNorm where its layers
        end without one: decoders read normed states.

        Raises DrkitError for a text longer than the model's position table, or a layer it does not have.
        """
        self._check(ids, layers)
        out = self.backbone(input_ids=ids, attention_mask=attention, output_hidden_states=bool(layers))
        hidden = out.last_hidden_state
        chosen = tuple(self._normed(out.hidden_states[layer], layer) for layer in layers)
        return {"bottleneck": self.pool(hidden, attention), "hidden": hidden, "layers": chosen}

    def encode(self, ids: Tensor, attention: Tensor, layers: tuple[int, ...] = ()) -> Encoded:
        """`forward`, as a bundle."""
        return Encoded(**self(ids, attention, layers))

    def pool(self, hidden: Tensor, attention: Tensor) -> Tensor:
        """f[B,D]: the bottleneck of hidden f[B,L,D] under attention bool[B,L]."""
        if self.pooling == "cls":
            return hidden[:, 0]
        real = attention.unsqueeze(-1).to(hidden.dtype)
        return (hidden * real).sum(1) / real.sum(1).clamp(min=1e-9)

    def heads(self) -> Heads:
        """Embeddings and LM head, to be lent for one call."""
        return Heads(self.model, self.architecture)

    def info(self, tokenizer: Any) -> BackboneInfo:
        """What parts are built against: this model's sizes and the tokenizer's special ids."""
        return backbone_info(self.config, tokenizer)

    @torch.no_grad()
    def set_word_embeddings(self, matrix: Tensor) -> None:
        """Start the word embeddings (and so the tied projection) from matrix f32[V,E]; E is D but in some ELECTRAs.

        Raises DrkitError where its shape is another.
        """
        _copy(self.model.get_input_embeddings().weight, matrix, "word embeddings")

    @torch.no_grad()
    def set_lm_bias(self, log_frequencies: Tensor) -> None:
        """Start the LM head's bias from log word frequencies f32[V], so that training does not have to learn them.

        Raises DrkitError where their shape is another, or the head has no bias (ModernBERT's `decoder_bias = false`).
        """
        bias = self.model.get_output_embeddings().bias
        if bias is None:
            raise DrkitError(f"the LM head of this {self.config.model_type!r} encoder has no bias to start from")
        _copy(bias, log_frequencies, "bias of the LM head")

    @classmethod
    def from_pretrained(
        cls, path_or_id: str, *, pooling: str = "cls", similarity: str = "cosine", trust_remote_code: bool = False
    ) -> MaskedLmEncoder:
        """Load a checkpoint folder or a model of the hub.

        A checkpoint without an LM head (an exported encoder) gets a new head, and a warning says so.

        Raises DrkitError where it cannot be found, read, or is no masked LM of a known architecture.
        """
        from drkit.encoders.checkpoints import load_masked_lm

        return cls(load_masked_lm(path_or_id, trust_remote_code), pooling=pooling, similarity=similarity)

    @classmethod
    def from_scratch(
        cls, sizes: BertSizes, tokenizer: Any, *, pooling: str = "cls", similarity: str = "cosine", seed: int = 42
    ) -> MaskedLmEncoder:
        """A BERT with random weights for the vocabulary of `tokenizer`; the global random state is left alone."""
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            hidden_size=sizes.hidden,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            intermediate_size=sizes.intermediate,
            max_position_embeddings=sizes.max_positions,
            hidden_dropout_prob=sizes.dropout,
            attention_probs_dropout_prob=sizes.dropout,
            hidden_act=sizes.activation,
            attn_implementation="sdpa",
        )
        with seeded(seed, "encoder"):
            model = BertForMaskedLM(config)
        if sizes.lm_head == "tied":
            tie_lm_head(model)
        return cls(model, pooling=pooling, similarity=similarity)

    def _check(self, ids: Tensor, layers: tuple[int, ...]) -> None:
        longest = longest_text(self.config)
        if ids.shape[1] > longest:
            raise DrkitError(f"a text of {ids.shape[1]} tokens; this encoder reads at most {longest}: lower max_length")
        wrong = [layer for layer in layers if not 0 <= layer <= len(self.layers)]
        if wrong:
            raise DrkitError(f"no encoder layer {wrong[0]}; this encoder has 0 (embeddings) to {len(self.layers)}")

    def _normed(self, states: Tensor, layer: int) -> Tensor:
        """States f[B,L,D] of one layer; embeddings and the last layer's come normed."""
        if not self.architecture.final_norm or layer in (0, len(self.layers)):
            return states
        normed: Tensor = self.backbone.get_submodule(self.architecture.final_norm)(states)
        return normed


def _copy(target: Any, values: Tensor, what: str) -> None:
    if target.shape != values.shape:
        raise DrkitError(f"the {what} have the shape {tuple(target.shape)}, got {tuple(values.shape)}")
    target.copy_(values)
