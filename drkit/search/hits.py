"""What every retriever of drkit returns, one `Hits` a query, and what every one of them refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")


class Hits(NamedTuple):
    """The passages found for one query, best first; fewer than asked for where there are no more.

    >>> doc_ids, scores = Hits(("d1", "d2"), (2.5, 1.0))
    >>> Hits(doc_ids, scores).without({"d1"}).top(5)
    Hits(doc_ids=('d2',), scores=(1.0,))
    """

    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]

    def pairs(self) -> Iterator[tuple[str, float]]:
        """(doc_id, score), as `write_run` takes them."""
        return zip(self.doc_ids, self.scores, strict=True)

    def top(self, depth: int, skip: int = 0) -> Hits:
        """The hits from rank `skip` + 1 on, `depth` of them at most."""
        return Hits(self.doc_ids[skip : skip + depth], self.scores[skip : skip + depth])

    def without(self, doc_ids: Iterable[str]) -> Hits:
        """The other hits, in their order."""
        left_out = frozenset(doc_ids)
        kept = [(d, s) for d, s in self.pairs() if d not in left_out]
        return Hits(tuple(d for d, _ in kept), tuple(s for _, s in kept))


def check_queries(texts: Sequence[str]) -> None:
    """Raises DrkitError where a query has no text: nothing can be searched with it."""
    empty = [place for place, text in enumerate(texts, start=1) if not text.strip()]
    if empty:
        which = "the query" if len(texts) == 1 else f"query {empty[0]} of {len(texts)}"
        raise DrkitError(f"{which} is empty; give it at least one word")


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one shorter, made as they are asked for."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch
