"""From a recipe to its plan: the stages of a run, in order, each with what it depends on.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> initial -> pretrained
               -> negatives-1 -> no-pretraining, retriever-1 -> index-retriever-1 -> negatives-2 -> retriever-2
               -> encoder -> index -> runs -> evaluation -> report

No torch here: `--dry-run` prints this.
"""

from __future__ import annotations

from attrs import frozen

from drkit.core.recipe import Finetune, Recipe
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.write import recipe_table
from drkit.errors import DrkitError
from drkit.runs import estimate
from drkit.runs.drafting import STAGES, Draft, lasting
from drkit.runs.plan_encoder import plan_encoder, plan_texts
from drkit.runs.stage import Stage

BASELINE = "no-pretraining"
_TRAININGS = (f"{STAGES}.pretrain:run", f"{STAGES}.finetune:run")


@frozen
class Plan:
    """The stages of a run, each after those it needs, and what the user should know before it starts."""

    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()


def plan(recipe: Recipe, registry: Registry) -> Plan:
    """The plan of a recipe; asks the collection for its splits, so DrkitError where its files are missing."""
    splits = registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config).splits()
    draft = Draft(recipe, recipe_table(recipe))
    notes: list[str] = []
    plan_texts(draft)
    last = plan_encoder(draft, registry)
    systems = [last]
    if recipe.finetune and "train" in splits:
        systems = _rounds(draft, recipe.finetune, start=last)
    elif recipe.finetune:
        notes.append(_no_training_queries(recipe, splits))
    _export(draft, systems[-1])
    if splits:
        _evaluation(draft, systems, splits)
    _report(draft)
    return Plan(tuple(draft.stages.values()), tuple(notes))


def _no_training_queries(recipe: Recipe, splits: tuple[str, ...]) -> str:
    name = recipe.collection.use
    if not splits:
        return f"collection {name!r} has texts alone: the run ends with the pre-trained encoder"
    return (
        f"collection {name!r} has no training queries (splits: {', '.join(splits)}): no fine-tuning, the pre-trained "
        f"encoder is evaluated as it is; --set collection.train_share=0.5 trains on half of the queries"
    )


def _rounds(draft: Draft, finetune: Finetune, *, start: str) -> list[str]:
    """A retriever a round, and the one without pre-training beside the first; returns their names."""
    systems: list[str] = []
    previous = ""
    for place, current in enumerate(finetune.rounds):
        negatives = _negatives(draft, place, previous) if current.miner and finetune.negatives else ""
        if place == 0 and finetune.baseline and start != "initial":
            systems.append(_retriever(draft, finetune, name=BASELINE, start="initial", negatives=negatives))
        origin = previous if current.start == "previous" and previous else start
        systems.append(_retriever(draft, finetune, name=current.name, start=origin, negatives=negatives))
        previous = current.name
    return systems


def _negatives(draft: Draft, place: int, previous: str) -> str:
    miner = draft.table["finetune"]["rounds"][place]["miner"]
    needs: tuple[str, ...] = ("collection",)
    if previous:
        needs += (previous, _index(draft, previous))
    return draft.add(
        f"negatives-{place + 1}",
        "negatives",
        f"hard negatives by {miner['use']}",
        needs,
        settings={"miner": miner, "round": place, "seed": draft.recipe.seed},
    )


def _retriever(draft: Draft, finetune: Finetune, *, name: str, start: str, negatives: str) -> str:
    return draft.add(
        name,
        "finetune",
        f"fine-tune {'without pre-training' if name == BASELINE else f'from {start}'}, {estimate.schedule(finetune)}",
        ("collection", "tokens", start, *((negatives,) if negatives else ())),
        settings={
            "finetune": lasting(draft.table["finetune"], "rounds", "baseline"),
            "start": start,
            "negatives": negatives,
            "pooling": draft.recipe.encoder.pooling,
            "seed": draft.recipe.seed,
        },
        resumable=True,
        joint=True,
        cost=estimate.finetuning(draft.recipe),
    )


def _index(draft: Draft, encoder: str) -> str:
    return draft.add(
        "index" if encoder == "encoder" else f"index-{encoder}",
        "index",
        f"encode all passages with {encoder}",
        ("collection", "tokens", encoder),
        settings={"encoder": encoder, "similarity": draft.recipe.similarity},
        cost=estimate.encoding(draft.recipe),
    )


def _export(draft: Draft, last: str) -> None:
    draft.add(
        "encoder",
        "export",
        f"the encoder folder, made from {last}",
        ("vocabulary", last),
        settings={"from": last, "pooling": draft.recipe.encoder.pooling, "similarity": draft.recipe.similarity},
    )


def _evaluation(draft: Draft, systems: list[str], splits: tuple[str, ...]) -> None:
    wanted = draft.recipe.evaluation
    if wanted.split not in splits:
        raise DrkitError(
            f"the collection has no {wanted.split} queries to evaluate on; it has {', '.join(splits)}: "
            f"--set evaluation.split={splits[-1]}"
        )
    # The last system is the one that is exported, so its index is the run's own.
    encoders = {name: "encoder" if name == systems[-1] else name for name in systems}
    indexes = {name: _index(draft, encoder) for name, encoder in encoders.items()}
    draft.add(
        "runs",
        "search",
        f"search for the {wanted.split} queries",
        ("collection", *encoders.values(), *indexes.values()),
        settings={
            "systems": {name: [encoders[name], indexes[name]] for name in systems},
            "depth": wanted.depth,
            "split": wanted.split,
            "bm25": wanted.bm25,
        },
    )
    draft.add(
        "evaluation",
        "evaluate",
        ", ".join(wanted.measures),
        ("collection", "runs"),
        settings={
            "measures": list(wanted.measures),
            "split": wanted.split,
            "systems": [*(["bm25"] if wanted.bm25 else []), *systems],
        },
    )


def _report(draft: Draft) -> None:
    """Last: it reads what the trainings logged and the evaluation found."""
    trainings = [name for name, stage in draft.stages.items() if stage.target in _TRAININGS]
    draft.add(
        "report",
        "report",
        "curves, tables, and whether pre-training works",
        (*trainings, *(("evaluation",) if "evaluation" in draft.stages else ())),
        settings={"trainings": trainings},
    )
