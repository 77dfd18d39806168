"""Look up passages that a miner or a file names, in a corpus that may lack some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from drkit.core.protocols import Corpus, FindsIds


class PassageLookup:
    """Looks up passages by id, also ids that the corpus lacks.

    Memory: none if the corpus has a `find` method; otherwise the set of all its ids, built on the first call.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus: Any = corpus

    def contains(self, doc_ids: Sequence[str]) -> list[bool]:
        """Return for each id whether the corpus has that passage."""
        if not doc_ids:
            return []
        if isinstance(self._corpus, FindsIds):
            return [index >= 0 for index in self._corpus.find(doc_ids)]
        return [doc_id in self._all_ids for doc_id in doc_ids]

    def contents(self, doc_ids: Iterable[str]) -> dict[str, str]:
        """Return the content of each passage that the corpus has, by id; ids may be repeated."""
        unique = list(dict.fromkeys(doc_ids))
        present = [doc_id for doc_id, is_known in zip(unique, self.contains(unique), strict=True) if is_known]
        passages = self._corpus.get_many(present) if present else []
        return {passage.doc_id: passage.content for passage in passages}

    @cached_property
    def _all_ids(self) -> frozenset[str]:
        return frozenset(passage.doc_id for passage in self._corpus)
