"""Hard negatives by a trained retriever: what it takes for an answer and is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.config import DenseConfig, RefreshConfig
from drkit.miners.ranking import Reach, mine_by_search, scorer


class DenseMiner:
    """The best-ranked passages of `context.retriever` that are no judged positive of the query.

    The retriever is any object with `search(texts, depth)` that gives (doc_ids, scores) a text, best first, over
    the corpus that is mined; `config.skip` of the best are left out once the positives are. Where it has a
    `score(texts, doc_ids)` too, the positives are scored. Memory: `config.memory_mb` of
    hits, and what the retriever takes for as many queries; never a matrix of queries by passages. Zhan et al. 2021.
    """

    def __init__(self, config: DenseConfig | RefreshConfig, context: BuildContext | None = None) -> None:
        if context is None or context.retriever is None:
            raise DrkitError("the dense miner needs a retriever to search with: BuildContext(retriever=...)")
        self.config, self._retriever = config, context.retriever
        self._size: int | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Note the corpus's size: the retriever has its index already."""
        self._size = len(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order. Raises DrkitError before `index`."""
        if self._size is None:
            raise DrkitError("the dense miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        reach = Reach(depth, self.config.skip, self._size, self.config.memory_mb)
        yield from mine_by_search(requests, scorer(self._retriever), reach)
