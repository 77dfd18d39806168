"""Where each Hugging Face architecture keeps the pieces that drkit borrows: one record per model type.

A new architecture is a new row of `ARCHITECTURES`; nothing else in drkit knows a model's attribute names. The word
embeddings, the projection to the vocabulary and the masked LM without its head need no row: transformers names them
itself (`get_input_embeddings`, `get_output_embeddings`, `base_model`).
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from drkit.errors import DrkitError, did_you_mean

# A step of an LM head that is a function and no module.
GELU = "gelu()"


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
    """What a configuration calls its sizes; a number stands for itself."""

    intermediate: str = "intermediate_size"
    dropout: str = "hidden_dropout_prob"
    activation: str = "hidden_act"
    layer_norm_eps: str | float = "layer_norm_eps"


@frozen
class Architecture:
    """One model type.

    In the masked LM: transform, the steps of its head up to the projection, in order (paths, or `GELU`).
    In its backbone: layers, the list of encoder layers; embeddings, what maps ids to the first hidden states;
    embeddings_project, which brings them to the hidden size where the model has it; positions, the position table
    ("": none, drkit lends sinusoids); final_norm, the LayerNorm after the last layer where layers end without one.
    position_offset: the table's row of the first token (None: the row after the padding id's).
    layer: names inside a layer that is built as BERT's (None: it is built otherwise). attention: what attends.
    """

    model_type: str
    transform: tuple[str, ...]
    layers: str = "encoder.layer"
    embeddings: str = "embeddings"
    embeddings_project: str = ""
    positions: str = "embeddings.position_embeddings"
    position_offset: int | None = 0
    final_norm: str = ""
    layer: LayerNames | None = None
    sizes: SizeNames = SizeNames()
    attention: str = "sdpa"


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
# Its bias by distance belongs to the whole stack, not to a layer: a decoder's layer goes without it.
MPNET_LAYER = LayerNames(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    intermediate="intermediate.dense",
    output="output.dense",
    output_norm="output.LayerNorm",
)
ROBERTA = Architecture(
    model_type="roberta",
    transform=("lm_head.dense", GELU, "lm_head.layer_norm"),
    position_offset=None,
    layer=BERT_LAYER,
)

ARCHITECTURES = {
    row.model_type: row
    for row in (
        Architecture(model_type="bert", transform=("cls.predictions.transform",), layer=BERT_LAYER),
        ROBERTA,
        evolve(ROBERTA, model_type="xlm-roberta"),
        evolve(ROBERTA, model_type="camembert"),
        Architecture(
            model_type="electra",
            transform=("generator_predictions",),
            embeddings_project="embeddings_project",
            layer=BERT_LAYER,
        ),
        Architecture(
            model_type="distilbert",
            transform=("vocab_transform", "activation", "vocab_layer_norm"),
            layers="transformer.layer",
            layer=DISTILBERT_LAYER,
            sizes=SizeNames("hidden_dim", "dropout", "activation", 1e-12),
        ),
        Architecture(
            model_type="mpnet",
            transform=("lm_head.dense", GELU, "lm_head.layer_norm"),
            position_offset=2,
            layer=MPNET_LAYER,
            attention="eager",
        ),
        Architecture(
            model_type="modernbert",
            transform=("head",),
            layers="layers",
            positions="",
            final_norm="final_norm",
            sizes=SizeNames(dropout="mlp_dropout", activation="hidden_activation", layer_norm_eps="norm_eps"),
        ),
    )
}


def architecture(model_type: str) -> Architecture:
    """The record of one model type.

    Raises DrkitError, with the reason and the known ones, where there is none.

    >>> architecture("distilbert").layers
    'transformer.layer'
    """
    if model_type not in ARCHITECTURES:
        raise DrkitError(
            f"encoders of the architecture {model_type!r} are not supported: {_reason(model_type)}"
            f"{did_you_mean(model_type, ARCHITECTURES)} known: {', '.join(sorted(ARCHITECTURES))}; "
            f"start from a checkpoint of one of these"
        )
    return ARCHITECTURES[model_type]


def first_position(config: Any) -> int:
    """The row of the position table that a text's first token has; 0 where drkit does not know the model type."""
    known = ARCHITECTURES.get(config.model_type)
    if known is None:
        return 0
    return int(config.pad_token_id) + 1 if known.position_offset is None else known.position_offset


def longest_text(config: Any) -> int:
    """Tokens of the longest text that a model of this configuration reads, special ones included.

    Raises DrkitError where the configuration does not say.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if not positions:
        raise DrkitError(f"the configuration of this {config.model_type!r} encoder has no max_position_embeddings")
    return int(positions) - first_position(config)


def _reason(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    if model_type in MASKED:
        return (
            "transformers has a masked LM of it, but drkit has no record of where its embeddings, layers and LM head "
            "are: a row of drkit.encoders.architectures.ARCHITECTURES"
        )
    if model_type in MODEL_MAPPING_NAMES:
        return "transformers has no masked LM of it, and pre-training needs one: it fills in what is masked"
    return "transformers does not know it"
