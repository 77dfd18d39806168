"""Measures by their ir_measures names, and the engines that compute what ranks and counts do not decide.

An engine gets one measure at a time, and hits whose scores are positive and differ: engines break ties differently,
some give a passage without a hit the score 0, and ir_measures hands diversity measures with different parameters an
exhausted run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.core.settings import MOST
from drkit.core.types import HIGHEST_GRADE, Judgement
from drkit.data.rows import batched
from drkit.errors import DrkitError, did_you_mean
from drkit.evaluate.ranks import is_by_rank

if TYPE_CHECKING:
    from drkit.search.rankings import Rankings

MEASURES = ("RR@10", "nDCG@10", "R@100", "R@1000")
# Capped recall, which ir_measures lacks.
CAPPED = re.compile(r"R_cap@([0-9]+)")
# Whose hits the engines of ir_measures get at once, as text.
QUERIES_AT_ONCE = 512
# Measures for which a negative grade is a judgement of its own; for all others, such a passage is unjudged.
_READ_NEGATIVE = ("infAP", "Judged")
# The deepest rank that pyndeval measures.
_DEEPEST_DIVERSITY = 20
_RANGES = {"T": (0, MOST), "alpha": (0, 1), "beta": (0, 1), "p": (0, 1), "recall": (0, 1), "rel": (1, MOST)}


def parse_measure(name: str) -> Any:
    """Return the measure of ir_measures by which a name is computed.

    Raises DrkitError for an unknown name, parameters that it does not have, and if its engine is not installed.
    """
    import ir_measures

    try:
        measure = ir_measures.parse_measure(CAPPED.sub(r"R@\1", name))
        measure.validate_params()
    except NameError:
        known = [*ir_measures.measures.registry, "R_cap"]
        raise _unknown(name, did_you_mean(re.split("[(@]", name)[0], known).removeprefix(";").strip()) from None
    except (ValueError, AssertionError, SyntaxError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise _unknown(name, str(error)) from None
    if problem := _wrong_parameter(measure):
        raise _unknown(name, problem)
    if not is_by_rank(measure):
        _check_engine(name, measure)
    return measure


# Measures as trec_eval and others spell them, and their names in ir_measures, with a cutoff where one is needed.
_FAMILIAR = {
    **dict.fromkeys(("recip_rank", "mrr", "rr"), ("RR", "")),
    **dict.fromkeys(("map", "map_cut", "ap", "mean_average_precision"), ("AP", "")),
    **dict.fromkeys(("ndcg", "ndcg_cut"), ("nDCG", "")),
    **dict.fromkeys(("recall", "r"), ("R", "100")),
    **dict.fromkeys(("precision", "prec", "p"), ("P", "10")),
    **dict.fromkeys(("success", "hit", "hits", "hit_rate", "hitrate", "accuracy", "acc", "top"), ("Success", "10")),
    **dict.fromkeys(("r_cap", "recall_cap"), ("R_cap", "100")),
}
_SPELLING = re.compile(r"([a-z_]+?)[_.@-]?(\d+)?")


def measure_instead(name: str) -> str:
    """Return the name of a measure that trec_eval or others spell otherwise; empty if it is unknown.

    >>> measure_instead("ndcg_cut_10"), measure_instead("recip_rank"), measure_instead("hit@1"), measure_instead("odd")
    ('nDCG@10', 'RR', 'Success@1', '')
    """
    found = _SPELLING.fullmatch(name.lower())
    if found is None or found[1] not in _FAMILIAR:
        return ""
    own, default = _FAMILIAR[found[1]]
    cutoff = found[2] or default
    return f"{own}@{cutoff}" if cutoff else own


def _unknown(name: str, reason: str) -> DrkitError:
    if (meant := measure_instead(name)) not in ("", name):
        reason = f"did you mean {meant!r}"
    shown = f" ({reason.rstrip('?')})" if reason else ""
    return DrkitError(
        f"unknown measure {name!r:.100}{shown:.300}; examples of valid names: {', '.join(MEASURES)}, P@5, AP, "
        f"Success@10, R_cap@100"
    )


def _wrong_parameter(measure: Any) -> str:
    """Say which parameter no engine can take; empty if all are fine."""
    params = measure.params
    if params.get("cutoff", 1) < 1:
        return "the cutoff must be at least 1"
    for key, value in params.items():
        low, high = (0, MOST) if measure.NAME == "SetF" else _RANGES.get(key, (-MOST, MOST))
        if isinstance(value, (int, float)) and not low <= value <= high:
            return f"{key} must be from {low:,} to {high:,}"
    if "max_rel" in params and params["max_rel"] <= measure["min_rel"]:
        return "max_rel must be above min_rel"
    if "recall" in params and round(params["recall"], 2) != params["recall"]:
        return "recall must have at most two decimals, with which trec_eval computes it"
    gains = params.get("gains", {})
    if not all(isinstance(gain, int) and 0 <= gain <= HIGHEST_GRADE for pair in gains.items() for gain in pair):
        return f"gains must map grades to whole numbers from 0 to {HIGHEST_GRADE:,}"
    return ""


def engine_of(measure: Any) -> Any:
    """Return the first provider of ir_measures that computes a measure and is installed, or None."""
    return next((one for one in _engines(measure) if one.is_available()), None)


def _engines(measure: Any) -> Iterator[Any]:
    import ir_measures

    return (one for one in ir_measures.DefaultPipeline.providers if one.supports(_on_judged_hits(measure)))


def _on_judged_hits(measure: Any) -> Any:
    """Return the measure that gives a measure with `judged_only` on hits that are all judged."""
    return measure(judged_only=False) if "judged_only" in measure.params else measure


def is_of_subtopics(measure: Any) -> bool:
    """Return whether a measure reads the subtopics of judgements (diversity measures, such as alpha_nDCG)."""
    import ir_measures

    supported = ir_measures.providers.registry["pyndeval"].SUPPORTED_MEASURES
    return any(one.NAME == measure.NAME for one in supported)


def _check_engine(name: str, measure: Any) -> None:
    """Raise DrkitError unless an engine that is installed computes a measure."""
    engine = engine_of(measure)
    if engine is None:
        raise DrkitError(_without_engine(name, measure))
    if is_of_subtopics(measure) and "cutoff" in measure.SUPPORTED_PARAMS:
        depth = measure.params.get("cutoff", MOST)
        if depth > _DEEPEST_DIVERSITY:
            raise DrkitError(
                f"the engine {engine.NAME} computes {measure.NAME} at a cutoff of at most {_DEEPEST_DIVERSITY}, got "
                f"{name!r}; use {measure.NAME}@{_DEEPEST_DIVERSITY}"
            )


def _without_engine(name: str, measure: Any) -> str:
    """Say what to install for a measure, or which parameters engines can compute."""
    missing = [(one.NAME, one.install_instructions() or "") for one in _engines(measure)]
    if missing:
        each = " or ".join(f"{engine} ({how})" for engine, how in missing)
        return f"the measure {name!r} needs an engine of ir_measures that is not installed: {each}"
    forms = dict.fromkeys(form for form in _forms(measure) if form)
    return (
        f"no engine of ir_measures computes {name!r}; it can be computed as {', '.join(forms)}"
        if forms
        else f"no engine of ir_measures computes {name!r}; choose another measure"
    )


def _forms(measure: Any) -> Iterator[str]:
    """Yield the parameters with which engines compute the measures of a name."""
    import ir_measures

    for engine in ir_measures.DefaultPipeline.providers:
        for one in engine.SUPPORTED_MEASURES:
            if one.NAME == measure.NAME:
                allowed = ", ".join(f"{key}={spec!r}" for key, spec in one.params.items())
                yield f"{one.NAME}({allowed}) by {engine.NAME}"


def hits_read(measure: Any) -> int | None:
    """Return the number of hits that a measure reads; None for all."""
    found = measure.params.get("cutoff")
    return None if found is None else int(found)


def measure_by_engine(
    measure: Any, rankings: Rankings, judged: Mapping[str, Mapping[str, int]], judgements: Iterable[Judgement]
) -> dict[str, float]:
    """Return the values of the judged queries, 0 without hits. Raises DrkitError for a value that is not finite.

    rankings: in order, and with judged hits alone if the measure is of these; judged: the grades of each query's
    passages; judgements: the same with their subtopics, which diversity measures read.
    """
    found, engine = dict.fromkeys(judged, 0.0), engine_of(measure)
    needed = {query for query, grades in judged.items() if max(grades.values()) >= 0 or measure.NAME == "Judged"}
    lists: dict[str, Sequence[Judgement]] = {}
    if is_of_subtopics(measure):
        lists = _by_query(judgements)
    depth = hits_read(measure)
    rows = [row for row, query in enumerate(rankings.query_ids) if query in needed and len(rankings.row(row)[0])]
    for some in batched(rows, QUERIES_AT_ONCE):
        top = {rankings.query_ids[row]: _without_ties(rankings.names(row, depth)) for row in some}
        qrels: Any = {query: _grades_read(measure, judged[query]) for query in top}
        if lists:
            qrels = list(_subtopic_qrels(lists, top))
        for result in engine.iter_calc([_on_judged_hits(measure)], qrels, top):
            found[result.query_id] = float(result.value)
    least = measure.params.get("rel", 1)
    for query, value in found.items():
        if np.isnan(value) and max(judged[query].values()) < least:
            found[query] = 0.0  # nNRBP divides by the best value
    wrong = next((query for query, value in found.items() if not np.isfinite(value)), None)
    if wrong is not None:
        raise DrkitError(
            f"the engine {engine.NAME} computes {found[wrong]} as {measure} of the query {wrong!r}; choose another "
            f"measure or other parameters"
        )
    return found


def _grades_read(measure: Any, grades: Mapping[str, int]) -> dict[str, int]:
    """Return the grades that an engine gets. trec_eval knows a single negative grade: judged, but not assessed."""
    if measure.NAME in _READ_NEGATIVE:
        return {doc_id: max(grade, -1) for doc_id, grade in grades.items()}
    return {doc_id: grade for doc_id, grade in grades.items() if grade >= 0}


def _subtopic_qrels(judgements: Mapping[str, Sequence[Judgement]], queries: Iterable[str]) -> Iterator[Any]:
    import ir_measures

    for query in queries:
        for one in judgements[query]:
            yield ir_measures.Qrel(query, one.doc_id, one.relevance, one.subtopic)


def _by_query(judgements: Iterable[Judgement]) -> dict[str, Sequence[Judgement]]:
    lists: dict[str, list[Judgement]] = {}
    for one in judgements:
        lists.setdefault(one.query_id, []).append(one)
    return dict(lists)


def _without_ties(doc_ids: Sequence[str]) -> dict[str, float]:
    """Return hits with scores that differ, above the 0 that some engines give to a passage that was not retrieved."""
    return dict(zip(doc_ids, np.arange(float(len(doc_ids)), 0.0, -1).tolist(), strict=True))
