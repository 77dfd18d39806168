"""Fine-tuning: the rounds of a recipe, and the stage that trains a retriever on judged queries and mined negatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from attrs import evolve, field, frozen

from drkit.batching.specs import RANDOM
from drkit.core.files import LOG, TRAINING, VALIDATION
from drkit.core.protocols import ChecksQueryIds
from drkit.core.spec import Choice
from drkit.data.collection import FileCollection
from drkit.data.column_sources import RERANKER
from drkit.encoders.card import EncoderCard
from drkit.errors import DrkitError
from drkit.evaluate.names import INITIAL
from drkit.miners.specs import refresh_settings
from drkit.recipe.data_sets import with_weights
from drkit.recipe.parts import batch_columns
from drkit.recipe.rivals import rival_of
from drkit.recipe.schema import JUDGED, LABELS_ONLY, PRETRAINED, PREVIOUS, Finetune, Pretrain, Round
from drkit.recipe.training import Training, Validation
from drkit.runs.stage import WEIGHT_FILES, PlanBuilder, Stage, StageOutput, StageSpec, from_recipe
from drkit.runs.stages.columns import encodes_queries, plan_batch_columns, plan_column, received_by
from drkit.runs.stages.negatives import miner_files, plan_negatives, required_by
from drkit.runs.stages.pretrain import plan_kept, plan_rival
from drkit.runs.stages.queries import plan_query_tokens, training_split
from drkit.runs.stages.reranker import TRAIN_RERANKER, plan_reranker
from drkit.runs.stages.retriever import PlannedSystem, reading_of, vectors_memory
from drkit.runs.stages.texts import PASSAGES, TOKENS, split_of
from drkit.runs.work import Sizes, Work, count_examples, describe_schedule, reading_work, training_work
from drkit.train.batches import StepSize


@frozen
class FinetuneSettings:
    """One retriever's training; the settings of its round override those of all rounds.

    data_sets: the names of several. weights: how often a query of each is drawn, if not all equally often.

    fold: the fold of the labelled queries that it leaves out, of `folds`; None if it learns from all.

    miners: the chain that mines again during training, or empty. validation: None if it is off. queries: number of
    training queries (0: all), drawn at random; `draw` is the index of this draw among `draws`. pooling: None if all
    trainings of the recipe have that of its encoder, which checkpoints then have, too.
    """

    miners: tuple[Choice, ...]
    queries: int
    draw: int
    reading: EncoderCard
    pooling: Choice | None = field(default=None, kw_only=True, metadata={"absent_when": None})
    draws: int = from_recipe("draws", observes=True)
    validation: Validation | None = from_recipe("finetune.validation")
    training: Training = from_recipe("finetune")
    loss: Choice = from_recipe("finetune.loss")
    negatives: int = from_recipe("finetune.negatives")
    encoders: str = from_recipe("finetune.encoders")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    keep_steps: tuple[int, ...] | None = from_recipe("finetune.keep_steps", absent_when=None)
    seed: int = from_recipe("seed")
    passage_length: int | None = from_recipe("finetune.passage_length", absent_when=None)
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())
    weights: Mapping[str, float] = from_recipe("data_set_weights", absent_when={})
    batches: Choice = field(default=RANDOM, metadata={"absent_when": RANDOM})
    fold: int | None = field(default=None, metadata={"absent_when": None})
    folds: int | None = field(default=None, metadata={"absent_when": None})

    @property
    def longest(self) -> int:
        """Tokens that a passage has at most in training."""
        return min(self.passage_length or self.reading.passage_length, self.reading.passage_length)


def _finetuning_work(stage: Stage[FinetuneSettings], sizes: Sizes) -> Work:
    """Count the queries, positives and negatives, and how often a training mines again; validation is left out."""
    settings, collection, passages = stage.settings, sizes.collection, 1 + stage.settings.negatives
    length, training = settings.longest, settings.training
    tokens = collection.query_tokens(settings.reading.query_length) + passages * collection.passage_tokens(length)
    available = settings.queries or sizes.count(str(stage.inputs["train"]))
    examples = count_examples(training, available)
    work = training_work(
        sizes.encoder,
        training,
        examples=examples,
        texts=passages,
        tokens=tokens,
        length=sizes.kept_length(length),
        gpu=sizes.gpu,
    ) + Work(disk=4.0 * sizes.encoder.weights * len(settings.keep_steps or ()))
    # With cached gradients, a first forward pass without a graph.
    if training.gradient_cache_chunk or StepSize.of(training, compares=True).is_cut:
        work += reading_work(sizes.encoder, examples * tokens, tokens / passages)
    if refresh := refresh_settings(settings.miners):
        minings = examples / max(available, 1) // refresh.refresh_every + 1
        whole = sizes.passage_tokens(settings.reading.passage_length)
        read = reading_work(sizes.encoder, minings * whole, whole / max(sizes.passages, 1))
        work += read + Work(memory=vectors_memory(sizes))
    return work


FINETUNE = StageSpec(
    name="finetune",
    version=6,
    settings=FinetuneSettings,
    run="drkit.runs.making.finetune:finetune",
    inputs={
        "start": "the checkpoint that training starts from",
        "passages": "the corpus",
        "train": "training queries and judgements",
        "dev": "development queries and judgements, for validation",
        "tokens": "the passages' tokens",
        "query-tokens": "the training queries' tokens",
        "negatives": "mined negatives",
        "column/*": "a column that the loss receives, such as a teacher's scores",
        "batches/*": "a column that the batches receive",
        "reranker": "a cross-encoder, if negatives are filtered during training",
    },
    records=(LOG, TRAINING, VALIDATION),
    resumable=True,
    joint=True,
    folders=(LABELS_ONLY, "*=*", "*"),
    prunable=WEIGHT_FILES,
    work=_finetuning_work,
)


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
    starts |= {INITIAL: INITIAL, PRETRAINED: start, PREVIOUS: start}
    compared = labelled_round(builder)
    for current in builder.rounds:
        taught = any(column.use == RERANKER for column in received_by(builder, current).values())
        if taught and not builder.has(TRAIN_RERANKER):
            systems.append(plan_reranker(builder, start, previous, current.pairs))
        began, negatives = starts[current.start], ""
        if current.miners and finetune.for_round(current).negatives:
            negatives = plan_negatives(builder, current.name, current.miners, previous, current.pairs)
        if current is compared and began != INITIAL:
            for name, origin in _baselines(builder, is_plain=began == start):
                systems.append(_plan_retriever(builder, name, current, origin, negatives))
        trained = _plan_retriever(builder, current.name, current, began, negatives)
        systems += [*_plan_kept(builder, trained), trained]
        starts |= {name: f"{trained.stages[0]}@{name.rpartition('@')[2]}" for name in finetune.kept(current)}
        starts[current.name] = starts[PREVIOUS] = previous = trained.stages[0]
    builder.notes.extend(_unread_columns(builder))
    if builder.recipe.reranker and not builder.has(TRAIN_RERANKER):
        builder.notes.append(
            "no round learns from the re-ranker, which only re-ranks; --set reranker=none leaves it out"
        )
        systems.append(plan_reranker(builder, start, previous, builder.rounds[-1].pairs))
    return systems


def labelled_round(builder: PlanBuilder) -> Round:
    """Return the round that the baselines are compared with: the first one that learns from judgements, if any does."""
    return next((one for one in builder.rounds if one.pairs == JUDGED), builder.rounds[0])


def _baselines(builder: PlanBuilder, *, is_plain: bool) -> Iterator[tuple[str, str]]:
    """Yield the retrievers that the first labelled round is compared with, and what each starts from.

    is_plain: whether that round starts from the pre-training itself, as the baselines with another part do.
    """
    assert builder.recipe.finetune is not None
    if not builder.splits:  # without judged queries, nobody would see it
        return
    planned: list[Pretrain | None] = [builder.recipe.pretrain]
    for baseline in builder.recipe.finetune.baselines:
        if baseline == LABELS_ONLY:
            yield LABELS_ONLY, INITIAL
            continue
        try:
            rival = rival_of(builder.recipe, baseline, builder.registry)
            if rival and not is_plain:
                raise DrkitError("the first labelled round does not start from the pre-training itself")
        except DrkitError as error:
            builder.notes.append(f"no row {baseline} (finetune.baselines): {'; '.join(str(error).splitlines())}")
            continue
        if rival is not None and rival not in planned:  # else the part is there already
            planned.append(rival)
            name = baseline.replace(":", "-")
            yield name, plan_rival(builder, name, rival)


def _plan_retriever(builder: PlanBuilder, name: str, current: Round, start: str, negatives: str) -> PlannedSystem:
    """Add the trainings of a retriever, one for each draw of its queries, and the columns that its loss receives.

    name: of the retriever, another one than that of the round for a baseline; start: the stage that it starts from.
    """
    assert builder.recipe.finetune is not None
    settings = builder.recipe.finetune.for_round(current)
    refreshed = current.miners if refresh_settings(current.miners) else ()
    inputs = _training_inputs(builder, current, settings, start, negatives)
    origin = "without pre-training" if name == LABELS_ONLY else f"from {start}"
    mined = " with mined negatives" if negatives else ""
    encoders = " separate encoders of queries and passages" if settings.encoders == "separate" else ""
    together = "" if settings.batches == RANDOM else f", batches {settings.batches.use}"
    pooling = builder.recipe.pooling_of(current)
    reading = evolve(reading_of(builder), pooling=pooling.use)
    encodes = encodes_queries(builder, settings)
    if not (
        refreshed or encodes or settings.validation.every
    ):  # how texts are encoded for search changes no weights then
        reading = evolve(reading, precision="float32", passages_per_document=None)
    stages = [
        builder.add(
            name if current.draws == 1 else f"{name}-draw-{draw + 1}",
            FINETUNE,
            f"fine-tune{encoders} {origin}{mined}, {describe_schedule(settings, compares=True, table='finetune')}"
            f"{together}",
            inputs,
            sources=miner_files(builder, refreshed),
            extra={
                "miners": refreshed,
                "queries": current.queries,
                "draw": draw,
                "draws": current.draws,
                "reading": reading,
                "pooling": pooling if len(builder.recipe.poolings) > 1 else None,
                "training": settings.training_only(),
                "loss": settings.loss,
                "batches": with_weights(settings.batches, builder.recipe.data_set_weights),
                "negatives": settings.negatives,
                "keep_steps": settings.keep_steps if name == current.name else None,
                "validation": settings.validation if settings.validation.every else None,
            },
        )
        for draw in range(current.draws)
    ]
    folds = builder.recipe.evaluation.folds
    if folds is None or current.pairs != JUDGED:
        return PlannedSystem(name, tuple(stages))
    (whole,) = (builder.stages[one] for one in stages)
    return PlannedSystem(name, tuple(stages), folds=tuple(_plan_fold(builder, whole, fold) for fold in range(folds)))


def _plan_fold(builder: PlanBuilder, whole: Stage[FinetuneSettings], fold: int) -> str:
    """Add the training of a retriever that leaves out a fold of the labelled queries."""
    folds = builder.recipe.evaluation.folds
    name = f"{whole.name}-fold-{fold + 1}"
    summary = f"{whole.summary}, without fold {fold + 1} of {folds} of the labelled queries"
    builder.stages[name] = evolve(
        whole, name=name, summary=summary, settings=evolve(whole.settings, fold=fold, folds=folds)
    )
    return name


def _training_inputs(
    builder: PlanBuilder, current: Round, settings: Finetune, start: str, negatives: str
) -> dict[str, StageOutput]:
    """Return what a retriever's training reads, and plan the columns that its loss receives."""
    inputs = {
        "start": StageOutput(start),
        "passages": PASSAGES,
        "train": training_split(builder, current.pairs),
        "tokens": TOKENS,
        "query-tokens": plan_query_tokens(builder, current.pairs),
    }
    if settings.validation.every:
        inputs["dev"] = split_of("dev")
    if negatives:
        inputs["negatives"] = StageOutput(negatives)
    for column in received_by(builder, current):
        inputs[f"column/{column}"] = StageOutput(plan_column(builder, current, settings, negatives, column))
    _check_query_ids(builder, current, settings)
    inputs |= plan_batch_columns(builder, current, settings, negatives)
    if refresh_settings(current.miners) and RERANKER in required_by(builder, current.miners):
        inputs["reranker"] = StageOutput(RERANKER)
    return inputs


def _check_query_ids(builder: PlanBuilder, current: Round, settings: Finetune) -> None:
    """Raise DrkitError if the batches of a round cannot use the first training query of a collection in files."""
    config, collection = settings.batches.config, builder.collection
    if isinstance(config, ChecksQueryIds) and isinstance(collection, FileCollection) and current.pairs == JUDGED:
        for query in islice(collection.queries(builder.labelled), 1):
            config.check_query_id(query.query_id)


def _plan_kept(builder: PlanBuilder, trained: PlannedSystem) -> Iterator[PlannedSystem]:
    """Add the stages of the checkpoints that a retriever's training keeps, and yield each step as a system."""
    for step in builder.stages[trained.stages[0]].settings.keep_steps or ():
        yield PlannedSystem(f"{trained.name}@{step}", tuple(plan_kept(builder, one, step) for one in trained.stages))


def _unread_columns(builder: PlanBuilder) -> Iterator[str]:
    """Yield a note for each column that the loss of no round receives."""
    finetune, rounds = builder.recipe.finetune, builder.rounds
    assert finetune is not None
    read = {name for current in rounds for name in received_by(builder, current)}
    read |= {name for current in rounds for name in batch_columns(finetune.for_round(current), builder.registry)}
    for name in sorted({name for current in rounds for name in finetune.columns_for(current)} - read):
        yield f"no loss and no batches read the column {name!r}; drkit list loss shows what each receives"
