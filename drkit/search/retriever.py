"""Retrievers search passages with the texts of queries: a dense one, with an encoder and its index, or a hybrid.

An index may hold several passages of a document, `DOC#n` (`drkit.search.encode`). Then the retriever finds documents,
each scored by its best passage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.checksums import check_unchanged
from drkit.core.processes import Shard
from drkit.encoders.pooling import VECTOR_PARTS
from drkit.errors import DrkitError
from drkit.search.bm25 import Bm25Retriever
from drkit.search.dual_encoder import DualEncoder, read_encoder
from drkit.search.encode import DOCUMENTS_SETTING, encode_corpus
from drkit.search.fusion import DEFAULT_WEIGHT, FUSED_HITS, Searcher, align, convex, find_rankings, read_fusion
from drkit.search.index import AnyIndex, exact_index, open_index
from drkit.search.inverted import InvertedIndex
from drkit.search.rankings import Hits, Rankings, check_query_texts, check_same_encoder
from drkit.search.text_encoder import Encoder, TextEncoder
from drkit.search.vectors import Vectors


class Retriever:
    """Searches an index of any kind with the encoder that made its vectors.

    encoder: a `TextEncoder`, a `DualEncoder`, a `SentenceTransformerEncoder`, or any `Encoder`. part: of an encoder
    with several named vectors, such as `dense` and `lexical`, search by one alone; "": by the sum of all.
    passages_per_document: how many passages of a document the index holds at most; 1 if it holds whole texts.

    Raises DrkitError if their dimensions differ, or the index was built with another encoder.
    """

    def __init__(self, encoder: Encoder, index: AnyIndex, *, part: str = "") -> None:
        if encoder.dimension != index.dimension:
            raise DrkitError(
                f"the encoder has {encoder.dimension} dimensions, the index {index.dimension}; "
                f"encode the passages again with this encoder"
            )
        if index.encoder is not None:
            check_same_encoder(index.encoder, encoder.identity(), "the index")
        sections = encoder.sections if isinstance(encoder, (TextEncoder, DualEncoder)) else {}
        if part and part not in sections and not (isinstance(index, InvertedIndex) and part in VECTOR_PARTS):
            raise DrkitError(f"an index of kind {index.kind!r} has no part {part!r}; search by the whole vector")
        self._section = sections.get(part)
        self.encoder, self.index, self.part = encoder, index, part
        self.passages_per_document = int((index.encoder or {}).get(DOCUMENTS_SETTING) or 1)

    @classmethod
    def load(cls, run: str | Path, *, device: str | torch.device = "cpu") -> Retriever:
        """Load the retriever of a finished run from its folders `encoder` and `index`.

        Raises DrkitError if either folder is missing, cannot be read, or has changed since it was written.
        """
        missing = [name for name in ("encoder", "index") if not (Path(run) / name).is_dir()]
        if missing:
            raise DrkitError(
                f"{run} has no folder {' and no folder '.join(missing)}; give the folder of a finished run, "
                f"or finish it with `drkit run {run}`"
            )
        check_unchanged(Path(run) / "encoder")
        return cls(read_encoder(Path(run) / "encoder", device), open_index(Path(run) / "index"))

    @classmethod
    def build(cls, encoder: Encoder, texts: Iterable[tuple[str, str]], folder: str | Path) -> Retriever:
        """Encode (id, text) passages into `folder` in this process, and search them exactly.

        Raises DrkitError as `encode_corpus` and `FlatIndex.build` do.
        """
        encode_corpus(encoder, texts, folder, shard=Shard(0, 1))
        return cls(encoder, exact_index(Vectors.open(folder)))

    def __len__(self) -> int:
        return len(self.index)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text: (doc_ids, scores), best first.

        Raises DrkitError for an empty text.
        """
        return self.rankings([*map(str, range(len(texts)))], texts, depth).hits()

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
        """Return what `search` returns, as arrays."""
        check_query_texts(texts)
        if not texts:
            return Rankings.of(())
        # `depth` documents have at most so many passages, so that an exact index gives the exact documents.
        most = depth * self.passages_per_document
        found = self.index.rank(self._encode(texts), most)
        if self.passages_per_document == 1:
            return Rankings.at(self.index.doc_ids.array, query_ids, found)
        rows = []
        for query_id, (positions, scores) in zip(query_ids, found, strict=True):
            best: dict[str, float] = {}
            for name, score in Hits.at(self.index.doc_ids, positions, scores).pairs():
                best.setdefault(name.rpartition("#")[0], score)
            rows.append((query_id, list(best.items())[:depth]))
        return Rankings.of(rows)

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Score each text against its own list of passages, as `search` would (approximately for ivf-pq).

        NaN for an id that is not in the index. Raises DrkitError for an empty text, or if the numbers of texts and
        lists differ.
        """
        check_query_texts(texts)
        queries, most = self._encode(texts), self.passages_per_document
        if most == 1:
            return self.index.score(queries, doc_ids)
        passages = [[f"{doc_id}#{n}" for doc_id in names for n in range(most)] for names in doc_ids]
        scored = [np.reshape(scores, (-1, most)) for scores in self.index.score(queries, passages)]
        return [np.fmax.reduce(scores, axis=1).tolist() for scores in scored]

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        queries = self.encoder.encode_queries(texts)
        if self._section is not None:
            places = np.arange(queries.shape[1])
            kept = (self._section.start <= places) & (places < self._section.stop)
            return np.where(kept, queries, np.float32(0))
        return self.index.only(self.part, queries) if isinstance(self.index, InvertedIndex) and self.part else queries


@frozen(eq=False)
class HybridRetriever:
    """Searches with two retrievers over the same passages, such as BM25 and a dense one, and fuses their hits.

    weight: of the second one (`convex`); depth: hits of each that are scaled and fused, at least as many as requested.
    """

    first: Searcher
    second: Searcher
    weight: float = DEFAULT_WEIGHT
    depth: int = FUSED_HITS

    @classmethod
    def load(cls, run: str | Path, *, device: str = "cpu") -> HybridRetriever:
        """Load BM25 and the retriever of a finished run, with the weight of its row `hybrid`.

        Raises DrkitError if the run has no such row, or a folder is missing or cannot be read.
        """
        fusion = read_fusion(run)
        dense = Retriever.load(run, device=device)
        return cls(Bm25Retriever.load(Path(run) / "bm25"), dense, fusion.weight, fusion.depth)

    def __len__(self) -> int:
        return len(self.second)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text, by the weighted sum of both scaled scores.

        Raises DrkitError for an empty text.
        """
        return self.rankings([*map(str, range(len(texts)))], texts, depth).hits()

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
        """Return what `search` returns, as arrays."""
        least = max(depth, self.depth)
        first, second = (find_rankings(one, query_ids, texts, least) for one in (self.first, self.second))
        return convex(align(first, second), self.weight, depth)
