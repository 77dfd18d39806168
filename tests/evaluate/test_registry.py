"""Every measure of ir_measures: its own number on random judgements, or the engine that is missing."""

from __future__ import annotations

import math

import ir_measures
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drkit.core.types import Judgement
from drkit.errors import DrkitError
from drkit.evaluate import check_measures, evaluate

# Values of every parameter that a measure of the registry has; absent: its default.
VALUES = {
    "T": (2.0,),
    "alpha": (0.2,),
    "beta": (0.4,),
    "cutoff": (1, 5, 20),
    "dcg": ("exp-log2",),
    "gains": ({1: 3, 3: 9},),
    "judged_only": (True,),
    "max_rel": (4,),
    "min_rel": (1,),
    "normalize": (False,),
    "p": (0.5,),
    "recall": (0.0, 0.25, 1.0),
    "rel": (1, 2),
    "relative": (True,),
}
DOCS = [f"d{i}" for i in range(30)]


def variants(name):
    """The names of a measure with its required parameters, and with each other parameter in turn."""
    measure = ir_measures.measures.registry[name]
    required = {key: VALUES[key][0] for key, spec in measure.SUPPORTED_PARAMS.items() if spec.required}
    yield str(measure(**required))
    for key in measure.SUPPORTED_PARAMS:
        yield from (str(measure(**{**required, key: value})) for value in VALUES[key])
    if "cutoff" in measure.SUPPORTED_PARAMS:
        deep = {**required, "cutoff": 7}
        yield from (str(measure(**{**deep, key: VALUES[key][0]})) for key in measure.SUPPORTED_PARAMS)


def is_valid(name):
    """Whether a measure has a parameter of this value."""
    try:
        ir_measures.parse_measure(name).validate_params()
    except AssertionError:
        return False
    return True


NAMES = sorted({one for name in ir_measures.measures.registry for one in variants(name) if is_valid(one)})
GRADES = st.dictionaries(st.sampled_from(DOCS), st.integers(-1, 4), min_size=1, max_size=12)
RANKED = st.permutations(DOCS).flatmap(lambda docs: st.integers(1, len(docs)).map(lambda count: docs[:count]))
SUBTOPICS = {doc: ("1", "2", "12", "23")[i % 4] for i, doc in enumerate(DOCS)}


def is_available(name):
    try:
        check_measures([name])
    except DrkitError as error:
        return str(error)
    return ""


REASONS = {name: is_available(name) for name in NAMES}
AVAILABLE = [name for name in NAMES if not REASONS[name]]


def diversity(grades):
    """Judgements of each document for one or two subtopics."""
    return [Judgement("1", doc, grade, subtopic) for doc, grade in grades.items() for subtopic in SUBTOPICS[doc]]


def test_every_name_of_the_registry_is_tried():
    assert {name.partition("(")[0].partition("@")[0] for name in NAMES} == {
        one.NAME for one in ir_measures.measures.registry.values()
    }
    assert len(AVAILABLE) > 80


@pytest.mark.parametrize("name", [name for name in NAMES if REASONS[name]])
def test_a_measure_that_is_not_computed_says_why(name):
    engines = [
        one
        for one in ir_measures.DefaultPipeline.providers
        if one.supports(ir_measures.parse_measure(name)) and not one.is_available()
    ]
    if engines:
        assert f"{name!r} needs an engine" in REASONS[name]
        assert all(engine.install_instructions() in REASONS[name] for engine in engines)
    else:
        assert "no engine of ir_measures computes" in REASONS[name] or "at a cutoff of at most 20" in REASONS[name]


@pytest.mark.parametrize("name", AVAILABLE)
@settings(max_examples=25)
@given(st.data())
def test_a_measure_has_the_value_of_ir_measures(name, data):
    grades, ranked = data.draw(GRADES), data.draw(RANKED)
    assume(max(grades.values()) >= 0)  # else trec_eval reads past its arrays
    measure = ir_measures.parse_measure(name)
    run = {"1": {doc: float(len(ranked) - rank) for rank, doc in enumerate(ranked)}}
    judged = [Judgement("1", doc, grade) for doc, grade in grades.items()]
    if not ir_measures.DefaultPipeline.supports(measure):
        # Computed by drkit alone: on the judged hits, as other measures with `judged_only` are.
        assert measure.params.get("judged_only") or measure.NAME in ("ERR", "nDCG", "NumRel")
        return
    if ir_measures.pyndeval.supports(measure):
        judged = diversity(grades)
        assume(any(SUBTOPICS[doc] == "12" or SUBTOPICS[doc] == "23" for doc in grades))
        if measure.params.get("judged_only"):  # ir_measures stops with an error
            run["1"] = {doc: score for doc, score in run["1"].items() if grades.get(doc, -1) >= 0}
            measure = measure(judged_only=False)
    qrels = [ir_measures.Qrel(*pair) for pair in ((j.query_id, j.doc_id, j.relevance, j.subtopic) for j in judged)]
    if measure.NAME == "nDCG" or measure.NAME == "RR":  # some of their engines take a negative grade for a gain
        qrels = [one for one in qrels if one.relevance >= 0]
    found = evaluate(run_rows(run, ranked), judged, [name]).per_query[name]["1"]
    if measure.NAME == "Accuracy":
        cut = ranked[: measure.params.get("cutoff", len(ranked))]
        relevant = [grades.get(doc, -1) >= measure["rel"] for doc in cut]
        if not any(relevant) or all(relevant):  # ir_measures leaves the query out, or divides by 0
            assert found == float(any(relevant))
            return
    expected = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)} if run["1"] else {}
    value = float(expected.get("1", 0.0))  # IPrec without judged hits is NaN
    rounded = ir_measures.gdeval.supports(measure)
    assert found == pytest.approx(0.0 if math.isnan(value) else value, abs=5.1e-6 if rounded else 1e-9)


def run_rows(run, ranked):
    """The same ranking, with scores below 0."""
    return [("1", [(doc, -1.0 - rank) for rank, doc in enumerate(ranked)])]
