"""Which system to use in place of an encoder: gains over it with simultaneous intervals, and the choice by them.

Several systems are compared with the encoder on the same queries. Each interval is that of a paired t-test at a level
that is divided by their number (Bonferroni), so that all intervals hold together with a probability of 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, frozen

from drkit.core.escaping import escape_markdown
from drkit.evaluate.measures import Scores
from drkit.evaluate.names import AS_IT_IS, system_name, without_bm25
from drkit.evaluate.significance import detectable_gain, holm, paired_t_test, rounding
from drkit.evaluate.tuning import choose_plainly

_LEVEL = 0.95
_CHECKPOINT = "your checkpoint"


@frozen
class Gain:
    """What a system gains over the encoder as it is, by one measure.

    low, high: simultaneous confidence interval of the mean difference; p: of its own paired t-test; corrected: p after
    Holm's correction over all compared systems. NaN where nothing was tested.
    """

    system: str
    value: float
    difference: float
    low: float
    high: float
    p: float
    corrected: float


# Queries whose labels are asked for where only made ones measure.
_ASKED = (50, 200)


@frozen
class Verdict:
    """The system to use, the retriever to export, the gains, and what they were measured on.

    recommended: `as-it-is` if no gain is shown. exported: a trained retriever only if the recommended system needs it.
    trained: the retrievers that a run trained. how: as in `225 labelled queries, 5-fold cross-validation`. shown: on
    queries that are made from texts, the gain that a number of labelled ones would show, by this number; else empty.
    """

    recommended: str
    exported: str
    trained: tuple[str, ...]
    measure: str
    gains: tuple[Gain, ...]
    queries: int
    how: str
    shown: Mapping[int, float]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence; on queries that are made from texts, in three."""
        gain = next((one for one in self.gains if one.system == self.recommended), None)
        if self.shown:
            return self._of_made()
        if gain is None:
            return f"keep {_CHECKPOINT}: no gain shown ({self.measure}, {self.how})"
        return f"use {system_in_table(self.recommended)}: {self._describe(gain)} over {_CHECKPOINT}, {self.how}"

    def _of_made(self) -> str:
        tuned = [one for one in self.gains if one.system in self.trained]
        found = "; ".join(f"{system_in_table(one.system)}: {self._describe(one)}" for one in tuned)
        (few, more), (large, small) = self.shown, self.shown.values()
        return (
            f"keep {_CHECKPOINT}: without labels, no gain can be shown. Queries made from texts show how well a text "
            f"is found by its own words, not by a user's questions ({found} over {_CHECKPOINT}, {self.how}). {few} "
            f"labelled queries would show a gain of about {large:.2f}, and {more} of {small:.2f}, if they vary as much "
            f"as these"
        )

    def _describe(self, gain: Gain) -> str:
        return f"{gain.difference:+.3f} {self.measure} ({gain.low:.3f} to {gain.high:.3f})"

    def facts(self) -> dict[str, Any]:
        """Return the verdict as plain data, with its sentence."""
        return {**asdict(self), "sentence": self.sentence, "intervals": describe_intervals(len(self.gains))}


def system_in_table(system: str) -> str:
    """Return the name of a system in a verdict: the encoder as it is is the reader's checkpoint."""
    return system_name(system).replace(system_name(AS_IT_IS), _CHECKPOINT)


def describe_intervals(systems: int) -> str:
    """Return in words what the intervals of `compare_with_encoder` are."""
    return (
        f"Intervals of the gains over {_CHECKPOINT}: paired t, 95 % for all {systems} systems together (Bonferroni); p "
        f"of paired two-tailed t-tests, corrected by Holm."
    )


def compare_with_encoder(systems: Mapping[str, Scores], measure: str) -> tuple[Gain, ...]:
    """Return the gain of every other system over `as-it-is`, in order.

    Raises DrkitError if systems were evaluated on different queries.
    """
    own, others = systems[AS_IT_IS].per_query[measure], [name for name in systems if name != AS_IT_IS]
    tests = [paired_t_test(systems[name].per_query[measure], own, level=_level(len(others))) for name in others]
    corrected = holm([test.p for test in tests])
    return tuple(
        Gain(name, systems[name].mean(measure), test.difference, test.low, test.high, test.p, p)
        for name, test, p in zip(others, tests, corrected, strict=True)
    )


def decide(
    systems: Mapping[str, Scores], measure: str, *, trained: Sequence[str], how: str, is_made: bool = False
) -> Verdict:
    """Choose the system to use, and the retriever to export, by the values of queries that none has learned from.

    systems: `as-it-is` and others, each `NAME` or `NAME+bm25`. A system can be recommended if its interval is above 0;
    one that needs a trained retriever only if that one is, by its mean, no worse than the encoder as it is, and if the
    best of them gains more than one standard error over the best system without training. is_made: whether the queries
    are made from texts, which decide nothing.
    """
    gains = compare_with_encoder(systems, measure)
    values = {name: scores.per_query[measure] for name, scores in systems.items()}
    means = {name: scores.mean(measure) for name, scores in systems.items()}
    gaining = [] if is_made else [gain.system for gain in gains if gain.low > 0]
    plain = [name for name in gaining if without_bm25(name) not in trained]
    least = means[AS_IT_IS] - rounding(means.values())
    needing = [name for name in gaining if name not in plain and means[without_bm25(name)] >= least]
    chosen = _best([AS_IT_IS, *plain], means)
    if needing:
        best = _best(needing, means)
        chosen = choose_plainly({name: values[name] for name in (chosen, best)}).chosen
    exported = without_bm25(chosen) if without_bm25(chosen) in trained else AS_IT_IS
    shown = {}
    if is_made:
        pair, level = (values[trained[-1]], values[AS_IT_IS]), _level(len(gains))
        shown = {count: detectable_gain(*pair, count, level=level) for count in _ASKED}
    return Verdict(chosen, exported, tuple(trained), measure, gains, systems[AS_IT_IS].queries, how, shown)


def _level(systems: int) -> float:
    """Return the level of each of several intervals that hold together."""
    return 1 - (1 - _LEVEL) / max(systems, 1)


def _best(names: Sequence[str], means: Mapping[str, float]) -> str:
    """Return the first name of the highest mean, up to rounding."""
    least = max(means[name] for name in names) - rounding(means.values())
    return next(name for name in names if means[name] >= least)


def gains_markdown(facts: Mapping[str, Any]) -> str:
    """Format the gains of a verdict, as plain data, as a Markdown table with its caption and sentence."""
    rows = [(system_in_table(one["system"]), f"{one['value']:.3f}", describe_gain(one)) for one in facts["gains"]]
    lines = [f"| {' | '.join(map(escape_markdown, row))} |" for row in rows]
    head = [f"| system | {facts['measure']} | gain over {_CHECKPOINT} |", "|---|---|---|"]
    return "\n".join([*head, *lines, "", facts["intervals"], "", f"**{facts['sentence']}**"])


def gain_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the gains of a verdict, as plain data, a line for each system, and at last its sentence."""
    gains = [f"{system_in_table(one['system'])}: {describe_gain(one)}" for one in facts["gains"]]
    return [facts["intervals"], *gains, facts["sentence"]]


def describe_gain(gain: Mapping[str, Any]) -> str:
    """Format a gain with its interval and its corrected p; gain: a `Gain` as plain data, where a NaN may be null.

    >>> describe_gain({"difference": 0.0412, "low": 0.0121, "high": 0.07, "corrected": 0.0001})
    '+0.041 (0.012 to 0.070), p < 0.001'
    """
    difference, (low, high, p) = gain["difference"], (gain[name] for name in ("low", "high", "corrected"))
    if p is None or p != p:
        return f"{difference:+.3f} (not tested)"
    return f"{difference:+.3f} ({low:.3f} to {high:.3f}), {'p < 0.001' if p < 0.001 else f'p = {p:.3f}'}"
