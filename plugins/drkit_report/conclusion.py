"""What a page concludes, before its numbers: one sentence, then verdicts, with equal ones together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from drkit.commands import best_system, find_system
from drkit.commands.records import RunRecord
from drkit.core.quantities import counted
from drkit.errors import DrkitError
from drkit.evaluate.names import BM25_NAME, HYBRID_NAME, system_in_words, system_name, without_bm25
from drkit.evaluate.significance import paired_t_test
from drkit.evaluate.systems import LEVEL, Versus, compare
from drkit_report.systems import ReportedSystem


@frozen
class Conclusion:
    """The sentence that a page starts with, findings below it, how these were tested, and a warning ("": none)."""

    sentence: str
    findings: tuple[str, ...] = ()
    caption: str = ""
    warning: str = ""


def conclude_run(run: RunRecord, systems: Sequence[ReportedSystem], baseline: int) -> Conclusion | None:
    """Return what one run shows, from its test queries; baseline: the index of the system it is compared with.

    The sentence is the run's own advice, if it has one, or what each named part adds; else what its best system, which
    dev queries chose, reaches against BM25 and the baseline. None without an evaluation.
    """
    if run.results is None or not systems:
        return None
    metrics = run.manifests["evaluation"].metrics
    best = _best_sentence(run, systems, baseline)
    gains: Mapping[str, Any] = metrics.get("gains", {})
    parts = _parts_sentence(metrics.get("parts", ()))
    sentences = [one for one in (_as_sentence(gains.get("sentence", "")), parts, best) if one]
    sentences += _data_set_sentences(metrics)
    warning = str(metrics.get("warning") or "").removeprefix("Warning: ")
    compared = next((one for one in systems if one.system == run.compared), systems[baseline])
    others = [one for one in systems if one is not compared and not _is_fused(one.system)]
    grouped, caption = _grouped(compared, others)
    return Conclusion(sentences[0], (*sentences[1:], *grouped), caption, warning[:1].upper() + warning[1:])


def _data_set_sentences(metrics: Mapping[str, Any]) -> list[str]:
    """Say what every system reaches on each of several data sets, which the other values average."""
    sets, measure = metrics.get("data_sets", {}), metrics["measures"][0]
    said = [f"All other values are averages of {counted(len(sets), 'data set')}, which count alike."] if sets else []
    for name, rows in sets.items():
        values = ", ".join(f"{system_name(row['system'])} {row['values'][measure]:.3f}" for row in rows)
        said.append(f"{name} ({counted(rows[0]['queries'], 'query')}): {measure} {values}.")
    return said


def conclude_runs(systems: Sequence[ReportedSystem], baseline: int) -> Conclusion | None:
    """Return which of several runs differ from the baseline; None for a single system."""
    others = [one for index, one in enumerate(systems) if index != baseline]
    sentences, caption = _grouped(systems[baseline], others) if others else ((), "")
    return Conclusion(sentences[0], sentences[1:], caption) if sentences else None


def describe_groups(name: str, found: Sequence[Versus]) -> tuple[str, ...]:
    """Say in up to three sentences which systems a system beats, which beat it, and which do not differ.

    found: the comparisons of every other system with this one.

    >>> from drkit.evaluate import Scores
    >>> values = {"pmi": (0.5, 0.75, 1, 0.5), "uniform": (0.25, 0.5, 0.5, 0.25), "mlm": (0.5, 0.75, 1, 0.6)}
    >>> scores = [(n, Scores({"RR@10": dict(zip("abcd", v))})) for n, v in values.items()]
    >>> for line in describe_groups("pmi", compare(scores)): print(line)
    pmi beats uniform (+0.312).
    No difference is shown between pmi and mlm (-0.025).
    """
    shown = [one for one in found if one.corrected < LEVEL]
    ahead = [(one.system, -one.test.difference) for one in shown if one.test.difference < 0]
    behind = [(one.system, one.test.difference) for one in shown if one.test.difference > 0]
    level = [(one.system, -one.test.difference) for one in found if not one.corrected < LEVEL]
    sentences = []
    if ahead:
        sentences.append(f"{name} beats {_listed(ahead)}.")
    if behind:
        sentences.append(f"{_listed(behind)} {'beats' if len(behind) == 1 else 'beat'} {name}.")
    if level:
        sentences.append(f"No difference is shown between {name} and {_listed(level)}.")
    return tuple(one[0].upper() + one[1:] if one.startswith("the ") else one for one in sentences)


def _grouped(compared: ReportedSystem, others: Sequence[ReportedSystem]) -> tuple[tuple[str, ...], str]:
    """Return the grouped verdicts on a system, by the first measure, and how they were tested."""
    if not others:
        return (), ""
    measure = compared.scores.measures[0]
    name = _in_words(compared)
    found = compare([(name, compared.scores), *((_in_words(one), one.scores) for one in others)], [measure])
    tests = f"{len(found)} paired t-tests" if len(found) > 1 else "a paired t-test"
    corrected = " after Holm's correction over them" if len(found) > 1 else ""
    caption = f"Differences in {measure}; {tests}, at p < {LEVEL}{corrected}."
    return describe_groups(name, found), caption


def _best_sentence(run: RunRecord, systems: Sequence[ReportedSystem], baseline: int) -> str:
    """Say what the run's best system reaches, and by how much it is ahead of BM25 and of the baseline."""
    name, description = _best(run)
    best = next((one for one in systems if one.system == name), None)
    if best is None:
        return ""
    measure = best.scores.measures[0]
    shown, _, made_of = description.partition(": ")
    reached = (
        f"The best system is {shown}{f' ({made_of})' if made_of else ''}: {measure} {best.scores.mean(measure):.3f}"
    )
    others = [one for one in systems if one.system == BM25_NAME or one is systems[baseline]]
    ahead = ", ".join(_ahead(best, other, measure) for other in others if other is not best)
    return f"{reached}{f', {ahead}' if ahead else ''}."


def _ahead(best: ReportedSystem, other: ReportedSystem, measure: str) -> str:
    """Say how far a system is ahead of another, with the confidence interval of a paired t-test."""
    test = paired_t_test(best.scores.per_query[measure], other.scores.per_query[measure])
    is_shown = test.low > 0 or test.high < 0
    ahead = f"{test.difference:+.3f} {_interval(test.low, test.high)} over {_in_words(other)}"
    return ahead if is_shown else f"{ahead} (no difference is shown)"


def _best(run: RunRecord) -> tuple[str, str]:
    """Return the system that the run is searched with, and what it is made of; the compared one if none can search."""
    try:
        name = best_system(run.folder)
        return name, find_system(run.folder, name).description
    except DrkitError:
        return run.compared, system_in_words(run.compared)


def _parts_sentence(parts: Iterable[Mapping[str, Any]]) -> str:
    """Say what each named part adds; parts: those of the run's results, each with a test against its replacement."""
    said = []
    for one in parts:
        test = one["test"]
        said.append(
            f"{one['slot']} {one['part']} instead of {one['instead']} adds {test['difference']:+.3f} {one['measure']} "
            f"{_interval(test['low'], test['high'])}"
        )
    return _as_sentence("; ".join(said))


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None or low != low:
        return "(not tested)"
    return f"({low:+.3f} to {high:+.3f})"


def _listed(systems: Sequence[tuple[str, float]]) -> str:
    """List names with differences.

    >>> _listed([("BM25", 0.25), ("masked LM", 0.125), ("labels only", 0.0625)])
    'BM25 (+0.250), masked LM (+0.125) and labels only (+0.062)'
    """
    named = [f"{name} ({round(difference, 3) + 0.0:+.3f})" for name, difference in systems]  # no -0.000
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def _as_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""


def _in_words(one: ReportedSystem) -> str:
    """Return the name of a system in a sentence: that of its run, if the page has several."""
    return system_in_words(one.system) if one.name == system_name(one.system) else one.name


def _is_fused(system: str) -> bool:
    return system == HYBRID_NAME or system != without_bm25(system)
