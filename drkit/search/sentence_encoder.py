"""Encoders of sentence-transformers as drkit's: a model in memory, with any modules, dense or sparse."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core.files import digest
from drkit.encoders.declarations import (
    FEATURES,
    POOLING_SETTINGS,
    SPARSE_ENCODER,
    check_settings,
    declared_prompts,
    supported_reading,
)
from drkit.encoders.folder import SIMILARITIES, SUPPORTED_MODULES, pooling_of
from drkit.encoders.identity import config_hash, tokenizer_hash, weights_hash
from drkit.encoders.pooling import is_weighted
from drkit.encoders.token_weights import TokenWeights
from drkit.errors import DrkitError
from drkit.search.dual_encoder import read_encoder
from drkit.search.text_encoder import Encoder, inference


class SentenceTransformerEncoder:
    """A `SentenceTransformer` or `SparseEncoder`, with any modules, as an encoder of a `Retriever`.

    Queries and passages go through its own `encode_query` and `encode_document`, with its prompts and lengths, on its
    device; its training mode is restored afterwards. Under cosine similarity the vectors have length 1. If drkit
    supports the model's modules and pooling, its index can also be searched with `TextEncoder.load` of the saved model.

    The prompt of passages is `document`, or if that is empty `passage` or `corpus`, as in a folder that drkit reads.

    Raises DrkitError for a similarity other than cosine and dot, and for a prompt that leaves no room for text.
    """

    def __init__(self, model: Any, *, batch_size: int = 64) -> None:
        similarity = str(getattr(model.similarity_fn_name, "value", model.similarity_fn_name))
        if similarity not in SIMILARITIES:
            raise DrkitError(f"the model uses {similarity!r} similarity; drkit supports cosine and dot")
        self.model, self.similarity, self.batch_size = model, similarity, batch_size
        self._prompts: Mapping[str, str] = {}
        self._check_prompts()

    @property
    def query_prompt(self) -> str:
        """What is put before every query."""
        return {**declared_prompts({"prompts": self.model.prompts}), **self._prompts}["query_prompt"]

    @property
    def passage_prompt(self) -> str:
        """What is put before every passage."""
        return {**declared_prompts({"prompts": self.model.prompts}), **self._prompts}["passage_prompt"]

    @cached_property
    def dimension(self) -> int:
        """D, the length of a vector."""
        if self.is_sparse:  # which does not know it before it has encoded a text, and gives the hidden size until then
            return int(self._encode(self.model.encode_query, ["a"], "").shape[1])
        model = self.model  # before sentence-transformers 6 the method had the longer name
        dimension = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
        return int(dimension())

    @property
    def is_sparse(self) -> bool:
        """Whether most numbers of a vector are 0: the model is a `SparseEncoder`."""
        return getattr(self.model, "model_type", "") == SPARSE_ENCODER or type(self.model).__name__ == SPARSE_ENCODER

    def identity(self) -> dict[str, Any]:
        """Return what the vectors depend on: hashes of weights, configuration and tokenizer, and the settings.

        `config` is that of the transformer if `TextEncoder` can load the saved model, else that of all modules.
        """
        pooling = self._pooling()
        return {
            "weights": self._weights(pooling),
            "config": self._config(pooling),
            "tokenizer": tokenizer_hash(self.model.tokenizer) if pooling else self._tokenizers(),
            "pooling": pooling or "sentence-transformers",
            "normalize": self.similarity == "cosine" or "Normalize" in self._modules(),
            "similarity": self.similarity,
            "prompts": {"query": self.query_prompt, "document": self.passage_prompt},
            "length": None if self.model.max_seq_length in (None, math.inf) else self.model.max_seq_length,
            "dimension": self.dimension,
        }

    @property
    def pooling(self) -> str:
        """The pooling if it is one of drkit's, else the modules."""
        return self._pooling() or " + ".join(self._modules())

    def evolve(self, precision: str = "float32", **prompts: str) -> SentenceTransformerEncoder:
        """Return a copy with other values of `query_prompt` and `passage_prompt`.

        Raises DrkitError for another precision, or a prompt that leaves no room for text.
        """
        if precision != "float32":
            raise DrkitError(f"precision {precision} is for encoders that drkit reads itself; leave it out")
        other = copy.copy(self)
        other._prompts = {**self._prompts, **prompts}
        other._check_prompts()
        return other

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n queries as f32[n,D]."""
        return self._encode(self.model.encode_query, texts, self.query_prompt)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n passages as f32[n,D]."""
        return self._encode(self.model.encode_document, texts, self.passage_prompt)

    def _encode(self, encode: Any, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        options = {"convert_to_sparse_tensor": False} if self.is_sparse else {"convert_to_numpy": True}
        with inference(self.model):
            given = encode(list(texts), prompt=prompt, batch_size=self.batch_size, show_progress_bar=False, **options)
        vectors: NDArray[np.float32] = np.asarray(given.cpu() if self.is_sparse else given, dtype=np.float32)
        if self.similarity != "cosine":
            return vectors
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return np.asarray(vectors / lengths, dtype=np.float32)

    def _check_prompts(self) -> None:
        """Raise DrkitError if the model reads nothing behind a prompt."""
        for prompt, task in ((self.query_prompt, "query"), (self.passage_prompt, "document")):
            without, with_text = (self._ids(text, prompt, task) for text in ("", "a"))
            if prompt and with_text and with_text == without:
                raise DrkitError(
                    f"the prompt {prompt!r:.80} leaves no room for text in the {len(without)} tokens that the encoder "
                    f"reads; shorten it"
                )

    def _ids(self, text: str, prompt: str, task: str) -> list[int]:
        """Return the token ids that the model reads; empty for one without them."""
        if not prompt:
            return []
        if hasattr(self.model, "preprocess"):
            features = self.model.preprocess([text], prompt=prompt, task=task)
        else:
            features = self.model.tokenize([prompt + text])
        found = features.get("input_ids")
        return [] if found is None else np.asarray(found).ravel().tolist()

    def _tokenizers(self) -> str:
        """Return a hash of the tokenizers of all modules, a router's with the modules behind it."""
        inner = [module for module in self.model.modules() if not hasattr(module, "sub_modules")][1:]
        return digest([_tokenizer_state(module.tokenizer) for module in inner if hasattr(module, "tokenizer")])

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
        modules = [module for module in self.model.modules() if hasattr(module, "get_config_dict")]
        kept = getattr(self.model, "max_active_dims", None)
        return digest([[config_hash(model.config) for model in transformers], list(map(_module_state, modules)), kept])

    def _modules(self) -> tuple[str, ...]:
        return tuple(type(module).__name__ for module in self.model)

    def _pooling(self) -> str:
        """Return the pooling if `TextEncoder` can load the saved model, else an empty string."""
        modules = self._modules()
        if modules not in SUPPORTED_MODULES.values() or self.model.truncate_dim is not None:
            return ""
        reading, config = self.model[0].get_config_dict(), self.model[modules.index("Pooling")].get_config_dict()
        reading["do_lower_case"] = getattr(self.model[0], "do_lower_case", False)
        try:
            check_settings(Path("the model"), reading, supported_reading(FEATURES))
            check_settings(Path("the model"), config, POOLING_SETTINGS)
            return pooling_of(config, "the model", weighted="WordWeights" in modules)
        except DrkitError:
            return ""


def _module_state(module: Any) -> list[Any]:
    """Return the settings of a module, without the size of its vectors, which some learn when they encode a text."""
    settings = {name: value for name, value in module.get_config_dict().items() if not name.endswith("dimension")}
    others = (getattr(module, name, None) for name in ("do_lower_case", "max_seq_length"))
    return [type(module).__name__, settings, *others]


def _tokenizer_state(tokenizer: Any) -> list[Any]:
    """Return all that a tokenizer of transformers, tokenizers or sentence-transformers splits texts by."""
    if hasattr(tokenizer, "get_vocab") and (hasattr(tokenizer, "backend_tokenizer") or hasattr(tokenizer, "to_str")):
        return [tokenizer_hash(tokenizer), getattr(tokenizer, "truncation", None)]
    state = {name: sorted(value) if isinstance(value, set) else value for name, value in vars(tokenizer).items()}
    return [type(tokenizer).__name__, state]


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
