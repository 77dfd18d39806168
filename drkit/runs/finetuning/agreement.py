"""How well a teacher knows its subject: how often it scores a positive above every negative of its query."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from attrs import define

from drkit.errors import DrkitError


@define
class Agreement:
    """A teacher against the judgements, counted query by query; queries without a negative do not count.

    queries: how many counted; first: of how many a positive scores best; expected: how many that were by chance.

    >>> told = Agreement()
    >>> told.add([2.0], [1.0, 0.5]); told.add([1.0], [3.0, 0.5])
    >>> told.share, round(told.chance, 2)
    (0.5, 0.33)
    """

    queries: int = 0
    first: int = 0
    expected: float = 0.0
    _variance: float = 0.0

    def add(self, positives: Sequence[float], negatives: Sequence[float]) -> None:
        """The scores of one query's positives and negatives; a tie with a negative is not first."""
        if not len(positives) or not len(negatives):
            return
        chance = len(positives) / (len(positives) + len(negatives))
        self.queries += 1
        self.first += max(positives) > max(negatives)
        self.expected += chance
        self._variance += chance * (1 - chance)

    @property
    def share(self) -> float:
        """Of these queries, the share whose best score is a positive's. Raises DrkitError where there are none."""
        return self.first / self._counted()

    @property
    def chance(self) -> float:
        """The share that scores drawn at random would have. Raises DrkitError where there are no queries."""
        return self.expected / self._counted()

    @property
    def is_chance(self) -> bool:
        """Whether so few are first that it may be by chance: within two standard deviations of it, or below."""
        return self.first <= self.expected + 2 * sqrt(self._variance)

    def in_words(self) -> str:
        """A sentence for a person; a second one where such a teacher had better not teach."""
        if not self.queries:
            return "no query has both a positive and a negative: the teacher has nothing to compare"
        found = (
            f"the teacher scores a positive above every negative for {self.share:.1%} of {self.queries:,} queries "
            f"(by chance: {self.chance:.1%})"
        )
        if self.is_chance:
            found += (
                ". That is no better than chance, and what is distilled from it is noise: train it longer, on easier "
                "negatives, or take a trained one (reranker.pretrained, teacher)"
            )
        return found

    def metrics(self) -> dict[str, Any]:
        """Plain numbers for a manifest; none where nothing was counted."""
        return {"positive_first": round(self.share, 4), "by_chance": round(self.chance, 4)} if self.queries else {}

    def _counted(self) -> int:
        if not self.queries:
            raise DrkitError("no query has both a positive and a negative: there is no share of them")
        return self.queries
