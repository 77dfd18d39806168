"""Compare systems: a table with each system tested against one of them, the baseline, and pairs of systems.

Stars and corrected p-values use Holm's correction over all tests of a table, or over all comparisons made.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from attrs import asdict, evolve, field, frozen

from drkit.core.escaping import escape_markdown, escape_paragraph
from drkit.core.quantities import counted
from drkit.data.column_sources import RERANKER
from drkit.errors import DrkitError, UnknownNameError
from drkit.evaluate.measures import Scores, is_count
from drkit.evaluate.names import (
    AS_IT_IS,
    BM25_NAME,
    HYBRID_NAME,
    INITIAL,
    system_in_words,
    system_name,
)
from drkit.evaluate.significance import TTest, holm, paired_t_test, rounding
from drkit.recipe.schema import LABELS_ONLY

LEVEL = 0.05
CAPTION = (
    "In brackets: paired two-tailed t-test against {baseline}; "
    "* if p is below 0.05 after Holm's correction over all tests of the table."
)


# Where a caption follows values that say so.
NOT_TESTED = "Not tested: a single query, or the same difference for every query, so that a t-test has no variance."


def table_caption(draws: Mapping[str, int], baseline: str) -> str:
    """Return the caption of a table; draws: number of draws that each system's row averages.

    >>> table_caption({"retriever-100": 3, "retriever-1k": 3}, "bm25").partition(";")[0]
    'In brackets: paired two-tailed t-test against BM25'
    >>> table_caption({"retriever-100": 3, "retriever-1k": 3}, "bm25").rpartition("table. ")[2]
    'Means of several draws: retriever-100 (3), retriever-1k (3).'
    """
    several = ", ".join(f"{name} ({count})" for name, count in draws.items() if count > 1)
    caption = CAPTION.format(baseline=system_in_words(baseline))
    return f"{caption} Means of several draws: {several}." if several else caption


@frozen
class Row:
    """One system: its means, and for each measure the test against the baseline (empty for the baseline itself).

    corrected: p of each test after Holm's correction over all tests of the table.
    """

    system: str
    values: Mapping[str, float]
    tests: Mapping[str, TTest]
    queries: int
    corrected: Mapping[str, float] = field(factory=dict)


def comparison(systems: Sequence[tuple[str, Scores]], baseline: str | None = None) -> list[Row]:
    """Return one row per (name, scores), in order, with the measures of the first system.

    baseline: the system that all others are tested against; None for the first.

    Raises DrkitError if the systems were evaluated on different queries, or one lacks a measure, and UnknownNameError
    if none is the baseline.
    """
    names = _common_measures(systems, None)
    if baseline is not None and baseline not in dict(systems):
        raise UnknownNameError("baseline", baseline, [name for name, _ in systems])
    against = systems[0][0] if systems and baseline is None else baseline
    tested = {name: dict(systems).get(str(against)) for name, _ in systems if name != against}
    rows = [_row(name, scores, tested.get(name), names) for name, scores in systems]
    corrected = iter(holm([test.p for row in rows for test in row.tests.values()]))
    return [evolve(row, corrected={measure: next(corrected) for measure in row.tests}) for row in rows]


def to_markdown(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table, by `system_name`; see `table_caption` for the values in brackets.

    >>> a = Scores({"RR@10": {"q1": 0.5, "q2": 1.0, "q3": 0.0}})
    >>> b = Scores({"RR@10": {"q1": 1.0, "q2": 1.0, "q3": 0.5}})
    >>> print(to_markdown(comparison([("BM25", a), ("retriever-1", b)])))
    | system | RR@10 |
    |---|---|
    | BM25 | 0.500 |
    | retriever-1 | 0.833 (p = 0.184) |
    """
    measures = list(rows[0].values) if rows else []
    cells = ([system_name(row["system"]), *(format_cell(row, m) for m in measures)] for row in map(asdict, rows))
    lines = [["system", *measures], *cells]
    text = [f"| {' | '.join(map(escape_markdown, line))} |" for line in lines]
    return "\n".join([text[0], "|---" * (len(measures) + 1) + "|", *text[1:]])


def data_set_title(name: str, rows: Sequence[Row]) -> str:
    """Return the title of the table of a data set."""
    return f"**{escape_markdown(name)}** ({counted(rows[0].queries, 'query')})"


def average_title(data_sets: Collection[str]) -> str:
    """Return the title of the averages over data sets, which count alike."""
    return f"**Average** of {counted(len(data_sets), 'data set')}"


def format_value(value: float, p: float | None, corrected: float = math.nan, *, deviation: float = math.nan) -> str:
    """Format a value, its standard deviation and the p of its test, if there are any; with a star if significant.

    corrected: the p that decides about the star.

    >>> format_value(0.5, None), format_value(0.5, 0.02, 0.04), format_value(0.5, 0.02, 0.06, deviation=0.01)
    ('0.500', '0.500 (p = 0.020*)', '0.500 \u00b1 0.010 (p = 0.020)')
    """
    spread = "" if math.isnan(deviation) else f" \u00b1 {deviation:.3f}"
    star = "*" if corrected < LEVEL else ""
    return f"{value:.3f}{spread}" if p is None else f"{value:.3f}{spread} ({format_p(p)}{star})"


def format_cell(row: Mapping[str, Any], measure: str) -> str:
    """Format one value, with the p of its test if there is one; row: a `Row` as plain data, where a NaN may be null.

    >>> format_cell({"values": {"AP": 0.5}, "tests": {"AP": {"p": None}}, "corrected": {"AP": None}}, "AP")
    '0.500 (not tested)'
    """
    test, corrected = row["tests"].get(measure), row.get("corrected", {}).get(measure)
    p = None if test is None else _number(test["p"])
    return format_value(row["values"][measure], p, _number(corrected))


def describe_difference(system: str, other: str, measure: str, values: tuple[float, float], p: float | None) -> str:
    """Say which of two systems is better by a test, or that no difference is shown, with both values.

    p: of one paired t-test, without correction; None or NaN if the two were not tested.

    >>> describe_difference("retriever-1", "BM25", "RR@10", (0.39, 0.408), 0.004)
    'BM25 beats retriever-1: RR@10 0.408 against 0.390 (p = 0.004)'
    >>> describe_difference("retriever-2", "BM25", "RR@10", (0.329, 0.37), 0.2)
    'no difference shown between retriever-2 and BM25: RR@10 0.329 against 0.370 (p = 0.200)'
    """
    (first, second), (value, against) = (system, other), values
    if p is not None and p < LEVEL:
        if value < against:
            (first, second), (value, against) = (other, system), (against, value)
        return f"{first} beats {second}: {measure} {value:.3f} against {against:.3f} ({format_p(p)})"
    shown = f"{measure} {value:.3f} against {against:.3f}"
    tested = "not tested" if p is None else format_p(p)
    return f"no difference shown between {first} and {second}: {shown} ({tested})"


@frozen
class Contribution:
    """What a part adds: the composition's measure minus that of the baseline with another part in its slot.

    test: paired over queries, with the 95 % confidence interval of the difference.
    """

    slot: str
    part: str
    instead: str
    system: str
    baseline: str
    measure: str
    test: TTest


def contribution(system: tuple[str, Scores], baseline: tuple[str, Scores], part: str, measure: str) -> Contribution:
    """Return what a part of a system adds; baseline: named `SLOT=PART`, the same with another part in the slot."""
    slot, _, instead = baseline[0].partition("=")
    test = paired_t_test(system[1].per_query[measure], baseline[1].per_query[measure])
    return Contribution(slot, part, instead, system[0], baseline[0], measure, test)


def describe_contributions(found: Sequence[Mapping[str, Any]]) -> str:
    """Say what the parts of a composition add; found: `Contribution`s as plain data. Empty without any.

    >>> test = {"difference": 0.0124, "low": 0.004, "high": 0.0204}
    >>> one = {"slot": "masker", "part": "pmi", "instead": "uniform", "measure": "RR@10", "test": test}
    >>> describe_contributions([one])
    'RR@10: masker pmi instead of uniform +0.012 (+0.004 to +0.020)'
    """
    said = []
    for one in found:
        low, high = (_number(one["test"][end]) for end in ("low", "high"))
        interval = "not tested" if math.isnan(low) else f"{low:+.3f} to {high:+.3f}"
        what = f"{one['slot']} {one['part']} instead of {one['instead']}"
        said.append(f"{what} {one['test']['difference']:+.3f} ({interval})")
    return f"{found[0]['measure']}: {'; '.join(said)}" if found else ""


# Above lines of `verdict_text`.
VERDICT_CAPTION = "Pairwise verdicts on the first measure (paired t-tests, uncorrected):"


# Test queries below which results are called a rough guess.
_FEW = 50


def results_warning(queries: int, *, is_smoke: bool) -> str:
    """Return why results must not be relied on: a smoke run, or few queries; empty if neither.

    >>> results_warning(30, is_smoke=False)
    'Warning: with 30 queries, most differences are chance.'
    >>> results_warning(300, is_smoke=True)
    'Warning: this is a smoke run. Its trainings are too short for its numbers to mean anything.'
    """
    if is_smoke:
        return "Warning: this is a smoke run. Its trainings are too short for its numbers to mean anything."
    return f"Warning: with {counted(queries, 'query')}, most differences are chance." if queries < _FEW else ""


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Return in words, by the first measure of an evaluation's results, what its retriever gained.

    What the parts of pre-training add comes first. The `compared` retriever is tested against the encoder it started
    from, labels only, and BM25; a re-ranker against the retriever whose hits it ranks; the hybrid against BM25, with
    its weight.
    """
    measure, compared = results["measures"][0], results["compared"]
    values = {row["system"]: row["values"][measure] for row in results["rows"]}
    lines = list(filter(None, [describe_contributions(results.get("parts", ()))]))
    for other in (AS_IT_IS, INITIAL, LABELS_ONLY, BM25_NAME):
        if other in values and other != compared:
            p = results["against"].get(other, {}).get(measure)
            pair = (values[compared], values[other])
            lines.append(describe_difference(system_name(compared), system_in_words(other), measure, pair, p))
    return [*lines, *_reranker_verdict(results, measure), *_hybrid_verdict(results, measure)]


def _reranker_verdict(results: Mapping[str, Any], measure: str) -> list[str]:
    """Say whether the re-ranker beats the retriever whose hits it ranks; if not, how to leave it out."""
    if RERANKER not in results:
        return []
    means = {row["system"]: row["values"][measure] for row in results["rows"]}
    ((ranked, tests),) = results[RERANKER]["against"].items()
    values, p = (means[RERANKER], means[ranked]), _number(tests[measure])
    text = describe_difference(RERANKER, f"{system_name(ranked)}, whose hits it ranks", measure, values, p)
    return [text if values[0] > values[1] else f"{text}; --set evaluation.rerank=false leaves it out"]


def _hybrid_verdict(results: Mapping[str, Any], measure: str) -> list[str]:
    """Say whether the hybrid beats BM25, and its weight."""
    if HYBRID_NAME not in results:
        return []
    facts = results[HYBRID_NAME]
    values = {row["system"]: row["values"][measure] for row in results["rows"]}
    p = _number(facts["against"][BM25_NAME][measure])
    tuned = facts["tuned"]
    how = _describe_tuning(facts["weight"], tuned) if tuned else "the default weight"
    return [
        describe_difference("hybrid", "BM25", measure, (values[HYBRID_NAME], values[BM25_NAME]), p),
        f"hybrid: {facts['weight']:g} x {system_name(facts['retriever'])} + {1 - facts['weight']:g} x BM25, min-max "
        f"scaled; {how}",
    ]


def _describe_tuning(weight: float, tuned: Mapping[str, Any]) -> str:
    """Say on how many dev queries a weight was chosen, and whether the best one was within a standard error."""
    asked = f"{counted(tuned['queries'], 'dev query')} ({tuned['measure']}"
    if weight == tuned["best"]:
        return f"tuned on {asked})"
    return (
        f"kept on {asked}: the gain of {tuned['best']:g}, {tuned['gain']:.3f}, is within one standard error, "
        f"{tuned['error']:.3f})"
    )


def describe_bm25(facts: Mapping[str, Any]) -> str:
    """Return in words which k1 and b were chosen on dev queries; facts: those of `tune_bm25`.

    >>> means = {"k1 1.2, b 0.75": 0.25, "k1 1.2, b 1": 0.5}
    >>> facts = {"k1": 1.2, "b": 1.0, "measure": "RR@10", "queries": 9, "means": means, "gain": 0.25, "error": 0.1}
    >>> describe_bm25(facts)
    'BM25: k1 1.2, b 1, best of 2 on 9 dev queries (RR@10 0.500; 0.250 with k1 1.2, b 0.75)'
    >>> print(describe_bm25({**facts, "b": 0.75, "error": 0.3}))
    BM25: k1 1.2, b 0.75 on 9 dev queries (the best of 2 gains 0.250 RR@10, within one standard error, 0.300)
    """
    return f"{_describe_pair(facts)}{_describe_split(facts)}"


def _describe_pair(facts: Mapping[str, Any]) -> str:
    means, chosen = facts["means"], f"k1 {facts['k1']:g}, b {facts['b']:g}"
    first, measure, asked = next(iter(means)), facts["measure"], f"on {counted(facts['queries'], 'dev query')}"
    if chosen != first:
        against = f"{measure} {means[chosen]:.3f}; {means[first]:.3f} with {first}"
        return f"BM25: {chosen}, best of {len(means)} {asked} ({against})"
    if not facts["gain"]:
        return f"BM25: {chosen}, best of {len(means)} {asked} ({measure} {means[chosen]:.3f})"
    gain = f"the best of {len(means)} gains {facts['gain']:.3f} {measure}"
    return f"BM25: {chosen} {asked} ({gain}, within one standard error, {facts['error']:.3f})"


# What BM25 does with identifiers in queries, by the value of split_queries.
_SPLIT = {"unknown": "those that no passage has are split", "always": "all are split", "never": "none is split"}


def _describe_split(facts: Mapping[str, Any]) -> str:
    """Say which identifiers in queries are split, if several values of split_queries make a difference."""
    split = facts.get("split")
    if not split or not (split["gain"] or split["error"]):
        return ""
    chosen = str(facts["split_queries"])
    means, measure, first = split["means"], facts["measure"], next(iter(split["means"]))
    if chosen != first:
        shown = f"{measure} {means[chosen]:.3f}; {means[first]:.3f} if {_SPLIT[first]}"
        return f"; identifiers in queries: {_SPLIT[chosen]} ({shown})"
    best = max(means, key=lambda value: means[value])
    if not split["gain"]:
        return f"; identifiers in queries: {_SPLIT[first]} ({measure} {means[first]:.3f})"
    gain = f"{_SPLIT[best]}: {split['gain']:+.3f} {measure}, within one standard error, {split['error']:.3f}"
    return f"; identifiers in queries: {_SPLIT[first]} ({gain})"


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def format_p(p: float) -> str:
    """Format a p-value.

    >>> format_p(0.0004), format_p(0.25), format_p(float("nan"))
    ('p < 0.001', 'p = 0.250', 'not tested')
    """
    if math.isnan(p):
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _row(name: str, scores: Scores, baseline: Scores | None, measures: Sequence[str]) -> Row:
    tests = {m: paired_t_test(scores.per_query[m], baseline.per_query[m]) for m in measures} if baseline else {}
    return Row(name, {m: scores.mean(m) for m in measures}, tests, scores.queries)


@frozen
class Change:
    """A query whose value differs: under the baseline (before) and under the system (after)."""

    query_id: str
    before: float
    after: float


@frozen
class Versus:
    """A system compared with a baseline by one measure.

    test: the paired t-test of system minus baseline, with the confidence interval of the mean difference (of a count,
    of the difference of the sums); corrected: its p after Holm's correction over all comparisons made. wins, ties,
    losses: number of queries where the system is better, equal (up to rounding), worse. gained, lost: the queries with
    the largest differences, largest first.
    """

    system: str
    baseline: str
    measure: str
    value: float
    against: float
    test: TTest
    corrected: float
    wins: int
    ties: int
    losses: int
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]


def compare(
    systems: Sequence[tuple[str, Scores]],
    measures: Sequence[str] | None = None,
    *,
    all_pairs: bool = False,
    shown: int = 5,
) -> list[Versus]:
    """Compare every system with the first (all_pairs: with every earlier one) by each measure.

    systems: (name, scores), evaluated on the same queries; measures: those of the first system if None; shown: maximum
    number of queries in `gained` and in `lost`.

    Raises DrkitError for fewer than two systems, a duplicate name, different queries, or a missing measure.

    >>> bm25 = Scores({"RR@10": {"q1": 0.5, "q2": 1.0, "q3": 0.0}})
    >>> dense = Scores({"RR@10": {"q1": 1.0, "q2": 1.0, "q3": 0.5}})
    >>> (found,) = compare([("BM25", bm25), ("dense", dense)])
    >>> found.wins, found.ties, found.losses, found.gained[0]
    (2, 1, 0, Change(query_id='q1', before=0.5, after=1.0))
    """
    _check_names(systems)
    names = _common_measures(systems, measures)
    pairs = combinations(systems, 2) if all_pairs else ((systems[0], other) for other in systems[1:])
    found = [_versus(pair[0], pair[1], measure, shown) for pair in pairs for measure in names]
    corrected = holm([one.test.p for one in found])
    return [evolve(one, corrected=p) for one, p in zip(found, corrected, strict=True)]


def versus_markdown(found: Sequence[Versus], texts: Mapping[str, str] | None = None) -> str:
    """Format all comparisons as a table, with the queries that differ most; texts: known query texts by query id."""
    lines = [
        "| measure | system | against | difference | 95 % interval | p | p (Holm) | wins | ties | losses |",
        "|---|---|---|---:|---|---|---|---:|---:|---:|",
        *(f"| {' | '.join(map(escape_markdown, _cells(one)))} |" for one in found),
        "",
        f"{comparison_caption(found)}",
    ]
    for one in found:
        for label, changes in (("gains", one.gained), ("losses", one.lost)):
            if changes:
                title = (
                    f"{one.measure}, largest {label} of {system_name(one.system)} against {system_name(one.baseline)}:"
                )
                lines += ["", escape_paragraph(title), ""]
                lines += [f"- {escape_markdown(line)}" for line in change_lines(changes, texts or {})]
    return "\n".join(lines)


def comparison_caption(found: Sequence[Versus]) -> str:
    """Return the significance tests in one sentence."""
    queries = found[0].test.queries if found else 0
    tested = sum(not math.isnan(one.test.p) for one in found)
    caption = (
        f"Paired two-tailed t-tests over {counted(queries, 'query')}; Holm's correction over all {tested} comparisons "
        f"made; * if the corrected p is below {LEVEL}."
    )
    return caption if tested == len(found) else f"{caption} {NOT_TESTED}"


def change_lines(changes: Sequence[Change], texts: Mapping[str, str]) -> Iterator[str]:
    """Yield a line per query: `+0.500 (0.500 -> 1.000) q1: text of the query`."""
    for change in changes:
        text = " ".join(texts.get(change.query_id, "").split())
        query = f"{change.query_id}: {text}" if text else change.query_id
        yield f"{change.after - change.before:+.3f} ({change.before:.3f} -> {change.after:.3f}) {query}"


def _cells(one: Versus) -> list[str]:
    star = "*" if one.corrected < LEVEL else ""
    return [
        one.measure,
        f"{system_name(one.system)} ({one.value:.3f})",
        f"{system_name(one.baseline)} ({one.against:.3f})",
        f"{one.test.difference:+.3f}",
        format_interval(one.test),
        format_p(one.test.p),
        f"{format_p(one.corrected)}{star}",
        *map(str, (one.wins, one.ties, one.losses)),
    ]


def format_interval(test: TTest) -> str:
    """Format the confidence interval of the mean difference; empty if it was not tested."""
    return "" if test.low != test.low else f"{test.low:+.3f} .. {test.high:+.3f}"


def _check_names(systems: Sequence[tuple[str, Scores]]) -> None:
    if len(systems) < 2:
        raise DrkitError(f"cannot compare {len(systems)} system; give at least two")
    names = [name for name, _ in systems]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise DrkitError(f"two systems are named {duplicate!r}; give each its own name")


def _common_measures(systems: Sequence[tuple[str, Scores]], measures: Sequence[str] | None) -> tuple[str, ...]:
    """Return the measures to compare by, which every system must have."""
    names = tuple(measures) if measures is not None else (systems[0][1].measures if systems else ())
    for system, scores in systems:
        if missing := [name for name in names if name not in scores.per_query]:
            raise DrkitError(f"{system!r} has no {', '.join(missing)}; evaluate all systems with the same measures")
    return names


def _versus(baseline: tuple[str, Scores], system: tuple[str, Scores], measure: str, shown: int) -> Versus:
    before, after = baseline[1].per_query[measure], system[1].per_query[measure]
    test = paired_t_test(after, before)
    if is_count(measure):  # their values are sums
        ends = {name: getattr(test, name) * test.queries for name in ("difference", "low", "high")}
        test = evolve(test, **ends)
    error = rounding([*before.values(), *after.values()])
    changes = [Change(q, before[q], after[q]) for q in after if abs(after[q] - before[q]) > error]
    changes.sort(key=lambda change: (change.before - change.after, change.query_id))
    wins = sum(change.after > change.before for change in changes)
    losses = len(changes) - wins
    return Versus(
        system=system[0],
        baseline=baseline[0],
        measure=measure,
        value=system[1].mean(measure),
        against=baseline[1].mean(measure),
        test=test,
        corrected=test.p,
        wins=wins,
        ties=test.queries - len(changes),
        losses=losses,
        gained=tuple(changes[: min(shown, wins)]),
        lost=tuple(reversed(changes[len(changes) - min(shown, losses) :])),
    )
