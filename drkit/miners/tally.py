"""What becomes of a stream of mined negatives, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from drkit.core.types import Mined


@define
class Tally:
    """Counts of a stream of mined negatives, as it goes by.

    queries, negatives; queries_without: those that got none; unscored: those whose positives the source gave no
    score; dropped: candidates that were left out, by reason (those that filters and sources give).
    """

    queries: int = 0
    negatives: int = 0
    queries_without: int = 0
    unscored: int = 0
    dropped: Counter[str] = field(factory=Counter)

    def watch(self, mined: Iterable[Mined]) -> Iterator[Mined]:
        """The stream itself, counted."""
        for item in mined:
            self.queries += 1
            self.negatives += len(item.doc_ids)
            self.queries_without += not item.doc_ids
            self.unscored += not item.positive_scores
            self.dropped.update(item.dropped)
            yield item

    def figures(self) -> dict[str, Any]:
        """What a manifest keeps of it."""
        return {
            "queries": self.queries,
            "negatives": self.negatives,
            "queries_without": self.queries_without,
            "negatives_per_query": round(self.negatives / max(self.queries, 1), 2),
            "queries_with_unscored_positives": self.unscored,
            "dropped": dict(sorted(self.dropped.items())),
        }

    def words(self) -> str:
        """What was dropped, for a person.

        >>> Tally(dropped=Counter({"margin": 1200, "judged-positive": 40})).words()
        'margin 1,200, judged-positive 40'
        """
        return ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.most_common()) or "nothing"
