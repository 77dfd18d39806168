"""What training starts from and leaves behind: a whole masked LM, so that pre-training can be continued.

A checkpoint folder is what `save_pretrained` writes (with the LM head), the tokenizer, and, after pre-training,
`decoder.safetensors`. The encoder that users load is exported separately, clean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from drkit.encoders import MaskedLmEncoder
from drkit.encoders.quiet import without_bars

DECODER = "decoder.safetensors"


def save_masked_lm(encoder: MaskedLmEncoder, tokenizer: Any, folder: Path) -> None:
    """Write encoder, LM head and tokenizer."""
    model: Any = encoder.model
    with without_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_encoder(folder: Path, *, pooling: str) -> MaskedLmEncoder:
    """The masked LM of a checkpoint folder."""
    with without_bars():
        return MaskedLmEncoder.from_pretrained(str(folder), pooling=pooling)


def save_decoder(decoder: nn.Module, folder: Path) -> None:
    """Write a decoder's own weights beside the checkpoint."""
    from safetensors.torch import save_model

    save_model(decoder, str(folder / DECODER))
