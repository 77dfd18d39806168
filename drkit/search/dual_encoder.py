"""Separate encoders for queries and passages, and the loading of encoder folders of either kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from drkit.core.files import digest
from drkit.core.types import Passage, Section
from drkit.encoders.card import EncoderCard
from drkit.encoders.declarations import UnsupportedEncoderError
from drkit.encoders.folder import TORCH, is_dual, read_routes
from drkit.errors import DrkitError
from drkit.search.text_encoder import TextEncoder, choose_device

AnyEncoder: TypeAlias = "TextEncoder | DualEncoder"
_LOGGER = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class DualEncoder:
    """Separate encoders for queries and passages (Karpukhin et al. 2020), usable wherever a shared encoder is.

    Raises DrkitError if their vectors are not comparable: different dimension, pooling or similarity.
    """

    queries: TextEncoder
    passages: TextEncoder

    def __attrs_post_init__(self) -> None:
        one, two = (_describe_vector_space(side) for side in (self.queries, self.passages))
        if one != two:
            raise DrkitError(
                f"queries are encoded with {one}, passages with {two}; both encoders must share a vector space"
            )

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu", *, backend: str = TORCH) -> DualEncoder:
        """Load the two encoders of a folder written by drkit or sentence-transformers (a `Router`).

        Raises DrkitError as `TextEncoder.load` does, or if a route is missing.
        """
        routes = read_routes(Path(folder))
        poolings = [EncoderCard.read(Path(folder), modules).pooling for modules in routes]
        if len(set(poolings)) > 1:
            raise UnsupportedEncoderError(
                f"{folder} pools queries by {poolings[0]} and passages by {poolings[1]}; drkit computes two encoders "
                f"of the same pooling"
            )
        target = choose_device(device, backend)
        return cls(*(TextEncoder.from_modules(Path(folder), modules, target, backend) for modules in routes))

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return self.passages.dimension

    @property
    def card(self) -> EncoderCard:
        """How both read texts: each has a card of its own."""
        return self.passages.card.for_queries_of(self.queries.card)

    @property
    def is_sparse(self) -> bool:
        """Whether most numbers of a vector are 0; see `TextEncoder.is_sparse`."""
        return self.passages.is_sparse

    @property
    def dense_dimension(self) -> int:
        """How many numbers at the beginning of a sparse vector are a dense one."""
        return self.passages.dense_dimension

    @property
    def sections(self) -> dict[str, Section]:
        """Where each named vector is among the numbers of the joined one; see `TextEncoder.sections`."""
        return self.passages.sections

    def identity(self) -> dict[str, Any]:
        """Return what the vectors depend on, as plain data; hashes cover both; each side has its own length."""
        queries, passages = self.queries.identity(), self.passages.identity()
        both = {key: digest([queries[key], passages[key]]) for key in ("weights", "config", "tokenizer")}
        own = {key: queries[key] for key in ("query_length", "query_prompt")}
        return {**passages, **own, **both, "precision": " ".join(sorted({queries["precision"], passages["precision"]}))}

    def read(self, passage: Passage) -> str:
        """Return a passage's title and text as `encode_passages` is to be given them."""
        return self.passages.read(passage)

    def query_lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each query before it is truncated; see `TextEncoder.query_lengths`."""
        return self.queries.query_lengths(texts)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n queries with the query encoder as f32[n,D]."""
        return self.queries.encode_queries(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n passages with the passage encoder as f32[n,D]."""
        return self.passages.encode_passages(texts)

    def encode_tokens(self, texts: Sequence[Any]) -> NDArray[np.float32]:
        """Encode n passages given as token ids as f32[n,D]; see `TextEncoder.encode_tokens`."""
        return self.passages.encode_tokens(texts)

    def for_data_set(self, name: str) -> DualEncoder:
        """Return a copy with the prompts of a data set, if it has its own."""
        return DualEncoder(self.queries.for_data_set(name), self.passages.for_data_set(name))

    def evolve(self, **settings: Any) -> DualEncoder:
        """Return a copy with other settings of `TextEncoder` in both encoders."""
        return DualEncoder(self.queries.evolve(**settings), self.passages.evolve(**settings))


def _describe_vector_space(encoder: TextEncoder) -> str:
    card = encoder.card
    length = "of length 1" if card.has_unit_length else "of any length"
    return f"{card.pooling} pooling to {encoder.dimension} dimensions {length}, {card.similarity} similarity"


def read_encoder(folder: str | Path, device: str | torch.device = "cpu", *, backend: str = TORCH) -> AnyEncoder:
    """Load the shared encoder of a folder, or its two separate ones. Raises DrkitError as `TextEncoder.load` does."""
    _LOGGER.info("loading the encoder %s on %s", folder, device)
    kind = DualEncoder if is_dual(Path(folder)) else TextEncoder
    return kind.load(folder, device, backend=backend)
