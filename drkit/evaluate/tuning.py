"""What is chosen on judged dev queries: the weight of a fusion, BM25's k1, b and split queries, the exported retriever.

A few dozen queries cannot tell equally good settings apart, and the best of several tried is the luckiest one. So the
plain choice stays, unless the best one gains more than one standard error of the paired difference: `choose_plainly`.
docs/reference/evaluation.md shows what this saves on real collections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from attrs import frozen

from drkit.core.types import Judgement, Passage, Query
from drkit.errors import DrkitError
from drkit.evaluate.measures import Scores, balanced, cutoff, evaluate
from drkit.evaluate.significance import rounding
from drkit.recipe.evaluation import SAME_LANGUAGE, UNKNOWN
from drkit.search.fusion import DEFAULT_WEIGHT, align, convex
from drkit.search.rankings import RunRow

HYBRID_WEIGHTS = tuple(step / 20 for step in range(21))
Candidate = TypeVar("Candidate")
# k1 and b.
_Pair = tuple[float, float]


@frozen
class PlainChoice(Generic[Candidate]):
    """A choice by dev queries: the one made, the plain one, the best by its mean, and the best one's gain.

    gain: of the best over the plain one; error: the standard error of this paired difference over the queries, 0 if all
    differences are equal. Both are in the measure's units.
    """

    chosen: Candidate
    plain: Candidate
    best: Candidate
    gain: float
    error: float
    queries: int

    def facts(self) -> dict[str, Any]:
        """Return gain and error as plain data, for the record of a stage."""
        return {"gain": self.gain, "error": self.error}


def choose_plainly(values: Mapping[Candidate, Mapping[str, float]]) -> PlainChoice[Candidate]:
    """Choose the first candidate, unless the best one's mean gain over it exceeds one standard error.

    values: per candidate, the value of each query, the plainest candidate first; of equally good ones (up to rounding)
    the earlier one is the best. The error is the sample standard deviation of the paired differences, divided by the
    square root of the number of queries. A single query has no error, and decides nothing.

    Raises DrkitError without candidates or queries, and for candidates with different queries.

    >>> plain, other = {"a": 0.5, "b": 0.5, "c": 1.0}, {"a": 1.0, "b": 0.5, "c": 1.0}
    >>> choice = choose_plainly({"plain": plain, "other": other})
    >>> choice.chosen, choice.best, round(choice.gain, 3), round(choice.error, 3)
    ('plain', 'other', 0.167, 0.167)
    """
    names = list(values)
    if not names or not values[names[0]]:
        raise DrkitError("nothing to choose by: give at least one candidate and one judged query")
    queries = sorted(values[names[0]])
    if other := next((name for name in names if values[name].keys() != values[names[0]].keys()), None):
        raise DrkitError(f"{other!r} was evaluated on other queries than {names[0]!r}; evaluate all on the same")
    table = np.array([[values[name][query] for query in queries] for name in names], dtype=np.float64)
    means = table.mean(axis=1)
    step = rounding(table.ravel().tolist())
    position = next(i for i, mean in enumerate(means) if mean >= means.max() - step)
    differences, count = table[position] - table[0], len(queries)
    gain = float(differences.mean())
    error = float(differences.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    is_shown = count > 1 and gain > error + step
    return PlainChoice(names[position] if is_shown else names[0], names[0], names[position], gain, error, count)


@frozen
class TunedWeight:
    """The chosen weight of the second ranking, the mean of every weight tried, and what was measured.

    best: the weight with the best mean; gain, error: see `PlainChoice`.
    """

    weight: float
    measure: str
    queries: int
    means: Mapping[float, float]
    best: float
    gain: float
    error: float


def tune_weight(
    first: Iterable[RunRow],
    second: Iterable[RunRow],
    qrels: Sequence[Judgement],
    measure: str,
    *,
    data_sets: Sequence[str] = (),
) -> TunedWeight:
    """Return a weight for `convex`, of 0, 0.05 .. 1, by the mean of a measure over the judged queries.

    It is 0.5, unless the best one gains more than one standard error over it (see `choose_plainly`). Of equally good
    weights (up to rounding), the one nearest to 0.5 is the best, then the lower one. data_sets: the names of several,
    which count alike (`balanced`). Memory holds the hits of the judged queries.

    Raises DrkitError for an unknown measure, missing judgements, and as `align` does.

    >>> from drkit.core.types import Judgement
    >>> first = [(q, [("a", 2.0), ("b", 1.0)]) for q in ("q1", "q2")]
    >>> second = [(q, [("b", 2.0), ("a", 1.0)]) for q in ("q1", "q2")]
    >>> tune_weight(first, second, [Judgement("q1", "a", 1), Judgement("q2", "a", 1)], "RR@1").weight
    0.45
    """
    depth = cutoff(measure)
    judged = {judgement.query_id for judgement in qrels}
    hits = [one for one in align(first, second) if one.query_id in judged]
    if judged and not hits:
        raise DrkitError(
            "cannot tune the weight: neither ranking has a judged query; give rankings of the judged queries"
        )
    scores = {
        weight: balanced(evaluate(convex(hits, weight, depth), qrels, [measure]), data_sets)
        for weight in HYBRID_WEIGHTS
    }
    nearest = sorted(HYBRID_WEIGHTS, key=lambda weight: (abs(weight - DEFAULT_WEIGHT), weight))
    choice = choose_plainly({weight: scores[weight].per_query[measure] for weight in nearest})
    means = {weight: one.mean(measure) for weight, one in scores.items()}
    return TunedWeight(
        choice.chosen, measure, scores[DEFAULT_WEIGHT].queries, means, choice.best, choice.gain, choice.error
    )


def tune_bm25(
    passages: Iterable[Passage] | Mapping[str, Iterable[Passage]],
    parameters: Sequence[tuple[float, float]],
    dev: tuple[Iterable[Query], Iterable[Judgement]] | None,
    measure: str,
    *,
    depth: int = 1000,
    exclude_self: bool = False,
    language: str = "english",
    query_language: str = SAME_LANGUAGE,
    split_queries: Sequence[str] = (UNKNOWN,),
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return BM25 with one of several (k1, b), then one of several `split_queries`, chosen on dev queries; and facts.

    The first one is chosen, unless the best one gains more than one standard error over it (see `choose_plainly`).

    passages: of several data sets, by name: each has an index (`SeparateBm25`), and the data sets count alike. dev:
    queries and judgements; without them, the first ones are taken. The passages are read once. depth: of the
    rankings, if the measure has no cutoff; exclude_self: a passage with the query's own id is not a hit; language,
    query_language, split_queries: see `Bm25Retriever`; on_progress: called with the number of choices done. The facts:
    `k1`, `b` and `split_queries`, and with dev queries the `measure`, the number of judged `queries`, the `means` of
    all pairs, and the `gain` of the best pair over the first one with its standard `error`; of several values of
    split_queries, `split` has the same three.

    Raises DrkitError for an unknown measure, language or value, and without passages, pairs, values or judgements.

    >>> passages = [Passage("a", "fish fish, salt, lemon, bread, butter, peas, beans"), Passage("b", "fish")]
    >>> dev = [Query("q", "fish"), Query("r", "fish")], [Judgement("q", "a", 1), Judgement("r", "a", 1)]
    >>> _, facts = tune_bm25(passages, [(1.2, 1.0), (1.2, 0.0)], dev, "RR@1")
    >>> facts["b"], facts["means"]
    (0.0, {'k1 1.2, b 1': 0.0, 'k1 1.2, b 0': 1.0})
    """
    if not parameters or not split_queries:
        raise DrkitError("nothing to choose from; give at least one pair of k1 and b, and one value of split_queries")
    analysis = {"language": language, "query_language": query_language, "split_queries": split_queries[0]}
    if dev is None:
        k1, b = parameters[0]
        return _built(passages, k1=k1, b=b, **analysis), {"k1": k1, "b": b, "split_queries": split_queries[0]}
    asked, judgements = list(dev[0]), list(dev[1])
    # One more: the passage that `exclude_self` leaves out.
    ids, texts = [query.query_id for query in asked], [query.text for query in asked]
    hits = (cutoff(measure) or depth) + exclude_self

    def evaluated(retriever: Any) -> Scores:
        found = evaluate(retriever.rankings(ids, texts, hits), judgements, [measure], exclude_self=exclude_self)
        return balanced(found, tuple(passages) if isinstance(passages, Mapping) else ())

    tuned, (k1, b), scores, choice = _choose_pair(passages, parameters, analysis, evaluated, measure, on_progress)
    means = {f"k1 {pair[0]:g}, b {pair[1]:g}": one.mean(measure) for pair, one in scores.items()}
    facts = {"k1": k1, "b": b, "measure": measure, "queries": choice.queries, "means": means, **choice.facts()}
    first, *others = split_queries
    read = {value: tuned.splitting(value) for value in split_queries}
    split_scores = {first: scores[k1, b], **{value: evaluated(read[value]) for value in others}}
    split = _choose_by(split_scores, measure)
    if others:
        means = {value: one.mean(measure) for value, one in split_scores.items()}
        facts["split"] = {"means": means, **split.facts()}
    return read[split.chosen], {**facts, "split_queries": split.chosen}


def _built(passages: Iterable[Passage] | Mapping[str, Iterable[Passage]], **settings: Any) -> Any:
    """Return BM25 over passages, or over those of each of several data sets."""
    from drkit.search.bm25 import Bm25Retriever

    if isinstance(passages, Mapping):
        from drkit.search.data_sets import SeparateBm25

        return SeparateBm25.build(passages, **settings)
    return Bm25Retriever(**settings).index(passages)


def _variants(
    passages: Iterable[Passage] | Mapping[str, Iterable[Passage]], pairs: Iterable[_Pair], **analysis: Any
) -> Iterator[Any]:
    """Yield BM25 with each k1 and b, over passages, or over those of each of several data sets."""
    from drkit.search.bm25 import Bm25Retriever

    if isinstance(passages, Mapping):
        from drkit.search.data_sets import SeparateBm25

        return SeparateBm25.variants(passages, pairs, **analysis)
    return Bm25Retriever.variants(passages, pairs, **analysis)


def _choose_pair(
    passages: Iterable[Passage] | Mapping[str, Iterable[Passage]],
    parameters: Sequence[_Pair],
    analysis: Mapping[str, str],
    evaluated: Callable[[Any], Scores],
    measure: str,
    on_progress: Callable[[int], None] | None,
) -> tuple[Any, _Pair, dict[_Pair, Scores], PlainChoice[_Pair]]:
    """Return BM25 with the chosen k1 and b, this pair, the scores of all, and the choice.

    The index of the best pair so far is kept, and that of no other one: if the first pair is chosen, it is made again.
    """
    scores, best, choice = dict[_Pair, Scores](), list[tuple[_Pair, Any]](), list[PlainChoice[_Pair]]()

    def pairs() -> Iterator[_Pair]:
        yield from parameters
        if best[0][0] != choice[0].chosen:
            yield choice[0].chosen

    for number, retriever in enumerate(_variants(passages, pairs(), **analysis)):
        pair = parameters[number] if number < len(parameters) else choice[0].chosen
        if number < len(parameters):
            scores[pair] = evaluated(retriever)
            choice[:] = [_choose_by(scores, measure)]
            if on_progress:
                on_progress(number + 1)
        if pair == choice[0].best or number == len(parameters):
            best[:] = [(pair, retriever)]
        del retriever  # the next one is made meanwhile
    return best[0][1], best[0][0], scores, choice[0]


def _choose_by(scores: Mapping[Candidate, Scores], measure: str) -> PlainChoice[Candidate]:
    return choose_plainly({candidate: one.per_query[measure] for candidate, one in scores.items()})
