"""Easy negatives: any other passage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from drkit.core.draws import Draws
from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.config import RandomConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RandomMiner:
    """Passages drawn uniformly, without repetition, never a judged positive; all scores are 0.

    A query's draw depends on the seed, its id and the corpus, on no other query.
    """

    def __init__(self, config: RandomConfig, context: BuildContext | None = None) -> None:
        self.config = config
        self._seed = context.seed if context is not None else 42
        self._ids: list[str] | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Note the passages' ids."""
        self._ids = [passage.doc_id for passage in corpus]

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """`depth` negatives a request, or all others where the corpus has no more.

        Raises DrkitError before `index`.
        """
        if self._ids is None:
            raise DrkitError("the random miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        for request in requests:
            drawn = tuple(self._drawn(request, self._ids, depth))
            yield Mined(request.query_id, drawn, (0.0,) * len(drawn))

    def _drawn(self, request: MiningRequest, ids: list[str], depth: int) -> list[str]:
        draws = Draws(self._seed, 0, [_key(request.query_id)])
        never = request.positives | request.excluded
        wanted = depth + len(never)
        # drawing again on a repetition is quick only while repetitions are rare
        places = _permutation(draws, len(ids)) if wanted * 2 >= len(ids) else _distinct(draws, len(ids), wanted)
        return [ids[p] for p in places.tolist() if ids[p] not in never][:depth]


def _key(query_id: str) -> int:
    digest = blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _permutation(draws: Draws, size: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(draws.integers(2**53, size)[0], kind="stable")
    return order


def _distinct(draws: Draws, size: int, count: int) -> NDArray[np.int64]:
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        more = np.concatenate([drawn, draws.integers(size, 2 * count)[0]])
        _, first = np.unique(more, return_index=True)
        drawn = more[np.sort(first)]
    return drawn[:count]
