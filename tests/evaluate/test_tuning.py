"""Weights whose means differ by rounding alone are equally good."""

from __future__ import annotations

from drkit.core.types import Judgement
from drkit.evaluate import Scores, tune_weight, tuning


def test_the_order_in_which_values_are_added_chooses_no_weight(monkeypatch):
    """.1 + .2 + .3 is more than .3 + .2 + .1."""
    calls = []

    def measure(*_arguments, **_settings):
        calls.append(None)
        values = [0.1, 0.2, 0.3] if len(calls) <= 10 else [0.3, 0.2, 0.1]  # weights 0 to .45, and from .5
        return Scores({"P@10": dict(zip("abc", values, strict=True))})

    assert 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1
    monkeypatch.setattr(tuning, "evaluate", measure)
    rows = [(query, [("d", 1.0)]) for query in "abc"]
    assert tune_weight(rows, rows, [Judgement(query, "d", 1) for query in "abc"], "P@10").weight == 0.5
