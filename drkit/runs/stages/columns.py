"""Stage: the values of a column that the loss of a round receives, such as a teacher's scores."""

from __future__ import annotations

from attrs import frozen

from drkit.errors import DrkitError
from drkit.recipe.schema import RERANKER, ColumnChoice, Training, default_option, is_model, source_name
from drkit.runs.stage import Stage, StageSpec, from_recipe
from drkit.runs.stages.reranker import scoring_work
from drkit.runs.work import BERT_BASE, Sizes, Work, count_examples, stored_size


@frozen
class ColumnSettings:
    """A column and its source, see `drkit.recipe.schema.Column`.

    max_length: tokens per pair of a model, None for the model's own limit. queries, draws: number of training queries
    per draw (0: all) and of draws, as in the round; seed: of those draws. training: the steps and batches of the round
    (see `Training.schedule_only`), which with `negatives` per query decide the values that it reads.
    """

    column: str
    source: ColumnChoice
    default: float | None
    max_length: int | None
    queries: int
    draws: int
    training: Training
    negatives: int
    seed: int = from_recipe("seed")


def missing_values(name: str, source: ColumnChoice, count: int, total: int, example: str) -> DrkitError:
    """Return the error for a column that lacks `count` of the `total` values that a round draws."""
    return DrkitError(
        f"the column {name!r} ({source_name(source)}) has no value for {count:,} of the {total:,} that the round "
        f"draws, such as that of {example}. Add what is missing, or give the column a default: "
        f"{default_option(name, source)}"
    )


# Bytes of a value, and of the index of its passage.
_PAIR_BYTES = 8.0


def _column_work(stage: Stage[ColumnSettings], sizes: Sizes) -> Work:
    settings = stage.settings
    queries = settings.queries or sizes.count(str(stage.inputs["train"]))
    pairs = settings.draws * count_examples(settings.training, queries) * (1 + settings.negatives)
    kept = Work(disk=_PAIR_BYTES * pairs)
    if settings.source == RERANKER:
        return kept + scoring_work(sizes.reranker, pairs, settings.max_length, sizes)
    if is_model(settings.source):
        model = stored_size(settings.source) or BERT_BASE
        return kept + scoring_work(model, pairs, settings.max_length, sizes)
    return kept


COLUMN = StageSpec(
    name="column",
    version=1,
    settings=ColumnSettings,
    run="drkit.runs.steps.columns:make_column",
    inputs={
        "passages": "the corpus",
        "train": "training queries and judgements",
        "negatives": "mined negatives",
        "reranker": "the run's own cross-encoder",
    },
    resumable=True,
    joint=True,
    folders=("teacher-*", "column-*"),
    work=_column_work,
)
