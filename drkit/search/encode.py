"""Texts to vectors: sorted by length, padded to little, batched by a budget of tokens, back in their own order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from attrs.validators import ge, in_
from torch import Tensor, nn

from drkit.core.ranks import own_device
from drkit.errors import DrkitError
from drkit.search.identity import tokenizer_hash, weights_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray

MULTIPLE = 16


@attrs.frozen(eq=False)
class TextEncoder:
    """A transformer, its tokenizer, and how one vector is made of a text.

    model: a Hugging Face model that gives `last_hidden_state`, on its device. pooling: `cls` or `mean`.
    similarity: `cosine` or `dot`; under cosine all vectors have length 1, so that their inner product is the cosine.
    query_length, passage_length: tokens at most, special ones included. normalize: length 1 also under dot.
    token_budget: tokens, padding included, that go through the model at once. Prompts stand before every text.
    precision: `float32`, or `bfloat16` for the matrix products alone (autocast): faster on a GPU, vectors a little off.
    """

    model: Any
    tokenizer: Any
    pooling: str = attrs.field(default="cls", validator=in_(("cls", "mean")))
    similarity: str = attrs.field(default="cosine", validator=in_(("cosine", "dot")))
    query_length: int = attrs.field(default=32, validator=ge(2))
    passage_length: int = attrs.field(default=64, validator=ge(2))
    normalize: bool = False
    token_budget: int = attrs.field(default=16_384, validator=ge(1))
    query_prompt: str = ""
    passage_prompt: str = ""
    precision: str = attrs.field(default="float32", validator=in_(("float32", "bfloat16")))

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> TextEncoder:
        """The encoder in a folder that drkit or sentence-transformers wrote; device `auto`: a GPU where there is one.

        Raises DrkitError as `drkit.search.folders.read_encoder_settings` does.
        """
        from drkit.search.folders import load_backbone, read_encoder_settings

        settings = read_encoder_settings(Path(folder))
        model, tokenizer = load_backbone(settings.pop("transformer"))
        return cls(model.to(choose_device(device)), tokenizer, **settings)

    @classmethod
    def bare(cls, folder: str | Path, *, pooling: str, device: str | torch.device = "cpu") -> TextEncoder:
        """The encoder of a transformers checkpoint that does not say how it pools; cosine similarity, its full length.

        Raises DrkitError where it cannot be loaded, or pooling is neither cls nor mean.
        """
        from drkit.search.folders import bare_settings, load_backbone

        if pooling not in ("cls", "mean"):
            raise DrkitError(f"pooling {pooling!r}; cls or mean")
        settings = bare_settings(Path(folder), pooling)
        model, tokenizer = load_backbone(Path(folder))
        return cls(model.to(choose_device(device)), tokenizer, **settings)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.model.config.hidden_size)

    def identity(self) -> dict[str, Any]:
        """What its vectors depend on, as plain data: content hashes of weights and tokenizer, and the settings."""
        settings = attrs.asdict(self, filter=attrs.filters.exclude("model", "tokenizer", "token_budget"))
        hashes = {"weights": weights_hash(self.model), "tokenizer": tokenizer_hash(self.tokenizer)}
        return {**hashes, **settings, "normalize": self._unit}

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D]; an empty text is encoded as its special tokens alone."""
        return self.encode_tokens(self._tokens(texts, self.query_prompt, self.query_length))

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[n,D]; an empty text is encoded as its special tokens alone."""
        return self.encode_tokens(self._tokens(texts, self.passage_prompt, self.passage_length))

    def encode_tokens(self, rows: Sequence[Any]) -> NDArray[np.float32]:
        """f32[n,D] of n texts given as token ids, special tokens included, already cut to length.

        Raises DrkitError for a row without tokens.
        """
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        if len(rows) and not lengths.min():
            raise DrkitError(f"row {int(lengths.argmin())} has no tokens, not even the special ones; tokenise it again")
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        with inference(self.model):
            for places in length_sorted_batches(lengths, self.token_budget):
                vectors[places] = self._embed([rows[p] for p in places.tolist()]).float().cpu().numpy()
        return vectors

    def _tokens(self, texts: Sequence[str], prompt: str, length: int) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(
            [prompt + text for text in texts], truncation=True, max_length=length, return_attention_mask=False
        )["input_ids"]
        return ids

    def _embed(self, rows: Sequence[Any]) -> Tensor:
        ids, attention = padded(rows, self.tokenizer.pad_token_id or 0, longest=self._positions)
        device = next(self.model.parameters()).device
        ids, attention = ids.to(device), attention.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            hidden = self.model(input_ids=ids, attention_mask=attention).last_hidden_state.float()
        vectors = pool(hidden, attention, self.pooling)
        return nn.functional.normalize(vectors, dim=-1) if self._unit else vectors

    @property
    def _unit(self) -> bool:
        return self.normalize or self.similarity == "cosine"

    @property
    def _positions(self) -> int:
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 0)


def choose_device(name: str | torch.device) -> torch.device:
    """`auto`: a GPU where there is one; any other as torch names it.

    Raises DrkitError for a name torch has not, or a GPU that is not there.
    """
    if name == "auto":
        name = own_device()
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DrkitError(f"no device {str(name)!r}; auto, cpu, cuda, cuda:0 ..") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DrkitError(
            f"no device {str(name)!r} here: torch sees {torch.cuda.device_count()} GPUs; auto takes what is"
        )
    return device


def pool(hidden: Tensor, attention: Tensor, pooling: str) -> Tensor:
    """f[B,D] of hidden f[B,L,D] and attention [B,L]: the first token, or the mean of all real ones."""
    if pooling == "cls":
        return hidden[:, 0]
    real = attention.unsqueeze(-1).to(hidden.dtype)
    return (hidden * real).sum(1) / real.sum(1).clamp(min=1e-9)


def padded(rows: Sequence[Any], pad_id: int, *, longest: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids i64[B,L] and attention i64[B,L], padded on the right to a multiple of 16, `longest` at most.

    >>> ids, attention = padded([[5, 6], [7]], pad_id=0)
    >>> tuple(ids.shape), attention.sum(1).tolist()
    ((2, 16), [2, 1])
    """
    length = max(len(row) for row in rows)
    width = -(-length // MULTIPLE) * MULTIPLE
    width = max(length, min(width, longest)) if longest else width
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    attention = np.zeros((len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        attention[place, : len(row)] = 1
    return torch.from_numpy(ids), torch.from_numpy(attention)


def length_sorted_batches(lengths: NDArray[np.int64], budget: int) -> Iterator[NDArray[np.int64]]:
    """Places of texts of like length, longest first; a batch, padded, holds `budget` tokens at most, or one text.

    >>> [b.tolist() for b in length_sorted_batches(np.array([3, 40, 5, 20]), budget=64)]
    [[1], [3, 2], [0]]
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = -(-int(lengths[order[start]]) // MULTIPLE) * MULTIPLE
        size = max(1, budget // max(width, 1))
        yield order[start : start + size]
        start += size


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the model's own mode comes back afterwards."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode
