"""Columns: the values that the loss of a round receives beside the texts, such as a teacher's scores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from attrs import evolve, field, frozen

from drkit.batching.specs import RANDOM
from drkit.core.files import local_path
from drkit.core.protocols import CarriesNegatives
from drkit.core.registry import Registry
from drkit.core.spec import QUERY_VECTORS, TEACHER, VECTOR_VALUES, Choice, Kind, brief, is_stage_output, resolve
from drkit.data.column_sources import (
    GIVEN,
    RERANKER,
    EncodedByConfig,
    FileConfig,
    ModelConfig,
    VectorsConfig,
    default_option,
    drops_unknown,
    is_computed,
    is_scored,
    source_name,
)
from drkit.data.rows import require_file
from drkit.data.values import PAIR, PASSAGE, QUERY, read_values
from drkit.encoders.cross_encoder_folder import unsupported_layout
from drkit.errors import DrkitError
from drkit.miners.specs import refresh_settings
from drkit.recipe.data_sets import with_weights
from drkit.recipe.parts import batch_columns, batches_receive, received_columns
from drkit.recipe.schema import JUDGED, Finetune, Round
from drkit.recipe.training import Training
from drkit.runs.stage import PlanBuilder, Stage, StageOutput, StageSpec, files_state, from_recipe
from drkit.runs.stages.queries import plan_query_tokens, training_split
from drkit.runs.stages.reranker import scoring_work
from drkit.runs.stages.texts import OPEN_VECTORS, PASSAGES, plan_encoded
from drkit.runs.work import BERT_BASE, Sizes, Work, count_examples, stored_size
from drkit.train.batches import Schedule


@frozen
class ColumnSettings:
    """A column and its source, see `drkit.data.column_sources`.

    max_length: tokens per pair of a model, None for the model's own limit. queries, draws: number of training queries
    per draw (0: all) and of draws, as in the round; seed: of those draws. training: the steps and batches of the round
    (see `Training.schedule_only`), which with `negatives` per query and the `batches` decide the values that it reads.
    batches: None if they are not known before the training, so that any query may be read in any epoch. refreshed: of
    vectors, that all passages may be drawn, because negatives are mined during the training.
    """

    column: str
    source: Choice = field(metadata={"written": brief})
    default: float | None
    max_length: int | None
    queries: int
    draws: int
    training: Training
    negatives: int
    seed: int = from_recipe("seed")
    refreshed: bool = field(default=False, metadata={"absent_when": False})
    batches: Choice | None = field(default=RANDOM, metadata={"absent_when": RANDOM})

    @property
    def extras(self) -> tuple[str, ...]:
        """The extra that computes the scores of a folder that drkit does not compute itself."""
        model = self.source.config
        is_foreign = isinstance(model, ModelConfig) and bool(unsupported_layout(local_path(model.path)))
        return ("sentence-transformers",) if is_foreign else ()


def missing_values(name: str, source: Choice, count: int, total: int, example: str) -> DrkitError:
    """Return the error for a column that lacks `count` of the `total` values that a round draws."""
    is_vector = isinstance(source.config, (VectorsConfig, EncodedByConfig))
    advice = "" if is_vector else f", or give the column a default: {default_option(name, source)}"
    if isinstance(source.config, (FileConfig, VectorsConfig)):
        advice += f", or leave out what has no value: {drop_option(name, source)}"
    return DrkitError(
        f"the column {name!r} ({source_name(source)}) has no value for {count:,} of the {total:,} that the round "
        f"draws, such as that of {example}. Add what is missing{advice}"
    )


def drop_option(name: str, source: Choice) -> str:
    """Return the option that leaves queries and pairs without a value of the column `name` out of the training."""
    of = f', of="{source.config.of}"' if isinstance(source.config, VectorsConfig) and source.config.of == QUERY else ""
    return f'--set \'finetune.columns.{name}={{use="{source_name(source)}"{of}, unknown="drop"}}\''


def holds_vectors(source: Choice, registry: Registry) -> bool:
    """Return whether the values of a column are vectors."""
    return VECTOR_VALUES in registry.get(Kind.COLUMN, source.use).provides_of(source.config)


# Bytes of a value, and of the index of its passage.
_PAIR_BYTES = 8.0


def _column_work(stage: Stage[ColumnSettings], sizes: Sizes) -> Work:
    settings = stage.settings
    queries = settings.queries or sizes.count(str(stage.inputs["train"]))
    pairs = settings.draws * count_examples(settings.training, queries) * (1 + settings.negatives)
    kept = Work(disk=_PAIR_BYTES * pairs)
    if settings.source.use == RERANKER:
        return kept + scoring_work(sizes.reranker, pairs, settings.max_length, sizes)
    if isinstance(settings.source.config, ModelConfig):
        model = stored_size(settings.source.config.path) or BERT_BASE
        return kept + scoring_work(model, pairs, settings.max_length, sizes)
    return kept


COLUMN = StageSpec(
    name="column",
    version=2,
    settings=ColumnSettings,
    run="drkit.runs.making.columns:make_column",
    inputs={
        "passages": "the corpus",
        "train": "training queries and judgements",
        "negatives": "mined negatives",
        "reranker": "the run's own cross-encoder",
        "vectors": "the vectors that an encoder made of all passages or training queries",
        "column/*": "another column, without whose values queries and pairs are left out",
        "query-tokens": "the training queries' tokens, whose lengths the batches receive",
        "batches/*": "a column that the batches receive",
    },
    resumable=True,
    joint=True,
    folders=("teacher-*", "column-*"),
    work=_column_work,
)


# Bytes of a file that a plan reads, in seconds; the values of longer ones are checked before the training.
_READ_IN_PLAN = 64 * 2**20


def received_by(builder: PlanBuilder, current: Round) -> dict[str, Choice]:
    """Return the columns that the loss of a round receives, by name."""
    finetune = builder.recipe.finetune
    assert finetune is not None
    received = received_columns(finetune.for_round(current).loss, builder.registry)
    return {name: column for name, column in finetune.columns_for(current).items() if name in received}


def plan_column(builder: PlanBuilder, current: Round, settings: Finetune, negatives: str, name: str) -> str:
    """Add the stage that makes the values of a column for the queries and passages that a round draws.

    settings: those of fine-tuning in this round; negatives: the stage that mines for it, or empty.
    """
    column = settings.columns_for(current)[name]
    source, scored = source_name(column), is_scored(column)
    inputs = {"passages": PASSAGES, "train": training_split(builder, current.pairs)}
    if negatives:
        inputs["negatives"] = StageOutput(negatives)
    if column.use == RERANKER:
        inputs["reranker"] = StageOutput(RERANKER)
    inputs |= _check_source(builder, current, settings, name, column)
    for other, one in received_by(builder, current).items():
        if other != name and drops_unknown(one) and not drops_unknown(column):
            inputs[f"column/{other}"] = StageOutput(plan_column(builder, current, settings, negatives, other))
    batches = _known_batches(builder, settings, name)
    if batches is not None:
        inputs |= plan_batch_columns(builder, current, settings, negatives)
        if "query_lengths" in batches_receive(settings, builder.registry):
            inputs["query-tokens"] = plan_query_tokens(builder, current.pairs)
    return builder.add(
        f"{'' if name == TEACHER else 'column-'}{name}-{current.name}",
        COLUMN,
        f"scores of the pairs that the round draws, by {source}" if scored else f"values of {name} ({source})",
        inputs,
        sources={"column": _column_state(builder, column)},
        extra={
            "column": name,
            "source": evolve(column, default=None),
            "default": column.default,
            "max_length": builder.recipe.reranker.max_length if builder.recipe.reranker and scored else None,
            "queries": current.queries,
            "draws": current.draws if current.queries else 1,
            "training": settings.schedule_only(),
            "negatives": settings.negatives if negatives else 0,
            "refreshed": refresh_settings(current.miners) is not None and holds_vectors(column, builder.registry),
            "batches": batches,
        },
    )


def _check_source(
    builder: PlanBuilder, current: Round, settings: Finetune, name: str, column: Choice
) -> dict[str, StageOutput]:
    """Raise DrkitError if a column's source lacks values that the plan knows of; return the vectors that it reads."""
    config = column.config
    is_made = is_stage_output(getattr(config, "path", ""))
    if isinstance(config, FileConfig) and not is_made:
        require_file(str(local_path(config.path)), f"the column {name!r} of {current.name}")
    if isinstance(config, FileConfig) or is_computed(column):
        refuse_missing_values(builder, current, settings, name, column)
    if isinstance(config, EncodedByConfig):
        texts = PASSAGES if config.of == PASSAGE else training_split(builder, current.pairs)
        return {"vectors": plan_encoded(builder, config.path, config.of, texts)}
    if isinstance(config, VectorsConfig):
        if not is_made:
            resolve(OPEN_VECTORS)(config.path, of=config.of, by=config.by)
        if drops_unknown(column) and config.of == PASSAGE and refresh_settings(current.miners):
            raise DrkitError(
                f"the column {name!r} cannot leave out passages: 'refresh' draws passages that are not known before "
                f"the training. Give all passages a vector"
            )
    return {}


def _known_batches(builder: PlanBuilder, settings: Finetune, name: str) -> Choice | None:
    """Return the batches of a round if they are known when the column `name` is made, otherwise None."""
    needed = name in batch_columns(settings, builder.registry) or encodes_queries(builder, settings)
    return None if needed else with_weights(settings.batches, builder.recipe.data_set_weights)


def encodes_queries(builder: PlanBuilder, settings: Finetune) -> bool:
    """Return whether the batches of a round receive vectors by the encoder in training."""
    return QUERY_VECTORS in batches_receive(settings, builder.registry)


def plan_batch_columns(
    builder: PlanBuilder, current: Round, settings: Finetune, negatives: str
) -> dict[str, StageOutput]:
    """Add the stages of the columns that the batches of a round receive; returns these inputs.

    Raises DrkitError for a column that has no value per query.
    """
    inputs = {}
    for name in batch_columns(settings, builder.registry):
        source = settings.columns_for(current)[name]
        scope, is_number = column_scope(name, source, builder.registry), not holds_vectors(source, builder.registry)
        if scope != QUERY or not is_number:
            raise DrkitError(
                f"the batches {settings.batches.use!r} receive the column {name!r}, which has a "
                f"{'value' if is_number else 'vector'} per {scope}; expected a value per query "
                f"@ finetune.columns.{name}"
            )
        inputs[f"batches/{name}"] = StageOutput(plan_column(builder, current, settings, negatives, name))
    return inputs


def _column_state(builder: PlanBuilder, column: Choice) -> str:
    """Return the state of the local files that a column is made from; empty without any."""
    spec = builder.registry.get(Kind.COLUMN, column.use)
    return files_state(spec, column.config) if spec.files or is_computed(column) else ""


def column_scope(name: str, source: Choice, registry: Registry) -> str:
    """Return what a column has a value for: a `query`, a `passage` or a `pair`, as scores have.

    A part declares it; of a file, the first row is read.
    """
    if isinstance(source.config, FileConfig) and is_stage_output(source.config.path):
        return PAIR  # nobody has made it yet
    if not isinstance(source.config, FileConfig):
        return registry.get(Kind.COLUMN, source.use).scope_of(source.config)
    first = next(read_values(local_path(source.config.path), name), None)
    return first.per if first else PAIR


def refuse_missing_values(builder: PlanBuilder, current: Round, settings: Finetune, name: str, column: Choice) -> None:
    """Raise DrkitError if a column without a default has no value for a pair that the round is certain to draw.

    The values of a part are not known yet. Reads the file, and the collection's judgements. Memory: the certain pairs.
    """
    per = column_scope(name, column, builder.registry)
    is_there = isinstance(column.config, FileConfig) and not is_stage_output(column.config.path)
    path = local_path(column.config.path) if is_there else None
    if column.default is not None or holds_vectors(column, builder.registry):
        return
    if per != QUERY and refresh_settings(current.miners):
        raise DrkitError(
            f"the column {name!r} needs a default: 'refresh' draws passages that are not known before the training. "
            f"{default_option(name, column)}"
        )
    if (
        path is None
        or drops_unknown(column)
        or current.pairs != JUDGED
        or current.queries
        or path.stat().st_size > _READ_IN_PLAN
    ):
        return
    certain = {
        (query_id if per != PASSAGE else "", doc_id if per != QUERY else "")
        for query_id, doc_id in _certain_pairs(builder, current, settings, name, per)
    }
    missing = dict.fromkeys(sorted(certain))
    for value in read_values(path, name):
        missing.pop((value.query_id, value.doc_id), None)
    if missing:
        query_id, doc_id = next(iter(missing))
        named = [*([f"query {query_id!r}"] if query_id else []), *([f"passage {doc_id!r}"] if doc_id else [])]
        raise missing_values(name, column, len(missing), len(certain), " and ".join(named))


def _certain_pairs(
    builder: PlanBuilder, current: Round, settings: Finetune, name: str, per: str
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of queries and passages, by id, whose values in the column `name` a round needs in any case.

    They are the only positive of a query that is in any batch (all of them if the column has a value `per` query), and
    its given negatives if it draws all of them. Batches of a part are made later: of them, no pair is certain.
    """
    collection = builder.collection
    positives: dict[str, set[str]] = {}
    negatives: dict[str, set[str]] = {}
    for one in collection.judgements("train"):
        (positives if one.relevance > 0 else negatives).setdefault(one.query_id, set()).add(one.doc_id)
    listed = collection.negatives("train") if isinstance(collection, CarriesNegatives) else ()
    for query_id, doc_id in listed:
        negatives.setdefault(query_id, set()).add(doc_id)
    judged = [query.query_id for query in collection.queries("train") if query.query_id in positives]
    lengths = np.zeros(len(judged), dtype=np.int32)
    schedule = Schedule.of(settings, lengths, seed=builder.recipe.seed, compares=True)
    known = _known_batches(builder, settings, name)
    batches = schedule.all_examples() if known is None else schedule if known == RANDOM else ()
    is_given = [miner.use for miner in current.miners] == [GIVEN] and settings.negatives > 0
    for row in {row for _, row in chain.from_iterable(batches)}:
        own = positives[judged[row]]
        others = negatives.get(judged[row], set()) - own if is_given else set()
        is_drawn = len(own) == 1 or per == QUERY
        drawn = [*(own if is_drawn else ()), *(others if len(others) <= settings.negatives else ())]
        yield from ((judged[row], doc_id) for doc_id in drawn)
