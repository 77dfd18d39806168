"""drkit: compose maskers, decoders, losses and negative miners into dense retrievers."""

__version__ = "0.1.0"
