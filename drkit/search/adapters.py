"""Models of sentence-transformers where drkit takes an encoder or a re-ranker: as they are, nothing is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.search.reranking import Pair, Scorer

_BATCH = 64
_MODULES = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


class Encoder(Protocol):
    """What indexes and retrievers ask of an encoder: a `TextEncoder`, or any object of this shape."""

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""

    def identity(self) -> Mapping[str, Any]:
        """What its vectors depend on, as plain data; `weights`, `pooling`, `normalize` say what may be compared."""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D]."""

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D]."""


class SentenceTransformerEncoder:
    """A `SentenceTransformer`, with any modules, as an encoder: `Retriever(SentenceTransformerEncoder(model), index)`.

    Queries and passages go through its own `encode_query` and `encode_document`, with its prompts and lengths, on its
    device; its training mode comes back afterwards. Under cosine similarity the vectors have length 1. Where it is a
    transformer with cls or mean pooling, its index is searched by `TextEncoder.load` of the saved folder too.

    Raises DrkitError for a similarity other than cosine and dot.
    """

    def __init__(self, model: Any, *, batch_size: int = _BATCH) -> None:
        similarity = str(getattr(model.similarity_fn_name, "value", model.similarity_fn_name))
        if similarity not in ("cosine", "dot"):
            raise DrkitError(f"the model compares by {similarity!r}; drkit searches with cosine and dot")
        self.model, self.similarity, self.batch_size = model, similarity, batch_size

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        model = self.model  # before sentence-transformers 6 the method has the longer name
        known = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        return int(known())

    def identity(self) -> dict[str, Any]:
        """What its vectors depend on: hashes of weights and tokenizer, pooling, similarity, prompts and length."""
        from drkit.search.identity import tokenizer_hash, weights_hash

        return {
            "weights": weights_hash(self._backbone() if self._pooling() else self.model),
            "tokenizer": tokenizer_hash(self.model.tokenizer),
            "pooling": self._pooling() or "sentence-transformers",
            "normalize": self.similarity == "cosine" or "Normalize" in self._modules(),
            "similarity": self.similarity,
            "prompts": dict(self.model.prompts or {}),
            "length": self.model.max_seq_length,
            "dimension": self.dimension,
        }

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D]."""
        return self._encoded(self.model.encode_query, texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D]."""
        return self._encoded(self.model.encode_document, texts)

    def _encoded(self, encode: Any, texts: Sequence[str]) -> NDArray[np.float32]:
        from drkit.search.encode import inference

        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        unit = self.similarity == "cosine"
        with inference(self.model):
            vectors = encode(
                list(texts), batch_size=self.batch_size, normalize_embeddings=unit, show_progress_bar=False
            )
        return np.asarray(vectors, dtype=np.float32)

    def _modules(self) -> list[str]:
        return [type(module).__name__ for module in self.model]

    def _backbone(self) -> Any:
        return self.model[0].auto_model

    def _pooling(self) -> str:
        """The pooling, cls or mean, where the model is what `TextEncoder` reads; else nothing."""
        from drkit.search.folders import pooling_of

        if self._modules() not in _MODULES or self.model.truncate_dim is not None:
            return ""
        try:
            return pooling_of(self.model[1].get_config_dict(), "the model")
        except DrkitError:
            return ""


class CrossEncoderScorer:
    """A `CrossEncoder` of sentence-transformers as a scorer of pairs: a re-ranker, a filter's judge, a teacher.

    Its scores are raw, no sigmoid, as those of a `Reranker` are. Raises DrkitError for one with more than one score.
    """

    def __init__(self, model: Any, *, batch_size: int = _BATCH) -> None:
        if getattr(model, "num_labels", 1) != 1:
            raise DrkitError(f"the cross-encoder gives {model.num_labels} scores a pair; one is wanted")
        self.model, self.batch_size = model, batch_size

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """f32[n]: the scores of n (query, passage) pairs, higher is better."""
        from torch.nn import Identity

        if not pairs:
            return np.empty(0, dtype=np.float32)
        raw, texts = Identity(), [list(pair) for pair in pairs]
        scores = self.model.predict(texts, batch_size=self.batch_size, activation_fn=raw, show_progress_bar=False)
        return np.asarray(scores, dtype=np.float32)


def as_encoder(given: Any) -> Encoder:
    """An encoder of whatever stands for one: a `SentenceTransformer`, an encoder's folder, or an encoder itself.

    Raises DrkitError for anything else, and as `TextEncoder.load` does.
    """
    if isinstance(given, (str, Path)):
        from drkit.search.dual import read_encoder

        return read_encoder(given)
    if hasattr(given, "encode_passages"):
        return given  # type: ignore[no-any-return]
    if hasattr(given, "encode_document"):
        return SentenceTransformerEncoder(given)
    raise DrkitError(
        f"{type(given).__name__} is no encoder; give a SentenceTransformer, an encoder's folder, or an object with "
        f"encode_queries, encode_passages and dimension"
    )


def as_scorer(given: Any) -> Scorer:
    """A scorer of whatever stands for one: a cross-encoder's folder or hub id, a `CrossEncoder`, or a scorer itself.

    Raises DrkitError for anything else, and as `Reranker.load` does.
    """
    if isinstance(given, (str, Path)):
        from drkit.search.reranking import Reranker

        return Reranker.load(given)
    if hasattr(given, "score"):
        return given  # type: ignore[no-any-return]
    if hasattr(given, "predict"):
        return CrossEncoderScorer(given)
    raise DrkitError(
        f"{type(given).__name__} scores no pairs; give a cross-encoder's folder or hub id, a CrossEncoder of "
        f"sentence-transformers, or an object with score(pairs)"
    )
