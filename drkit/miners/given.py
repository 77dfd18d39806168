"""The negatives that a collection's own training file carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.config import GivenConfig
from drkit.miners.known import KnownIds
from drkit.miners.ranking import negatives_of


class GivenMiner:
    """A query's own negatives, in the order of the file; all scores are 0, for the file has none.

    They are `context.negatives`, passage ids by query id (`StoredCollection.negatives(split)`). Ids that the corpus
    lacks are counted as `unknown-id`. A query that has none gets none.
    """

    def __init__(self, config: GivenConfig, context: BuildContext | None = None) -> None:
        self.config = config
        self._given = context.negatives if context is not None else None
        self._known: KnownIds | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Note which ids there are. Raises DrkitError where the collection carries no negatives."""
        if not self._given:
            raise DrkitError(
                "the collection carries no negatives of its own for these queries; take another source: bm25, dense .."
            )
        self._known = KnownIds(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, in the requests' order. Raises DrkitError before `index`."""
        if self._known is None or self._given is None:
            raise DrkitError("the given miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        for request in requests:
            own = list(self._given.get(request.query_id, ()))
            kept = [doc_id for doc_id, there in zip(own, self._known(own), strict=True) if there]
            found = negatives_of(request, (kept, [0.0] * len(kept)), depth)
            dropped = {**found.dropped, **({"unknown-id": len(own) - len(kept)} if len(own) > len(kept) else {})}
            yield Mined(request.query_id, found.doc_ids, found.scores, dropped=dropped)
