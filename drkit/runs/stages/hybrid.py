"""Stage: fuse BM25's rankings with those of the exported retriever, with a weight tuned on dev queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.core.files import write_text
from drkit.recipe.toml import json_text
from drkit.runs.stage import StageRun, StageSpec, from_recipe
from drkit.runs.stages.choice import chosen_input
from drkit.search.fusion import WEIGHT

NAME = "hybrid"
RANKING = f"{NAME}.trec"
# The exported retriever's name in the search of the dev queries.
EXPORTED = "exported"
# The retriever's weight where no dev queries tune it. Where they do, .2 to .3 is best for retrievers trained without
# labels, and .3 to .6 alike for others (docs/experiments/default-run.md).
UNTUNED = 0.3


@frozen
class HybridSettings:
    """The measure that the retriever's weight is tuned for; None without dev queries."""

    measure: str | None
    depth: int = from_recipe("evaluation.depth")


def run(stage: StageRun[HybridSettings]) -> Mapping[str, Any]:
    """Write `hybrid.trec` and `weight.json`; returns the weight of the retriever, and how it was chosen."""
    from drkit.search import align, convex, read_run, write_run

    depth, ranking = stage.settings.depth, chosen_input(stage.inputs, "retriever")
    facts = {"retriever": ranking.stem, "depth": depth, **_weight(stage)}
    hits = align(read_run(stage.inputs["bm25"]), read_run(ranking))
    write_run(stage.folder / RANKING, convex(hits, facts["weight"], depth), tag=NAME)
    write_text(stage.folder / WEIGHT, json_text(facts))
    return facts


def _weight(stage: StageRun[HybridSettings]) -> dict[str, Any]:
    from drkit.data.corpus import collection_of
    from drkit.evaluate import tune_weight
    from drkit.search import read_run

    settings, inputs = stage.settings, stage.inputs
    judgements = list(collection_of({"dev": inputs["dev"]}).judgements("dev")) if settings.measure else []
    if settings.measure is None or not judgements:
        return {"weight": UNTUNED, "tuned": None}
    first, second = (read_run(inputs["dev-runs"] / name) for name in ("bm25.trec", f"{EXPORTED}.trec"))
    tuned = tune_weight(first, second, judgements, settings.measure)
    means = {f"{weight:g}": mean for weight, mean in tuned.means.items()}
    return {
        "weight": tuned.weight,
        "tuned": {"measure": tuned.measure, "queries": tuned.queries, "means": means},
    }


HYBRID = StageSpec(
    name="hybrid",
    version=3,
    settings=HybridSettings,
    run=run,
    inputs={
        "bm25": "BM25's rankings of the evaluated queries",
        "retriever/*": "a retriever's",
        "choice": "which retriever is exported, if there are several",
        "dev-runs": "the rankings of the dev queries by BM25 and the exported retriever",
        "dev": "the dev queries' judgements",
    },
)
