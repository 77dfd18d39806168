"""Supported Hugging Face architectures: where each keeps the modules that drkit uses, one record per model type.

drkit's own plugin and others declare records by the hook `drkit_architectures`, each under its model type; nothing else
in drkit knows a model's attribute names. Word embeddings, the projection to the vocabulary and the masked LM without
its head need no entry: transformers has accessors for them (`get_input_embeddings`, `get_output_embeddings`,
`base_model`). No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from attrs import evolve, field, frozen
from attrs.validators import and_, ge, in_, lt

from drkit.core.files import local_path, read_json
from drkit.core.hub import check_model_path
from drkit.core.registry import installed
from drkit.core.settings import setting
from drkit.core.types import BackboneInfo, EncoderSizes
from drkit.data.special_tokens import special_ids
from drkit.errors import DrkitError, did_you_mean

# The model type of drkit's own encoders without layers (`drkit.encoders.static`).
STATIC = "drkit-static"
# Saved in a checkpoint's config.json, so that loading it does not restore the transform of its LM head.
TIED = "drkit_tied_lm_head"
# A step of an LM head that is a function, not a module.
GELU = "gelu()"
# How a decoder-only model reads a text: as its configuration declares, in both directions, or from left to right.
DECLARED, BIDIRECTIONAL, CAUSAL = ATTENTIONS = ("declared", "bidirectional", "causal")
# The keys of a configuration that say so: of all decoder-only models of transformers, and of EmbeddingGemma's.
_IS_CAUSAL, _READS_BOTH_WAYS = "is_causal", "use_bidirectional_attention"


@frozen
class BertSizes(EncoderSizes):
    """Sizes of a BERT that starts from random weights; without layers, a static encoder.

    A class of its own, because users write it.

    Raises ValueError if `hidden` is not a multiple of `heads`.
    """

    hidden: int = setting(128, ge(1), "width of the hidden states")
    layers: int = setting(2, ge(0), "number of transformer layers; 0: only word embeddings")
    heads: int = setting(2, ge(1), "attention heads; the width must be a multiple of them")
    intermediate: int = setting(512, ge(1), "width of the feed-forward layers")
    max_positions: int = setting(512, ge(2), "maximum length of a text in tokens")
    dropout: float = setting(0.1, and_(ge(0), lt(1)), "dropout of hidden states and attention")
    activation: str = setting(
        "gelu", in_(("gelu", "relu", "silu", "gelu_new")), "activation of the feed-forward layers"
    )
    lm_head: str = setting(
        "transform",
        in_(("transform", "tied")),
        "LM head: BERT's transform and tied projection, or only the projection",
    )

    def __attrs_post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"'hidden' must be a multiple of 'heads', got {self.hidden} and {self.heads}")


@frozen
class LayerNames:
    """Dotted paths inside one post-LN encoder layer."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    intermediate: str
    output: str
    output_norm: str


@frozen
class SizeNames:
    """Names of the sizes in a configuration; a number is the size itself."""

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    intermediate: str = "intermediate_size"
    dropout: str | float = "hidden_dropout_prob"
    attention_dropout: str = "attention_probs_dropout_prob"
    activation: str = "hidden_act"
    layer_norm_eps: str | float = "layer_norm_eps"


@frozen
class Architecture:
    """Where the models of one type keep what drkit uses.

    In the masked LM: transform, the steps of its head before the projection, in order (paths, or `GELU`); lm_bias, the
    bias of a head that projects on the word embeddings without a module of its own ("": transformers knows the module).
    In its backbone: layers, the list of encoder layers; embeddings, the module that maps ids to the first hidden
    states; embeddings_project, the module that maps them to the hidden size, if any; positions, the position table
    ("", or absent from a model: drkit provides sinusoids); final_norm, the LayerNorm after the last layer, if layers
    end without one.
    position_offset: the table's row of the first token (None: the row after the padding id's).
    layer: names inside a layer built like BERT's (None: built differently). attention: the implementation to use.
    is_causal: decoder-only models, which read a text from left to right unless their configuration says otherwise
    (`reads_both_ways`); those that do are loaded without a head, and pre-training refuses them.
    config: keys of the configuration that models are loaded and made with. unused: prefixes of weights that checkpoints
    may have in addition to those of the masked LM or its backbone.
    """

    transform: tuple[str, ...]
    lm_bias: str = ""
    layers: str = "encoder.layer"
    embeddings: str = "embeddings"
    embeddings_project: str = ""
    positions: str = "embeddings.position_embeddings"
    position_offset: int | None = 0
    final_norm: str = ""
    layer: LayerNames | None = None
    sizes: SizeNames = SizeNames()
    attention: str = "sdpa"
    is_causal: bool = False
    config: Mapping[str, Any] = field(factory=dict)
    unused: tuple[str, ...] = ()


BERT_LAYER = LayerNames(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    intermediate="intermediate.dense",
    output="output.dense",
    output_norm="output.LayerNorm",
)
DISTILBERT_LAYER = LayerNames(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    intermediate="ffn.lin1",
    output="ffn.lin2",
    output_norm="output_layer_norm",
)
# The relative position bias belongs to the whole stack, not to a layer, so a decoder's layer does not have it.
MPNET_LAYER = evolve(
    BERT_LAYER,
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
BERT_LAYOUT = Architecture(transform=("cls.predictions.transform",), layer=BERT_LAYER)
ROBERTA = Architecture(transform=("lm_head.dense", GELU, "lm_head.layer_norm"), position_offset=None, layer=BERT_LAYER)
ELECTRA = Architecture(transform=("generator_predictions",), embeddings_project="embeddings_project", layer=BERT_LAYER)
DISTILBERT = Architecture(
    transform=("vocab_transform", "activation", "vocab_layer_norm"),
    layers="transformer.layer",
    layer=DISTILBERT_LAYER,
    sizes=SizeNames(
        hidden="dim",
        layers="n_layers",
        heads="n_heads",
        intermediate="hidden_dim",
        dropout="dropout",
        attention_dropout="attention_dropout",
        activation="activation",
        layer_norm_eps=1e-12,
    ),
)
MPNET = Architecture(
    transform=("lm_head.dense", GELU, "lm_head.layer_norm"), position_offset=2, layer=MPNET_LAYER, attention="eager"
)
MODERNBERT = Architecture(
    transform=("head",),
    layers="layers",
    positions="",
    final_norm="final_norm",
    sizes=SizeNames(
        dropout="mlp_dropout",
        attention_dropout="attention_dropout",
        activation="hidden_activation",
        layer_norm_eps="norm_eps",
    ),
)
# transformers' default, the "legacy" head, is not that of the published checkpoints. Disentangled attention scores
# distances in every layer, by weights that a decoder's layer does not have.
DEBERTA = Architecture(
    transform=tuple(f"lm_predictions.lm_head.{step}" for step in ("dense", "transform_act_fn", "LayerNorm")),
    lm_bias="lm_predictions.lm_head.bias",
    layer=evolve(
        BERT_LAYER,
        query="attention.self.query_proj",
        key="attention.self.key_proj",
        value="attention.self.value_proj",
    ),
    attention="eager",
    config={"legacy": False},
    unused=("lm_predictions.", "mask_predictions."),
)
# One projection of queries, keys and values together, with biases of its own: a decoder's layer cannot copy it.
DEBERTA_V1 = evolve(DEBERTA, layer=None)
# Llama and what is built like it: Mistral, Qwen, Gemma.
LLAMA = Architecture(
    transform=(),
    layers="layers",
    embeddings="embed_tokens",
    positions="",
    final_norm="norm",
    sizes=SizeNames(dropout=0.0, attention_dropout="attention_dropout", layer_norm_eps="rms_norm_eps"),
    is_causal=True,
    config={"use_cache": False},
)
GEMMA3 = evolve(LLAMA, sizes=evolve(LLAMA.sizes, activation="hidden_activation"))
WORD_VECTORS = Architecture(transform=(), layers="layers", positions="", attention="eager")


def find_architecture(model_type: str) -> Architecture | None:
    """Return the record of a model type, or None if no installed package declares one.

    Raises DrkitError if it cannot be loaded.
    """
    name = model_type.replace("_", "-")  # names have hyphens, and a few model types of transformers underscores
    table = installed().extensions["architecture"]
    return table.get(name).load_as(Architecture, "drkit.encoders.Architecture") if name in table else None


def architecture(model_type: str, *, causal: bool = True) -> Architecture:
    """Return the record of a model type. causal: whether it may read a text from left to right.

    Raises DrkitError with the reason and the supported architectures if it is not supported.

    >>> architecture("distilbert").layers
    'transformer.layer'
    """
    found = find_architecture(model_type)
    if found is None:
        table = installed().extensions["architecture"]
        lines = (*table.failed, *table.clashes)
        failed = f"; not loaded: {'; '.join(lines)}" if lines else ""
        raise DrkitError(
            f"encoders of the architecture {model_type!r} are not supported: no installed package declares where its "
            f"embeddings, layers and LM head are (`drkit new-plugin NAME --kind architecture` writes a declaration)"
            f"{did_you_mean(model_type, table)} supported: {', '.join(table)}; "
            f"start from a checkpoint of one of these{failed}"
        )
    if found.is_causal and not causal:
        raise DrkitError(
            f"encoders of the architecture {model_type!r} read a text from left to right: they can be fine-tuned "
            f"(--set pretrain=none), searched and exported, and pre-trained if they are made to read in both "
            f"directions (--set encoder.attention={BIDIRECTIONAL}), but lexical pooling, generators and re-rankers "
            f"need a masked LM; start from one, such as a bert"
        )
    return found


def reads_both_ways(config: Any) -> bool:
    """Return whether a model with this configuration reads a text in both directions.

    config: of transformers, or the object in a config.json. Encoders do; decoder-only models if it says
    `is_causal = false`, or `use_bidirectional_attention = true` (EmbeddingGemma).

    >>> reads_both_ways({"model_type": "bert"}), reads_both_ways({"model_type": "llama"})
    (True, False)
    >>> reads_both_ways({"model_type": "llama", "is_causal": False})
    True
    """
    found = find_architecture(str(_value(config, "model_type")))
    if found is None or not found.is_causal:
        return True
    return _value(config, _IS_CAUSAL) is False or bool(_value(config, _READS_BOTH_WAYS))


def attention_keys(config: Any, attention: str) -> dict[str, Any]:
    """Return the keys that a configuration needs so that its model reads texts as `attention` says.

    attention: one of `ATTENTIONS`; config: as in `reads_both_ways`. A window of nearby tokens (Gemma 3, Mistral) then
    reaches as far to the right as to the left.

    Raises DrkitError for a model that reads in both directions by its configuration or architecture, and is to read
    from left to right: its weights were not trained for that.
    """
    is_bidirectional = reads_both_ways(config)
    if attention == BIDIRECTIONAL and not is_bidirectional:
        return {_IS_CAUSAL: False}
    if attention == CAUSAL and is_bidirectional:
        raise DrkitError(
            f"this {_value(config, 'model_type')!r} encoder reads a text in both directions, as it was trained to: "
            f"leave encoder.attention at {DECLARED!r} @ encoder.attention"
        )
    return {}


def _value(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def check_start_model(path_or_id: str, *, causal: bool = False) -> Architecture | None:
    """Return the architecture of a model that training starts from; None if that is not known without loading it.

    Raises DrkitError for a folder without a configuration of a supported architecture; without `causal`, also for one
    that reads from left to right. A hub id is not looked up.
    """
    check_model_path(path_or_id)
    path = local_path(path_or_id) / "config.json"
    config = read_json(path, "give the folder of a model") if path.is_file() else {}
    if isinstance(config, dict) and isinstance(config.get("model_type"), str):
        try:
            return architecture(config["model_type"], causal=causal)
        except DrkitError as error:
            raise DrkitError(f"{path_or_id!r}: {error}") from None
    return None


def first_position(config: Any) -> int:
    """Return the row of the position table for the first token of a text; 0 for an unsupported model type."""
    found = find_architecture(config.model_type)
    if found is None:
        return 0
    return int(config.pad_token_id) + 1 if found.position_offset is None else found.position_offset


def longest_text(config: Any) -> int:
    """Return the maximum number of tokens of a text for a model configuration, special ones included.

    Raises DrkitError if the configuration has no `max_position_embeddings`.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not positions:
        raise DrkitError(f"the configuration of this {config.model_type!r} encoder has no max_position_embeddings")
    return int(positions) - first_position(config)


def check_vocabulary(tokenizer: Any, config: Any, path_or_id: str = "") -> None:
    """Raise DrkitError if a tokenizer gives ids beyond the embeddings of a model with this configuration."""
    special = (*tokenizer("", verbose=False)["input_ids"], *tokenizer("", "", verbose=False)["input_ids"])
    count = max(chain(tokenizer.get_vocab().values(), special), default=-1) + 1
    if count > config.vocab_size:
        raise DrkitError(
            f"the tokenizer of {path_or_id or tokenizer.name_or_path!r} has {count} tokens, but the encoder has "
            f"embeddings for only {config.vocab_size}; use the tokenizer that was saved with the encoder"
        )


def check_length(length: int, config: Any, path_or_id: str = "") -> None:
    """Raise DrkitError if a model with this configuration has a position table for fewer than `length` tokens."""
    if config.model_type != STATIC and (getattr(config, "max_position_embeddings", None) or 0) > 0:
        longest = longest_text(config)
        if length > longest:
            raise DrkitError(
                f"a length of {length} tokens is too much for the encoder {path_or_id!r}, which reads at most "
                f"{longest}: lower query_length and passage_length"
            )


def backbone_info(config: Any, tokenizer: Any) -> BackboneInfo:
    """Return the sizes in a model configuration and the tokenizer's special ids.

    Raises DrkitError for an unsupported architecture.
    """
    names = architecture(config.model_type).sizes
    eps, dropout = names.layer_norm_eps, names.dropout
    return BackboneInfo(
        hidden=getattr(config, names.hidden),
        heads=getattr(config, names.heads),
        intermediate=getattr(config, names.intermediate),
        layers=getattr(config, names.layers),
        vocab=config.vocab_size,
        max_positions=longest_text(config),
        mask_id=tokenizer.mask_token_id,
        pad_id=config.pad_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        special_ids=special_ids(tokenizer),
        layer_norm_eps=eps if isinstance(eps, float) else getattr(config, eps),
        dropout=dropout if isinstance(dropout, float) else getattr(config, dropout),
        initializer_range=config.initializer_range,
        activation=getattr(config, names.activation),
    )


def check_fit(model: Any, where: Architecture) -> None:
    """Raise DrkitError if a model lacks a module that its record names, or reads from left to right unexpectedly."""
    name = type(model).__name__
    if not where.is_causal and getattr(model.config, "is_decoder", False):
        raise DrkitError(
            f"this {name} attends from left to right (is_decoder = true in its config.json), but a masked auto-encoder "
            f"needs a bidirectional encoder: set it to false, or use another checkpoint"
        )
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None and not where.is_causal:
        raise DrkitError(
            f"a {name} has no language-model head. Load it with MaskedLmEncoder.from_pretrained(folder), or wrap the "
            f"masked LM of its architecture (transformers' AutoModelForMaskedLM)"
        )
    in_backbone = filter(None, (where.embeddings, where.layers, where.final_norm))
    missing = [path for path in where.transform if path != GELU and not has_module(model, path)]
    missing += [f"{path} in the backbone" for path in in_backbone if not has_module(model.base_model, path)]
    if missing:
        keys = ", ".join(f"{key} = {value}" for key, value in where.config.items())
        raise DrkitError(
            f"this {name} has the model type {model.config.model_type!r} but not its modules (missing: "
            f"{', '.join(missing)}); use transformers' own masked LM of that architecture"
            f"{f', with {keys} in its configuration' if keys else ''}"
        )


def has_module(module: Any, path: str) -> bool:
    """Return whether a module has another one at a dotted path."""
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
