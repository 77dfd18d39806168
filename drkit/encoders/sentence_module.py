"""The module of sentence-transformers that pools by a drkit part.

`modules.json` of an exported encoder names it by this path, so it must not move: folders of old runs would not load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from drkit.core.files import local_path
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.encoders.masked_lm import load_head
from drkit.errors import DrkitError

try:
    from sentence_transformers.base.modules import Module
except ImportError:  # before version 6
    from sentence_transformers.models import Module


class PartPooling(Module):  # type: ignore[misc]
    """Pools token embeddings f[B,L,D] into sentence embeddings f[B,E] by a part of the kind `pooling`."""

    def __init__(self, pooling: LearnedPooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add `sentence_embedding` to the features of a batch."""
        return {
            **features,
            "sentence_embedding": self.pooling(features["token_embeddings"], features["attention_mask"]),
        }

    def get_sentence_embedding_dimension(self) -> int:
        """Return the length of the vectors."""
        return self.pooling.dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the pooling into a folder."""
        self.pooling.save(Path(output_path))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **_: Any) -> PartPooling:
        """Read the pooling of a local encoder folder. Raises DrkitError if it is missing, or its part not installed."""
        pooling = read_learned_pooling(local_path(model_name_or_path) / subfolder)
        if pooling is None:
            raise DrkitError(f"{model_name_or_path} has no pooling in {subfolder!r}; export the encoder again")
        if pooling.receives_heads:
            pooling.head = load_head(local_path(model_name_or_path) / subfolder)
        return cls(pooling)
