"""Stage: choose the retriever that the run exports, by its main measure on the dev queries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import write_text
from drkit.recipe.toml import json_text
from drkit.runs.stage import StageRun, StageSpec, from_recipe

CHOICE, CHOSEN = "choice.json", "chosen.txt"


@frozen
class ChoiceSettings:
    """The retrievers to choose from, in the order of the table, and the measure that decides."""

    candidates: tuple[str, ...]
    measure: str
    exclude_self: bool = from_recipe("evaluation.exclude_self")


def run(stage: StageRun[ChoiceSettings]) -> Mapping[str, Any]:
    """Write `choice.json`: the chosen retriever, and the value of each; returns the same.

    Of equal retrievers the earlier one is chosen. `chosen.txt` has only the name, so that other values repeat the
    export only if the choice changes.
    """
    from drkit.data.corpus import collection_of
    from drkit.evaluate import evaluate
    from drkit.search import read_run

    settings, runs = stage.settings, stage.inputs["runs"]
    judgements = list(collection_of({"dev": stage.inputs["judged"]}).judgements("dev"))
    rankings = {name: read_run(runs / f"{name}.trec") for name in settings.candidates}
    values = {
        name: evaluate(found, judgements, [settings.measure], exclude_self=settings.exclude_self).mean(settings.measure)
        for name, found in rankings.items()
    }
    choice = {
        "chosen": max(values, key=lambda name: values[name]),
        "last": settings.candidates[-1],
        "measure": settings.measure,
        "queries": len({judgement.query_id for judgement in judgements}),
        "values": values,
    }
    write_text(stage.folder / CHOICE, json_text(choice))
    write_text(stage.folder / CHOSEN, str(choice["chosen"]))
    stage.progress.note(describe_choice(choice))
    return choice


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Return in words which retriever is exported, and why.

    >>> choice = {"chosen": "as-it-is", "last": "retriever-1", "measure": "RR@10", "queries": 9}
    >>> describe_choice({**choice, "values": {"as-it-is": 0.5, "retriever-1": 0.25}})
    'exported: as-it-is, the best of 2 retrievers on 9 dev queries (RR@10 0.500; retriever-1, the last, 0.250)'
    """
    chosen, last, values, measure = (choice[key] for key in ("chosen", "last", "values", "measure"))
    against = "the last" if chosen == last else f"{last}, the last, {values[last]:.3f}"
    return (
        f"exported: {chosen}, the best of {len(values)} retrievers on {choice['queries']:,} dev queries "
        f"({measure} {values[chosen]:.3f}; {against})"
    )


def chosen_input(inputs: Mapping[str, Path], kind: str) -> Path:
    """Return the input `KIND/NAME` of the chosen retriever, or the only one if there is no choice."""
    named = {name.partition("/")[2]: path for name, path in inputs.items() if name.startswith(f"{kind}/")}
    if "choice" not in inputs:
        (only,) = named.values()
        return only
    return named[inputs["choice"].read_text(encoding="utf-8")]


CHOOSE = StageSpec(
    name="choice",
    version=1,
    settings=ChoiceSettings,
    run=run,
    inputs={"judged": "the dev split of the collection", "runs": "the retrievers' rankings of the dev queries"},
)
