"""Text encoders and encoder folders made from a model, its tokenizer and settings of a card."""

from drkit.encoders import EncoderCard, export_encoder
from drkit.encoders.export import export_dual
from drkit.search import TextEncoder


def reader_of(model, words, pooling="cls", *, token_weights=None, learned_pooling=None, token_budget=None, **card):
    """Return the text encoder of a model; card: settings of `EncoderCard`."""
    parts = {"token_weights": token_weights, "learned_pooling": learned_pooling, "token_budget": token_budget}
    return TextEncoder(EncoderCard(pooling=pooling, **card), model, words, **parts)


def export_made(model, words, folder, provenance=None, **how):
    """Write the folder of a model's text encoder; how: see `reader_of`."""
    return export_encoder(reader_of(model, words, **how), folder, provenance=provenance)


def export_two(queries, passages, folder, token_weights=(None, None), provenance=None, **how):
    """Write the folder of two encoders, each given as (model, tokenizer)."""
    sides = zip((queries, passages), token_weights, strict=True)
    encoders = [reader_of(*side, token_weights=weights, **how) for side, weights in sides]
    return export_dual(*encoders, folder, provenance=provenance)
