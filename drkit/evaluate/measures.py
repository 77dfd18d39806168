"""Effectiveness by name and per query: trec_eval's values, by ir_measures, over the same queries for all measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.core.types import Judgement
    from drkit.search.trec import RunRow

MEASURES = ("RR@10", "nDCG@10", "R@100", "R@1000")
# trec_eval keeps a count for every grade, and goes wrong in silence where they do not fit.
_HIGHEST_GRADE = 1_000_000


@frozen
class Scores:
    """One system's values: `per_query[measure][query_id]`, for every judged query."""

    per_query: Mapping[str, Mapping[str, float]]

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures' names, in the order they were asked for."""
        return tuple(self.per_query)

    @property
    def queries(self) -> int:
        """How many queries every mean is taken over."""
        return len(next(iter(self.per_query.values()), ()))

    def mean(self, measure: str) -> float:
        """The mean over all judged queries."""
        values = self.per_query[measure]
        return sum(values.values()) / len(values)

    def means(self) -> dict[str, float]:
        """All means, by measure."""
        return {measure: self.mean(measure) for measure in self.measures}


def evaluate(
    run: Iterable[RunRow],
    qrels: Iterable[Judgement],
    measures: Sequence[str] = MEASURES,
    *,
    exclude_self: bool = False,
) -> Scores:
    """The values of a run, as trec_eval computes them (relevance > 0 is relevant, ties by doc id, the last first).

    run: (query_id, [(doc_id, score), ..]) rows, in any order of hits, as `read_run` gives them. Every judged query
    counts: one that the run lacks, or without a positive judgement, with 0. Queries without any judgement are left
    out. exclude_self: a hit whose id is the query's own is left out before anything is measured (as in ArguAna,
    where every query is a passage too).

    Raises DrkitError for a measure that does not exist, no judgements, two judgements or rows of one thing, or a
    score that is NaN.

    >>> from drkit.core.types import Judgement
    >>> evaluate([("q1", [("d1", 2.0), ("d2", 1.0)])], [Judgement("q1", "d2", 1)], ["RR@10", "R@1"]).means()
    {'RR@10': 0.5, 'R@1': 0.0}
    """
    import ir_measures

    parsed = {name: _measure(name) for name in measures}
    judged = _pooled(_judged(qrels))
    ranked = _ranked(run, judged, exclude_self=exclude_self)
    values: dict[Any, dict[str, float]] = {measure: dict.fromkeys(judged, 0.0) for measure in parsed.values()}
    known = {query: grades for query, grades in judged.items() if grades}
    for result in ir_measures.iter_calc(list(values), known, ranked) if known else ():
        values[result.measure][result.query_id] = float(result.value)
    return Scores({name: values[measure] for name, measure in parsed.items()})


def average(scores: Sequence[Scores]) -> Scores:
    """One system's values over several runs of it (seeds, draws of training queries): means per query and measure.

    A test over them compares systems over queries, as for single runs; how far the runs lie apart it does not see.

    Raises DrkitError for no runs, or runs that were evaluated on different queries or by different measures.

    >>> average([Scores({"RR@10": {"q": 1.0}}), Scores({"RR@10": {"q": 0.5}})]).per_query
    {'RR@10': {'q': 0.75}}
    """
    if not scores:
        raise DrkitError("no runs to take an average of; give at least one")
    first = scores[0].per_query
    for other in scores[1:]:
        if other.per_query.keys() != first.keys():
            raise DrkitError("runs that were evaluated by different measures have no average; measure all alike")
        if any(other.per_query[measure].keys() != first[measure].keys() for measure in first):
            raise DrkitError("runs that were evaluated on different queries have no average; use the same judgements")
    return Scores(
        {
            measure: {query: sum(one.per_query[measure][query] for one in scores) / len(scores) for query in values}
            for measure, values in first.items()
        }
    )


def check_measures(measures: Sequence[str]) -> None:
    """Raises DrkitError for a name that is no measure."""
    for name in measures:
        _measure(name)


def cutoff(measure: str) -> int | None:
    """How many hits a measure looks at; None where it looks at all. Raises DrkitError for a name that is no measure.

    >>> cutoff("RR@10"), cutoff("AP")
    (10, None)
    """
    found = _measure(measure).params.get("cutoff")
    return None if found is None else int(found)


def _measure(name: str) -> Any:
    import ir_measures

    try:
        measure = ir_measures.parse_measure(name)
        measure.validate_params()
        if measure.params.get("cutoff", 1) > 0 and ir_measures.DefaultPipeline.supports(measure):
            return measure
    except (NameError, ValueError, AssertionError, SyntaxError, TypeError, AttributeError):
        pass
    raise DrkitError(f"no measure {name!r}; write it as in {', '.join(MEASURES)}, P@5, AP or Success@10")


def _judged(qrels: Iterable[Judgement]) -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    for judgement in qrels:
        if judgement.relevance > _HIGHEST_GRADE:
            raise DrkitError(
                f"document {judgement.doc_id!r} is judged {judgement.relevance} for query {judgement.query_id!r}; "
                f"grades go up to {_HIGHEST_GRADE:,}"
            )
        grades = judged.setdefault(judgement.query_id, {})
        if grades.setdefault(judgement.doc_id, judgement.relevance) != judgement.relevance:
            raise DrkitError(
                f"document {judgement.doc_id!r} is judged twice for query {judgement.query_id!r}, and differently: "
                f"{grades[judgement.doc_id]} and {judgement.relevance}; keep one of the two judgements"
            )
    if not judged:
        raise DrkitError("no judgements to evaluate against; give a collection, and a split of it, that has some")
    return judged


def _pooled(judged: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Without negative judgements: to trec_eval they are documents that nobody judged.

    It counts nothing for them, and reads past its arrays where a query has no others.
    """
    return {query: {doc: grade for doc, grade in grades.items() if grade >= 0} for query, grades in judged.items()}


def _ranked(run: Iterable[RunRow], judged: Mapping[str, Any], *, exclude_self: bool) -> dict[str, dict[str, float]]:
    ranked: dict[str, dict[str, float]] = {}
    for query_id, hits in run:
        if query_id in ranked:
            raise DrkitError(f"query {query_id!r} comes twice in one run; give every query's hits in one row")
        if query_id in judged:
            rows = [hit for hit in hits if not exclude_self or hit[0] != query_id]
            ranked[query_id] = _ranking(query_id, rows)
            if len(ranked[query_id]) < len(rows):
                raise DrkitError(f"query {query_id!r} has the same document twice among its hits")
    return ranked


def _ranking(query_id: str, hits: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Scores without ties, in trec_eval's order (float32 score, then doc id as a file has it, the last first).

    The engines behind ir_measures break ties each in its own way, RR@10's by place; given these, they agree.
    """
    scores = np.array([score for _, score in hits], dtype=np.float64).astype(np.float32)
    if np.isnan(scores).any():
        wrong = hits[int(np.isnan(scores).argmax())][0]
        raise DrkitError(f"query {query_id!r}: the score of {wrong!r} is no number (NaN), so it has no rank")
    names = [doc_id for doc_id, _ in hits]
    tied = len(np.unique(scores)) < len(scores)
    keys = _in_files(names) if tied else names
    order = sorted(zip(scores.tolist(), keys, names, strict=True), reverse=True)
    return {doc_id: float(-rank) for rank, (_, _, doc_id) in enumerate(order)}


def _in_files(doc_ids: Sequence[str]) -> Sequence[str]:
    """The ids as they stand in a run file: trec_eval breaks ties by what it reads there."""
    from drkit.search.trec import encode_id, is_safe

    if is_safe("".join(doc_ids)):
        return doc_ids
    return [encode_id(doc_id) if doc_id else "" for doc_id in doc_ids]
