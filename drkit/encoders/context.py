"""From a Hugging Face model and tokenizer to what parts are built with, for use in someone else's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drkit.core.types import BuildContext
from drkit.encoders.architectures import architecture, longest_text
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.core.types import BackboneInfo


def context_from(model: Any, tokenizer: Any, *, seed: int = 42) -> BuildContext:
    """The build context of a masked LM (Hugging Face's, or a `MaskedLmEncoder`) and its tokenizer.

    Raises DrkitError where the tokenizer has no mask token.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise DrkitError(
            f"context_from takes a Hugging Face masked LM or a MaskedLmEncoder, got {type(model).__name__}"
        )
    return BuildContext(backbone=backbone_info(config, tokenizer), tokenizer=tokenizer, seed=seed)


def backbone_info(config: Any, tokenizer: Any) -> BackboneInfo:
    """Sizes from a model configuration, in its architecture's own names; special ids from the tokenizer.

    Raises DrkitError for an unknown architecture, or a tokenizer without a mask token.
    """
    from drkit.core.types import BackboneInfo

    names = architecture(config.model_type).sizes
    eps = names.layer_norm_eps
    if tokenizer.mask_token_id is None:
        raise DrkitError(
            "the tokenizer has no mask token; a masked auto-encoder needs one: take the tokenizer of a masked LM"
        )
    return BackboneInfo(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        intermediate=getattr(config, names.intermediate),
        layers=config.num_hidden_layers,
        vocab=config.vocab_size,
        max_positions=longest_text(config),
        mask_id=tokenizer.mask_token_id,
        pad_id=config.pad_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        special_ids=tuple(sorted(tokenizer.all_special_ids)),
        layer_norm_eps=eps if isinstance(eps, float) else getattr(config, eps),
        dropout=getattr(config, names.dropout),
        initializer_range=config.initializer_range,
        activation=getattr(config, names.activation),
    )
