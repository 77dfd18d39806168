"""Retrievers: text queries in, ranked passages (`Hits`) out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drkit.errors import DrkitError
from drkit.search.hits import Hits, batched, check_queries, check_same_encoder

# Encoders and indexes import torch, which a retriever needs when it is made.
if TYPE_CHECKING:
    import torch

    from drkit.search.index import AnyIndex
    from drkit.search.text_encoder import Encoder


class Retriever:
    """Searches an index of any kind with the encoder that made its vectors.

    encoder: a `TextEncoder`, a `DualEncoder`, a `SentenceTransformerEncoder`, or any `Encoder`.

    Raises DrkitError if their dimensions differ, or the index was built with another encoder.
    """

    def __init__(self, encoder: Encoder, index: AnyIndex) -> None:
        if encoder.dimension != index.dimension:
            raise DrkitError(
                f"the encoder has {encoder.dimension} dimensions, the index {index.dimension}; "
                f"encode the passages again with this encoder"
            )
        if index.encoder is not None:
            check_same_encoder(index.encoder, encoder.identity(), "the index")
        self.encoder, self.index = encoder, index

    @classmethod
    def load(cls, run: str | Path, *, device: str | torch.device = "cpu") -> Retriever:
        """Load the retriever of a finished run from its folders `encoder` and `index`.

        Raises DrkitError if either folder is missing or cannot be read.
        """
        from drkit.search.index import open_index
        from drkit.search.text_encoder import read_encoder

        missing = [name for name in ("encoder", "index") if not (Path(run) / name).is_dir()]
        if missing:
            raise DrkitError(
                f"{run} has no folder {' and no folder '.join(missing)}; give the folder of a finished run, "
                f"or finish it with `drkit run {run}`"
            )
        return cls(read_encoder(Path(run) / "encoder", device), open_index(Path(run) / "index"))

    @classmethod
    def build(cls, encoder: Encoder, texts: Iterable[tuple[str, str]], folder: str | Path) -> Retriever:
        """Encode (id, text) passages into `folder` in this process, and search them exactly.

        Raises DrkitError as `encode_corpus` and `FlatIndex.build` do.
        """
        from drkit.core.processes import Shard
        from drkit.search.encode import encode_corpus
        from drkit.search.flat import FlatIndex
        from drkit.search.vectors import Vectors

        encode_corpus(encoder, texts, folder, shard=Shard(0, 1))
        return cls(encoder, FlatIndex.over(Vectors.open(folder)))

    def __len__(self) -> int:
        return len(self.index)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text: (doc_ids, scores), best first.

        Raises DrkitError for an empty text.
        """
        check_queries(texts)
        return self.index.search(self.encoder.encode_queries(texts), depth) if texts else []

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Score each text against its own list of passages, as `search` would (approximately for ivf-pq).

        NaN for an id that is not in the index. Raises DrkitError for an empty text, or if the numbers of texts and
        lists differ.
        """
        check_queries(texts)
        return self.index.score(self.encoder.encode_queries(texts), doc_ids)

    def stream(self, texts: Iterable[str], depth: int, batch: int = 1024) -> Iterator[Hits]:
        """Yield what `search` returns for any number of texts, a batch at a time."""
        for some in batched(texts, batch):
            check_queries(some)
            yield from self.index.stream(self.encoder.encode_queries(some), depth)
