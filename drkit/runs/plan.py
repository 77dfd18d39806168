"""Plan a run: from a recipe to its stages, in order, with the inputs that each stage reads from earlier ones.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> [pseudo-queries] -> initial -> pretrained
               -> negatives, no-pretraining, retriever-1 -> index-retriever-1 -> negatives -> retriever-2
               -> [index-retriever-2 -> negatives -> reranker -> teacher -> retriever-3]
               -> encoder -> index -> runs -> evaluation -> report

Every stage declares its settings and inputs in a file of `drkit/runs/stages`; the plan fills them in from the recipe.
Imports no torch, so that `--dry-run` is quick.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.evaluate import check_measures
from drkit.recipe.schema import Recipe
from drkit.runs.draft import PASSAGES, Draft, queries_of, split_of
from drkit.runs.plan_encoder import plan_encoder, plan_texts
from drkit.runs.plan_rounds import System, add_index, plan_rounds, reading_of
from drkit.runs.stage import Part, Stage
from drkit.runs.stages.evaluate import EVALUATION
from drkit.runs.stages.export import EXPORT
from drkit.runs.stages.finetune import FINETUNE
from drkit.runs.stages.pretrain import PRETRAIN
from drkit.runs.stages.report import LOG, PROBES, REPORT, TRAINING, VALIDATION
from drkit.runs.stages.reranker import RERANKER
from drkit.runs.stages.search import SEARCH


@frozen
class Plan:
    """The stages of a run, each after those that it needs, and notes for the user before the run starts."""

    stages: tuple[Stage[Any], ...]
    notes: tuple[str, ...] = ()


def plan(recipe: Recipe, registry: Registry) -> Plan:
    """Return the plan of a recipe; builds the collection to read its splits.

    Raises DrkitError if files of the collection or a run file to mine are missing, or a measure does not exist.
    """
    check_measures(recipe.evaluation.measures)
    if recipe.finetune:
        check_measures([recipe.finetune.validation.measure])
    splits = tuple(registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config).splits())
    draft = Draft(recipe, registry, splits)
    notes: list[str] = []
    plan_texts(draft)
    last = plan_encoder(draft)
    systems = [System(last, (last,))]
    if recipe.finetune and (recipe.pseudo_queries or "train" in splits):
        systems = plan_rounds(draft, start=last)
    elif recipe.finetune:
        notes.append(_no_training_queries(recipe, recipe.finetune.pipeline, splits))
    exported = next(system for system in reversed(systems) if not system.reranks).stages[0]
    checkpoint = {"checkpoint": Part(exported)}
    draft.add(
        "encoder", EXPORT, f"the encoder folder, made from {exported}", checkpoint, extra={"reading": reading_of(draft)}
    )
    if splits:
        _plan_evaluation(draft, systems, exported)
    elif recipe.pseudo_queries:
        add_index(draft, "encoder", "searched")
    _plan_report(draft)
    return Plan(tuple(draft.stages.values()), tuple(notes))


def _no_training_queries(recipe: Recipe, pipeline: str, splits: tuple[str, ...]) -> str:
    """Return the note that fine-tuning is left out. Raises DrkitError if its pipeline was asked for."""
    name, instead = recipe.collection.use, "--pipeline texts makes training queries from the passages"
    if pipeline:
        found = f"only {', '.join(splits)} queries" if splits else "only texts"
        raise DrkitError(
            f"the pipeline {pipeline!r} needs training queries, but collection {name!r} has {found}: {instead}"
            f"{', and --set collection.train_share=0.5 trains on half of the test queries' * ('test' in splits)}"
        )
    if not splits:
        return f"collection {name!r} has only texts: the run ends with the pre-trained encoder. {instead}."
    return (
        f"collection {name!r} has no training queries (splits: {', '.join(splits)}): the pre-trained encoder is "
        f"evaluated without fine-tuning. {instead}; --set collection.train_share=0.5 trains on half of the queries."
    )


def _plan_evaluation(draft: Draft, systems: list[System], exported: str) -> None:
    evaluation, splits = draft.recipe.evaluation, draft.splits
    if evaluation.split not in splits:
        raise DrkitError(
            f"the collection has no {evaluation.split} queries to evaluate on (splits: {', '.join(splits)}); "
            f"choose another split: --set evaluation.split={splits[-1]}"
        )
    retrievers = [stage for system in systems if not system.reranks for stage in system.stages]
    reranked = {system.stages[0]: system.reranks for system in systems if system.reranks and evaluation.rerank}
    inputs = {"passages": PASSAGES, "queries": queries_of(evaluation.split)}
    for stage in retrievers:
        encoder = "encoder" if stage == exported else stage  # the index of the exported encoder is the index of the run
        inputs[f"encoder/{stage}"] = Part(encoder)
        inputs[f"index/{stage}"] = Part(add_index(draft, encoder, "searched"))
    inputs |= {f"reranker/{stage}": Part(stage) for stage in reranked}
    draft.add(
        "runs",
        SEARCH,
        f"search for the {evaluation.split} queries",
        inputs,
        extra={
            "retrievers": tuple(retrievers),
            "reranked": reranked,
            "rerank_depth": draft.recipe.reranker.depth if draft.recipe.reranker and reranked else 0,
            "reading": reading_of(draft),
        },
    )
    shown = [system for system in systems if not system.reranks or evaluation.rerank]
    draft.add(
        "evaluation",
        EVALUATION,
        ", ".join(evaluation.measures),
        {"judged": split_of(evaluation.split), "runs": Part("runs")},
        extra={
            "systems": (*(["bm25"] if evaluation.bm25 else []), *(system.name for system in shown)),
            "draws": {system.name: system.stages for system in shown if len(system.stages) > 1},
        },
    )


def _plan_report(draft: Draft) -> None:
    """Add the report, which reads the logs of the trainings and the results of the evaluation."""
    trainings = [name for name, stage in draft.stages.items() if stage.spec in (PRETRAIN, FINETUNE, RERANKER)]
    inputs = {"results": Part("evaluation", "results.json")} if "evaluation" in draft.stages else {}
    for name in trainings:
        inputs |= {f"log/{name}": Part(name, LOG), f"training/{name}": Part(name, TRAINING)}
        if "dev" in draft.stages[name].inputs:
            inputs[f"validation/{name}"] = Part(name, VALIDATION, observed=True)
    if "pretrained" in draft.stages:
        inputs["probes"] = Part("pretrained", PROBES, observed=True)
    extra = {"trainings": tuple(trainings)}
    draft.add("report", REPORT, "curves, tables, and whether pre-training works", inputs, extra=extra)
