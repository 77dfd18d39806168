"""Encoders of sentence-transformers as drkit's: a `SentenceTransformer` in memory, with any modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core.files import digest
from drkit.encoders.folder import SIMILARITIES, SUPPORTED_MODULES, pooling_of
from drkit.encoders.identity import config_hash, tokenizer_hash, weights_hash
from drkit.encoders.pooling import is_weighted
from drkit.encoders.token_weights import TokenWeights
from drkit.errors import DrkitError
from drkit.search.dual_encoder import read_encoder
from drkit.search.text_encoder import Encoder, inference


class SentenceTransformerEncoder:
    """A `SentenceTransformer`, with any modules, as an encoder: `Retriever(SentenceTransformerEncoder(model), index)`.

    Queries and passages go through its own `encode_query` and `encode_document`, with its prompts and lengths, on its
    device; its training mode is restored afterwards. Under cosine similarity the vectors have length 1. If drkit
    supports the model's modules and pooling, its index can also be searched with `TextEncoder.load` of the saved model.

    Raises DrkitError for a similarity other than cosine and dot.
    """

    def __init__(self, model: Any, *, batch_size: int = 64) -> None:
        similarity = str(getattr(model.similarity_fn_name, "value", model.similarity_fn_name))
        if similarity not in SIMILARITIES:
            raise DrkitError(f"the model uses {similarity!r} similarity; drkit supports cosine and dot")
        self.model, self.similarity, self.batch_size = model, similarity, batch_size

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        model = self.model  # before sentence-transformers 6 the method had the longer name
        dimension = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        return int(dimension())

    def identity(self) -> dict[str, Any]:
        """Return what the vectors depend on: hashes of weights, configuration and tokenizer, and the settings.

        `config` is that of the transformer if `TextEncoder` can load the saved model, else that of all modules.
        """
        pooling = self._pooling()
        return {
            "weights": self._weights(pooling),
            "config": self._config(pooling),
            "tokenizer": tokenizer_hash(self.model.tokenizer),
            "pooling": pooling or "sentence-transformers",
            "normalize": self.similarity == "cosine" or "Normalize" in self._modules(),
            "similarity": self.similarity,
            "prompts": dict(self.model.prompts or {}),
            "length": self.model.max_seq_length,
            "dimension": self.dimension,
        }

    @property
    def pooling(self) -> str:
        """The pooling if it is one of drkit's, else the modules."""
        return self._pooling() or " + ".join(self._modules())

    def evolve(self, precision: str = "float32", **prompts: str) -> SentenceTransformerEncoder:
        """Return it with prompts of `query_prompt` and `passage_prompt`. Raises DrkitError for another precision."""
        if precision != "float32":
            raise DrkitError(f"precision {precision} is for encoders that drkit reads itself; leave it out")
        if prompts:
            named = {"query": prompts.get("query_prompt"), "document": prompts.get("passage_prompt")}
            self.model.prompts.update({name: prompt for name, prompt in named.items() if prompt is not None})
        return self

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n queries as f32[n,D]."""
        return self._encode(self.model.encode_query, texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n passages as f32[n,D]."""
        return self._encode(self.model.encode_document, texts)

    def _encode(self, encode: Any, texts: Sequence[str]) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        normalize = self.similarity == "cosine"
        with inference(self.model):
            vectors = encode(
                list(texts), batch_size=self.batch_size, normalize_embeddings=normalize, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    def _weights(self, pooling: str) -> str:
        if not pooling:
            return weights_hash(self.model)
        weighted = is_weighted(pooling)
        token_weights = TokenWeights(self.model[1].emb_layer.weight[:, 0]) if weighted else None
        return weights_hash(self.model[0].auto_model, token_weights)

    def _config(self, pooling: str) -> str:
        if pooling:
            return config_hash(self.model[0].auto_model.config)
        transformers = [module.auto_model for module in self.model.modules() if hasattr(module, "auto_model")]
        settings = [
            [type(module).__name__, module.get_config_dict(), getattr(module, "do_lower_case", False)]
            for module in self.model.modules()
            if hasattr(module, "get_config_dict")
        ]
        return digest([[config_hash(model.config) for model in transformers], settings])

    def _modules(self) -> tuple[str, ...]:
        return tuple(type(module).__name__ for module in self.model)

    def _pooling(self) -> str:
        """Return the pooling if `TextEncoder` can load the saved model, else an empty string."""
        modules = self._modules()
        if modules not in SUPPORTED_MODULES.values() or self.model.truncate_dim is not None:
            return ""
        if getattr(self.model[0], "do_lower_case", False):
            return ""
        config = self.model[modules.index("Pooling")].get_config_dict()
        try:
            return pooling_of(config, "the model", weighted="WordWeights" in modules)
        except DrkitError:
            return ""


def as_encoder(given: Any) -> Encoder:
    """Return an encoder for a `SentenceTransformer`, an encoder folder, or an encoder, which is returned unchanged.

    Raises DrkitError for anything else, and as `TextEncoder.load` does.
    """
    if isinstance(given, (str, Path)):
        return read_encoder(given)
    if hasattr(given, "encode_passages"):
        encoder: Encoder = given
        return encoder
    if hasattr(given, "encode_document"):
        return SentenceTransformerEncoder(given)
    raise DrkitError(
        f"{type(given).__name__} is not an encoder; give a SentenceTransformer, an encoder folder, or an object with "
        f"encode_queries, encode_passages and dimension"
    )
