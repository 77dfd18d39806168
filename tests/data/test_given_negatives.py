"""Negatives that come with a collection: kept, checked, and never a positive."""

from __future__ import annotations

import pytest
from attrs import field, frozen

from drkit.core.types import Judgement, Passage, Query
from drkit.data import open_collection, write_collection
from drkit.errors import DrkitError


@frozen
class Dropping:
    unknown_judgements: str = "drop"


@frozen(eq=False)
class Given:
    """Five passages, two queries; negatives as the test says."""

    pairs: tuple[tuple[str, str], ...]
    config: object = None
    relevances: dict = field(factory=lambda: {("a", "0"): 1, ("a", "4"): 0, ("b", "1"): 2})
    name: str = "given"

    def passages(self):
        return (Passage(str(i), f"text {i}") for i in range(5))

    def splits(self):
        return ("train",)

    def queries(self, split):
        return iter([Query("a", "one"), Query("b", "two")])

    def judgements(self, split):
        return (Judgement(q, d, relevance) for (q, d), relevance in self.relevances.items())

    def negatives(self, split):
        return iter(self.pairs)

    def describe(self):
        return {}


def test_they_are_kept_in_order_each_once_and_judged_ones_follow(tmp_path):
    counts = write_collection(Given((("a", "3"), ("a", "1"), ("a", "3"), ("b", "0"))), tmp_path)
    assert counts["negatives"] == {"train": 4}
    assert open_collection(tmp_path).negatives("train") == {"a": ["3", "1", "4"], "b": ["0"]}
    assert open_collection(tmp_path).negatives("test") == {}


def test_a_positive_is_never_given_as_a_negative(tmp_path):
    write_collection(Given((("a", "0"), ("b", "1"), ("b", "2"))), tmp_path)
    assert open_collection(tmp_path).negatives("train") == {"b": ["2"], "a": ["4"]}


def test_unknown_ids_are_refused_and_counted(tmp_path):
    unknown = Given((("a", "3"), ("a", "nine"), ("c", "1")))
    with pytest.raises(DrkitError, match="2 negative") as error:
        write_collection(unknown, tmp_path)
    assert "passage 'nine' @ train negatives row 2" in str(error.value)
    assert "query 'c' @ train negatives row 3" in str(error.value)
    counts = write_collection(Given(unknown.pairs, Dropping()), tmp_path)
    assert (counts["negatives"], counts["dropped_negatives"]) == ({"train": 1}, 2)


def test_a_collection_without_them_leaves_none_behind(tmp_path):
    write_collection(Given((("a", "3"),)), tmp_path)

    class Plain:
        """The same without a method `negatives`."""

        def __init__(self):
            self._all = Given((), relevances={("a", "0"): 1})
            self.name = "plain"
            for name in ("passages", "splits", "queries", "judgements", "describe"):
                setattr(self, name, getattr(self._all, name))

    assert "negatives" not in write_collection(Plain(), tmp_path)
    assert open_collection(tmp_path).negatives("train") == {}
