"""The schema of a recipe: everything a run depends on, as frozen plain data.

The defaults are those of a small encoder from scratch. Training settings have their names from
`transformers.TrainingArguments`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from attrs import Factory, evolve, field, fields, frozen, resolve_types
from attrs.validators import and_, deep_iterable, ge, in_, le, lt, min_len, optional

from drkit.core.protocols import SearchSimilarity
from drkit.core.settings import MOST, at_least, local_name, more_than, setting, training_steps
from drkit.core.spec import TEACHER, Kind, LossChoice, MaskerChoice, NoSettings, brief
from drkit.core.spec import Choice as Choice
from drkit.core.types import EncoderSizes
from drkit.data.column_sources import COLUMN_SOURCES
from drkit.data.mixture import OWN
from drkit.data.splits import PSEUDO as PSEUDO
from drkit.data.splits import SPLITS as QUERY_SPLITS
from drkit.data.titles import JOINED, TITLES
from drkit.encoders.folder import PRECISIONS
from drkit.recipe.trainer_arguments import check_arguments

SCHEMA = 1


ContextChoice = Annotated[Choice, Kind.CONTEXT]
DecoderChoice = Annotated[Choice, Kind.DECODER]
MinerChoice = Annotated[Choice, Kind.MINER]
CollectionChoice = Annotated[Choice, Kind.COLLECTION]
PoolingChoice = Annotated[Choice, Kind.POOLING]

# The side of the encoder in pre-training; every other side is a decoder, by name.
ENCODER_SIDE = "encoder"
# The decoder that the options of the command line choose.
MAIN = "main"
# The choice of no part.
NONE = "none"
# The context of a decoder that rebuilds the encoder's text.
ITSELF = Choice("self", NoSettings())
MEAN = Choice("mean", NoSettings())


@frozen
class Weighted:
    """What a loss among several has beside its settings."""

    weight: float = setting(1.0, at_least(0), "weight of the loss in the sum")


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


# Settings of an encoder made from scratch, which do not apply to an existing one.
FROM_SCRATCH = (
    "architecture",
    "architecture_settings",
    "layers",
    "hidden",
    "heads",
    "intermediate",
    "vocab_size",
    "dropout",
    "init_embeddings",
    "lm_head",
)


@frozen
class EncoderSettings(EncoderSizes):
    """The encoder: an existing one (`pretrained`), or the sizes of one made from scratch.

    A class of its own, because users write it: the table `[encoder]` of a recipe.
    """

    pretrained: str | None = setting(None, optional(min_len(1)), "path or hub id of an encoder to start from")
    architecture: str | None = setting(
        None, optional(min_len(1)), "model type, when made from scratch, of `drkit list architecture`; none: bert"
    )
    architecture_settings: dict[str, Any] | None = setting(
        None, None, "further keys of the model's configuration, when made from scratch"
    )
    layers: int = setting(1, at_least(0, 512), "transformer layers, when made from scratch; 0: only word embeddings")
    hidden: int = setting(128, at_least(8, 16_384), "hidden size, when made from scratch")
    heads: int = setting(2, at_least(1, 512), "attention heads, when made from scratch")
    intermediate: int = setting(256, at_least(8, 65_536), "feed-forward size, when made from scratch")
    vocab_size: int = setting(
        8000, at_least(64, 1_000_000), "size of the WordPiece vocabulary trained on the collection"
    )
    dropout: float = setting(0.0, and_(ge(0), lt(1)), "dropout, when made from scratch")
    init_embeddings: str = setting(
        "random", in_(("random", "ppmi-svd")), "word embeddings to start from, when made from scratch"
    )
    lm_head: str = setting(
        "tied",
        in_(("transform", "tied")),
        "LM head, when made from scratch: BERT's transform and tied projection, or only the projection",
    )
    pooling: PoolingChoice = field(
        default=MEAN, metadata={"help": "how hidden states become the bottleneck", "written": brief}
    )
    query_length: int = setting(32, at_least(4, 131_072), "maximum tokens of a query, special tokens included")
    passage_length: int = setting(128, at_least(8, 131_072), "maximum tokens of a passage, special tokens included")
    passages_per_document: int | None = setting(
        None,
        optional(at_least(2, 1000)),
        "passages that a long text is split into for search, ranked by the best one; none: only its beginning",
    )
    query_prompt: str = setting("", None, "text put before every query, in training and search")
    passage_prompt: str = setting("", None, "text put before every passage, in training and search")
    titles: str = setting(
        JOINED,
        in_(TITLES),
        "how a passage's title and text are read: joined by a space, separated by [SEP], as a pair, or the text alone",
    )
    precision: str = setting(
        "float32",
        in_(PRECISIONS),
        "of matrix products when texts are encoded; for training, set bf16",
    )
    declared: str = setting(
        "keep",
        in_(("keep", "ignore")),
        "pooling, lengths and prompts that the pretrained encoder declares; keep: reject others; ignore: override them",
    )


# The settings of `Training` that decide which examples it reads in which step.
SCHEDULE = (
    *("max_steps", "num_train_epochs", "batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"),
)


def _free_arguments(_instance: Any, attribute: Any, value: dict[str, Any]) -> None:
    """Validate that no argument has a setting of its own, or is one that runs rely on."""
    check_arguments((a.name for a in fields(Training)), attribute, value)


@frozen
class Training:
    """Settings of one training, named as in `transformers.TrainingArguments`."""

    learning_rate: float = setting(1e-3, more_than(0, 100), "peak learning rate")
    max_steps: int = setting(-1, training_steps, "optimizer steps; -1: num_train_epochs decides")
    num_train_epochs: float = setting(3.0, more_than(0), "passes over the data, if max_steps is -1")
    batch_size: int | None = setting(
        None,
        optional(at_least(1, 1_000_000)),
        "texts or queries of an optimizer step, over all processes; none: per_device_train_batch_size x processes x "
        "gradient_accumulation_steps",
        absent_when=None,
    )
    per_device_train_batch_size: int = setting(
        32, at_least(1, 1_000_000), "texts or queries that a process reads at a time, as its memory allows"
    )
    gradient_accumulation_steps: int = setting(
        1, at_least(1, 1_000_000), "batches whose gradients are summed in a step, without batch_size"
    )
    warmup_steps: float = setting(0.1, at_least(0), "warm-up: below 1, a share of all steps; otherwise steps")
    gradient_cache_chunk: int = setting(
        0,
        at_least(0),
        "texts per forward pass with cached gradients, for batches larger than memory; 0: those of "
        "per_device_train_batch_size",
    )
    weight_decay: float = setting(0.01, at_least(0, 100), "decoupled weight decay")
    max_grad_norm: float = setting(1.0, at_least(0), "maximum gradient norm (clipping)")
    lr_scheduler_type: str = setting("linear", min_len(1), "schedule after the warm-up, by its name in transformers")
    logging_steps: int = setting(
        50, at_least(1), "steps between log lines; a tenth of all in a shorter training", observes=True
    )
    save_steps: int = setting(500, at_least(1), "steps between checkpoints", observes=True)
    bf16: bool = setting(False, None, "mixed precision in bfloat16")
    arguments: dict[str, Any] = setting(Factory(dict), _free_arguments, "any other TrainingArguments, by name")

    def training_only(self) -> Training:
        """Return only the training settings of a table that has more (`Pretrain`, `Finetune`, `Reranker`)."""
        return Training(**{a.name: getattr(self, a.name) for a in fields(Training)})

    def schedule_only(self) -> Training:
        """Return only the settings that decide which examples a training reads; the others have their defaults."""
        return Training(**{name: getattr(self, name) for name in SCHEDULE})


@frozen
class Probe:
    """Measurements during pre-training: on held-out texts, and on queries.

    With `every = 0` nothing is measured, but the same texts are held out, so that runs stay comparable.
    """

    every: int = setting(
        500, at_least(0), "steps between probes, besides the first and the last; 0: none", observes=True
    )
    texts: int = setting(256, at_least(0), "held-out texts that are probed, at most a tenth of all")
    queries: int = setting(200, at_least(0), "dev queries of the retrieval probe", observes=True)
    passages: int = setting(2000, at_least(2), "maximum passages to search for them", observes=True)


@frozen
class EncoderTask:
    """What pre-training hides from the encoder, and the losses of its outputs.

    context: the partner of each text, for losses that compare two texts.
    """

    masker: MaskerChoice = field(kw_only=True)
    context: ContextChoice = ITSELF
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


_FREE_SOURCES = ("extractive", "crops", "sentences", "titles")
_FINDERS = ("bm25", "encoder")
# Those of Snowball, without second stemmers of a language.
LANGUAGES = (
    *("none", "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german"),
    *("greek", "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian"),
    *("portuguese", "romanian", "russian", "serbian", "spanish", "swedish", "tamil", "turkish", "yiddish"),
)
# The queries' language, if it is that of the passages.
SAME_LANGUAGE = "same"
QUERY_LANGUAGES = (SAME_LANGUAGE, *LANGUAGES)
# Whether BM25 splits identifiers in queries: if no passage has the whole one, always, or never.
IDENTIFIER_SPLITS = (UNKNOWN, ALWAYS, NEVER) = ("unknown", "always", "never")


def _query_sources(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate sources of pseudo-queries."""
    for source in value:
        kind, colon, rest = source.partition(":")
        if source not in _FREE_SOURCES and not (kind in ("file", "model") and colon and rest.strip()):
            raise ValueError(
                f"'{attribute.name}' must be {', '.join(_FREE_SOURCES)}, file:PATH or model:PATH_OR_ID, got {source!r}"
            )
    if not value or len({*value}) < len(value):
        raise ValueError(f"'{attribute.name}' must name at least one source, each once, got {value}")


def _finders(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate the retrievers of the round trip."""
    if not value or len({*value}) < len(value) or not {*value} <= {*_FINDERS}:
        raise ValueError(f"'{attribute.name}' must name {' or '.join(_FINDERS)} or both, each once, got {value}")


@frozen
class PseudoQueries:
    """Training queries made from the passages: rounds with `pairs = "pseudo"` learn from them, not from judgements."""

    sources: tuple[str, ...] = setting(
        ("extractive", "crops"),
        _query_sources,
        "extractive, crops, sentences, titles, file:PATH, or model:PATH_OR_ID of a seq2seq model",
    )
    count: int = setting(3, at_least(1), "maximum queries per passage from each source")
    prefix: str = setting("", None, "put before each passage for a model, as in 'text2query: '")
    round_trip: int = setting(
        10, at_least(0), "keep queries whose passage a retriever of found_by finds within this many; 0: keep all"
    )
    found_by: tuple[str, ...] = setting(
        ("bm25",), _finders, "retrievers of the round trip: bm25, encoder (that fine-tuning starts from)"
    )
    passages: int | None = setting(
        None, optional(at_least(1)), "make training queries from this many passages, drawn at random; none: from all"
    )
    held_out: int | None = setting(
        None,
        optional(at_least(1)),
        "make no training queries from this many passages, drawn at random, but one query each to evaluate on "
        "(evaluation.split = pseudo)",
    )

    @property
    def searches_with_encoder(self) -> bool:
        """Whether the round trip needs the encoder that fine-tuning starts from."""
        return self.round_trip > 0 and "encoder" in self.found_by


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
    negatives: int | None = setting(None, optional(at_least(0)), "hard negatives per query in this round")
    keep_steps: tuple[int, ...] | None = setting(None, optional(_rising), "steps whose checkpoints this round keeps")
    queries: int = setting(0, at_least(0), "train on this many queries, drawn with the seed; 0: all")
    draws: int = setting(1, at_least(1), "repeat with this many draws of the queries, and average the metrics")


@frozen
class Validation:
    """Validation on development queries while a retriever is fine-tuned."""

    every: int = setting(0, at_least(0), "steps between validations; 0: none")
    measure: str = setting("RR@10", min_len(1), "deciding measure, by its ir_measures name")
    queries: int = setting(500, at_least(1), "maximum dev queries")
    passages: int = setting(0, at_least(0), "passages to search, the judged ones included; 0: all")
    patience: int = setting(0, at_least(0), "stop after this many validations without a gain; 0: never")
    keep_best: bool = setting(
        True,
        None,
        "end with the weights of the best validation if they gain more than one standard error over the last ones",
    )


@frozen
class Finetune(Training):
    """Fine-tuning: the loss, and rounds that each train a retriever on its own negatives."""

    loss: LossChoice = field(kw_only=True)
    negatives: int = setting(1, at_least(0), "hard negatives per query")
    rounds: tuple[Round, ...] = field(kw_only=True)
    columns: dict[str, ColumnChoice] | None = setting(
        None, _column_names, f"further data that losses receive, by name: {COLUMN_SOURCES}"
    )
    keep_steps: tuple[int, ...] | None = setting(
        None, optional(_rising), "keep and evaluate the checkpoints of these steps of each round too, as ROUND@STEP"
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


PROVEN = "proven"


@frozen
class Evaluation:
    """Evaluation: measures, queries, and systems to compare with."""

    measures: tuple[str, ...] = setting(
        ("RR@10", "nDCG@10", "R@100", "R@1000"), min_len(1), "measures by their ir_measures names"
    )
    depth: int = setting(1000, and_(ge(1), le(100_000)), "passages retrieved per query")
    split: str = setting(
        "test",
        in_((*QUERY_SPLITS, PSEUDO)),
        "split whose queries are evaluated; pseudo: queries made from pseudo_queries.held_out passages",
    )
    baseline: str | None = setting(
        None,
        optional(min_len(1)),
        "system that the others are tested against; none: labels-only, else the encoder as it starts, else bm25",
    )
    bm25: bool = setting(True, None, "also rank by BM25, for comparison")
    bm25_k1: tuple[float, ...] = setting(
        (1.2, 0.9),
        deep_iterable(more_than(0), min_len(1)),
        "BM25's term-frequency saturation; of several values, the best on the dev queries, or the first without any",
    )
    bm25_b: tuple[float, ...] = setting(
        (0.75, 0.4, 1.0),
        deep_iterable(at_least(0, 1), min_len(1)),
        "BM25's length normalisation; of several values, the best on the dev queries, or the first without any",
    )
    bm25_language: str = setting(
        "english", in_(LANGUAGES), "language of BM25's stemmer and stop words; none for whole words"
    )
    bm25_query_language: str = setting(
        SAME_LANGUAGE, in_(QUERY_LANGUAGES), "language of the queries, for BM25; same: that of bm25_language"
    )
    bm25_split_queries: tuple[str, ...] = setting(
        (UNKNOWN, ALWAYS),
        deep_iterable(in_(IDENTIFIER_SPLITS), min_len(1)),
        "identifiers in BM25's queries that are split into words: those that no passage has (unknown), always, never; "
        "of several values, the best on the dev queries, or the first without any",
    )
    hybrid: bool = setting(True, None, "also fuse BM25 with the exported retriever, if bm25 is on")
    start: bool = setting(True, None, "also evaluate the initial encoder, for comparison")
    pretrained: bool = setting(False, None, "also rank by the pre-trained encoder before any fine-tuning")
    rerank: bool = setting(True, None, "also re-rank with the re-ranker, if the recipe has one")
    exclude_self: bool = setting(False, None, "ignore the passage whose id equals the query's")
    export: str = setting(
        "best",
        in_(("best", "last", PROVEN)),
        "retriever to export: the best on the dev queries, the last, or (proven) the last if it is no worse than the "
        "encoder as it is and a system that gains needs it, else that encoder",
    )
    folds: int | None = setting(
        None,
        optional(at_least(2, 100)),
        "cross-validate on the evaluated queries: as many trainings, each ranking the queries that it has not seen; "
        "the retriever itself learns from all of them",
    )
    passages: int | None = setting(
        None,
        optional(at_least(1)),
        "read only this many passages of the collection: those that are judged, and a random rest",
    )
    index: str = setting(
        "flat",
        min_len(1),
        "index to search: flat (exact), hnsw, ivf-pq, int8, binary, or a factory string of faiss",
    )


# The most steps of a training that only tries whether it works, as `--quick` makes it; and where an existing encoder is
# tuned alone, which needs few.
_SMOKE_STEPS, _SMOKE_TUNING = 100, 10


@frozen
class Recipe:
    """A complete recipe: read from TOML by `drkit.recipe.toml`, written by `drkit.recipe.toml`."""

    name: str = field(validator=local_name)
    collection: CollectionChoice
    schema: int = field(default=SCHEMA, validator=in_((SCHEMA,)))
    seed: int = setting(42, and_(ge(0), lt(2**31)), "seed of the run")
    reproduces: str | None = setting(
        None, None, "row of a paper's tables that it composes, as PAPER: ROW; `drkit reproduce` sets it", observes=True
    )
    encoder: EncoderSettings = field(factory=EncoderSettings)
    pretrain: Pretrain | None = None
    pseudo_queries: PseudoQueries | None = None
    finetune: Finetune | None = None
    reranker: RerankerTraining | None = None
    evaluation: Evaluation = field(factory=Evaluation)

    @property
    def similarity(self) -> str:
        """The similarity that fine-tuning trains for and search uses: `cosine` or `dot`."""
        return similarity_of(self.finetune.loss) if self.finetune else "cosine"

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
