"""Texts in, passages out: an encoder and the index of what it encoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from drkit.errors import DrkitError
from drkit.search.adapters import Encoder
from drkit.search.building import AnyIndex, open_index
from drkit.search.dual import read_encoder
from drkit.search.hits import Hits, batched, check_queries
from drkit.search.identity import check_same_encoder


class Retriever:
    """Searches an index, of any kind, with the encoder whose vectors it holds.

    encoder: a `TextEncoder`, a `DualEncoder`, a `SentenceTransformerEncoder`, or any `Encoder`.

    Raises DrkitError where the two have different dimensions, or the index says that another encoder made it.
    """

    def __init__(self, encoder: Encoder, index: AnyIndex) -> None:
        if encoder.dimension != index.dimension:
            raise DrkitError(
                f"an encoder of {encoder.dimension} dimensions and an index of {index.dimension}; "
                f"encode the passages again with this encoder"
            )
        if index.encoder is not None:
            check_same_encoder(index.encoder, encoder.identity(), "the index")
        self.encoder, self.index = encoder, index

    @classmethod
    def load(cls, run: str | Path, *, device: str | torch.device = "cpu") -> Retriever:
        """The retriever of a finished run: its folders `encoder` and `index`.

        Raises DrkitError where the run has not got that far, or a folder cannot be read.
        """
        missing = [name for name in ("encoder", "index") if not (Path(run) / name).is_dir()]
        if missing:
            raise DrkitError(
                f"{run} has no folder {' and no folder '.join(missing)}; give the folder of a finished run, "
                f"or finish it by running its recipe again"
            )
        return cls(read_encoder(Path(run) / "encoder", device), open_index(Path(run) / "index"))

    def __len__(self) -> int:
        return len(self.index)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """The best `depth` passages of each text: (doc_ids, scores), best first.

        Raises DrkitError for an empty text.
        """
        check_queries(texts)
        return self.index.search(self.encoder.encode_queries(texts), depth) if texts else []

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """The scores of each text with passages of its own, as `search` would give them (ivf-pq: nearly).

        NaN for an id that the index does not hold. Raises DrkitError for an empty text, or not one list a text.
        """
        check_queries(texts)
        return self.index.score(self.encoder.encode_queries(texts), doc_ids)

    def stream(self, texts: Iterable[str], depth: int, batch: int = 1024) -> Iterator[Hits]:
        """`search` for any number of texts, a batch at a time."""
        for some in batched(texts, batch):
            check_queries(some)
            yield from self.index.stream(self.encoder.encode_queries(some), depth)
