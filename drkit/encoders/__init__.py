"""Encoders: Hugging Face masked LMs behind one adapter."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.encoders.architectures import Architecture
    from drkit.encoders.config import BertSizes
    from drkit.encoders.context import context_from
    from drkit.encoders.cross_encoder import CrossEncoder
    from drkit.encoders.export import export_encoder
    from drkit.encoders.heads import Heads
    from drkit.encoders.masked_lm import MaskedLmEncoder
    from drkit.encoders.tokens import token_batch

__all__ = [
    "Architecture",
    "BertSizes",
    "CrossEncoder",
    "Heads",
    "MaskedLmEncoder",
    "context_from",
    "export_encoder",
    "token_batch",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "Architecture": "architectures",
        "BertSizes": "config",
        "CrossEncoder": "cross_encoder",
        "Heads": "heads",
        "MaskedLmEncoder": "masked_lm",
        "context_from": "context",
        "export_encoder": "export",
        "token_batch": "tokens",
    },
)
