"""Which ids a corpus has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from drkit.core.protocols import Corpus, FindsIds


class KnownIds:
    """Tells known ids from unknown ones: by the corpus's own `find` where it has one, else by a set of all its ids."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus: Any = corpus

    def __call__(self, doc_ids: Sequence[str]) -> list[bool]:
        """Whether the corpus has each of these ids."""
        if not doc_ids:
            return []
        if isinstance(self._corpus, FindsIds):
            return [place >= 0 for place in self._corpus.find(doc_ids)]
        return [doc_id in self._all for doc_id in doc_ids]

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset(passage.doc_id for passage in self._corpus)
