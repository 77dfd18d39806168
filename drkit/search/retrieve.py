"""Retrievers: text queries in, ranked passages (`Hits`) out. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from drkit.errors import DrkitError

if TYPE_CHECKING:
    import torch

    from drkit.search.index import AnyIndex
    from drkit.search.text_encoder import Encoder

Item = TypeVar("Item")
# These decide whether two vectors can be compared; lengths and prompts may differ between queries and passages.
COMPARABLE = ("weights", "pooling", "normalize")


class Hits(NamedTuple):
    """The passages found for one query, best first; possibly fewer than requested.

    >>> doc_ids, scores = Hits(("d1", "d2"), (2.5, 1.0))
    >>> Hits(doc_ids, scores).without({"d1"}).top(5)
    Hits(doc_ids=('d2',), scores=(1.0,))
    """

    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]

    def pairs(self) -> Iterator[tuple[str, float]]:
        """Yield (doc_id, score), as `write_run` takes them."""
        return zip(self.doc_ids, self.scores, strict=True)

    def top(self, depth: int, skip: int = 0) -> Hits:
        """Return at most `depth` hits, starting at rank `skip` + 1."""
        return Hits(self.doc_ids[skip : skip + depth], self.scores[skip : skip + depth])

    def without(self, doc_ids: Iterable[str]) -> Hits:
        """Return the hits without these documents, in the same order."""
        excluded = frozenset(doc_ids)
        kept = [(d, s) for d, s in self.pairs() if d not in excluded]
        return Hits(tuple(d for d, _ in kept), tuple(s for _, s in kept))


def check_queries(texts: Sequence[str]) -> None:
    """Raise DrkitError if a query is empty."""
    empty = [number for number, text in enumerate(texts, start=1) if not text.strip()]
    if empty:
        which = "the query" if len(texts) == 1 else f"query {empty[0]} of {len(texts)}"
        raise DrkitError(f"{which} is empty; it must contain at least one word")


def check_same_encoder(made_by: Mapping[str, Any] | None, encoder: Mapping[str, Any], what: str) -> None:
    """Raise DrkitError if vectors of `made_by` (None: unknown) cannot be compared with those of `encoder`."""
    changed = [key for key in COMPARABLE if made_by is not None and made_by.get(key) != encoder.get(key)]
    if changed:
        raise DrkitError(
            f"{what} was built with another encoder ({', '.join(changed)} differ): "
            f"search with that encoder, or encode the passages again"
        )


def check_one_list_per_query(lists: int, queries: int) -> None:
    """Raise DrkitError if there is not exactly one list of documents for each query."""
    if lists != queries:
        raise DrkitError(f"got {lists} lists of documents for {queries} queries; give one list per query")


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items, the last one possibly shorter, without reading ahead."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


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
