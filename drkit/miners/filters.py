"""Filters that look at scores and ranks alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.miners.chain import left
from drkit.miners.specs import MarginConfig, MaxScoreConfig, RanksConfig, ranks_of


class MarginFilter:
    """Drops candidates that the source scores too close to the query's positive: they may answer it.

    With `absolute`, those above the positive's score minus that; else those above `share` of it, where a negative
    positive's threshold lies as far below it as a positive one's: `p - (1 - share) |p|`. Of several positives,
    `positive` says which counts. Where the source scored none, nothing is dropped. Moreira et al. 2024.
    """

    def __init__(self, config: MarginConfig, context: BuildContext | None = None) -> None:  # noqa: ARG002
        self.config = config

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:  # noqa: ARG002
        """What scores low enough; the others are counted as `margin`."""
        for _, found in mined:
            most = self.threshold(found.positive_scores)
            yield left(found, [most is None or score <= most for score in found.scores], "margin")

    def threshold(self, positive_scores: Mapping[str, float]) -> float | None:
        """The highest score that stays, None where no positive has one.

        >>> MarginFilter(MarginConfig(share=0.75)).threshold({"a": 8.0, "b": -8.0})
        6.0
        >>> MarginFilter(MarginConfig(share=0.75, positive="min")).threshold({"a": 8.0, "b": -8.0})
        -10.0
        """
        if not positive_scores:
            return None
        choose = max if self.config.positive == "max" else min
        score = choose(positive_scores.values())
        if self.config.absolute is not None:
            return score - self.config.absolute
        return score - (1 - self.config.share) * abs(score)


class RanksFilter:
    """Keeps the candidates from one rank to another, both included, counted from 1 as they come in.

    The source leaves judged positives out before ranks are counted.
    """

    def __init__(self, config: RanksConfig, context: BuildContext | None = None) -> None:  # noqa: ARG002
        self.first, self.last = ranks_of(config.keep)

    def candidate_depth(self, depth: int) -> int:  # noqa: ARG002
        """The last rank that stays."""
        return self.last

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:  # noqa: ARG002
        """What stands between the ranks; the others are counted as `ranks`."""
        for _, found in mined:
            ranks = range(1, len(found.doc_ids) + 1)
            yield left(found, [self.first <= rank <= self.last for rank in ranks], "ranks")


class MaxScoreFilter:
    """Drops candidates that the source scores above a number, whatever the positives score."""

    def __init__(self, config: MaxScoreConfig, context: BuildContext | None = None) -> None:  # noqa: ARG002
        self.maximum = config.maximum

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:  # noqa: ARG002
        """What scores low enough; the others are counted as `max-score`."""
        for _, found in mined:
            yield left(found, [score <= self.maximum for score in found.scores], "max-score")
