"""The encoder: a masked language model of Hugging Face that gives hidden states, one vector per text, and its heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING, AutoConfig

from drkit.core.files import local_path
from drkit.core.hub import check_model_path
from drkit.core.loading import check_attention, load_pretrained
from drkit.core.spec import vector_name
from drkit.core.types import BackboneInfo, BuildContext, Encoded
from drkit.data.titles import Titles
from drkit.encoders.architectures import (
    DECLARED,
    STATIC,
    TIED,
    BertSizes,
    architecture,
    attention_keys,
    backbone_info,
    check_fit,
    check_length,
    first_position,
    longest_text,
    reads_both_ways,
)
from drkit.encoders.batches import group_by_length
from drkit.encoders.folder import HEAD_FOLDER
from drkit.encoders.heads import Heads, projection, seeded, tie_lm_head
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.encoders.pooling import POOLINGS, between_ends, built_in_pooling, check_token_weights, is_weighted, pool
from drkit.encoders.static import mean_of_bags
from drkit.encoders.token_weights import TokenWeights, read_token_weights
from drkit.errors import DrkitError

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")


class MaskedLmEncoder(nn.Module):
    """A masked LM that gives its hidden states and one vector per text; logits are left to its `heads`.

    model: a Hugging Face masked LM of a supported architecture, a causal LM that reads in both directions, or a model
    without a head that reads from left to right. pooling: a name of `drkit.encoders.pooling.POOLINGS`, or a learned
    pooling, which is trained with the model. With the pooling `weighted`, `token_weights` are trained with the model;
    all are 1 until `set_token_weights`.

    Raises DrkitError for an unsupported pooling or architecture, or a model that lacks one of its modules.
    """

    def __init__(self, model: nn.Module, *, pooling: str | LearnedPooling = "cls") -> None:
        super().__init__()
        config: Any = model.config
        self.config = config
        self.model: Any = model
        self.architecture = architecture(config.model_type)
        check_fit(model, self.architecture)
        self.learned_pooling = pooling if isinstance(pooling, LearnedPooling) else None
        self.pooling = pooling.name if isinstance(pooling, LearnedPooling) else built_in_pooling(pooling)
        self.token_weights = TokenWeights(torch.ones(config.vocab_size)) if is_weighted(self.pooling) else None

    @property
    def backbone(self) -> nn.Module:
        """The masked LM without its head."""
        base = self.model.base_model
        assert isinstance(base, nn.Module)
        return base

    @property
    def text_model(self) -> Any:
        """The model that reads texts in search: the masked LM if the pooling applies its head, else the backbone."""
        return self.model if self.learned_pooling and self.learned_pooling.receives_heads else self.backbone

    @property
    def titles(self) -> Titles:
        """How the model reads titles, as its configuration says."""
        return Titles.of_config(self.config)

    @property
    def dimension(self) -> int:
        """The size of the vector that search compares: the hidden size, or the dimension of a learned pooling."""
        return self.learned_pooling.dimension if self.learned_pooling else int(self.config.hidden_size)

    @property
    def vector_lengths(self) -> dict[str, int]:
        """The lengths of the named vectors of a pooling that gives several, the bottleneck's first; else empty."""
        return self.learned_pooling.vector_lengths if self.learned_pooling else {}

    @property
    def vector_sizes(self) -> dict[str, int]:
        """The length of the bottleneck, and of each named vector, by the names that parts receive."""
        named = self.vector_lengths
        first = next(iter(named.values()), self.dimension)
        return {"bottleneck": first, **{vector_name(name): length for name, length in named.items()}}

    @property
    def layers(self) -> nn.ModuleList:
        """The encoder's own transformer layers, first to last."""
        stack = self.backbone.get_submodule(self.architecture.layers)
        assert isinstance(stack, nn.ModuleList)
        return stack

    def forward(self, ids: Tensor, attention: Tensor, layers: tuple[int, ...] = ()) -> dict[str, Any]:
        """Encode texts; returns a plain mapping of tensors, as data parallelism requires.

        ids i64[B,L], attention bool[B,L] -> bottleneck f[B,D], hidden f[B,L,D], and layers, a tuple of f[B,L,D]: the
        outputs of the given layers (0: the embeddings). Decoders read normed states, so if the layers end without a
        LayerNorm, their outputs go through the encoder's last one. With a pooling that gives several vectors, the
        bottleneck is the first one, and `vectors` has all by name.

        Raises DrkitError for a text longer than the position table, or a layer that does not exist.
        """
        self._check(ids, layers)
        more = {"output_hidden_states": bool(layers), **self.titles.inputs(ids)}
        out = self.backbone(input_ids=ids, attention_mask=attention, **more)
        hidden = out.last_hidden_state
        last = len(self.layers)  # transformers does not always list the last layer's output normed
        chosen = tuple(hidden if layer == last else self._normed(out.hidden_states[layer], layer) for layer in layers)
        weights = self._pooled_weights(ids, attention)
        found = {"hidden": hidden, "layers": chosen}
        if self.learned_pooling is None or not self.vector_lengths:
            return {"bottleneck": self.pool(hidden, weights), **found}
        vectors = self.learned_pooling.vectors(hidden, weights, self._pooling_heads())
        return {"bottleneck": next(iter(vectors.values())), **found, "vectors": vectors}

    def vectors(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Return the vectors f[B,D] of texts that search compares alone; ids i64[B,L], attention bool[B,L].

        Texts of similar length are read together, which spares most of the padding. Without layers, words are summed
        without a tensor [B,L,D]. Both are many times faster than `forward`.
        """
        if self.config.model_type != STATIC or self.config.hidden_dropout_prob:
            groups = group_by_length(attention)
            read = [self._joined(self(ids[rows, :length], attention[rows, :length])) for rows, length in groups]
            return torch.cat(read)[torch.cat([rows for rows, _ in groups]).argsort()]
        words, table = between_ends(attention).bool(), self.model.get_input_embeddings().weight
        lengths = words.sum(1)
        return mean_of_bags(ids[words], lengths.cumsum(0) - lengths, table, self.token_weights)

    def _joined(self, outputs: Mapping[str, Any]) -> Tensor:
        """Return the vector that search compares, of outputs of `forward`."""
        named = self.learned_pooling is not None and "vectors" in outputs
        joined: Tensor = self.learned_pooling.join(outputs["vectors"]) if named else outputs["bottleneck"]  # type: ignore[union-attr]
        return joined

    def encode(self, ids: Tensor, attention: Tensor, layers: tuple[int, ...] = ()) -> Encoded:
        """Return the outputs of `forward` as an `Encoded`."""
        return Encoded(**self(ids, attention, layers))

    def pool(self, hidden: Tensor, attention: Tensor) -> Tensor:
        """Return the vectors f[B,D] of hidden f[B,L,D] under attention bool[B,L], or weights f[B,L].

        Those of a pooling that gives several by name are joined.
        """
        if self.learned_pooling is not None:
            vectors: Tensor = self.learned_pooling(hidden, attention, self._pooling_heads())
            return vectors
        return pool(hidden, attention, self.pooling)

    def _pooling_heads(self) -> Heads | None:
        """Return the LM head, if the pooling receives it."""
        return self.heads() if self.learned_pooling and self.learned_pooling.receives_heads else None

    def heads(self) -> Heads:
        """Return the embeddings and LM head, to be used for one call.

        Raises DrkitError for an encoder that reads from left to right, or was given without its LM head.
        """
        architecture(self.config.model_type, causal=reads_both_ways(self.config))
        if self.architecture.is_causal and self.model.get_output_embeddings() is None:
            raise DrkitError(
                f"a {type(self.model).__name__} has no language-model head. Load it with "
                f"MaskedLmEncoder.from_pretrained(folder), or wrap the causal LM of its architecture"
            )
        return Heads(self.model, self.architecture)

    def info(self, tokenizer: Any) -> BackboneInfo:
        """Return what parts are built with: this model's sizes and the tokenizer's special ids."""
        return backbone_info(self.config, tokenizer)

    @torch.no_grad()
    def set_word_embeddings(self, matrix: Tensor) -> None:
        """Set the word embeddings (and so the tied projection) to f32[V,E]; E is D, except in some ELECTRAs.

        Raises DrkitError if the shape does not match.
        """
        _copy(self.model.get_input_embeddings().weight, matrix, "word embeddings")

    def has_untrained_head(self) -> bool:
        """Return whether the LM head's bias is all zeros: the checkpoint came without an LM head."""
        _, bias = projection(self.model, self.architecture)
        return bias is not None and not bias.any()

    def has_lm_bias(self) -> bool:
        """Return whether the LM head has a bias; those of decoder-only models have none."""
        return projection(self.model, self.architecture)[1] is not None

    @torch.no_grad()
    def set_lm_bias(self, log_frequencies: Tensor) -> None:
        """Set the LM head's bias to log word frequencies f32[V], so that training does not have to learn them.

        Raises DrkitError if the shape does not match, or the head has no bias (ModernBERT's `decoder_bias = false`).
        """
        _, bias = projection(self.model, self.architecture)
        if bias is None:
            raise DrkitError(f"the LM head of this {self.config.model_type!r} encoder has no bias to set")
        _copy(bias, log_frequencies, "bias of the LM head")

    @torch.no_grad()
    def center_lm_bias(self) -> None:
        """Subtract the mean of the LM head's bias, which changes no probability of a word.

        A bias of log frequencies puts nearly all scores below 0, where a pooling of scores gets no gradient.
        """
        _, bias = projection(self.model, self.architecture)
        if bias is not None:
            bias -= bias.mean()

    @torch.no_grad()
    def set_token_weights(self, weights: Tensor) -> None:
        """Set the token weights of the pooling `weighted` to f32[V]; further rows of the embedding table keep theirs.

        Raises DrkitError for another pooling, or more weights than rows.
        """
        check_token_weights(self.pooling, weights)
        assert self.token_weights is not None
        _copy(self.token_weights.weight[: len(weights)], weights, "token weights")

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str,
        *,
        pooling: str = "cls",
        attention: str = DECLARED,
        vocabulary: int = 0,
        trust_remote_code: bool = False,
    ) -> MaskedLmEncoder:
        """Load a checkpoint folder or a model of the hub.

        A checkpoint without an LM head (an exported encoder) gets a new head, with a warning. Token weights are read
        from the folder if the pooling is `weighted` and the folder has them; a learned pooling is always read from it.
        attention: how a decoder-only model reads a text, one of `drkit.encoders.architectures.ATTENTIONS`, which is
        kept in its configuration. vocabulary: number of words that it must have; each word that it lacks starts as the
        mean of the others.

        Raises DrkitError if it is missing, cannot be read, is not a masked LM of a supported architecture, or does not
        have the pooling.
        """
        folder = local_path(path_or_id)
        how = pooling if pooling in POOLINGS else _saved_pooling(folder, pooling)
        model: Any = load_masked_lm(path_or_id, trust_remote_code, attention)
        if vocabulary > model.config.vocab_size:
            _add_words(model, vocabulary)
        encoder = cls(model, pooling=how)
        weights = read_token_weights(folder) if encoder.token_weights is not None else None
        if weights is not None:
            encoder.set_token_weights(weights)
        return encoder

    @classmethod
    def from_scratch(
        cls,
        sizes: BertSizes,
        tokenizer: Any,
        *,
        model_type: str = "bert",
        pooling: str = "cls",
        seed: int = 42,
        **more: Any,
    ) -> MaskedLmEncoder:
        """Make an encoder with random weights for the vocabulary of `tokenizer`; the global random state is unchanged.

        model_type: an architecture of transformers that drkit supports; more: further keys of its configuration.
        Without layers, it is a static encoder, whose LM head is always the tied projection alone.
        """
        config = _config_of(model_type if sizes.layers else STATIC, sizes, tokenizer, more)
        classes = MODEL_FOR_MASKED_LM_MAPPING
        if architecture(config.model_type).is_causal:
            classes = MODEL_FOR_CAUSAL_LM_MAPPING if reads_both_ways(config) else MODEL_MAPPING
        with seeded(seed, "encoder"):
            model = classes[type(config)](config)
        if sizes.lm_head == "tied":
            tie_lm_head(model)
        return cls(model, pooling=pooling)

    def _pooled_weights(self, ids: Tensor, attention: Tensor) -> Tensor:
        """Return the weight of each token in the pooling, [B,L]; 0 where it is left out."""
        pooled = between_ends(attention) if self.config.model_type == STATIC else attention
        return pooled if self.token_weights is None else self.token_weights(ids, pooled)

    def _check(self, ids: Tensor, layers: tuple[int, ...]) -> None:
        longest = longest_text(self.config)
        if ids.shape[1] > longest:
            raise DrkitError(
                f"got a text of {ids.shape[1]} tokens, but this encoder reads at most {longest}; lower max_length"
            )
        wrong = [layer for layer in layers if not 0 <= layer <= len(self.layers)]
        if wrong:
            raise DrkitError(f"layer {wrong[0]} is out of range; this encoder has 0 (embeddings) to {len(self.layers)}")

    def _normed(self, states: Tensor, layer: int) -> Tensor:
        """Return the states f[B,L,D] of a layer before the last one, normed; those of the embeddings already are."""
        if not self.architecture.final_norm or not layer:
            return states
        normed: Tensor = self.backbone.get_submodule(self.architecture.final_norm)(states)
        return normed


def _config_of(model_type: str, sizes: BertSizes, tokenizer: Any, more: Mapping[str, Any]) -> Any:
    """Return the configuration of a model type with these sizes; its position table holds `max_positions` tokens."""
    where = architecture(model_type)
    if where.is_causal:  # transformers' defaults are the sizes of published models
        heads = {"num_key_value_heads": sizes.heads, "head_dim": sizes.hidden // sizes.heads}
        more = {"tie_word_embeddings": True, **heads, **more}
    dropout = {} if isinstance(where.sizes.dropout, float) else {where.sizes.dropout: sizes.dropout}
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation=where.attention,
        **{
            where.sizes.hidden: sizes.hidden,
            where.sizes.layers: sizes.layers,
            where.sizes.heads: sizes.heads,
            where.sizes.intermediate: sizes.intermediate,
            where.sizes.attention_dropout: sizes.dropout,
            where.sizes.activation: sizes.activation,
        },
        **dropout,
        **{**where.config, **more},
    )
    config.max_position_embeddings = sizes.max_positions + first_position(config)
    return config


def _saved_pooling(folder: Path, name: str) -> LearnedPooling:
    """Return the pooling that a checkpoint was saved with. Raises DrkitError if it has another one, or none."""
    found = read_learned_pooling(folder)
    if found is None or found.name != name:
        has = f"the pooling {found.name!r}" if found else f"no learned pooling; supported: {', '.join(POOLINGS)}"
        raise DrkitError(f"unsupported pooling {name!r}: {folder} has {has}")
    return found


def _copy(target: Any, values: Tensor, what: str) -> None:
    if target.shape != values.shape:
        raise DrkitError(f"expected the shape {tuple(target.shape)} for the {what}, got {tuple(values.shape)}")
    target.copy_(values)


def load_masked_lm(path_or_id: str, trust_remote_code: bool = False, attention: str = DECLARED) -> nn.Module:
    """Load the masked LM of a folder or hub id, in float32 for evaluation.

    Of a decoder-only model, the causal LM is loaded if it reads in both directions, by its configuration or by
    `attention`; else the model without its head.

    Raises DrkitError as `MaskedLmEncoder.from_pretrained` does.
    """
    config = read_config(path_or_id, trust_remote_code)
    where, keys = architecture(config.model_type), attention_keys(config, attention)
    loader = "AutoModelForMaskedLM"
    if where.is_causal:
        loader = "AutoModelForCausalLM" if keys or reads_both_ways(config) else "AutoModel"
    is_tied = getattr(config, TIED, False)
    with seeded(0, "language-model head"):
        model: nn.Module = load_pretrained(
            loader,
            path_or_id,
            "load the encoder",
            new=tuple(f"{step}." for step in where.transform) if is_tied else (),
            trust_remote_code=trust_remote_code,
            unused=where.unused,
            attn_implementation=where.attention,
            dtype="float32",
            **where.config,
        )
    if is_tied:
        tie_lm_head(model)
    for key, value in keys.items():
        setattr(model.config, key, value)
    check_attention(model.config)
    return model


def load_head(module: Path) -> nn.Module:
    """Load the masked LM, without its layers, whose head a pooling applies that is the module `module` of a folder.

    The module has it if sentence-transformers has saved the folder; in a folder that drkit exported, the transformer
    beside the module is the masked LM.

    Raises DrkitError as `MaskedLmEncoder.from_pretrained` does.
    """
    own = module / HEAD_FOLDER
    model: Any = load_masked_lm(str(own if own.is_dir() else module.parent))
    where = architecture(model.config.model_type)
    model.base_model.set_submodule(where.layers, nn.ModuleList())
    setattr(model.config, str(where.sizes.layers), 0)
    loaded: nn.Module = model
    return loaded


@torch.no_grad()
def _add_words(model: Any, vocabulary: int) -> None:
    """Extend the embedding table, and a projection of its own, by rows that are the mean of the others."""
    before = model.config.vocab_size
    model.resize_token_embeddings(vocabulary, mean_resizing=False)
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None:
            module.weight[before:] = module.weight[:before].mean(0)


def check_start(path_or_id: str, *, length: int) -> None:
    """Raise DrkitError if no run with texts of `length` tokens can start from a checkpoint.

    Only its configuration is read: the architecture must be supported and the position table long enough.
    """
    config = read_config(path_or_id)
    architecture(config.model_type)
    check_length(length, config, path_or_id)


def read_config(path_or_id: str, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a folder or hub id. Raises DrkitError if it is missing."""
    check_model_path(path_or_id)
    action = "read the configuration of the encoder"
    return load_pretrained("AutoConfig", path_or_id, action, trust_remote_code=trust_remote_code)


def context_from(model: Any, tokenizer: Any, *, seed: int = 42) -> BuildContext:
    """Return the build context of a masked LM (Hugging Face's, or a `MaskedLmEncoder`) and its tokenizer.

    Raises DrkitError for a model without a configuration of a supported architecture.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise DrkitError(
            f"context_from expects a Hugging Face masked LM or a MaskedLmEncoder, got {type(model).__name__}"
        )
    return BuildContext(backbone=backbone_info(config, tokenizer), tokenizer=tokenizer, seed=seed)


def check_same_vocabulary(generator: MaskedLmEncoder, context: BuildContext) -> None:
    """Raise DrkitError, naming both, if a generator's vocabulary is not that of `context`.

    If the generator comes with a tokenizer, the id of every word is compared; otherwise only the number of words.
    """
    assert context.backbone is not None
    loaded_from = str(getattr(generator.config, "name_or_path", ""))
    theirs, ours = _tokenizer_beside(loaded_from), context.tokenizer
    size, words = int(generator.config.vocab_size), context.vocabulary_size
    problem = (
        f"has {size:,} words, but the encoder has {words:,}" if size not in {words, context.backbone.vocab} else ""
    )
    if theirs is not None and hasattr(ours, "get_vocab"):
        other = sorted({word for word, _ in theirs.get_vocab().items() ^ ours.get_vocab().items()})
        problem = f"has other ids for {len(other):,} words, such as {other[0]!r}" if other else ""
    if problem:
        whose = getattr(ours, "name_or_path", "") or "a tokenizer built in memory"
        raise DrkitError(
            f"the generator {loaded_from or generator.config.model_type!r} does not fit an encoder with {whose}: it "
            f"{problem}. It must be a masked LM with the encoder's vocabulary; leave `model` empty to have the run "
            f"train one"
        )


def _tokenizer_beside(path: str) -> Any:
    """Return the tokenizer of the folder or hub id that a generator was loaded from, or None."""
    folder = local_path(path)
    if not path or (folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES)):
        return None
    try:
        return load_pretrained("AutoTokenizer", path, "load the tokenizer of")
    except DrkitError:
        return None
