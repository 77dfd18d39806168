"""Measures by name and per query: trec_eval's values, by ir_measures, over the same queries for all measures."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.files import write_text
from drkit.core.quantities import counted
from drkit.core.types import HIGHEST_GRADE, Judgement
from drkit.data.data_set_names import data_set_of
from drkit.errors import DrkitError
from drkit.evaluate.engines import CAPPED, MEASURES, hits_read, is_of_subtopics, measure_by_engine, parse_measure
from drkit.evaluate.ranks import COUNTS, HIGHEST_OF_ERR, is_by_rank, keep_judged_hits, measure_by_rank

if TYPE_CHECKING:
    from drkit.search.rankings import RunRow

_COUNT = re.compile(rf"({'|'.join(COUNTS)}|NumRelRet)\b")


@frozen
class Scores:
    """Values of one system: `per_query[measure][query_id]`, for every judged query."""

    per_query: Mapping[str, Mapping[str, float]]

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, in the requested order."""
        return tuple(self.per_query)

    @property
    def queries(self) -> int:
        """Number of queries that every mean is taken over."""
        return len(next(iter(self.per_query.values()), ()))

    def mean(self, measure: str) -> float:
        """Return the mean over all judged queries; of a count (NumQ, NumRel, NumRet), the sum."""
        values = self.per_query[measure]
        return sum(values.values()) / (1 if is_count(measure) else len(values))

    def means(self) -> dict[str, float]:
        """Return all means (or sums), by measure."""
        return {measure: self.mean(measure) for measure in self.measures}


def balanced(scores: Scores, data_sets: Sequence[str]) -> Scores:
    """Return the scores scaled so that every mean is the mean of the data sets' own means, not of all queries.

    A value of a query of one of K data sets with n of the N queries is multiplied by N / (K n). Paired tests and
    standard errors over all queries then weigh the data sets alike. data_sets: those of the run, by which ids begin;
    ones without queries do not count; none: the scores as they are. Counts are summed, and stay.

    >>> scores = Scores({"RR@10": {"a/1": 1.0, "a/2": 0.0, "a/3": 0.0, "b/1": 1.0}})
    >>> scores.mean("RR@10"), round(balanced(scores, "ab").mean("RR@10"), 3)
    (0.5, 0.667)
    """
    if not data_sets or not scores.queries:
        return scores
    sizes = Counter(map(data_set_of, next(iter(scores.per_query.values()))))
    factors = {name: scores.queries / (len(sizes) * count) for name, count in sizes.items()}
    return Scores(
        {
            measure: values if is_count(measure) else {q: v * factors[data_set_of(q)] for q, v in values.items()}
            for measure, values in scores.per_query.items()
        }
    )


def of_data_set(scores: Scores, name: str) -> Scores:
    """Return the scores of the queries of one data set."""
    own = {
        measure: {query: value for query, value in values.items() if data_set_of(query) == name}
        for measure, values in scores.per_query.items()
    }
    return Scores(own)


def evaluate(
    run: Iterable[RunRow],
    qrels: Iterable[Judgement],
    measures: Sequence[str] = MEASURES,
    *,
    exclude_self: bool = False,
) -> Scores:
    """Evaluate a run as trec_eval does (relevance > 0 is relevant; ties by document id, in descending order).

    run: `Rankings`, as `read_run` returns them, or rows (query_id, [(doc_id, score), ..]), with hits in any order.
    Every judged query counts; one that is missing from the run, or has no positive judgement, counts 0. Queries without
    judgements are ignored. exclude_self: remove hits whose id equals the query's before measuring (as in ArguAna, where
    every query is also a passage).

    Raises DrkitError for an unknown measure, or one whose engine is not installed; missing or contradictory judgements,
    or such as a measure cannot use; duplicate rows or documents, or a score that is not finite.

    >>> from drkit.core.types import Judgement
    >>> evaluate([("q1", [("d1", 2.0), ("d2", 1.0)])], [Judgement("q1", "d2", 1)], ["RR@10", "R@1"]).means()
    {'RR@10': 0.5, 'R@1': 0.0}
    """
    from drkit.search.rankings import Rankings

    parsed, judgements = {name: parse_measure(name) for name in measures}, tuple(qrels)
    judged = grades_by_query(judgements)
    _check_judgements(parsed, judgements)
    known = {query: {doc: g for doc, g in grades.items() if g >= 0} for query, grades in judged.items()}
    rankings = Rankings.of(run)
    rankings = (rankings.kept(~rankings.is_own) if exclude_self else rankings).ordered()
    of_judged = None
    values: dict[Any, Mapping[str, float]] = {}
    for measure in parsed.values():
        hits = rankings
        if measure.params.get("judged_only"):
            hits = of_judged = of_judged or keep_judged_hits(rankings, known)
        if is_by_rank(measure):
            values[measure] = measure_by_rank(measure, hits, known)
        else:
            values[measure] = measure_by_engine(measure, hits, judged, judgements)
    return Scores({name: _cap_recall(name, values[measure], known) for name, measure in parsed.items()})


def _check_judgements(measures: Mapping[str, Any], judgements: Sequence[Judgement]) -> None:
    """Raise DrkitError for judgements that a measure cannot use; measures: those of ir_measures by name."""
    for name in [name for name, measure in measures.items() if is_of_subtopics(measure)][:1]:
        _check_subtopics(name, judgements)
    for name in [name for name, measure in measures.items() if not is_of_subtopics(measure)][:1]:
        _check_one_grade(name, judgements)
    for name in [name for name, measure in measures.items() if measure.NAME == "ERR"][:1]:
        if (one := max(judgements, key=lambda one: one.relevance)).relevance > HIGHEST_OF_ERR:
            raise DrkitError(
                f"document {one.doc_id!r} has relevance {one.relevance} for query {one.query_id!r}; {name} is defined "
                f"for grades up to {HIGHEST_OF_ERR}, as in gdeval: map the grades to these, or choose nDCG"
            )


def _check_subtopics(name: str, judgements: Sequence[Judgement]) -> None:
    """Raise DrkitError unless some query has two subtopics."""
    subtopics: dict[str, str] = {}
    if all(subtopics.setdefault(one.query_id, one.subtopic) == one.subtopic for one in judgements):
        raise DrkitError(
            f"{name} needs judgements of subtopics (column 2 of TREC's diversity judgements), and none of the "
            f"{counted(len(subtopics), 'query')} has two; give diversity judgements, or choose another measure"
        )


def _check_one_grade(name: str, judgements: Sequence[Judgement]) -> None:
    """Raise DrkitError if a document has several grades for the subtopics of a query."""
    grades: dict[tuple[str, str], Judgement] = {}
    for one in judgements:
        first = grades.setdefault((one.query_id, one.doc_id), one)
        if first.relevance != one.relevance:
            raise DrkitError(
                f"document {one.doc_id!r} has relevance {first.relevance} for the subtopic {first.subtopic!r} of query "
                f"{one.query_id!r}, and {one.relevance} for {one.subtopic!r}; {name} needs one relevance for a "
                f"document: give ad hoc judgements, or choose diversity measures such as alpha_nDCG@20"
            )


def _cap_recall(name: str, values: Mapping[str, float], judged: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return the values of a measure; of R_cap@k, recall over the most that k hits can contain.

    Source: Thakur et al. 2021, BEIR, section 4.3.
    """
    capped = CAPPED.fullmatch(name)
    if capped is None:
        return dict(values)
    relevant = {query: sum(grade > 0 for grade in judged[query].values()) for query in values}
    return {
        q: value * (relevant[q] / min(relevant[q], int(capped[1])) if value else 0.0) for q, value in values.items()
    }


def is_count(measure: str) -> bool:
    """Return whether the values of queries are added up, not averaged.

    >>> is_count("NumRel(rel=2)"), is_count("P@5")
    (True, False)
    """
    return _COUNT.match(measure) is not None


def average(scores: Sequence[Scores]) -> Scores:
    """Average several runs of one system (seeds, draws of training queries) per query and measure.

    A test on the result compares systems over queries, as for single runs; it ignores the variance between runs.

    Raises DrkitError for no runs, or runs that were evaluated on different queries or with different measures.

    >>> average([Scores({"RR@10": {"q": 1.0}}), Scores({"RR@10": {"q": 0.5}})]).per_query
    {'RR@10': {'q': 0.75}}
    """
    if not scores:
        raise DrkitError("cannot average zero runs; give at least one")
    first = scores[0].per_query
    for other in scores[1:]:
        if other.per_query.keys() != first.keys():
            raise DrkitError("cannot average runs evaluated with different measures; evaluate them with the same ones")
        if any(other.per_query[measure].keys() != first[measure].keys() for measure in first):
            raise DrkitError("cannot average runs evaluated on different queries; use the same judgements")
    return Scores(
        {
            measure: {query: sum(one.per_query[measure][query] for one in scores) / len(scores) for query in values}
            for measure, values in first.items()
        }
    )


def check_measures(measures: Sequence[str], *, has_subtopics: bool = True) -> None:
    """Raise DrkitError for an unknown measure, or one whose engine is not installed.

    has_subtopics: whether the judgements may have subtopics, which diversity measures need; those of a run have none.
    """
    for name in measures:
        if is_of_subtopics(parse_measure(name)) and not has_subtopics:
            raise DrkitError(
                f"{name} needs judgements of subtopics, which a run does not keep; evaluate its rankings with "
                f"`drkit evaluate RUN --qrels FILE -m {name}`, and choose another measure for the run"
            )


def check_judgements(measures: Sequence[str], judgements: Iterable[Judgement]) -> None:
    """Raise DrkitError for judgements that one of the measures cannot use, as `evaluate` does."""
    given = tuple(judgements)
    grades_by_query(given)
    _check_judgements({name: parse_measure(name) for name in measures}, given)


def cutoff(measure: str) -> int | None:
    """Return the number of hits that a measure uses; None for all. Raises DrkitError for an unknown measure.

    >>> cutoff("RR@10"), cutoff("AP")
    (10, None)
    """
    return hits_read(parse_measure(measure))


def grades_by_query(judgements: Iterable[Judgement]) -> dict[str, dict[str, int]]:
    """Return the grades of each query's documents; of several subtopics, the highest.

    Raises DrkitError for missing or contradictory judgements, or a grade that is too high.
    """
    judged: dict[str, dict[str, int]] = {}
    given: dict[tuple[str, str, str], int] = {}
    for one in judgements:
        if one.relevance > HIGHEST_GRADE:
            raise DrkitError(
                f"document {one.doc_id!r} has relevance {one.relevance} for query {one.query_id!r}; "
                f"the highest supported grade is {HIGHEST_GRADE:,}"
            )
        before = given.setdefault((one.query_id, one.subtopic, one.doc_id), one.relevance)
        if before != one.relevance:
            raise DrkitError(
                f"document {one.doc_id!r} is judged twice for query {one.query_id!r}, as {before} and as "
                f"{one.relevance}; remove one of the two judgements"
            )
        grades = judged.setdefault(one.query_id, {})
        grades[one.doc_id] = max(one.relevance, grades.get(one.doc_id, one.relevance))
    if not judged:
        raise DrkitError("no judgements to evaluate against; give a collection and a split that have judgements")
    return judged


def write_per_query(path: Path, systems: Sequence[tuple[str, Scores]]) -> None:
    """Write a line per system and query, with `system`, `query_id` and a value per measure, as TSV with a header."""
    rows = [
        {"system": system, "query_id": query_id, **{m: scores.per_query[m][query_id] for m in scores.measures}}
        for system, scores in systems
        for query_id in next(iter(scores.per_query.values()), {})
    ]
    text = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, names, delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
