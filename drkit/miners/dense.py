"""Hard negatives by a trained retriever: what it takes for an answer and is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.config import DenseConfig
from drkit.search.hits import batched

BATCH = 256


class DenseMiner:
    """The best-ranked passages of `context.retriever` that are no judged positive of the query.

    The retriever is any object with `search(texts, depth)` that gives (doc_ids, scores) a text, best first, over
    the corpus that is mined; `config.skip` of the best are left out once the positives are. Xiong et al. 2021.
    """

    def __init__(self, config: DenseConfig, context: BuildContext | None = None) -> None:
        if context is None or context.retriever is None:
            raise DrkitError("the dense miner needs a retriever to search with: BuildContext(retriever=...)")
        self.config, self._retriever = config, context.retriever
        self._size: int | None = None

    def index(self, corpus: Corpus) -> None:
        """Note the corpus's size: the retriever has its index already."""
        self._size = len(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order.

        Raises DrkitError before `index`, and for an empty query.
        """
        if self._size is None:
            raise DrkitError("the dense miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        skip = self.config.skip
        for batch in batched(requests, BATCH):
            reach = min(self._size, depth + skip + max(len(r.positives) for r in batch))
            found = self._retriever.search([r.text for r in batch], reach)
            for request, (doc_ids, scores) in zip(batch, found, strict=True):
                others = [(d, float(s)) for d, s in zip(doc_ids, scores, strict=True) if d not in request.positives]
                kept = others[skip : skip + depth]
                yield Mined(request.query_id, tuple(d for d, _ in kept), tuple(s for _, s in kept))
