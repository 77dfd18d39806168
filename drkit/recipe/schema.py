"""The schema of a recipe: everything a run depends on, as frozen plain data.

The defaults are those of a small encoder from scratch. `Recipe` lists the tables. A table that needs no other
table has its own module beside this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from attrs import evolve, field, fields, frozen, resolve_types
from attrs.validators import and_, ge, in_, lt, min_len, optional

from drkit.batching.specs import RANDOM
from drkit.core.protocols import SearchSimilarity
from drkit.core.settings import MOST, at_least, local_name, more_than, setting
from drkit.core.spec import TEACHER, Choice, Kind, LossChoice, MaskerChoice, NoSettings, brief
from drkit.data.column_sources import COLUMN_SOURCES
from drkit.data.mixture import OWN
from drkit.data.specs import DataSetsConfig, set_names
from drkit.data.splits import PSEUDO
from drkit.encoders.card import prompts_by_name
from drkit.recipe.encoder_settings import EncoderSettings, PoolingChoice
from drkit.recipe.evaluation import Evaluation
from drkit.recipe.pseudo_queries import PseudoQueries
from drkit.recipe.training import Probe, Training, Validation

SCHEMA = 1

ContextChoice = Annotated[Choice, Kind.CONTEXT]
DecoderChoice = Annotated[Choice, Kind.DECODER]
MinerChoice = Annotated[Choice, Kind.MINER]
CollectionChoice = Annotated[Choice, Kind.COLLECTION]
BatchesChoice = Annotated[Choice, Kind.BATCHES]
StageChoice = Annotated[Choice, Kind.STAGE]

_STAGE_NAME = re.compile(r"[a-z][a-z0-9-]{0,100}")
# The side of the encoder in pre-training; every other side is a decoder, by name.
ENCODER_SIDE = "encoder"
# The decoder that the options of the command line choose.
MAIN = "main"
# The choice of no part.
NONE = "none"
# The collection that several labelled data sets make together.
DATA_SETS = "data-sets"
# The context of a decoder that rebuilds the encoder's text.
ITSELF = Choice("self", NoSettings())


@frozen
class Weighted:
    """What a loss among several has beside its settings."""

    weight: float = setting(1.0, at_least(0), "weight of the loss in the sum", schedulable=True)


@frozen
class WithDefault:
    """What a column has beside the settings of its source."""

    default: float | None = setting(
        None, optional(at_least(-1e12, 1e12)), "value of all that the source has none for; none: an error"
    )


# One term of the pre-training loss.
WeightedLoss = Annotated[Choice, Kind.LOSS, Weighted]
# Further data of queries, passages or pairs, which losses receive by name.
ColumnChoice = Annotated[Choice, Kind.COLUMN, WithDefault]
TeacherChoice = Annotated[Choice, Kind.COLUMN]


def _own_pooling(what: str) -> dict[str, Any]:
    """Return the metadata of a training's pooling, where that is not the encoder's."""
    meaning = f"how hidden states become vectors in {what}; none: as `encoder.pooling` says"
    return {"help": meaning, "written": brief, "absent_when": None}


@frozen
class EncoderTask:
    """What pre-training hides from the encoder, its pooling, and the losses of its outputs.

    context: the partner of each text, for losses that compare two texts.
    """

    masker: MaskerChoice = field(kw_only=True)
    context: ContextChoice = ITSELF
    pooling: PoolingChoice | None = field(default=None, kw_only=True, metadata=_own_pooling("pre-training"))
    losses: dict[str, WeightedLoss] = field(factory=dict)


@frozen
class DecoderTask:
    """A decoder, the text that it rebuilds, what is hidden from it, and the losses of its outputs.

    context: another text than the encoder's. masker: None for a decoder that reads no view.
    """

    context: ContextChoice = ITSELF
    masker: MaskerChoice | None = None
    nested: bool = setting(False, None, "hide what is hidden from the encoder, too")
    decoder: DecoderChoice = field(kw_only=True)
    losses: dict[str, WeightedLoss] = field(factory=dict)


def _names_but(taken: str) -> Callable[[Any, Any, Mapping[str, Any]], None]:
    """Return a validator of names that become file names, columns of logs, or prefixes of ids."""

    def validate(_instance: Any, attribute: Any, value: Mapping[str, Any]) -> None:
        for name in value:
            if name == taken or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                raise ValueError(
                    f"'{attribute.name}': a name has small letters, digits and hyphens, and is not {taken!r}; "
                    f"got {name!r:.80}"
                )

    return validate


def _stage_names(_instance: Any, attribute: Any, value: Mapping[str, Any]) -> None:
    """Validate names of stages, which are folders of the run."""
    for name in value:
        if not _STAGE_NAME.fullmatch(name):
            raise ValueError(
                f"'{attribute.name}': the name of a stage has small letters, digits and hyphens, got {name!r:.80}"
            )


def _text_weights(_instance: Any, attribute: Any, value: Mapping[str, float]) -> None:
    """Validate weights: from 0, and not all 0."""
    if not all(0 <= weight <= MOST for weight in value.values()):
        raise ValueError(f"'{attribute.name}' must be numbers from 0 to {MOST:,}, got {dict(value)}")


def _baseline_rates(_instance: Any, attribute: Any, value: Mapping[str, float]) -> None:
    """Validate learning rates of baselines: above 0, by SLOT=PART."""
    for name, rate in value.items():
        slot, equals, part = name.partition("=")
        if slot not in REPLACED or not equals or not part or not 0 < rate <= 100:
            raise ValueError(
                f"'{attribute.name}' must be rates above 0 by SLOT=PART, with a slot of {', '.join(REPLACED)}; got "
                f"{name!r} = {rate!r}"
            )


def _reads_one_collection(pretrain: Pretrain) -> bool:
    return not (pretrain.texts or pretrain.text_weights or pretrain.weigh_by)


def _rising(_instance: Any, attribute: Any, value: tuple[int, ...]) -> None:
    """Validate steps, at least one, from the first to the last."""
    if not value or list(value) != sorted({*value}) or value[0] < 1:
        raise ValueError(f"'{attribute.name}' must be steps from 1, each higher than the one before, got {value}")


@frozen
class Pretrain(Training):
    """Pre-training: what the encoder reads, and the decoders that rebuild texts from its vector, by name."""

    encoder: EncoderTask = field(kw_only=True)
    decoders: dict[str, DecoderTask] = field(kw_only=True, factory=dict, validator=_names_but(ENCODER_SIDE))
    probe: Probe = field(kw_only=True, factory=Probe)
    baseline_learning_rates: dict[str, float] | None = setting(
        None,
        optional(_baseline_rates),
        'learning rates of baselines (finetune.baselines) that have one of their own, as {"decoder=mlm" = 3e-4}',
        observes=True,
    )
    keep_steps: tuple[int, ...] | None = setting(
        None,
        optional(_rising),
        "keep the checkpoints of these steps too, as pretrained@STEP",
        absent_when=None,
    )

    texts: dict[str, CollectionChoice] | None = setting(
        None,
        optional(_names_but(OWN)),
        "further collections whose texts are read, by name",
        absent_when=_reads_one_collection,
    )
    text_weights: dict[str, float] | None = setting(
        None,
        optional(_text_weights),
        "how often a text of each of `texts`, and of `collection`, the run's own, is drawn; 1 if not named",
        absent_when=_reads_one_collection,
    )
    weigh_by: str | None = setting(
        None,
        optional(min_len(1)),
        "signal of texts whose value says how often a text is drawn",
        absent_when=_reads_one_collection,
    )

    @property
    def kept(self) -> dict[str, int]:
        """The steps whose checkpoints are kept, by the names that rounds start from: `pretrained@10000`."""
        return {f"{PRETRAINED}@{step}": step for step in self.keep_steps or ()}

    def losses(self) -> dict[str, tuple[str, WeightedLoss]]:
        """Return the side and the loss of each term, by its name in logs: `encoder_mlm`, `main_mlm`."""
        sides = {ENCODER_SIDE: self.encoder.losses, **{name: task.losses for name, task in self.decoders.items()}}
        return {f"{side}_{name}": (side, loss) for side, losses in sides.items() for name, loss in losses.items()}


_COLUMN_NAME = re.compile(r"[a-z][a-z0-9_-]*")
JUDGED = "judged"
LEARNED_PAIRS = (JUDGED, PSEUDO)
PRETRAINED, PREVIOUS, FROM_INITIAL = ROUND_STARTS = ("pretrained", "previous", "initial")
LABELS_ONLY = "labels-only"
# The slots of pre-training whose part a baseline replaces (`masker=uniform`), with the kind and its plainest part.
REPLACED = {
    "masker": (Kind.MASKER, "uniform"),
    "encoder-masker": (Kind.MASKER, "uniform"),
    "context": (Kind.CONTEXT, ITSELF.use),
    "decoder": (Kind.DECODER, "mlm"),
}


def is_baseline(system: str) -> bool:
    """Return whether a system is a baseline of fine-tuning: labels only, or the composition with another part.

    >>> is_baseline("masker=uniform"), is_baseline("retriever-1")
    (True, False)
    """
    return system == LABELS_ONLY or "=" in system


def _baselines(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate baselines: labels-only, or SLOT=PART, each once."""
    for one in value:
        slot, _, part = one.partition("=")
        if one != LABELS_ONLY and not (slot in REPLACED and part):
            raise ValueError(
                f"'{attribute.name}' must be {LABELS_ONLY} or SLOT=PART, as in masker=uniform, with a slot of "
                f"{', '.join(REPLACED)}; got {one!r:.80}"
            )
    if len({*value}) < len(value):
        raise ValueError(f"'{attribute.name}' must name each baseline once, got {value}")


def _column_names(_instance: Any, attribute: Any, value: dict[str, Choice] | None) -> None:
    """Validate names of columns."""
    if wrong := [name for name in value or () if not _COLUMN_NAME.fullmatch(name)]:
        raise ValueError(f"'{attribute.name}' has {wrong[0]!r}; use lower-case letters, digits, '_' and '-'")


def _with_training(_cls: type, own: list[Any]) -> list[Any]:
    """Add every setting of `Training` to the attributes of a class, None unless it is given."""
    settings: tuple[Any, ...] = fields(resolve_types(Training))
    return own + [
        a.evolve(default=None, type=a.type | None, validator=a.validator and optional(a.validator)) for a in settings
    ]


@frozen(field_transformer=_with_training)
class Round:
    """One retriever: the negatives it is trained on, the weights it starts from, and its teacher.

    `miners` is a chain: a source of negatives, then filters. It has every setting of `Training`, too; those that are
    None are those of `Finetune`.
    """

    name: str = field(validator=min_len(1))
    miners: tuple[MinerChoice, ...] = ()
    start: str = setting(
        "pretrained",
        min_len(1),
        "weights to start from: pretrained, previous (round), initial, an earlier round, or NAME@STEP (kept)",
    )
    pairs: str = setting(JUDGED, in_(LEARNED_PAIRS), "train on the collection's judged queries, or on [pseudo_queries]")
    teacher: TeacherChoice | None = field(
        default=None,
        metadata={"help": f"whose scores it learns from: {COLUMN_SOURCES}", "written": brief, "absent": ""},
    )
    loss: LossChoice | None = None
    pooling: PoolingChoice | None = field(default=None, kw_only=True, metadata=_own_pooling("this round"))
    batches: BatchesChoice | None = field(default=None, metadata={"help": "batches of this round", "written": brief})
    negatives: int | None = setting(None, optional(at_least(0)), "hard negatives per query in this round")
    keep_steps: tuple[int, ...] | None = setting(None, optional(_rising), "steps whose checkpoints this round keeps")
    queries: int = setting(0, at_least(0), "train on this many queries, drawn with the seed; 0: all")
    draws: int = setting(1, at_least(1), "repeat with this many draws of the queries, and average the metrics")


@frozen
class Finetune(Training):
    """Fine-tuning: the loss, and rounds that each train a retriever on its own negatives."""

    loss: LossChoice = field(kw_only=True)
    pooling: PoolingChoice | None = field(default=None, kw_only=True, metadata=_own_pooling("fine-tuning"))
    negatives: int = setting(1, at_least(0), "hard negatives per query")
    rounds: tuple[Round, ...] = field(kw_only=True)
    columns: dict[str, ColumnChoice] | None = setting(
        None, _column_names, f"further data that losses receive, by name: {COLUMN_SOURCES}"
    )
    keep_steps: tuple[int, ...] | None = setting(
        None, optional(_rising), "keep and evaluate the checkpoints of these steps of each round too, as ROUND@STEP"
    )
    batches: BatchesChoice = field(
        default=RANDOM,
        metadata={
            "help": "which queries make up a batch: random, by-length, one-data-set, clusters, documents",
            "written": brief,
        },
    )
    validation: Validation = field(kw_only=True, factory=Validation)
    passage_length: int | None = setting(
        None, optional(at_least(8, 131_072)), "tokens of a passage in training, if fewer than the encoder reads"
    )
    encoders: str = setting(
        "shared",
        in_(("shared", "separate")),
        "shared: one encoder for queries and passages; separate: one for each, from the same weights",
    )
    pipeline: str = setting("", None, "pipeline that was chosen, which needs training queries", observes=True)
    baselines: tuple[str, ...] = setting(
        (LABELS_ONLY,),
        _baselines,
        "also fine-tune, for comparison: labels-only, the same encoder without pre-training; masker=uniform, "
        "decoder=mlm .., one whose pre-training has another part",
    )

    def for_round(self, current: Round) -> Finetune:
        """Return these settings with those that the round overrides."""
        names = (a.name for a in fields(Finetune))
        return evolve(self, **{name: value for name in names if (value := getattr(current, name, None)) is not None})

    def kept(self, current: Round) -> tuple[str, ...]:
        """Return the names of the kept checkpoints of a round, which later ones start from: `retriever-1@500`."""
        return tuple(f"{current.name}@{step}" for step in self.for_round(current).keep_steps or ())

    def columns_for(self, current: Round) -> dict[str, Choice]:
        """Return the columns that the loss of a round may receive, by name; the round's teacher is one of them."""
        columns = dict(self.columns or {})
        if current.teacher:
            default = columns[TEACHER].default if TEACHER in columns else None
            columns[TEACHER] = evolve(current.teacher, default=default)
        return columns

    def column_sources(self) -> list[Choice]:
        """Return the sources of all columns of all rounds, each once."""
        columns = [column for current in self.rounds for column in self.columns_for(current).values()]
        sources = [evolve(column, default=None) for column in columns]
        return [source for index, source in enumerate(sources) if source not in sources[:index]]


@frozen
class RerankerTraining(Training):
    """The cross-encoder: it teaches the rounds whose `teacher` is `reranker`, and re-ranks the retrievers' results.

    It is trained before the first round that it teaches (after the last round if it teaches none), on negatives of
    the retriever trained before it. Each query of a batch comes with its positive and `negatives` passages.
    """

    loss: LossChoice = field(kw_only=True)
    pretrained: str | None = setting(None, optional(min_len(1)), "path or hub id to start from; none: `start` decides")
    start: str = setting(
        "pretrained",
        in_(("pretrained", "previous")),
        "weights to start from; previous: the last retriever's",
    )
    layers: int = setting(
        0, at_least(0, 512), "minimum layers: copies are added to an encoder with fewer (not with `pretrained`)"
    )
    miners: tuple[MinerChoice, ...] = field(kw_only=True, validator=min_len(1))
    negatives: int = setting(63, at_least(1), "negatives per query, a new draw every epoch")
    forward_factor: int = setting(
        1, at_least(1), "learn from one in this many passages of a group: the best-scored ones"
    )
    max_length: int = setting(
        192, at_least(16, 131_072), "maximum tokens of query and passage together, special tokens included"
    )
    depth: int = setting(200, at_least(1), "passages of every ranking to re-rank")


# The most steps of a training that only tries whether it works, as `--quick` makes it; and where an existing encoder is
# tuned alone, which needs few.
_SMOKE_STEPS, _SMOKE_TUNING = 100, 10


@frozen
class DataSet:
    """One of several labelled data sets: its collection, and what training and search do with its texts alone.

    A recipe writes the settings of its collection beside these, as `use`, `path` ..
    """

    collection: CollectionChoice
    weight: float = setting(
        1.0, more_than(0), "how often a batch, or with mixed batches a query, of this data set is drawn"
    )
    query_prompt: str | None = setting(None, None, "text put before its queries; none: encoder.query_prompt")
    passage_prompt: str | None = setting(None, None, "text put before its passages; none: encoder.passage_prompt")
    miners: tuple[MinerChoice, ...] | None = field(
        default=None, validator=optional(min_len(1)), metadata={"help": "its chain of miners; none: that of the round"}
    )


def _data_set_names(_instance: Any, attribute: Any, value: Mapping[str, Any]) -> None:
    """Validate names of data sets, which become prefixes of ids; there is at least one."""
    if not value:
        raise ValueError(f"'{attribute.name}' is empty; give at least one data set, or a table [collection]")
    set_names(_instance, attribute, value)


@frozen
class Recipe:
    """A complete recipe: read from TOML by `drkit.recipe.toml`, written by `drkit.recipe.toml`.

    collections: several labelled data sets by name; `collection` is then that of all of them together.
    """

    name: str = field(validator=local_name)
    collection: CollectionChoice = field(default=None)
    schema: int = field(default=SCHEMA, validator=in_((SCHEMA,)))
    seed: int = setting(42, and_(ge(0), lt(2**31)), "seed of the run")
    reproduces: str | None = setting(
        None, None, "row of a paper's tables that it composes, as PAPER: ROW; `drkit reproduce` sets it", observes=True
    )
    encoder: EncoderSettings = field(factory=EncoderSettings)
    pretrain: Pretrain | None = None
    stages: dict[str, StageChoice] | None = setting(
        None, optional(_stage_names), "stages of plugins, by the name of their folder in the run", absent_when=None
    )
    pseudo_queries: PseudoQueries | None = None
    finetune: Finetune | None = None
    reranker: RerankerTraining | None = None
    evaluation: Evaluation = field(factory=Evaluation)
    collections: dict[str, DataSet] | None = setting(None, optional(_data_set_names), "several labelled data sets")

    def __attrs_post_init__(self) -> None:
        if self.collections is not None:
            sets = {name: one.collection for name, one in self.collections.items()}
            object.__setattr__(self, "collection", Choice(DATA_SETS, DataSetsConfig(sets)))

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The names of several labelled data sets, in their order; none of a recipe with a single collection."""
        return tuple(self.collections or ())

    @property
    def data_set_weights(self) -> dict[str, float]:
        """How often a query of each data set is drawn, by name; empty if all are drawn equally often."""
        weights = {name: one.weight for name, one in (self.collections or {}).items()}
        return weights if len({*weights.values()}) > 1 else {}

    @property
    def query_prompts(self) -> dict[str, str]:
        """The prompts of queries of the data sets that have their own, by name."""
        sets = (self.collections or {}).items()
        return {name: one.query_prompt for name, one in sets if one.query_prompt is not None}

    @property
    def passage_prompts(self) -> dict[str, str]:
        """The prompts of passages of the data sets that have their own, by name."""
        sets = (self.collections or {}).items()
        return {name: one.passage_prompt for name, one in sets if one.passage_prompt is not None}

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts of data sets, by the names that an encoder's card has for them."""
        return prompts_by_name(self.query_prompts, self.passage_prompts)

    @property
    def similarity(self) -> str:
        """The similarity that fine-tuning trains for and search uses: `cosine` or `dot`."""
        return similarity_of(self.finetune.loss) if self.finetune else "cosine"

    @property
    def pretraining_pooling(self) -> Choice:
        """The pooling that pre-training trains."""
        return (self.pretrain and self.pretrain.encoder.pooling) or self.encoder.pooling

    def pooling_of(self, current: Round) -> Choice:
        """Return the pooling that a round of fine-tuning trains."""
        return (self.finetune and self.finetune.for_round(current).pooling) or self.encoder.pooling

    @property
    def poolings(self) -> dict[str, Choice]:
        """The poolings of the encoder, of pre-training and of fine-tuning, by their paths; none twice for one path."""
        rounds = self.finetune.rounds if self.finetune else ()
        found = {
            "encoder.pooling": self.encoder.pooling,
            "pretrain.encoder.pooling": self.pretrain.encoder.pooling if self.pretrain else None,
            "finetune.pooling": self.finetune.pooling if self.finetune else None,
            **{f"finetune.rounds.{index}.pooling": current.pooling for index, current in enumerate(rounds)},
        }
        return {path: chosen for path, chosen in found.items() if chosen is not None}

    @property
    def is_smoke(self) -> bool:
        """Whether the recipe only tries every stage: none of its trainings has more than 100 steps, or 10 of tuning."""
        rounds = [self.finetune.for_round(one) for one in self.finetune.rounds] if self.finetune else []
        trainings = [one for one in (self.pretrain, self.reranker, *rounds) if one]
        most = _SMOKE_TUNING if self.encoder.pretrained and self.pretrain is None else _SMOKE_STEPS
        return bool(trainings) and all(0 < one.max_steps <= most for one in trainings)


def similarity_of(loss: Choice) -> str:
    """Return the similarity that a fine-tuning loss trains for: `cosine` or `dot`."""
    return loss.config.search_similarity if isinstance(loss.config, SearchSimilarity) else "dot"
