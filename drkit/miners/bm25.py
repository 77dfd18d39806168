"""Hard negatives by BM25: what shares the query's words and does not answer it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.config import Bm25Config
from drkit.miners.ranking import Reach, mine_by_search, scorer
from drkit.search.bm25 import Bm25Retriever


class Bm25Miner:
    """The best-ranked passages of BM25 that are no judged positive of the query.

    Fewer than asked for where fewer passages share a word with the query; none for a query without text. Memory: the
    index, and one score a passage. Robertson and Zaragoza 2009.
    """

    def __init__(self, config: Bm25Config, context: BuildContext | None = None) -> None:
        self.config, self.context = config, context
        self._retriever: Bm25Retriever | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Take in the passages, streamed."""
        self._retriever = Bm25Retriever(k1=self.config.k1, b=self.config.b).index(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order. Raises DrkitError before `index`."""
        if self._retriever is None:
            raise DrkitError("the bm25 miner has no passages yet; call index(corpus) before mine(requests, depth)")
        yield from mine_by_search(requests, scorer(self._retriever), Reach(depth))
