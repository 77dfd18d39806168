"""Stages of the evaluation: rank queries with every system, fuse the exported retriever with BM25, and measure.

`search` writes a file of rankings per system, re-rankers included; `hybrid` fuses two of them with a weight tuned on
dev queries; `evaluation` is the results table, with a paired t-test of every system against the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from drkit.core.quantities import counted
from drkit.encoders.card import EncoderCard
from drkit.errors import DrkitError, did_you_mean
from drkit.evaluate.measures import cutoff
from drkit.evaluate.names import (
    AS_IT_IS,
    BM25_NAME,
    HYBRID_NAME,
    HYBRIDS,
    INITIAL,
    fused_with_bm25,
    system_in_words,
)
from drkit.evaluate.systems import describe_bm25
from drkit.recipe.evaluation import PROVEN
from drkit.recipe.parts import pooling_vectors
from drkit.recipe.rivals import replaced_part
from drkit.recipe.schema import LABELS_ONLY, Recipe
from drkit.runs.manifest import Manifest
from drkit.runs.stage import TRUNCATED, PlanBuilder, Stage, StageOutput, StageSpec, from_recipe
from drkit.runs.stages.finetune import FINETUNE, labelled_round
from drkit.runs.stages.reranker import scoring_work
from drkit.runs.stages.retriever import (
    CHOICE,
    CHOOSE,
    CHOSEN,
    PlannedSystem,
    add_index,
    describe_choice,
    plan_bm25,
    reading_of,
    vectors_memory,
)
from drkit.runs.stages.texts import PASSAGES, queries_of, split_of
from drkit.runs.work import Sizes, Work


@frozen
class SearchSettings:
    """The systems: retrievers by name, and re-rankers with the retriever whose ranking they re-rank.

    parts: systems that search by one part of a retriever's vectors, with the retriever and the part. folds: systems of
    which each query is ranked by the retriever that has not learned from it, with these retrievers. The inputs are
    `encoder/NAME`, `index/NAME` and `reranker/NAME`. BM25 comes first if its index is an input. split: whose queries
    they are.
    """

    retrievers: tuple[str, ...]
    reranked: Mapping[str, str]
    rerank_depth: int
    reading: EncoderCard
    depth: int = from_recipe("evaluation.depth")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    split: str = from_recipe("evaluation.split", observes=True)
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())
    parts: Mapping[str, tuple[str, str]] = field(factory=dict)
    folds: Mapping[str, tuple[str, ...]] = field(factory=dict, metadata={"absent_when": {}})

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that search by vectors."""
        return (*self.retrievers, *self.folds)


# Bytes of a hit in a file of rankings.
_HIT_BYTES = 8.0
# Bytes of memory of each hit while rankings are fused.
_FUSED_BYTES = 30


def _hit_bytes(queries: float, depth: int, sizes: Sizes) -> float:
    """Return the bytes of a file of rankings: its hits, and the ids of the passages among them."""
    hits = queries * min(depth, sizes.passages)
    return _HIT_BYTES * hits + sizes.ids * min(hits / max(sizes.passages, 1), 1)


def _search_work(stage: Stage[SearchSettings], sizes: Sizes) -> Work:
    settings, queries = stage.settings, sizes.count(str(stage.inputs["queries"]))
    dense, words, reranked = len(settings.systems), int("bm25" in stage.inputs), len(settings.reranked)
    memory = vectors_memory(sizes) if dense else 0.0
    disk = (dense + words + reranked) * _hit_bytes(queries, settings.depth, sizes)
    if reranked:  # takes more than the searches
        pairs = reranked * queries * settings.rerank_depth
        return scoring_work(sizes.reranker, pairs, None, sizes) + Work(memory=memory, disk=disk)
    unit = f"scores of vectors of {sizes.encoder.hidden}" if dense else "scores of BM25"
    return Work((dense + words) * queries * sizes.passages, unit, memory=memory, disk=disk)


SEARCH = StageSpec(
    name="search",
    version=5,
    settings=SearchSettings,
    run="drkit.runs.making.evaluation:search_runs",
    inputs={
        "passages": "the corpus",
        "queries": "the queries to rank passages for",
        "bm25": "BM25's index",
        "encoder/*": "the encoder of a retriever",
        "index/*": "its index",
        "reranker/*": "a cross-encoder",
    },
    records=(TRUNCATED,),
    resumable=True,
    folders=("runs", "dev-runs", "choice-runs"),
    work=_search_work,
)


# The exported retriever's name in the search of the dev queries.
EXPORTED = "exported"
# The retriever's weight where no dev queries tune it: .2 to .3 is best for retrievers from random weights
# (docs/experiments/default-run.md); for existing encoders .5 loses less than any weight chosen on few queries
# (docs/reference/evaluation.md).
_UNTUNED, _UNTUNED_EXISTING = 0.3, 0.5


def untuned_weight(recipe: Recipe) -> float:
    """Return the retriever's weight where no dev queries tune it."""
    return _UNTUNED if recipe.encoder.pretrained is None else _UNTUNED_EXISTING


@frozen
class HybridSettings:
    """The measure that the retriever's weight is tuned for, None without dev queries; and the weight without them."""

    measure: str | None
    untuned: float
    depth: int = from_recipe("evaluation.depth")
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())


def _fusion_work(stage: Stage[HybridSettings], sizes: Sizes) -> Work:
    depth = min(stage.settings.depth, sizes.passages)
    tuned = sizes.count(str(stage.inputs["dev"])) if stage.settings.measure else 0.0
    fused = 2 * depth * (sizes.evaluated + tuned)
    disk = _hit_bytes(sizes.evaluated, depth, sizes)
    return Work(fused, "hits", memory=_FUSED_BYTES * fused, disk=disk)


HYBRID = StageSpec(
    name="hybrid",
    version=8,
    settings=HybridSettings,
    run="drkit.runs.making.evaluation:fuse_rankings",
    inputs={
        "bm25": "BM25's rankings of the evaluated queries",
        "retriever/*": "a retriever's",
        "choice": "which retriever is exported, if there are several",
        "dev-bm25": "BM25's rankings of the dev queries",
        "dev-retriever/*": "a retriever's",
        "dev": "the dev queries' judgements",
    },
    folders=(HYBRID_NAME,),
    work=_fusion_work,
)


@frozen
class UntunedSettings:
    """The exported retriever of a run without judged queries to tune its weight on."""

    retriever: str
    untuned: float
    depth: int = from_recipe("evaluation.depth")


UNTUNED_HYBRID = StageSpec(
    name="hybrid-untuned",
    version=2,
    settings=UntunedSettings,
    run="drkit.runs.making.evaluation:keep_weight",
    inputs={"bm25": "BM25's index", "index": "the exported retriever's index"},
    folders=(HYBRID_NAME,),
)


@frozen
class EvenFusionSettings:
    """The retrievers that are fused with BM25, and their weight."""

    retrievers: tuple[str, ...]
    weight: float
    depth: int = from_recipe("evaluation.depth")


def _even_fusion_work(stage: Stage[EvenFusionSettings], sizes: Sizes) -> Work:
    fused = 2 * min(stage.settings.depth, sizes.passages) * sizes.evaluated
    each = Work(fused, "hits", disk=_hit_bytes(sizes.evaluated, stage.settings.depth, sizes))
    return sum((each for _ in stage.settings.retrievers), Work(memory=_FUSED_BYTES * fused))


EVEN_FUSION = StageSpec(
    name="hybrids",
    version=1,
    settings=EvenFusionSettings,
    run="drkit.runs.making.evaluation:fuse_evenly",
    inputs={"runs": "the rankings of BM25 and of the retrievers"},
    folders=(HYBRIDS,),
    work=_even_fusion_work,
)


@frozen
class GainSettings:
    """The systems that are compared with the encoder as it is; trained: those retrievers that the run trains."""

    systems: tuple[str, ...]
    trained: tuple[str, ...]
    measure: str
    folds: int | None = from_recipe("evaluation.folds")
    split: str = from_recipe("evaluation.split")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())


GAINS = StageSpec(
    name="gains",
    version=2,
    settings=GainSettings,
    run="drkit.runs.making.evaluation:choose_by_gains",
    inputs={
        "judged": "the evaluated split of the collection",
        "runs": "the systems' rankings",
        "hybrids": "the rankings of retrievers that are fused with BM25",
    },
    folders=("choice",),
)


@frozen
class EvaluationSettings:
    """Measures and systems; draws: the runs that are averaged for a system with several draws, by system.

    baseline: the system that the others are tested against. reranked: the system whose hits the re-ranker ranks, if
    there is one. composed: the retriever that the baselines with another part are compared with; replaced: the part
    that each of them lacks, by system. last: the last retriever; the input `choice` names the exported retriever, if
    there are several. is_smoke: whether every training is only tried.
    """

    systems: tuple[str, ...]
    draws: Mapping[str, tuple[str, ...]]
    baseline: str
    last: str
    is_smoke: bool
    reranked: str
    composed: str
    replaced: Mapping[str, str]
    measures: tuple[str, ...] = from_recipe("evaluation.measures")
    split: str = from_recipe("evaluation.split")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())


EVALUATION = StageSpec(
    name="evaluation",
    version=7,
    settings=EvaluationSettings,
    run="drkit.runs.making.evaluation:evaluate_systems",
    inputs={
        "judged": "the evaluated split of the collection",
        "runs": "the systems' rankings",
        "hybrid": "the fused ranking, and its weight",
        "hybrids": "the rankings of every retriever fused with BM25",
        "gains": "what the systems gain over the encoder as it is",
        "choice": "which retriever is exported, if there are several",
    },
    folders=("evaluation",),
)


def choices_made(done: Mapping[str, Manifest]) -> list[str]:
    """Describe the exported retriever, BM25's k1 and b, and the number of labels, a line each.

    done: the finished stages. The labels have a line if all retrievers learn from as many of them, and not from all.
    """
    choice = done.get("choice")
    if choice and choice.stage == GAINS.name:
        lines = [f"exported: {system_in_words(choice.metrics['exported'])}"]
    else:
        lines = [describe_choice(choice.metrics)] if choice else []
    lines += [describe_bm25(done["bm25"].metrics)] if "bm25" in done and "means" in done["bm25"].metrics else []
    limits = {stage.settings["queries"] for stage in done.values() if stage.stage == FINETUNE.name}
    given = done["collection"].metrics["queries"].get("train", 0) if "collection" in done else 0
    if len(limits) == 1 and 0 < (limit := min(limits)) < given:
        lines.append(
            f"labels: {limit:,} of {counted(given, 'training query')}; --set finetune.rounds.0.queries=0 reads all"
        )
    return lines


@frozen
class Exported:
    """The candidates for export, and the input that chooses among several; none for a single one."""

    candidates: tuple[str, ...]
    choice: Mapping[str, StageOutput]


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
    folds: Mapping[str, tuple[str, ...]] | None = None,
) -> str:
    """Add a search for the queries of a split.

    retrievers: the stages of their encoder and index; reranked: re-rankers, with the retriever whose ranking they
    re-rank; parts, folds: see `SearchSettings`. The stages of folds are among `retrievers`.
    """
    reranked, inputs = reranked or {}, {"passages": PASSAGES, "queries": queries_of(split)}
    folded = {one for stages in (folds or {}).values() for one in stages}
    for retriever, (encoder, index) in retrievers.items():
        inputs |= {f"encoder/{retriever}": StageOutput(encoder), f"index/{retriever}": StageOutput(index)}
    inputs |= {f"reranker/{stage}": StageOutput(stage) for stage in reranked}
    if bm25:
        inputs["bm25"] = StageOutput(plan_bm25(builder))
    extra = {
        "retrievers": tuple(name for name in retrievers if name not in folded),
        "reranked": reranked,
        "rerank_depth": builder.recipe.reranker.depth if builder.recipe.reranker and reranked else 0,
        "reading": reading_of(builder),
        "depth": depth,
        "split": split,
        "parts": parts or {},
        "folds": folds or {},
    }
    return builder.add(name, SEARCH, f"search for the {split} queries", inputs, extra=extra)


def plan_choice(builder: PlanBuilder, candidates: list[str]) -> str:
    """Add the stage that chooses the best of the candidates on the dev queries."""
    evaluation = builder.recipe.evaluation
    measure = evaluation.measures[0]
    made_by = {name: (name, add_index(builder, name, "searched")) for name in candidates}
    depth = max(evaluation.depth, cutoff(measure) or 0)  # a hybrid reads the same rankings
    runs = _plan_search(builder, "choice-runs", "dev", made_by, depth=depth)
    return builder.add(
        "choice",
        CHOOSE,
        f"the best retriever on the dev queries by {measure}",
        {"judged": split_of("dev"), "runs": StageOutput(runs)},
        extra={"candidates": tuple(candidates), "measure": measure},
    )


def plan_evaluation(
    builder: PlanBuilder, systems: list[PlannedSystem], retrievers: list[str], exported: Exported | None
) -> None:
    """Add the rankings of the evaluated queries by every system, and the table of their measures.

    exported: None if the gains over the encoder as it is decide what is exported; the stage that does is added, too.
    """
    evaluation, splits = builder.recipe.evaluation, builder.splits
    if evaluation.split not in splits:
        raise DrkitError(
            f"the collection has no {evaluation.split} queries to evaluate on (splits: {', '.join(splits)}); "
            f"choose another split: --set evaluation.split={splits[-1]}"
        )
    reranked = {system.stages[0]: system.reranks for system in systems if system.reranks and evaluation.rerank}
    folds = {system.name: system.folds for system in systems if system.folds}
    made_by = {name: (name, add_index(builder, name, "searched")) for name in retrievers}
    depth, bm25 = evaluation.depth, evaluation.bm25
    if deeper := {name: hits for name in evaluation.measures if (hits := cutoff(name) or 0) > depth}:
        builder.notes.append(
            f"measured on the first {counted(depth, 'hit')} alone (evaluation.depth): {', '.join(deeper)}; "
            f"--set evaluation.depth={max(deeper.values())} retrieves what they need"
        )
    parts = _parts_of_vectors(builder, retrievers)
    _plan_search(
        builder,
        "runs",
        evaluation.split,
        made_by,
        depth=depth,
        bm25=bm25,
        reranked=reranked,
        parts=parts,
        folds=folds,
    )
    if exported is None:
        _plan_gains(builder, systems)
        return
    fused = {}
    if evaluation.bm25 and evaluation.hybrid:
        fused[HYBRID_NAME] = StageOutput(plan_hybrid(builder, exported))
    shown = [
        shown
        for system in systems
        if not system.reranks or evaluation.rerank
        for shown in (*_systems_of_parts(builder, system, parts), system)
    ]
    pretrain, rivals = builder.recipe.pretrain, [system.name for system in shown if "=" in system.name]
    replaced = {name: replaced_part(pretrain, name.partition("=")[0]) for name in rivals} if pretrain else {}
    names = (*([BM25_NAME] if evaluation.bm25 else []), *(system.name for system in shown), *fused)
    builder.add(
        "evaluation",
        EVALUATION,
        ", ".join(evaluation.measures),
        {"judged": split_of(evaluation.split), "runs": StageOutput("runs"), **fused, **exported.choice},
        extra={
            "last": exported.candidates[-1],
            "is_smoke": builder.recipe.is_smoke,
            "systems": names,
            "baseline": _baseline(evaluation.baseline, names),
            "composed": labelled_round(builder).name if replaced else "",
            "replaced": replaced,
            "reranked": next((_row_of(one.reranks, shown) for one in shown if one.reranks), ""),
            "draws": {system.name: system.stages for system in shown if len(system.stages) > 1},
        },
    )


def _plan_gains(builder: PlanBuilder, systems: list[PlannedSystem]) -> None:
    """Add every retriever's fusion with BM25, the choice by gains over the encoder as it is, and the table."""
    evaluation, dense = builder.recipe.evaluation, [system.name for system in systems if not system.reranks]
    ranked, names = {"runs": StageOutput("runs")}, list(dense)
    if evaluation.bm25:
        names.insert(0, BM25_NAME)
    if evaluation.bm25 and evaluation.hybrid:
        names = [BM25_NAME, *(name for one in dense for name in (one, fused_with_bm25(one)))]
        weight = untuned_weight(builder.recipe)
        summary = f"fuse BM25 with {' and '.join(dense)}, each at a weight of {weight}"
        settings = {"retrievers": tuple(dense), "weight": weight}
        ranked[HYBRIDS] = StageOutput(builder.add(HYBRIDS, EVEN_FUSION, summary, dict(ranked), extra=settings))
    trained = tuple(system.name for system in systems if builder.stages[system.stages[0]].spec is FINETUNE)
    judged, measure = {"judged": split_of(evaluation.split), **ranked}, evaluation.measures[0]
    summary = f"the system that gains most over the encoder as it is by {measure}, if any does"
    extra = {"systems": tuple(names), "trained": trained, "measure": measure}
    builder.add("choice", GAINS, summary, judged, extra=extra)
    builder.add(
        "evaluation",
        EVALUATION,
        ", ".join(evaluation.measures),
        {**judged, "choice": StageOutput("choice", CHOSEN), "gains": StageOutput("choice", CHOICE)},
        extra={
            "last": (*trained, AS_IT_IS)[0],
            "is_smoke": builder.recipe.is_smoke,
            "systems": tuple(names),
            "baseline": _baseline(evaluation.baseline or AS_IT_IS, names),
            "reranked": "",
            "composed": "",
            "replaced": {},
            "draws": {system.name: system.stages for system in systems if len(system.stages) > 1},
        },
    )


def _baseline(chosen: str | None, systems: Sequence[str]) -> str:
    """Return the system that the others are tested against. Raises DrkitError if the chosen one is none of them."""
    if chosen is not None and chosen not in systems:
        raise DrkitError(
            f"evaluation.baseline is {chosen!r}, which is not a system of this run{did_you_mean(chosen, systems)} "
            f"choose one of: {', '.join(systems)} @ evaluation.baseline"
        )
    plain = (name for name in (LABELS_ONLY, INITIAL, AS_IT_IS, BM25_NAME) if name in systems)
    return chosen or next(plain, systems[0])


def _row_of(stage: str, systems: Sequence[PlannedSystem]) -> str:
    """Return the system of a stage: one of its draws, for a system with several."""
    return next((system.name for system in systems if stage in system.stages), stage)


def _parts_of_vectors(builder: PlanBuilder, retrievers: list[str]) -> dict[str, tuple[str, str]]:
    """Return the systems that search by one of the vectors of trained retrievers, where these have several."""
    return {f"{name}-{part}": (name, part) for name in retrievers for part in _vectors_of(builder, name)}


def _vectors_of(builder: PlanBuilder, retriever: str) -> tuple[str, ...]:
    """Return the names of the vectors of a trained retriever; empty if it has one."""
    stage = builder.stages[retriever]
    if stage.spec is not FINETUNE:
        return ()
    return pooling_vectors(stage.settings.pooling or builder.recipe.encoder.pooling, builder.registry)


def _systems_of_parts(
    builder: PlanBuilder, system: PlannedSystem, parts: Mapping[str, tuple[str, str]]
) -> list[PlannedSystem]:
    """Return the rows of a retriever's vectors, which come above its own."""
    return [
        PlannedSystem(f"{system.name}-{part}", tuple(f"{stage}-{part}" for stage in system.stages))
        for part in _vectors_of(builder, system.stages[0])
        if f"{system.stages[0]}-{part}" in parts
    ]


def plan_hybrid(builder: PlanBuilder, exported: Exported) -> str:
    """Add the fusion of BM25 and the exported retriever; dev queries tune its weight, unless these are evaluated.

    Where gains decide what is exported, it has the weight that they were measured with.
    """
    evaluation, inputs = builder.recipe.evaluation, {"bm25": StageOutput("runs", "bm25.arrow"), **exported.choice}
    inputs |= {f"retriever/{name}": StageOutput("runs", f"{name}.arrow") for name in exported.candidates}
    is_tuned = "dev" in builder.splits and evaluation.split != "dev" and evaluation.export != PROVEN
    measure = evaluation.measures[0] if is_tuned else None
    untuned = untuned_weight(builder.recipe)
    if measure:
        made_by = {} if exported.choice else {EXPORTED: ("encoder", "index")}
        runs = _plan_search(builder, "dev-runs", "dev", made_by, depth=evaluation.depth, bm25=True)
        inputs |= {"dev-bm25": StageOutput(runs, "bm25.arrow"), "dev": split_of("dev")}
        for name in exported.candidates:
            read = ("choice-runs", f"{name}.arrow") if exported.choice else (runs, f"{EXPORTED}.arrow")
            inputs[f"dev-retriever/{name}"] = StageOutput(*read)
    weight = f"its weight tuned on dev queries ({measure})" if measure else f"the retriever's weight {untuned}"
    summary = f"fuse BM25 and {'the exported retriever' if exported.choice else exported.candidates[0]}, {weight}"
    return builder.add(HYBRID_NAME, HYBRID, summary, inputs, extra={"measure": measure, "untuned": untuned})


def plan_untuned_hybrid(builder: PlanBuilder, exported: Exported) -> None:
    """Add what a hybrid search needs in a run without judged queries: BM25's index, and the default weight."""
    (retriever,) = exported.candidates
    untuned = untuned_weight(builder.recipe)
    summary = f"BM25 and {retriever} for a hybrid search, the retriever's weight {untuned}"
    inputs = {"bm25": StageOutput(plan_bm25(builder)), "index": StageOutput("index")}
    builder.add(HYBRID_NAME, UNTUNED_HYBRID, summary, inputs, extra={"retriever": retriever, "untuned": untuned})
