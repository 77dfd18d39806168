"""Plan a run: from a recipe to its stages, in order, with the inputs that each stage reads from earlier ones.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> [pseudo-queries] -> initial -> pretrained
               -> negatives, labels-only, retriever-1 -> index-retriever-1 -> negatives -> retriever-2
               -> [index-retriever-2 -> negatives -> reranker -> teacher -> retriever-3]
               -> [choice-runs -> choice] -> encoder, index, bm25, runs, dev-runs -> hybrid -> evaluation

`plan` walks through the recipe once, front to back. Each step adds its stages to a `PlanBuilder` and names the stages
before it as inputs, so the order of adding is an order of execution. A file of `drkit/runs/stages` declares the stages
of a part of the run and adds them; here is the order of these parts, and what is exported.

Price: time and memory O(stages), besides reading the splits and first rows of the collection: some 20 ms for the 31
stages of SimLM's three-stage pipeline. Imports no torch, so that `--dry-run` is quick.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from attrs import frozen

from drkit.core.files import local_path
from drkit.core.protocols import Collection
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.data.preview import reading_notes, title_note
from drkit.data.special_tokens import AUTO, NEW, mask_token_in
from drkit.data.splits import PSEUDO
from drkit.encoders.architectures import check_start_model
from drkit.encoders.card import PROMPTS
from drkit.encoders.declarations import MODULES
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate import check_measures
from drkit.evaluate.names import AS_IT_IS, INITIAL, system_in_words
from drkit.recipe.check import unread_choices
from drkit.recipe.evaluation import PROVEN
from drkit.recipe.lora import plan_lora
from drkit.recipe.parts import required_capabilities, required_signals
from drkit.recipe.schema import PRETRAINED, Recipe
from drkit.recipe.start import declared_settings_of
from drkit.runs.stage import PlanBuilder, Stage, StageOutput
from drkit.runs.stages import stage_folders
from drkit.runs.stages.evaluation import (
    Exported,
    plan_choice,
    plan_evaluation,
    plan_hybrid,
    plan_untuned_hybrid,
)
from drkit.runs.stages.finetune import plan_rounds
from drkit.runs.stages.parts import plan_part, plan_unread_parts
from drkit.runs.stages.pretrain import plan_kept, plan_pretraining
from drkit.runs.stages.queries import plan_contexts, plan_pseudo_queries
from drkit.runs.stages.retriever import (
    CHOSEN,
    CHOSEN_INDEX,
    EXPORT,
    PlannedSystem,
    add_index,
    is_read_alike,
    plan_start,
    reading_of,
)
from drkit.runs.stages.start import plan_initial
from drkit.runs.stages.texts import plan_texts


@frozen
class Plan:
    """The stages of a run, each after those that it needs, its collection, and notes for the user before it starts."""

    stages: tuple[Stage[Any], ...]
    collection: Collection
    notes: tuple[str, ...] = ()


def plan(recipe: Recipe, registry: Registry, collection: Collection | None = None) -> Plan:
    """Return the plan of a recipe; reads the splits of its collection and the first rows of its files.

    collection: that of the recipe; None: it is built. Raises DrkitError if these cannot be read, files of the
    collection or a run file to mine are missing, or a measure does not exist.
    """
    _refuse_stage_names(recipe)
    check_measures(recipe.evaluation.measures, has_subtopics=False)
    if recipe.finetune:
        check_measures([recipe.finetune.validation.measure], has_subtopics=False)
    if collection is None:
        collection = registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config)
    builder = PlanBuilder(recipe, registry, collection)
    splits = builder.splits
    builder.notes.extend(reading_notes(collection))
    builder.notes.extend(title_note(collection, recipe.encoder.titles))
    builder.when_read.update({name: partial(plan_part, name=name) for name in recipe.stages or {}})
    builder.when_read[INITIAL] = plan_initial
    plan_texts(builder)
    last = _plan_encoder(builder)
    builder.notes.extend(_pretraining_notes(recipe, registry))
    builder.notes.extend(_prompt_notes(recipe))
    builder.notes.extend(plan_lora(recipe, is_tuned=bool(builder.rounds)))
    if recipe.pseudo_queries and recipe.pseudo_queries.searches_with_encoder:
        retriever = {"encoder": StageOutput(last), "index": StageOutput(add_index(builder, last, "mined"))}
        plan_pseudo_queries(builder, recipe.pseudo_queries, retriever)
    systems = plan_start(builder) if splits and recipe.evaluation.start else []
    rounds = plan_rounds(builder, start=last) if builder.rounds else []
    has_start = systems and (INITIAL in systems[0].stages or is_read_alike(builder))
    is_new = last != INITIAL or not has_start
    if is_new and (not rounds or (recipe.evaluation.pretrained and last != INITIAL)):
        systems += [PlannedSystem(name, (name,)) for name in (*(recipe.pretrain.kept if recipe.pretrain else ()), last)]
    systems += rounds
    plan_unread_parts(builder)
    if recipe.finetune and len(builder.rounds) < len(recipe.finetune.rounds):
        builder.notes.insert(0, _no_training_queries(builder))  # what the run will not do comes first
    ranked = [system for system in systems if not system.reranks]
    retrievers = [stage for system in ranked for stage in system.folds or system.stages]
    if splits and recipe.evaluation.export == PROVEN:
        plan_evaluation(builder, systems, retrievers, exported=None)
        exported = _plan_chosen(builder, [system.stages[0] for system in ranked], "choice")
        if recipe.evaluation.bm25 and recipe.evaluation.hybrid:
            plan_hybrid(builder, exported)
        return Plan(tuple(builder.stages.values()), collection, tuple(builder.notes))
    exported = _plan_export(builder, [system.stages[0] for system in ranked])
    if splits:
        plan_evaluation(builder, systems, retrievers, exported)
    elif builder.rounds and recipe.evaluation.bm25 and recipe.evaluation.hybrid:
        plan_untuned_hybrid(builder, exported)
    return Plan(tuple(builder.stages.values()), collection, tuple(builder.notes))


def _refuse_stage_names(recipe: Recipe) -> None:
    """Raise ProblemsError for rounds and stages of plugins that have the name of another stage's folder."""
    folders = stage_folders()
    names = [one.name for one in recipe.finetune.rounds] if recipe.finetune else []
    problems = [
        f"a round cannot be named {name!r}: its name becomes a folder beside the run's other stages. Use none of "
        f"{', '.join(folders)} @ finetune.rounds"
        for name in names
        if any(fnmatchcase(name, folder) for folder in folders)
    ]
    baselines = recipe.finetune.baselines if recipe.finetune else ()
    problems += [
        f"a stage cannot be named {name!r}, which is the folder of another stage of the run; rename it @ stages"
        for name in recipe.stages or {}
        if name in (*names, *baselines) or any(fnmatchcase(name, folder) for folder in folders)
    ]
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def _plan_encoder(builder: PlanBuilder) -> str:
    """Add the stages up to the encoder that fine-tuning starts from; returns the name of the last one."""
    recipe, registry = builder.recipe, builder.registry
    signals, required = required_signals(recipe.pretrain, registry), required_capabilities(recipe.pretrain, registry)
    texts = plan_contexts(builder, signals, required)
    if recipe.pseudo_queries and not recipe.pseudo_queries.searches_with_encoder:
        plan_pseudo_queries(builder, recipe.pseudo_queries)
    plan_initial(builder)
    pretrain = recipe.pretrain
    if pretrain is None:
        return INITIAL
    name = plan_pretraining(builder, PRETRAINED, pretrain, texts)
    for step in pretrain.keep_steps or ():
        plan_kept(builder, name, step)
    return name


def _pretraining_notes(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield warnings about choices that pre-training ignores, or that rarely help."""
    if recipe.pretrain is None:
        return
    yield from unread_choices(recipe.pretrain, registry)
    encoder, start = recipe.encoder, recipe.encoder.pretrained
    found = check_start_model(start, causal=True) if start else None
    if start and (encoder.mask_token != AUTO or (found and found.is_causal)):
        token = mask_token_in(local_path(start), encoder.mask_token)
        where = "a word that the vocabulary gets" if encoder.mask_token == NEW else "--set encoder.mask_token=TOKEN"
        yield f"hidden tokens are read as {token or encoder.mask_token} ({where})"
    if _starts_from_sentence_encoder(recipe):
        yield (
            "pre-training starts from a sentence encoder, which has no language-model head any more; where this was "
            "measured, it did not improve retrieval, and did harm without labels (RR@10 .537 to .501 on cranfield, "
            "docs/experiments/real-encoder.md). --set pretrain=none fine-tunes the encoder at once"
        )


def _prompt_notes(recipe: Recipe) -> Iterator[str]:
    """Yield a note for prompts that an encoder of sentences does not declare."""
    if recipe.encoder.pretrained is None or not _starts_from_sentence_encoder(recipe):
        return
    declared = declared_settings_of(local_path(recipe.encoder.pretrained))
    known = declared.settings if declared else {}
    added = [name for name in PROMPTS if getattr(recipe.encoder, name) and not known.get(name)]
    if added:
        prompts = ", ".join(f"{name} = {getattr(recipe.encoder, name)!r}" for name in added)
        yield (
            f"{recipe.encoder.pretrained} declares no such prompt: {prompts}. An encoder that was not trained with a "
            f"prompt finds less with it (docs/guide/encoders.md has figures)"
        )


def _no_training_queries(builder: PlanBuilder) -> str:
    """Return the note that rounds are left out. Raises DrkitError if their pipeline was chosen by name."""
    recipe, splits = builder.recipe, builder.splits
    pipeline = recipe.finetune.pipeline if recipe.finetune else ""
    name, instead = recipe.collection.use, "--pipeline texts makes training queries from the passages"
    if pipeline:
        found = f"only {', '.join(splits)} queries" if splits else "only texts"
        raise DrkitError(
            f"the pipeline {pipeline!r} needs training queries, but collection {name!r} has {found}: {instead}"
            f"{', and --set collection.train_share=0.5 trains on half of the test queries' * ('test' in splits)}"
        )
    if builder.rounds:
        return (
            f"collection {name!r} has no training queries: the run ends with the round {builder.rounds[-1].name!r}, "
            f"which needs none. {instead} for more rounds."
        )
    if not splits:
        return f"collection {name!r} has only texts: the run ends with the pre-trained encoder. {instead}."
    return (
        f"collection {name!r} has no training queries (splits: {', '.join(splits)}): the pre-trained encoder is "
        f"evaluated without fine-tuning. {instead}; --set collection.train_share=0.5 trains on half of the queries."
    )


def _plan_export(builder: PlanBuilder, candidates: list[str]) -> Exported:
    """Add the encoder folder and its index, of the best retriever on dev or of the last one."""
    evaluation, splits = builder.recipe.evaluation, builder.splits
    by_dev = evaluation.export == "best" and "dev" in splits and len(candidates) > 1
    if not by_dev and evaluation.export == "best" and _is_unproven(builder):
        if AS_IT_IS not in builder.stages:
            plan_start(builder)
        trained = [
            name for name, is_on in (("pretrain", builder.recipe.pretrain), ("finetune", builder.rounds)) if is_on
        ]
        method = "pseudo-queries" if builder.rounds else "pre-training"
        builder.notes.append(
            f"exported: {system_in_words(AS_IT_IS)}; no dev queries show that {method} "
            f"improved, and did not harm, an encoder that is trained already. --set evaluation.export=last exports "
            f"{candidates[-1]}; {' '.join(f'--set {name}=none' for name in trained)} leaves the training out"
        )
        candidates = [AS_IT_IS]
    elif not by_dev:
        if evaluation.export == "best" and len(candidates) > 1:
            builder.notes.append(
                f"exported: {candidates[-1]}, the last retriever; the collection has no dev queries to choose the best "
                f"one by"
            )
        candidates = candidates[-1:]
    return _plan_chosen(builder, candidates, plan_choice(builder, candidates) if by_dev else "")


def _plan_chosen(builder: PlanBuilder, candidates: list[str], chosen_by: str) -> Exported:
    """Add the encoder folder and its index, of the candidate that a stage chooses, or of the only one."""
    choice = {"choice": StageOutput(chosen_by, CHOSEN)} if chosen_by else {}
    origin = "the chosen retriever" if chosen_by else candidates[0]
    checkpoints = {f"checkpoint/{name}": StageOutput(name) for name in candidates}
    reading = {"reading": reading_of(builder)}
    builder.add("encoder", EXPORT, f"the encoder folder, made from {origin}", checkpoints | choice, extra=reading)
    if builder.splits or builder.rounds:
        indexes = {f"index/{name}": StageOutput(add_index(builder, name, "searched")) for name in candidates}
        builder.add("index", CHOSEN_INDEX, f"the index of {origin}", indexes | choice)
    return Exported(tuple(candidates), choice)


def _is_unproven(builder: PlanBuilder) -> bool:
    """Return whether a sentence encoder is trained without a label, and without queries that measure the gain.

    A run that only pre-trains on texts, without any queries, has no other product than what it trained.
    """
    recipe = builder.recipe
    is_pretrained = recipe.pretrain is not None and bool(builder.splits)
    learns_from_texts = all(one.pairs == PSEUDO for one in builder.rounds) and (bool(builder.rounds) or is_pretrained)
    compared = recipe.evaluation.start and "dev" not in builder.splits
    return _starts_from_sentence_encoder(recipe) and learns_from_texts and compared


def _starts_from_sentence_encoder(recipe: Recipe) -> bool:
    origin = recipe.encoder.pretrained
    return origin is not None and (local_path(origin) / MODULES).is_file()
