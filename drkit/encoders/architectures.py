"""Where each Hugging Face architecture keeps the pieces that drkit borrows: one record per model type.

A new architecture is a new row of `ARCHITECTURES`; nothing else in drkit knows a model's attribute names.
"""

from __future__ import annotations

from attrs import frozen

from drkit.errors import DrkitError, did_you_mean


@frozen
class Architecture:
    """Dotted paths inside a masked LM.

    embeddings: the module that maps ids to the first hidden states. positions: its position table
    (`position_offset`: the row of the first token). layers: the list of encoder layers, and the names inside
    one of them. transform: the LM head up to the tied projection. projection_bias: its bias, a parameter.
    """

    model_type: str
    embeddings: str
    word_embeddings: str
    positions: str
    position_offset: int
    layers: str
    transform: str
    projection_bias: str
    layer: LayerNames


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

ARCHITECTURES = {
    row.model_type: row
    for row in (
        Architecture(
            model_type="bert",
            embeddings="bert.embeddings",
            word_embeddings="bert.embeddings.word_embeddings",
            positions="bert.embeddings.position_embeddings",
            position_offset=0,
            layers="bert.encoder.layer",
            transform="cls.predictions.transform",
            projection_bias="cls.predictions.bias",
            layer=BERT_LAYER,
        ),
    )
}


def architecture(model_type: str) -> Architecture:
    """The record of one model type.

    Raises DrkitError, naming the known ones, where there is none.

    >>> architecture("bert").layers
    'bert.encoder.layer'
    """
    if model_type not in ARCHITECTURES:
        raise DrkitError(
            f"encoders of the architecture {model_type!r} are not supported"
            f"{did_you_mean(model_type, ARCHITECTURES)} known: {', '.join(sorted(ARCHITECTURES))}; "
            f"start from a checkpoint of one of these"
        )
    return ARCHITECTURES[model_type]
