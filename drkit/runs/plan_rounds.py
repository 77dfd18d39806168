"""Plan the second half of a run: the retrievers in order, each with its own negatives, and the re-ranker.

negatives-retriever-1 -> labels-only, retriever-1 -> index-retriever-1 -> negatives-retriever-2 -> retriever-2
-> index-retriever-2 -> negatives-reranker -> reranker -> teacher-retriever-3 -> retriever-3
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from attrs import asdict, evolve, frozen

from drkit.core.files import local_path, path_state
from drkit.core.spec import TEACHER, Kind
from drkit.data.rows import require_file
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate.names import AS_IT_IS, system_in_words
from drkit.evaluate.names import INITIAL as INITIAL_ENCODER
from drkit.miners.specs import HasAnswerConfig, RunFileConfig, refresh_settings
from drkit.recipe.parts import received_columns
from drkit.recipe.schema import (
    INITIAL,
    JUDGED,
    LABELS_ONLY,
    MASKED_LM,
    MLM,
    PRETRAINED,
    PREVIOUS,
    PSEUDO,
    RERANKER,
    Choice,
    Column,
    Finetune,
    Recipe,
    Round,
    column_file,
    is_model,
    source_name,
)
from drkit.runs.plan_columns import refuse_missing_values
from drkit.runs.plan_encoder import PASSAGES, TOKENS, VOCABULARY, plan_masked_lm, split_of, training_split
from drkit.runs.stage import PlanBuilder, StageOutput, TextReading, declared_reading, files_state, settings_from
from drkit.runs.stages import stage_folders
from drkit.runs.stages.columns import COLUMN
from drkit.runs.stages.finetune import FINETUNE
from drkit.runs.stages.negatives import NEGATIVES
from drkit.runs.stages.pretrain import KEPT
from drkit.runs.stages.reranker import RERANKER as RERANKER_STAGE
from drkit.runs.stages.retriever import EXPORT, INDEX
from drkit.runs.stages.texts import PASSAGE_TOKENS, PSEUDO_QUERY_TOKENS, QUERY_TOKENS
from drkit.runs.work import describe_schedule


@frozen
class PlannedSystem:
    """A system to evaluate: its stages, one per draw, and the stage whose ranking it re-ranks, if it is a re-ranker."""

    name: str
    stages: tuple[str, ...]
    reranks: str = ""


@frozen
class _Retriever:
    """A retriever to plan: its round, all its settings, and the checkpoint it starts from."""

    name: str
    recipe_round: Round
    settings: Finetune
    start: str


def refuse_stage_names(recipe: Recipe) -> None:
    """Raise ProblemsError for rounds that have the name of another stage, whose folder is beside theirs."""
    folders = stage_folders()
    names = [one.name for one in recipe.finetune.rounds] if recipe.finetune else []
    problems = [
        f"a round cannot be named {name!r}: its name becomes a folder beside the run's other stages. Use none of "
        f"{', '.join(folders)} @ finetune.rounds"
        for name in names
        if any(fnmatchcase(name, folder) for folder in folders)
    ]
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def plan_rounds(builder: PlanBuilder, *, start: str) -> list[PlannedSystem]:
    """Add the stages of every round, and of the re-ranker before the first round that needs it; returns the systems."""
    finetune, systems = builder.recipe.finetune, []
    assert finetune is not None
    if finetune.validation.every and "dev" not in builder.splits:
        raise DrkitError(
            f"validation needs dev queries, but the collection has none (splits: {', '.join(builder.splits)}); turn it "
            f"off: --set finetune.validation.every=0 @ finetune.validation"
        )
    kept = builder.recipe.pretrain.kept if builder.recipe.pretrain else {}
    previous, starts = start, {name: name for name in kept}
    starts |= {INITIAL: INITIAL_ENCODER, PRETRAINED: start, PREVIOUS: start}
    compared = next((one for one in builder.rounds if one.pairs == JUDGED), builder.rounds[0])
    for current in builder.rounds:
        taught = any(column.use == RERANKER for column in _columns(builder, current).values())
        if taught and not builder.has(RERANKER_STAGE):
            systems.append(_plan_reranker(builder, start, previous, current.pairs))
        retriever = _Retriever(current.name, current, finetune.for_round(current), starts[current.start])
        negatives = ""
        if current.miners and retriever.settings.negatives:
            negatives = _plan_negatives(builder, current.name, current.miners, previous, current.pairs)
        if current is compared and retriever.start != INITIAL_ENCODER:
            alone = evolve(retriever, settings=evolve(retriever.settings, keep_steps=None))
            for name, origin in _baselines(builder):
                systems.append(_plan_retriever(builder, evolve(alone, name=name, start=origin), negatives))
        trained = _plan_retriever(builder, retriever, negatives)
        systems += [*_plan_kept(builder, trained), trained]
        starts |= {name: f"{trained.stages[0]}@{name.rpartition('@')[2]}" for name in finetune.kept(current)}
        starts[current.name] = starts[PREVIOUS] = previous = trained.stages[0]
    builder.notes.extend(_unread_columns(builder))
    if builder.recipe.reranker and not builder.has(RERANKER_STAGE):
        builder.notes.append(
            "no round learns from the re-ranker, which only re-ranks; --set reranker=none leaves it out"
        )
        systems.append(_plan_reranker(builder, start, previous, builder.rounds[-1].pairs))
    return systems


def _baselines(builder: PlanBuilder) -> Iterator[tuple[str, str]]:
    """Yield the retrievers that the first labelled round is compared with, and what each starts from."""
    pretrain, finetune = builder.recipe.pretrain, builder.recipe.finetune
    assert finetune is not None
    if not builder.splits:  # without judged queries, nobody would see it
        return
    if LABELS_ONLY in finetune.baselines:
        yield LABELS_ONLY, INITIAL_ENCODER
    if MASKED_LM not in finetune.baselines or pretrain is None or pretrain.is_masked_lm:
        return
    if any(loss.use == MLM for loss in pretrain.encoder.losses.values()):
        yield MASKED_LM, plan_masked_lm(builder, pretrain)
    else:
        builder.notes.append(
            f"nothing is compared with masked LM (finetune.baselines), since the encoder lacks its loss: "
            f"--pretrain-loss {MLM}@encoder adds it"
        )


def plan_start(builder: PlanBuilder) -> list[PlannedSystem]:
    """Return the initial encoder as a system to evaluate.

    An existing encoder is read with the pooling, lengths and prompts that it declares, not those of the recipe.
    """
    encoder = builder.recipe.encoder
    if encoder.pretrained is None:
        return [PlannedSystem(INITIAL_ENCODER, (INITIAL_ENCODER,))]
    try:
        reading = declared_reading(encoder.pretrained, reading_of(builder))
    except DrkitError as error:
        builder.notes.append(f"{system_in_words(AS_IT_IS)} reads texts by the recipe's settings: {error}")
        reading = reading_of(builder)
    builder.add(
        AS_IT_IS,
        EXPORT,
        "the encoder as it is, with its own lengths and prompts",
        {f"checkpoint/{INITIAL_ENCODER}": StageOutput(INITIAL_ENCODER)},
        extra={"reading": reading},
    )
    return [PlannedSystem(AS_IT_IS, (AS_IT_IS,))]


def reading_of(builder: PlanBuilder) -> TextReading:
    """Return how the recipe's encoders read texts."""
    return settings_from(TextReading, builder.recipe)


def add_index(builder: PlanBuilder, encoder: str, purpose: str) -> str:
    """Add the index of an encoder; purpose: `mined` (always exact) or `searched` (the kind that evaluation uses)."""
    kind = builder.recipe.evaluation.index if purpose == "searched" else "flat"
    name = f"index-{encoder}"
    if name in builder.stages and builder.stages[name].settings.kind != kind:
        name = f"{name}-{kind}"
    reading = builder.stages[encoder].settings.reading if encoder == AS_IT_IS else reading_of(builder)
    inputs, summary = {"encoder": StageOutput(encoder), "passages": PASSAGES}, f"encode all passages with {encoder}"
    if reading.passages_per_document:
        summary = f"encode up to {reading.passages_per_document} passages of every document with {encoder}"
    else:
        inputs["tokens"] = _passage_tokens(builder, encoder, reading)
    return builder.add(
        name,
        INDEX,
        summary,
        inputs,
        extra={"kind": kind, "reading": reading},
    )


def _passage_tokens(builder: PlanBuilder, encoder: str, reading: TextReading) -> StageOutput:
    """Return the tokens of all passages as an encoder reads them; adds a stage if the recipe reads them otherwise."""
    own = {"length": reading.passage_length, "prompt": reading.passage_prompt}
    if own == asdict(builder.stages["tokens"].settings):
        return TOKENS
    summary = f"tokenise every passage as {encoder} reads it"
    return StageOutput(
        builder.add(f"tokens-{encoder}", PASSAGE_TOKENS, summary, builder.stages["tokens"].inputs, extra=own)
    )


def _plan_negatives(builder: PlanBuilder, owner: str, chain: tuple[Choice, ...], previous: str, pairs: str) -> str:
    """Add the stage that mines for a round or the re-ranker; reuses an equal stage if there is one."""
    for miner in chain:
        if isinstance(miner.config, RunFileConfig) and not local_path(miner.config.path).is_file():
            raise DrkitError(f"the run file {miner.config.path!r} does not exist (miner run-file of {owner})")
        if isinstance(miner.config, HasAnswerConfig) and miner.config.path:
            require_file(miner.config.path, f"has-answer of {owner}")
    inputs, searches = {"passages": PASSAGES, "train": training_split(pairs)}, False
    required = _required_by(builder, chain)
    if "retriever" in required:
        index = add_index(builder, previous, "mined")
        inputs, searches = {**inputs, "encoder": StageOutput(previous), "index": StageOutput(index)}, True
    if RERANKER in required:
        inputs = {**inputs, "reranker": StageOutput(RERANKER)}
    for stage in builder.stages.values():
        if stage.spec is NEGATIVES and stage.settings.miners == chain and stage.inputs == inputs:
            return stage.name
    return builder.add(
        f"negatives-{owner}",
        NEGATIVES,
        f"hard negatives by {' > '.join(miner.use for miner in chain)}",
        inputs,
        sources=_sources_of(builder, chain),
        extra={"miners": chain, "reading": reading_of(builder) if searches else None},
    )


def _sources_of(builder: PlanBuilder, chain: tuple[Choice, ...]) -> dict[str, str]:
    """Return the states of the local files that miners read."""
    return {
        f"miners.{index}": files_state(builder.registry.get(Kind.MINER, miner.use), miner.config)
        for index, miner in enumerate(chain)
    }


def _required_by(builder: PlanBuilder, chain: tuple[Choice, ...]) -> set[str]:
    """Return everything that the miners of a chain require from the run."""
    return {name for miner in chain for name in builder.registry.get(Kind.MINER, miner.use).requires_of(miner.config)}


def _query_tokens(builder: PlanBuilder, pairs: str) -> StageOutput:
    """Return the tokens of the queries that a round learns from."""
    train = training_split(pairs)
    inputs = {"queries": StageOutput(train.stage, f"{train.path}/queries.arrow"), "vocabulary": VOCABULARY}
    if pairs == PSEUDO:
        return StageOutput(
            builder.add("pseudo-query-tokens", PSEUDO_QUERY_TOKENS, "tokenise every pseudo-query once", inputs)
        )
    return StageOutput(builder.add("query-tokens", QUERY_TOKENS, "tokenise every training query once", inputs))


def _plan_retriever(builder: PlanBuilder, retriever: _Retriever, negatives: str) -> PlannedSystem:
    recipe_round, settings = retriever.recipe_round, retriever.settings
    refreshed = recipe_round.miners if refresh_settings(recipe_round.miners) else ()
    inputs = {
        "start": StageOutput(retriever.start),
        "passages": PASSAGES,
        "train": training_split(recipe_round.pairs),
        "tokens": TOKENS,
        "query-tokens": _query_tokens(builder, recipe_round.pairs),
    }
    if settings.validation.every:
        inputs["dev"] = split_of("dev")
    if negatives:
        inputs["negatives"] = StageOutput(negatives)
    for name, column in _columns(builder, recipe_round).items():
        inputs[f"column/{name}"] = StageOutput(_plan_column(builder, retriever, negatives, name, column))
    if refreshed and RERANKER in _required_by(builder, refreshed):
        inputs["reranker"] = StageOutput(RERANKER)
    origin = "without pre-training" if retriever.name == LABELS_ONLY else f"from {retriever.start}"
    mined = " with mined negatives" if negatives else ""
    encoders = " separate encoders of queries and passages" if settings.encoders == "separate" else ""
    # How texts are encoded for search repeats no training that neither mines again nor is validated.
    reading, encodes = reading_of(builder), refreshed or settings.validation.every
    stages = [
        builder.add(
            retriever.name if recipe_round.draws == 1 else f"{retriever.name}-draw-{draw + 1}",
            FINETUNE,
            f"fine-tune{encoders} {origin}{mined}, {describe_schedule(settings)}",
            inputs,
            sources=_sources_of(builder, refreshed),
            extra={
                "miners": refreshed,
                "queries": recipe_round.queries,
                "draw": draw,
                "draws": recipe_round.draws,
                "reading": reading if encodes else evolve(reading, precision="float32", passages_per_document=None),
                "training": settings.training_only(),
                "loss": settings.loss,
                "negatives": settings.negatives,
                "keep_steps": settings.keep_steps,
                "validation": settings.validation if settings.validation.every else None,
            },
        )
        for draw in range(recipe_round.draws)
    ]
    return PlannedSystem(retriever.name, tuple(stages))


def _plan_kept(builder: PlanBuilder, trained: PlannedSystem) -> Iterator[PlannedSystem]:
    """Add the stages of the checkpoints that a retriever's training keeps, and yield each step as a system."""
    for step in builder.stages[trained.stages[0]].settings.keep_steps or ():
        names = {f"{stage}@{step}": stage for stage in trained.stages}
        for name, stage in names.items():
            checkpoint = {"checkpoint": StageOutput(stage, name)}
            builder.add(name, KEPT, f"the checkpoint of step {step:,}", checkpoint, extra={"step": step})
        yield PlannedSystem(f"{trained.name}@{step}", tuple(names))


def _unread_columns(builder: PlanBuilder) -> Iterator[str]:
    """Yield a note for each column that the loss of no round receives."""
    finetune, rounds = builder.recipe.finetune, builder.rounds
    assert finetune is not None
    read = {name for current in rounds for name in _columns(builder, current)}
    for name in sorted({name for current in rounds for name in finetune.columns_for(current)} - read):
        yield f"no loss reads the column {name!r}; drkit list loss shows what each receives"


def _columns(builder: PlanBuilder, current: Round) -> dict[str, Column]:
    """Return the columns that the loss of a round receives, by name."""
    finetune = builder.recipe.finetune
    assert finetune is not None
    received = received_columns(finetune.for_round(current).loss, builder.registry)
    return {name: column for name, column in finetune.columns_for(current).items() if name in received}


def _plan_column(builder: PlanBuilder, retriever: _Retriever, negatives: str, name: str, column: Column) -> str:
    """Add the stage that makes the values of a column for the queries and passages that a round draws."""
    recipe_round, settings = retriever.recipe_round, retriever.settings
    source, scored = source_name(column.use), column.use == RERANKER or is_model(column.use)
    inputs = {"passages": PASSAGES, "train": training_split(recipe_round.pairs)}
    if negatives:
        inputs["negatives"] = StageOutput(negatives)
    if column.use == RERANKER:
        inputs["reranker"] = StageOutput(RERANKER)
    if path := column_file(column.use):
        require_file(str(path), f"the column {name!r} of {recipe_round.name}")
    if path or isinstance(column.use, Choice):
        refuse_missing_values(builder, recipe_round, settings, name, column)
    return builder.add(
        f"{'' if name == TEACHER else 'column-'}{name}-{recipe_round.name}",
        COLUMN,
        f"scores of the pairs that the round draws, by {source}" if scored else f"values of {name} ({source})",
        inputs,
        sources={"column": _column_state(builder, column)},
        extra={
            "column": name,
            "source": column.use,
            "default": column.default,
            "max_length": builder.recipe.reranker.max_length if builder.recipe.reranker and scored else None,
            "queries": recipe_round.queries,
            "draws": recipe_round.draws if recipe_round.queries else 1,
            "training": settings.schedule_only(),
            "negatives": settings.negatives if negatives else 0,
        },
    )


def _column_state(builder: PlanBuilder, column: Column) -> str:
    """Return the state of the local files that a column is made from; empty without any."""
    if isinstance(column.use, Choice):
        return files_state(builder.registry.get(Kind.COLUMN, column.use.use), column.use.config)
    path = column_file(column.use)
    return path_state(str(path or column.use)) if path or is_model(column.use) else ""


def _plan_reranker(builder: PlanBuilder, start: str, previous: str, pairs: str) -> PlannedSystem:
    reranker = builder.recipe.reranker
    assert reranker is not None
    if refresh_settings(reranker.miners):
        raise DrkitError(
            "the miner refresh searches with the model in training, but a re-ranker cannot search; use dense "
            "@ reranker.miners"
        )
    origin = previous if reranker.start == "previous" else start
    start_input: dict[str, Any] = {} if reranker.pretrained else {"start": StageOutput(origin)}
    negatives = _plan_negatives(builder, RERANKER, reranker.miners, previous, pairs)
    stage = builder.add(
        RERANKER,
        RERANKER_STAGE,
        f"train the cross-encoder from {reranker.pretrained or origin}, {describe_schedule(reranker)}",
        {**start_input, "passages": PASSAGES, "train": training_split(pairs), "negatives": StageOutput(negatives)},
        sources={"reranker.pretrained": path_state(reranker.pretrained)},
        extra={"training": reranker.training_only()},
    )
    return PlannedSystem(RERANKER, (stage,), reranks=previous)
