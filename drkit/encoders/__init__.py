"""Encoders: architectures, pooling and heads of Hugging Face's masked LMs, cross-encoders, and encoder folders."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.encoders.architectures import Architecture as Architecture
    from drkit.encoders.architectures import BertSizes as BertSizes
    from drkit.encoders.batches import token_batch as token_batch
    from drkit.encoders.card import EncoderCard as EncoderCard
    from drkit.encoders.cross_encoder import CrossEncoder as CrossEncoder
    from drkit.encoders.export import export_encoder as export_encoder
    from drkit.encoders.heads import Heads as Heads
    from drkit.encoders.masked_lm import MaskedLmEncoder as MaskedLmEncoder
    from drkit.encoders.masked_lm import check_same_vocabulary as check_same_vocabulary
    from drkit.encoders.masked_lm import context_from as context_from

lazy_exports(__name__)
