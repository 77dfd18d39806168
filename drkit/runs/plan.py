"""Plan a run: from a recipe to its stages, in order, with the inputs that each stage reads from earlier ones.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> [pseudo-queries] -> initial -> pretrained
               -> negatives, labels-only, retriever-1 -> index-retriever-1 -> negatives -> retriever-2
               -> [index-retriever-2 -> negatives -> reranker -> teacher -> retriever-3]
               -> [choice-runs -> choice] -> encoder, index, bm25, runs, dev-runs -> hybrid -> evaluation -> report

Every stage declares its settings and inputs in a file of `drkit/runs/stages`; the plan fills them in from the recipe.
Imports no torch, so that `--dry-run` is quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from drkit.core.files import LOG, TRAINING, local_path
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.encoders.folder import LEXICAL, MODULES
from drkit.encoders.pooling import PARTS
from drkit.errors import DrkitError
from drkit.evaluate import check_measures
from drkit.evaluate.measures import cutoff
from drkit.evaluate.names import AS_IT_IS, HYBRID_NAME, INITIAL, system_in_words
from drkit.recipe.check import unread_choices
from drkit.recipe.schema import INITIAL as FROM_INITIAL
from drkit.recipe.schema import LABELS_ONLY, PRETRAINED, PSEUDO, Recipe
from drkit.runs.plan_encoder import (
    PASSAGES,
    plan_encoder,
    plan_pseudo_queries,
    plan_texts,
    queries_of,
    split_of,
)
from drkit.runs.plan_rounds import PlannedSystem, add_index, plan_rounds, plan_start, reading_of, refuse_stage_names
from drkit.runs.stage import TRUNCATED, PlanBuilder, Stage, StageOutput
from drkit.runs.stages.evaluation import EVALUATION, EXPORTED, HYBRID, SEARCH, UNTUNED, UNTUNED_HYBRID
from drkit.runs.stages.finetune import FINETUNE
from drkit.runs.stages.pretrain import PRETRAIN
from drkit.runs.stages.report import FINETUNED, PROBES, REPORT, VALIDATION, WITH, WITH_PSEUDO, WITHOUT
from drkit.runs.stages.reranker import RERANKER
from drkit.runs.stages.retriever import BM25, CHOICE, CHOOSE, CHOSEN, CHOSEN_INDEX, EXPORT


@frozen
class Plan:
    """The stages of a run, each after those that it needs, and notes for the user before the run starts."""

    stages: tuple[Stage[Any], ...]
    notes: tuple[str, ...] = ()


@frozen
class _Exported:
    """The retrievers of which one is exported, what decides (no input: there is only one), and the outcome in words.

    outcome is empty if the dev queries decide.
    """

    candidates: tuple[str, ...]
    choice: Mapping[str, StageOutput]
    outcome: str


def plan(recipe: Recipe, registry: Registry) -> Plan:
    """Return the plan of a recipe; builds the collection to read its splits.

    Raises DrkitError if files of the collection or a run file to mine are missing, or a measure does not exist.
    """
    refuse_stage_names(recipe)
    check_measures(recipe.evaluation.measures)
    if recipe.finetune:
        check_measures([recipe.finetune.validation.measure])
    splits = tuple(registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config).splits())
    builder = PlanBuilder(recipe, registry, splits)
    plan_texts(builder)
    last = plan_encoder(builder)
    builder.notes.extend(_pretraining_notes(recipe, registry))
    if recipe.pseudo_queries and recipe.pseudo_queries.searches_with_encoder:
        retriever = {"encoder": StageOutput(last), "index": StageOutput(add_index(builder, last, "mined"))}
        plan_pseudo_queries(builder, recipe.pseudo_queries, retriever)
    systems = plan_start(builder) if splits and recipe.evaluation.start else []
    rounds = plan_rounds(builder, start=last) if builder.rounds else []
    is_new = last != INITIAL or not _is_read_alike(builder, systems)
    if is_new and (not rounds or (recipe.evaluation.pretrained and last != INITIAL)):
        systems += [PlannedSystem(name, (name,)) for name in (*_kept(recipe), last)]
    systems += rounds
    if recipe.finetune and len(builder.rounds) < len(recipe.finetune.rounds):
        builder.notes.insert(0, _no_training_queries(builder))  # what the run will not do comes first
    retrievers = [stage for system in systems if not system.reranks for stage in system.stages]
    exported = _plan_export(builder, [system.stages[0] for system in systems if not system.reranks])
    if splits:
        _plan_evaluation(builder, systems, retrievers, exported)
    elif builder.rounds and recipe.evaluation.bm25 and recipe.evaluation.hybrid:
        _plan_untuned_hybrid(builder, exported)
    _plan_report(builder, exported.outcome)
    return Plan(tuple(builder.stages.values()), tuple(builder.notes))


def _kept(recipe: Recipe) -> Mapping[str, int]:
    """Return the steps of pre-training whose checkpoints are kept, by their stages."""
    return recipe.pretrain.kept if recipe.pretrain else {}


def _pretraining_notes(recipe: Recipe, registry: Registry) -> Iterator[str]:
    """Yield what pre-training will not do as it may be expected."""
    if recipe.pretrain is None:
        return
    yield from unread_choices(recipe.pretrain, registry)
    if _starts_from_sentence_encoder(recipe):
        yield (
            "pre-training starts from a sentence encoder, which has no language-model head any more; where this was "
            "measured, it did not improve retrieval. --set pretrain=none fine-tunes the encoder at once"
        )


def _is_read_alike(builder: PlanBuilder, systems: list[PlannedSystem]) -> bool:
    """Return whether a system is the initial encoder with the recipe's pooling and lengths."""
    names = [system.name for system in systems]
    own = builder.stages[AS_IT_IS].settings.reading if AS_IT_IS in names else None
    return INITIAL in names or own == reading_of(builder)


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


def _plan_export(builder: PlanBuilder, candidates: list[str]) -> _Exported:
    """Add the encoder folder and its index, of the best retriever on dev or of the last one."""
    evaluation, splits, outcome = builder.recipe.evaluation, builder.splits, ""
    by_dev = evaluation.export == "best" and "dev" in splits and len(candidates) > 1
    if not by_dev and evaluation.export == "best" and _is_unproven(builder):
        if AS_IT_IS not in builder.stages:
            plan_start(builder)
        trained = [
            name for name, is_on in (("pretrain", builder.recipe.pretrain), ("finetune", builder.rounds)) if is_on
        ]
        method = "pseudo-queries" if builder.rounds else "pre-training"
        outcome = (
            f"exported: {system_in_words(AS_IT_IS)}; no dev queries show that {method} "
            f"improved, and did not harm, an encoder that is trained already. --set evaluation.export=last exports "
            f"{candidates[-1]}; {' '.join(f'--set {name}=none' for name in trained)} leaves the training out"
        )
        builder.notes.append(outcome)
        candidates = [AS_IT_IS]
    elif not by_dev:
        outcome = f"exported: {candidates[-1]}" + (", the last retriever" if len(candidates) > 1 else "")
        if evaluation.export == "best" and len(candidates) > 1:
            outcome += "; the collection has no dev queries to choose the best one by"
            builder.notes.append(outcome)
        candidates = candidates[-1:]
    choice = {"choice": StageOutput(_plan_choice(builder, candidates), CHOSEN)} if by_dev else {}
    origin = "the best retriever on dev" if by_dev else candidates[0]
    checkpoints = {f"checkpoint/{name}": StageOutput(name) for name in candidates}
    reading = {"reading": reading_of(builder)}
    builder.add("encoder", EXPORT, f"the encoder folder, made from {origin}", checkpoints | choice, extra=reading)
    if splits or builder.rounds:
        indexes = {f"index/{name}": StageOutput(add_index(builder, name, "searched")) for name in candidates}
        builder.add("index", CHOSEN_INDEX, f"the index of {origin}", indexes | choice)
    return _Exported(tuple(candidates), choice, outcome)


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


def _plan_choice(builder: PlanBuilder, candidates: list[str]) -> str:
    """Add the stage that chooses the best of the candidates on the dev queries."""
    evaluation = builder.recipe.evaluation
    measure = evaluation.measures[0]
    made_by = {name: (name, add_index(builder, name, "searched")) for name in candidates}
    # Rounded up, so that another measure of the first hits repeats no search.
    needed = cutoff(measure) or evaluation.depth
    depth = next((depth for depth in (10, 100) if needed <= depth), needed)
    runs = _plan_search(builder, "choice-runs", "dev", made_by, depth=depth)
    return builder.add(
        "choice",
        CHOOSE,
        f"the best retriever on the dev queries by {measure}",
        {"judged": split_of("dev"), "runs": StageOutput(runs)},
        extra={"candidates": tuple(candidates), "measure": measure},
    )


def _plan_search(
    builder: PlanBuilder,
    name: str,
    split: str,
    retrievers: Mapping[str, tuple[str, str]],
    *,
    depth: int,
    bm25: bool = False,
    reranked: Mapping[str, str] | None = None,
    parts: Mapping[str, tuple[str, str]] | None = None,
) -> str:
    """Add a search for the queries of a split.

    retrievers: the stages of their encoder and index; reranked: re-rankers, with the retriever whose ranking they
    re-rank; parts: see `SearchSettings`.
    """
    reranked, inputs = reranked or {}, {"passages": PASSAGES, "queries": queries_of(split)}
    for retriever, (encoder, index) in retrievers.items():
        inputs |= {f"encoder/{retriever}": StageOutput(encoder), f"index/{retriever}": StageOutput(index)}
    inputs |= {f"reranker/{stage}": StageOutput(stage) for stage in reranked}
    if bm25:
        inputs["bm25"] = StageOutput(_plan_bm25(builder))
    extra = {
        "retrievers": tuple(retrievers),
        "reranked": reranked,
        "rerank_depth": builder.recipe.reranker.depth if builder.recipe.reranker and reranked else 0,
        "reading": reading_of(builder),
        "depth": depth,
        "split": split,
        "parts": parts or {},
    }
    return builder.add(name, SEARCH, f"search for the {split} queries", inputs, extra=extra)


def _plan_bm25(builder: PlanBuilder) -> str:
    """Add the index of BM25, with the k1 and b that are best on dev queries; their first values if it has none."""
    evaluation, inputs, summary = builder.recipe.evaluation, {"passages": PASSAGES}, "index all passages for BM25"
    values = len(evaluation.bm25_k1) * len(evaluation.bm25_b)
    extra: dict[str, Any] = {"k1": evaluation.bm25_k1, "b": evaluation.bm25_b}
    extra |= {"measure": None, "depth": 0, "exclude_self": False}
    if "dev" not in builder.splits or evaluation.split == "dev":
        extra |= {"k1": evaluation.bm25_k1[:1], "b": evaluation.bm25_b[:1]}
    elif values > 1:
        measure = evaluation.measures[0]
        summary += f", with the best of {values} combinations of k1 and b on the dev queries by {measure}"
        inputs["dev"] = split_of("dev")
        depth = cutoff(measure) or evaluation.depth
        extra |= {"measure": measure, "depth": depth, "exclude_self": evaluation.exclude_self}
    return builder.add("bm25", BM25, summary, inputs, extra=extra)


def _plan_evaluation(
    builder: PlanBuilder, systems: list[PlannedSystem], retrievers: list[str], exported: _Exported
) -> None:
    evaluation, splits = builder.recipe.evaluation, builder.splits
    if evaluation.split not in splits:
        raise DrkitError(
            f"the collection has no {evaluation.split} queries to evaluate on (splits: {', '.join(splits)}); "
            f"choose another split: --set evaluation.split={splits[-1]}"
        )
    reranked = {system.stages[0]: system.reranks for system in systems if system.reranks and evaluation.rerank}
    made_by = {name: (name, add_index(builder, name, "searched")) for name in retrievers}
    depth, bm25 = evaluation.depth, evaluation.bm25
    if deeper := {name: hits for name in evaluation.measures if (hits := cutoff(name) or 0) > depth}:
        builder.notes.append(
            f"measured on the first {depth:,} hits alone (evaluation.depth): {', '.join(deeper)}; "
            f"--set evaluation.depth={max(deeper.values())} retrieves what they need"
        )
    parts = _parts_of_vectors(builder, retrievers)
    _plan_search(builder, "runs", evaluation.split, made_by, depth=depth, bm25=bm25, reranked=reranked, parts=parts)
    fused = {}
    if evaluation.bm25 and evaluation.hybrid:
        fused[HYBRID_NAME] = StageOutput(_plan_hybrid(builder, exported))
    shown = [
        shown
        for system in systems
        if not system.reranks or evaluation.rerank
        for shown in (*_systems_of_parts(system, parts), system)
    ]
    builder.add(
        "evaluation",
        EVALUATION,
        ", ".join(evaluation.measures),
        {"judged": split_of(evaluation.split), "runs": StageOutput("runs"), **fused, **exported.choice},
        extra={
            "last": exported.candidates[-1],
            "is_smoke": builder.recipe.is_smoke,
            "systems": (*(["bm25"] if evaluation.bm25 else []), *(system.name for system in shown), *fused),
            "draws": {system.name: system.stages for system in shown if len(system.stages) > 1},
        },
    )


def _parts_of_vectors(builder: PlanBuilder, retrievers: list[str]) -> dict[str, tuple[str, str]]:
    """Return the systems that search by the dense or the lexical part of the vectors of trained retrievers."""
    encoder = builder.recipe.encoder
    if encoder.pooling != LEXICAL or not (encoder.pooling_settings or {}).get("dense"):
        return {}
    trained = [name for name in retrievers if builder.stages[name].spec is FINETUNE]
    return {f"{name}-{part}": (name, part) for name in trained for part in PARTS}


def _systems_of_parts(system: PlannedSystem, parts: Mapping[str, tuple[str, str]]) -> list[PlannedSystem]:
    """Return the rows of a retriever's parts, which come above its own."""
    return [
        PlannedSystem(f"{system.name}-{part}", tuple(f"{stage}-{part}" for stage in system.stages))
        for part in PARTS
        if f"{system.stages[0]}-{part}" in parts
    ]


def _plan_hybrid(builder: PlanBuilder, exported: _Exported) -> str:
    """Add the fusion of BM25 and the exported retriever; dev queries tune its weight, unless these are evaluated."""
    evaluation, inputs = builder.recipe.evaluation, {"bm25": StageOutput("runs", "bm25.arrow"), **exported.choice}
    inputs |= {f"retriever/{name}": StageOutput("runs", f"{name}.arrow") for name in exported.candidates}
    measure = evaluation.measures[0] if "dev" in builder.splits and evaluation.split != "dev" else None
    if measure:
        made_by = {EXPORTED: ("encoder", "index")}
        runs = _plan_search(builder, "dev-runs", "dev", made_by, depth=evaluation.depth, bm25=True)
        inputs |= {"dev-runs": StageOutput(runs), "dev": split_of("dev")}
    weight = f"its weight tuned on dev queries ({measure})" if measure else f"the retriever's weight {UNTUNED}"
    summary = f"fuse BM25 and {'the exported retriever' if exported.choice else exported.candidates[0]}, {weight}"
    return builder.add(HYBRID_NAME, HYBRID, summary, inputs, extra={"measure": measure})


def _plan_untuned_hybrid(builder: PlanBuilder, exported: _Exported) -> None:
    """Add what a hybrid search needs in a run without judged queries: BM25's index, and the default weight."""
    (retriever,) = exported.candidates
    summary = f"BM25 and {retriever} for searching with --hybrid, the retriever's weight {UNTUNED}"
    inputs = {"bm25": StageOutput(_plan_bm25(builder)), "index": StageOutput("index")}
    builder.add(HYBRID_NAME, UNTUNED_HYBRID, summary, inputs, extra={"retriever": retriever})


def _plan_report(builder: PlanBuilder, exported: str) -> None:
    """Add the report, which reads the logs of the trainings and the results of the evaluation."""
    trainings = [name for name, stage in builder.stages.items() if stage.spec in (PRETRAIN, FINETUNE, RERANKER)]
    inputs = {"results": StageOutput("evaluation", "results.json")} if builder.has(EVALUATION) else {}
    for name in trainings:
        inputs |= {f"log/{name}": StageOutput(name, LOG), f"training/{name}": StageOutput(name, TRAINING)}
        if "dev" in builder.stages[name].inputs:
            inputs[f"validation/{name}"] = StageOutput(name, VALIDATION, observed=True)
    inputs |= {
        f"truncated/{name}": StageOutput(name, TRUNCATED)
        for name, stage in builder.stages.items()
        if TRUNCATED in stage.spec.records
    }
    if builder.has(PRETRAIN):
        inputs["probes"] = StageOutput("pretrained", PROBES, observed=True)
    if builder.has(CHOOSE):
        inputs["choice"] = StageOutput("choice", CHOICE)
    curve, unlabelled = _learning_curve(builder.recipe)
    extra = {"trainings": tuple(trainings), "exported": exported, "curve": curve, "unlabelled": unlabelled}
    extra["steps"] = _steps_of_systems(builder.recipe)
    builder.add("report", REPORT, "curves, tables, and whether pre-training works", inputs, extra=extra)


def _learning_curve(recipe: Recipe) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the line of each system, if the rounds differ in their labelled queries, and the systems without any."""
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    judged = [one for one in rounds if one.pairs != PSEUDO]
    if len({one.queries for one in judged}) < 2:
        return {}, ()
    unlabelled = [one.name for one in rounds if one.pairs == PSEUDO] or ["pretrained"]
    name = WITH if unlabelled == ["pretrained"] else WITH_PSEUDO
    lines = {INITIAL: WITHOUT, AS_IT_IS: WITHOUT, **dict.fromkeys(unlabelled, name)}
    lines |= {one.name: WITHOUT if one.start == FROM_INITIAL else name for one in judged}
    return lines, (INITIAL, AS_IT_IS, *unlabelled)


def _steps_of_systems(recipe: Recipe) -> dict[str, dict[str, int | None]]:
    """Return the steps of pre-training before each system (None: all), by line of a chart; empty if none are kept."""
    kept, rounds = _kept(recipe), recipe.finetune.rounds if recipe.finetune else ()
    if not kept:
        return {}
    starts = {FROM_INITIAL: 0, **kept, PRETRAINED: None}
    tuned = {one.name: starts[one.start] for one in rounds if one.start in starts}
    return {FINETUNED: {LABELS_ONLY: 0, **tuned}, WITH: {INITIAL: 0, AS_IT_IS: 0, **kept, PRETRAINED: None}}
