"""The stage that chooses the retriever to export: the best on dev, never by chance."""

import json

import pytest

from drkit.core.types import Judgement, Passage, Query
from drkit.data import write_collection
from drkit.runs.making.retriever import choose, chosen_input
from drkit.runs.stages.retriever import CHOOSE, ChoiceSettings
from drkit.search import write_run
from tests.rerank.toys import stage_run


class Developed:
    """Two dev queries with one relevant passage each."""

    name = "developed"

    def passages(self):
        return iter([Passage("a", "an apple a day"), Passage("b", "bananas are berries")])

    def splits(self):
        return ("dev",)

    def queries(self, split):
        return iter([Query("q1", "apple"), Query("q2", "banana")])

    def judgements(self, split):
        return iter([Judgement("q1", "a", 1), Judgement("q2", "b", 1)])

    def describe(self):
        return {}


def ranking(*best):
    """The ranking of each query, by its first passage."""
    return [(f"q{n}", [(doc, 2.0), ("b" if doc == "a" else "a", 1.0)]) for n, doc in enumerate(best, start=1)]


RIGHT, HALF, WRONG = ranking("a", "b"), ranking("a", "a"), ranking("b", "a")


@pytest.mark.parametrize(
    ("rankings", "chosen", "values"),
    [
        ({"as-it-is": RIGHT, "one": HALF, "two": WRONG}, "as-it-is", [1.0, 0.75, 0.5]),
        ({"as-it-is": WRONG, "one": HALF, "two": RIGHT}, "two", [0.5, 0.75, 1.0]),
        # A gain of .25, with a standard error of as much.
        ({"as-it-is": HALF, "one": WRONG, "two": RIGHT}, "as-it-is", [0.75, 0.5, 1.0]),
        ({"as-it-is": HALF, "one": HALF, "two": HALF}, "as-it-is", [0.75, 0.75, 0.75]),
    ],
)
def test_the_best_on_dev_is_chosen_beyond_one_standard_error(rankings, chosen, values, tmp_path):
    collection, runs = tmp_path / "collection", tmp_path / "runs"
    for folder in (collection, runs):
        folder.mkdir()
    write_collection(Developed(), collection)
    for name, rows in rankings.items():
        write_run(runs / f"{name}.arrow", rows, tag=name)
    settings = ChoiceSettings(candidates=tuple(rankings), measure="RR@10", exclude_self=False, data_sets=())
    inputs = {"judged": collection / "dev", "runs": runs}
    choice = choose(stage_run(CHOOSE, tmp_path / "choice", inputs, settings))
    assert (choice["chosen"], list(choice["values"].values())) == (chosen, values)
    assert json.loads((tmp_path / "choice" / "choice.json").read_text()) == choice
    folders = {f"index/{name}": tmp_path / name for name in rankings}
    assert chosen_input({**folders, "choice": tmp_path / "choice/chosen.txt"}, "index") == tmp_path / chosen
