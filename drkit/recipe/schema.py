"""A recipe: everything a run depends on, as frozen plain data.

The defaults here are those of the embedded small run; a recipe in a file says only what differs. Training
knobs carry the names of `transformers.TrainingArguments`.
"""

from __future__ import annotations

from typing import Annotated, Any

from attrs import Factory, evolve, field, fields, frozen
from attrs.validators import and_, ge, gt, in_, le, lt, max_len, min_len, optional

from drkit.core.protocols import SearchSimilarity
from drkit.core.settings import setting
from drkit.core.spec import Kind
from drkit.encoders.pooling import POOLINGS

SCHEMA = 1


@frozen
class Choice:
    """A part chosen for a slot: its name, and its settings (an instance of its spec's config class)."""

    use: str
    config: Any


MaskerChoice = Annotated[Choice, Kind.MASKER]
DecoderChoice = Annotated[Choice, Kind.DECODER]
LossChoice = Annotated[Choice, Kind.LOSS]
MinerChoice = Annotated[Choice, Kind.MINER]
CollectionChoice = Annotated[Choice, Kind.COLLECTION]

SOURCES = ("encoder", "decoder")


@frozen
class WeightedLoss:
    """One term of the pre-training loss: a loss, the output it reads (`encoder` or `decoder`), and its weight."""

    use: str
    config: Any
    on: str = field(validator=in_(SOURCES))
    weight: float = field(default=1.0, validator=ge(0))


@frozen
class EncoderSettings:
    """The encoder: an existing one (`pretrained`), or the sizes of one made from scratch."""

    pretrained: str | None = setting(None, None, "path or hub id of an encoder to start from")
    layers: int = setting(1, ge(1), "transformer layers, when made from scratch")
    hidden: int = setting(256, ge(8), "hidden size, when made from scratch")
    heads: int = setting(4, ge(1), "attention heads, when made from scratch")
    intermediate: int = setting(512, ge(8), "feed-forward size, when made from scratch")
    vocab_size: int = setting(8000, ge(64), "size of the WordPiece vocabulary trained on the collection")
    dropout: float = setting(0.0, and_(ge(0), lt(1)), "dropout, when made from scratch")
    init_embeddings: str = setting(
        "ppmi-svd", in_(("random", "ppmi-svd")), "word embeddings to start from, when made from scratch"
    )
    lm_head: str = setting(
        "tied",
        in_(("transform", "tied")),
        "LM head, when made from scratch: BERT's transform and tied projection, or the projection alone",
    )
    pooling: str = setting("mean", in_(tuple(POOLINGS)), "how hidden states become the bottleneck")
    query_length: int = setting(32, ge(4), "tokens of a query at most, special tokens included")
    passage_length: int = setting(128, ge(8), "tokens of a passage at most, special tokens included")
    query_prompt: str = setting("", None, "stands before every query, in training and search")
    passage_prompt: str = setting("", None, "stands before every passage, in training and search")
    declared: str = setting(
        "keep",
        in_(("keep", "ignore")),
        "pooling, lengths and prompts that the pretrained encoder declares: others are refused, or trained anew",
    )


@frozen
class Training:
    """Settings of one training, under the names of `transformers.TrainingArguments`."""

    learning_rate: float = setting(1e-3, gt(0), "peak learning rate")
    max_steps: int = setting(-1, ge(-1), "optimizer steps; -1: as many as num_train_epochs gives")
    num_train_epochs: float = setting(3.0, gt(0), "passes over the data, where max_steps is -1")
    per_device_train_batch_size: int = setting(64, ge(1), "texts or queries a device and step")
    gradient_accumulation_steps: int = setting(1, ge(1), "steps whose gradients are summed")
    warmup_steps: float = setting(0.1, ge(0), "warm-up: a share of all steps below 1, else steps")
    gradient_cache_chunk: int = setting(
        0, ge(0), "texts a forward pass, with cached gradients: the batch may be larger than memory; 0: all at once"
    )
    weight_decay: float = setting(0.01, ge(0), "decoupled weight decay")
    max_grad_norm: float = setting(1.0, ge(0), "gradients are clipped to this norm")
    lr_scheduler_type: str = setting("linear", min_len(1), "schedule after the warm-up, by transformers' name")
    logging_steps: int = setting(50, ge(1), "steps between two lines of the log", observes=True)
    save_steps: int = setting(500, ge(1), "steps between two checkpoints", observes=True)
    bf16: bool = setting(False, None, "mixed precision in bfloat16")
    arguments: dict[str, Any] = setting(Factory(dict), None, "any other of TrainingArguments, by name")

    def training_only(self) -> Training:
        """The training settings alone, of a table that has more (`Pretrain`, `Finetune`, `Reranker`)."""
        return Training(**{a.name: getattr(self, a.name) for a in fields(Training)})


@frozen
class Probe:
    """What is measured while pre-training: on texts that are kept out of it, and on queries.

    With `every = 0` nothing is measured, and the same texts are kept out: runs stay comparable.
    """

    every: int = setting(500, ge(0), "steps between two probes, beside the first and the last; 0: none", observes=True)
    texts: int = setting(256, ge(0), "texts kept out of training and probed, a tenth of all at most")
    queries: int = setting(200, ge(0), "dev queries of the retrieval probe", observes=True)
    passages: int = setting(2000, ge(2), "passages they are searched in, at most", observes=True)


@frozen
class Pretrain(Training):
    """Pre-training: which tokens are hidden, how the text is rebuilt from the bottleneck, and the loss."""

    masker: MaskerChoice = field(kw_only=True)
    decoder: DecoderChoice = field(kw_only=True)
    losses: dict[str, WeightedLoss] = field(kw_only=True, validator=min_len(1))
    probe: Probe = field(kw_only=True, factory=Probe)


# What a round may set for itself; the rest is as `Finetune` says.
_OWN = (
    "loss",
    "negatives",
    "learning_rate",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
)
RERANKER = "reranker"


@frozen
class Round:
    """One retriever: which negatives it is trained on, what it starts from, and who teaches it.

    `miners` is a chain: a source of negatives, then filters. What is not set here is as in `Finetune`.
    """

    name: str = field(validator=min_len(1))
    miners: tuple[MinerChoice, ...] = ()
    start: str = setting("pretrained", in_(("pretrained", "previous")), "weights that the round starts from")
    teacher: str = setting("", None, "whose scores it learns from: reranker, or a cross-encoder's path or hub id")
    loss: LossChoice | None = None
    negatives: int | None = setting(None, optional(ge(0)), "hard negatives a query, in this round")
    learning_rate: float | None = setting(None, optional(gt(0)), "peak learning rate of this round")
    max_steps: int | None = setting(None, optional(ge(-1)), "optimizer steps of this round")
    num_train_epochs: float | None = setting(None, optional(gt(0)), "passes over the queries in this round")
    per_device_train_batch_size: int | None = setting(None, optional(ge(1)), "queries a device and step in this round")
    queries: int = setting(0, ge(0), "train on so many of the queries, drawn by the seed; 0: on all")
    draws: int = setting(1, ge(1), "repeat with so many draws of the queries, and average what is measured")


@frozen
class Validation:
    """Development queries ranked while a retriever is fine-tuned."""

    every: int = setting(0, ge(0), "steps between two validations; 0: none")
    measure: str = setting("RR@10", min_len(1), "what decides, by its ir_measures name")
    queries: int = setting(500, ge(1), "dev queries, at most")
    passages: int = setting(0, ge(0), "passages they are searched in, the judged ones among them; 0: all")
    patience: int = setting(0, ge(0), "stop after so many validations without a gain; 0: never")
    keep_best: bool = setting(True, None, "end with the weights of the best validation, not the last")


@frozen
class Finetune(Training):
    """Fine-tuning: the loss, and one retriever after the other, each on its own negatives."""

    loss: LossChoice = field(kw_only=True)
    negatives: int = setting(1, ge(0), "hard negatives a query")
    rounds: tuple[Round, ...] = field(kw_only=True, validator=min_len(1))
    validation: Validation = field(kw_only=True, factory=Validation)
    encoders: str = setting(
        "shared",
        in_(("shared", "separate")),
        "shared: one encoder reads queries and passages; separate: one each, from the same start",
    )
    baseline: bool = setting(True, None, "also fine-tune the same encoder without pre-training, for comparison")

    def for_round(self, current: Round) -> Finetune:
        """These settings with a round's own in their place."""
        own = {name: value for name in _OWN if (value := getattr(current, name)) is not None}
        return evolve(self, **own)


@frozen
class Reranker(Training):
    """The cross-encoder: it teaches the rounds whose `teacher` is `reranker`, and ranks anew what they found.

    It is trained before the first round that it teaches (after the last one where it teaches none), on negatives of
    the retriever before it. The training settings are those of `Training`; a batch is so many queries, each with its
    positive and `negatives` passages.
    """

    loss: LossChoice = field(kw_only=True)
    pretrained: str | None = setting(None, None, "path or hub id it starts from; none: as `start` says")
    start: str = setting(
        "pretrained",
        in_(("pretrained", "previous")),
        "weights it starts from; previous: the last retriever's",
    )
    layers: int = setting(
        0, ge(0), "at least so many layers: copies, where its start has fewer (a `pretrained` keeps its own)"
    )
    miners: tuple[MinerChoice, ...] = field(kw_only=True, validator=min_len(1))
    negatives: int = setting(63, ge(1), "negatives a query, drawn anew every epoch")
    forward_factor: int = setting(1, ge(1), "learn from one in so many passages of a group: those that score best now")
    max_length: int = setting(192, ge(16), "tokens of query and passage together, special tokens included")
    depth: int = setting(200, ge(1), "passages of every ranking that it ranks anew")


@frozen
class Evaluation:
    """What is measured, and against what."""

    measures: tuple[str, ...] = setting(
        ("RR@10", "nDCG@10", "R@100", "R@1000"), min_len(1), "measures by their ir_measures names"
    )
    depth: int = setting(1000, and_(ge(1), le(100_000)), "how many passages are retrieved a query")
    split: str = setting("test", in_(("train", "dev", "test")), "queries that are evaluated")
    bm25: bool = setting(True, None, "also rank by BM25, for comparison")
    rerank: bool = setting(True, None, "also rank anew by the re-ranker, where the recipe has one")
    exclude_self: bool = setting(False, None, "a passage whose id is the query's own is no hit")
    index: str = setting("flat", in_(("flat", "hnsw", "ivf-pq")), "what is searched: flat is exact")


@frozen
class Recipe:
    """A run, complete: read from TOML by `drkit.recipe.read`, written by `drkit.recipe.write`."""

    name: str = field(validator=and_(min_len(1), max_len(100)))
    collection: CollectionChoice
    schema: int = field(default=SCHEMA, validator=in_((SCHEMA,)))
    seed: int = setting(42, and_(ge(0), lt(2**31)), "the one seed of the run")
    encoder: EncoderSettings = field(factory=EncoderSettings)
    pretrain: Pretrain | None = None
    finetune: Finetune | None = None
    reranker: Reranker | None = None
    evaluation: Evaluation = field(factory=Evaluation)

    @property
    def similarity(self) -> str:
        """`cosine` or `dot`: what the fine-tuning loss trains for, and so what search uses."""
        return similarity_of(self.finetune.loss) if self.finetune else "cosine"


def similarity_of(loss: Choice) -> str:
    """What a fine-tuning loss wants search to rank by: `cosine` or `dot`."""
    return loss.config.search_similarity if isinstance(loss.config, SearchSimilarity) else "dot"
