"""From a recipe to its plan: the stages of a run, in order, each with what it depends on.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> initial -> pretrained
               -> negatives, no-pretraining, retriever-1 -> index-retriever-1 -> negatives -> retriever-2
               -> [index-retriever-2 -> negatives -> reranker -> teacher -> retriever-3]
               -> encoder -> index -> runs -> evaluation -> report

No torch here: `--dry-run` prints this.
"""

from __future__ import annotations

from attrs import frozen

from drkit.core.recipe import Recipe
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.write import recipe_table
from drkit.errors import DrkitError
from drkit.evaluate import check_measures
from drkit.runs.plans.drafting import STAGES, Draft
from drkit.runs.plans.encoder import plan_encoder, plan_texts
from drkit.runs.plans.rounds import System, add_index, plan_rounds
from drkit.runs.stage import Stage

_DECLARED = ("pooling", "query_length", "passage_length", "query_prompt", "passage_prompt")
_TRAININGS = tuple(f"{STAGES}.{module}:run" for module in ("pretrain", "finetune", "reranker"))


@frozen
class Plan:
    """The stages of a run, each after those it needs, and what the user should know before it starts."""

    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()


def plan(recipe: Recipe, registry: Registry) -> Plan:
    """The plan of a recipe; asks the collection for its splits, so DrkitError where its files are missing.

    Also for a measure that does not exist, and a run file to mine that is not there.
    """
    check_measures(recipe.evaluation.measures)
    if recipe.finetune:
        check_measures([recipe.finetune.validation.measure])
    splits = registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config).splits()
    draft = Draft(recipe, recipe_table(recipe), registry)
    notes: list[str] = []
    plan_texts(draft)
    last = plan_encoder(draft)
    systems = [System(last, (last,))]
    if recipe.finetune and "train" in splits:
        systems = plan_rounds(draft, start=last, splits=splits)
    elif recipe.finetune:
        notes.append(_no_training_queries(recipe, splits))
    exported = next(system for system in reversed(systems) if not system.reranks).stages[0]
    _export(draft, exported)
    if splits:
        _evaluation(draft, systems, exported, splits)
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


def _export(draft: Draft, last: str) -> None:
    draft.add(
        "encoder",
        "export",
        f"the encoder folder, made from {last}",
        ("vocabulary", last),
        settings={"from": last, "similarity": draft.recipe.similarity, **_as_declared(draft)},
    )


def _as_declared(draft: Draft) -> dict[str, object]:
    """What the encoder's folder says of how texts are read."""
    encoder = draft.table["encoder"]
    return {name: encoder[name] for name in _DECLARED}


def _evaluation(draft: Draft, systems: list[System], exported: str, splits: tuple[str, ...]) -> None:
    wanted = draft.recipe.evaluation
    if wanted.split not in splits:
        raise DrkitError(
            f"the collection has no {wanted.split} queries to evaluate on; it has {', '.join(splits)}: "
            f"--set evaluation.split={splits[-1]}"
        )
    # The exported encoder is the last retriever, so its index is the run's own.
    retrievers = [stage for system in systems if not system.reranks for stage in system.stages]
    encoders = {stage: "encoder" if stage == exported else stage for stage in retrievers}
    indexes = {stage: add_index(draft, encoder, "searched") for stage, encoder in encoders.items()}
    reranked = [system for system in systems if system.reranks and wanted.rerank]
    needs = ["collection", *encoders.values(), *indexes.values(), *(s.stages[0] for s in reranked)]
    draft.add(
        "runs",
        "search",
        f"search for the {wanted.split} queries",
        tuple(dict.fromkeys(needs)),
        settings={
            "systems": {stage: [encoders[stage], indexes[stage]] for stage in retrievers},
            "reranked": {system.stages[0]: system.reranks for system in reranked},
            "rerank_depth": draft.recipe.reranker.depth if draft.recipe.reranker else 0,
            "depth": wanted.depth,
            "split": wanted.split,
            "bm25": wanted.bm25,
            "exclude_self": wanted.exclude_self,
        },
    )
    shown = [system for system in systems if not system.reranks or wanted.rerank]
    draft.add(
        "evaluation",
        "evaluate",
        ", ".join(wanted.measures),
        ("collection", "runs"),
        settings={
            "measures": list(wanted.measures),
            "split": wanted.split,
            "systems": [*(["bm25"] if wanted.bm25 else []), *(system.name for system in shown)],
            "draws": {system.name: list(system.stages) for system in shown if len(system.stages) > 1},
            "exclude_self": wanted.exclude_self,
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
