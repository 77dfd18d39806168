"""The losses: their settings and specs; imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import and_, gt, in_, le

from drkit.core.citations import (
    BERT,
    CPDAE,
    EMBED_DISTILL,
    GIST,
    INFO_NCE,
    LISTNET,
    LLADA,
    LLARA,
    LLAVE,
    LLM2VEC,
    MARGIN_MSE,
    MATRYOSHKA,
    MULTILINGUAL_DISTILL,
    RANKNET,
    RELATIONAL,
    SIMCSE,
    SIMLM,
    SPLADE,
)
from drkit.core.protocols import InBatchNegatives, SearchSimilarity
from drkit.core.settings import MOST, at_least, more_than, setting
from drkit.core.spec import Choice, ComponentSpec, Kind, LossChoice, NoSettings, vector_name
from drkit.data.column_sources import ROW_KEYS

DIRECTIONS = ("query-passage", "passage-query", "query-query", "passage-passage", "passage-negative")
# Those of SimLM's public code; the last one is in its equation 3.
ALL_DIRECTIONS = DIRECTIONS[:4]
LONGEST_VECTOR = 65_536
_SIMILARITIES = in_(("cosine", "dot"))


def _directions(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the directions in their fixed order, SimLM's four for "all"; unknown ones are left to the validator."""
    given = (value,) if isinstance(value, str) else tuple(value)
    if "all" in given:
        return ALL_DIRECTIONS
    return given if set(given) - {*DIRECTIONS} else tuple(name for name in DIRECTIONS if name in given)


class _SomeDirections:
    options = (*DIRECTIONS, "all")

    def __call__(self, _instance: Any, attribute: Attribute[Any], value: tuple[str, ...]) -> None:
        if unknown := [name for name in value if name not in self.options]:
            raise ValueError(f"'{attribute.name}' has {unknown[0]!r}; allowed: {', '.join(self.options)}")
        if not value:
            raise ValueError(f"'{attribute.name}' is empty; name at least one of: {', '.join(self.options)}")
        if {*DIRECTIONS[3:]} <= {*value}:
            raise ValueError(
                f"'{attribute.name}' has passage-passage, but passage-negative has its scores, too; name one of them"
            )


def _directions_setting() -> Any:
    meaning = "which scores a query's score of its passage is contrasted with; all: the first four, as SimLM"
    return field(default=DIRECTIONS[:1], converter=_directions, validator=_SomeDirections(), metadata={"help": meaning})


@frozen
class MlmLossConfig:
    """Settings of `MlmLoss`: cross-entropy over the vocabulary, at all target positions or at a share of them."""

    targets: float = setting(
        1.0, and_(gt(0), le(1)), "share of the target positions that is scored, evenly spread", schedulable=True
    )

    @property
    def target_share(self) -> float:
        """Share of the positions that is scored."""
        return self.targets


class _SearchesAsTrained:
    """Settings of a loss with a similarity, by which search then ranks as well (`SearchSimilarity`)."""

    similarity: str

    @property
    def search_similarity(self) -> str:
        """The similarity of training: search ranks by the same one."""
        return self.similarity


@frozen
class ContrastiveConfig(_SearchesAsTrained):
    """Settings of `ContrastiveLoss`: softmax of each query's score of its positive over the passages of the batch."""

    temperature: float = setting(0.02, more_than(0), "scores are divided by it", schedulable=True)
    similarity: str = setting("cosine", _SIMILARITIES, "cosine or dot product")
    directions: tuple[str, ...] = _directions_setting()

    @property
    def in_batch(self) -> bool:
        """Whether a query is compared with other queries' passages."""
        return "query-passage" in self.directions


# The columns of a guide's vectors.
GUIDE_QUERIES, GUIDE_PASSAGES = "guide-queries", "guide-passages"


@frozen
class GistConfig(_SearchesAsTrained):
    """Settings of `GistLoss`: contrastive, without what a guide scores above a query's own passage."""

    temperature: float = setting(0.01, more_than(0), "scores are divided by it", schedulable=True)
    similarity: str = setting("cosine", _SIMILARITIES, "cosine or dot product, of the trained vectors")
    directions: tuple[str, ...] = field(
        default=("query-passage", "query-query", "passage-passage"),
        converter=_directions,
        validator=_SomeDirections(),
        metadata={"help": "which scores a query's score of its passage is contrasted with"},
    )
    margin: float = setting(
        0.0, at_least(-2, 2), "left out is what the guide scores above the positive, less this", schedulable=True
    )
    relative: bool = setting(False, None, "the margin is a share of the positive's score")

    @property
    def in_batch(self) -> bool:
        """Whether a query is compared with other queries' passages."""
        return "query-passage" in self.directions

    @property
    def vector_columns(self) -> Mapping[str, str]:
        """What each column of the guide has a vector for."""
        return {GUIDE_QUERIES: "query", GUIDE_PASSAGES: "passage"}


@frozen
class HardnessConfig(_SearchesAsTrained):
    """Settings of `HardnessLoss`: contrastive, in which negatives weigh more the closer they are to the query."""

    directions = ("query-passage",)
    in_batch = True

    temperature: float = setting(0.05, more_than(0), "scores are divided by it", schedulable=True)
    similarity: str = setting("cosine", _SIMILARITIES, "cosine or dot product")
    strength: float = setting(
        5.0, at_least(0), "what the similarity of a negative is multiplied with; 0: no weights", schedulable=True
    )
    negatives: str = setting("hard", in_(("hard", "batch", "all")), "which are weighed: a query's own, others', or all")


@frozen
class PairwiseConfig(_SearchesAsTrained):
    """Settings of `PairwiseLoss`: softplus of negative minus positive score; a query's own negatives only."""

    in_batch = False

    temperature: float = setting(1.0, more_than(0), "scores are divided by it", schedulable=True)
    similarity: str = setting("dot", _SIMILARITIES, "cosine or dot product")


@frozen
class KlDistillationConfig(_SearchesAsTrained):
    """Settings of `KlDistillationLoss`: KL divergence from a teacher's scores; the defaults are SimLM's."""

    temperature: float = setting(
        0.02, more_than(0), "the student's scores are divided by it, never the teacher's", schedulable=True
    )
    teacher_temperature: float = setting(1.0, more_than(0), "the teacher's scores are divided by it", schedulable=True)
    similarity: str = setting("cosine", _SIMILARITIES, "cosine or dot product")
    alpha: float = setting(
        0.2, at_least(0), "weight of the contrastive loss beside the divergence; 0: none", schedulable=True
    )
    directions: tuple[str, ...] = _directions_setting()
    mask_hard_negatives: bool = setting(False, None, "a query's own negatives are not in its contrastive loss")

    @property
    def in_batch(self) -> bool:
        """Whether a query is compared with other queries' passages."""
        return self.alpha > 0 and "query-passage" in self.directions


@frozen
class MarginMseConfig(_SearchesAsTrained):
    """Settings of `MarginMseLoss`: squared error of positive minus negative score; a query's own negatives only."""

    in_batch = False

    temperature: float = setting(
        1.0, more_than(0), "the student's scores are divided by it, never the teacher's", schedulable=True
    )
    similarity: str = setting("dot", _SIMILARITIES, "cosine or dot product")


def _prefixes(_instance: Any, attribute: Attribute[Any], value: tuple[int, ...]) -> None:
    """Validate lengths of prefixes: at least 1, and each once."""
    if len({*value}) < len(value) or any(not 1 <= length <= LONGEST_VECTOR for length in value):
        raise ValueError(f"'{attribute.name}' must be different numbers from 1 to {LONGEST_VECTOR:,}, got {value}")


class _WrapsLoss:
    """Settings of a loss that computes another loss, and has its properties."""

    loss: Choice

    @property
    def search_similarity(self) -> str:
        """The similarity of the wrapped loss."""
        return self.loss.config.search_similarity if isinstance(self.loss.config, SearchSimilarity) else "dot"

    @property
    def in_batch(self) -> bool:
        """Whether the wrapped loss compares a query with other queries' passages."""
        return self.loss.config.in_batch if isinstance(self.loss.config, InBatchNegatives) else True


@frozen
class MatryoshkaConfig(_WrapsLoss):
    """Settings of `MatryoshkaLoss`: another loss summed over prefixes of the vectors, so that these rank too."""

    loss: LossChoice = setting(
        Choice("contrastive", ContrastiveConfig()), None, "the loss of every prefix; any loss over pairs"
    )
    dimensions: tuple[int, ...] = setting(
        (), _prefixes, "prefixes to train beside the whole vector; empty: its half, a quarter .. down to 8 numbers"
    )


@frozen
class FlopsConfig(_WrapsLoss):
    """Settings of `FlopsLoss`: another loss plus a penalty that keeps sparse vectors sparse (SPLADE)."""

    loss: LossChoice = setting(
        Choice("contrastive", ContrastiveConfig(temperature=1.0, similarity="dot")), None, "any loss over pairs"
    )
    queries: float = setting(3e-4, at_least(0), "weight of the penalty of query vectors", schedulable=True)
    passages: float = setting(1e-4, at_least(0), "weight of the penalty of passage vectors", schedulable=True)
    warmup: int = setting(0, at_least(0), "batches in which both weights grow quadratically to their values")


# The name, among those of vectors, of the sum of their scores.
SUM = "sum"


def _vector_weights(_instance: Any, attribute: Attribute[Any], value: Mapping[str, float]) -> None:
    """Validate weights of named vectors: at least one, each above 0."""
    if not value or not all(0 < weight <= MOST for weight in value.values()):
        raise ValueError(f"'{attribute.name}' must be weights above 0, by the names of vectors or {SUM!r}; got {value}")


@frozen
class PerVectorConfig(_WrapsLoss):
    """Settings of `PerVectorLoss`: a loss of each of a pooling's vectors, and of the sum of their scores."""

    loss: LossChoice = setting(
        Choice("contrastive", ContrastiveConfig(temperature=1.0, similarity="dot")), None, "any loss over pairs"
    )
    weights: dict[str, float] = field(
        factory=lambda: {SUM: 1.0},
        validator=_vector_weights,
        metadata={"help": "weight of the loss of each vector, by its name; `sum`: of the sum of all scores"},
    )

    @property
    def receives(self) -> tuple[str, ...]:
        """The vectors that have a weight."""
        return tuple(vector_name(name) for name in self.weights if name != SUM)


_COLUMN_NAME = "name of a column of vectors, of {}; empty: they are not compared"


@frozen
class VectorLossConfig(_SearchesAsTrained):
    """Settings of the losses that compare the vectors of queries and passages with a teacher's.

    `loss` is another loss over pairs, which is added.
    """

    queries: str = setting("query-vectors", None, _COLUMN_NAME.format("queries"))
    passages: str = setting("passage-vectors", None, _COLUMN_NAME.format("passages"))
    similarity: str = setting("cosine", _SIMILARITIES, "how search compares the trained vectors: cosine or dot")
    loss: LossChoice | None = setting(None, None, "another loss over pairs, which is added; none: this one alone")
    loss_weight: float = setting(1.0, at_least(0), "weight of that loss")

    def __attrs_post_init__(self) -> None:
        if self.queries == self.passages:
            reason = "are both empty" if not self.queries else f"name one column, {self.queries!r}"
            raise ValueError(f"'queries' and 'passages' {reason}; name a column of vectors for one or both")

    @property
    def receives(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.vector_columns)

    @property
    def vector_columns(self) -> Mapping[str, str]:
        """What each column has a vector for."""
        named = {self.queries: "query", self.passages: "passage"}
        return {name: per for name, per in named.items() if name}

    @property
    def in_batch(self) -> bool:
        """Whether the other loss compares a query with other queries' passages."""
        if self.loss is None:
            return False
        return self.loss.config.in_batch if isinstance(self.loss.config, InBatchNegatives) else True


@frozen
class TextVectorLossConfig:
    """Settings of the losses of pre-training that compare the vector of each text with a teacher's."""

    path: str = setting("", None, "a teacher's vectors of the texts, as for a column vectors:PATH")
    by: str = setting("", in_(ROW_KEYS), "what a row names its text by: id or text; empty: its id, if it has one")
    encoder: str = setting("", None, "path or hub id of an encoder that makes them, instead of a file")

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `text-vectors` of this file or encoder."""
        return {"text-vectors": {"path": self.path, "by": self.by, "encoder": self.encoder}}


@frozen
class BowReconstructionConfig:
    """Settings of `BowReconstructionLoss`: yes or no for every word of the vocabulary (CPDAE section 3.2.1)."""

    idf: bool = setting(False, None, "weight every word by its inverse document frequency")

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `idf`, if words are weighted by it."""
        return {"idf": {}} if self.idf else {}


@frozen
class InfoNceConfig:
    """Settings of `InfoNceLoss`: two spans of one text agree more than spans of different texts."""

    temperature: float = setting(0.05, more_than(0), "scores are divided by it", schedulable=True)
    similarity: str = setting("cosine", in_(("cosine", "dot")), "cosine or dot product")
    reduction: str = setting("mean", in_(("mean", "sum")), "over the rows of the batch: mean or sum")


LOSSES = (
    ComponentSpec(
        kind=Kind.LOSS,
        name="mlm",
        target="drkit.losses.tokens:MlmLoss",
        config=MlmLossConfig,
        summary="Cross-entropy over the vocabulary at target positions",
        cite=BERT,
        receives=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="mntp",
        target="drkit.losses.tokens:MntpLoss",
        config=MlmLossConfig,
        summary="As mlm, from the state before each target, as in a causal LM",
        cite=LLM2VEC,
        receives=("preceding_states",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="masked-diffusion",
        target="drkit.losses.tokens:MaskedDiffusionLoss",
        config=NoSettings,
        summary="Cross-entropy at hidden tokens, divided by each text's ratio",
        cite=LLADA,
        receives=("token_states", "ratios", "text_states"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="bag-of-tokens",
        target="drkit.losses.bag_of_words:BagOfTokensLoss",
        config=NoSettings,
        summary="One softmax over the vocabulary, for each word of the text",
        cite=LLARA,
        receives=("vocab_logits", "words"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="contrastive",
        target="drkit.losses.contrastive:ContrastiveLoss",
        config=ContrastiveConfig,
        summary="InfoNCE over in-batch and hard negatives, in up to four directions",
        cite=INFO_NCE,
        receives=("pairs",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="gist",
        target="drkit.losses.guided:GistLoss",
        config=GistConfig,
        summary="InfoNCE without what a guide scores above the positive",
        cite=GIST,
        receives=("pairs", GUIDE_QUERIES, GUIDE_PASSAGES),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="hardness",
        target="drkit.losses.hardness:HardnessLoss",
        config=HardnessConfig,
        summary="InfoNCE in which close negatives weigh more",
        cite=LLAVE,
        receives=("pairs",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="pairwise",
        target="drkit.losses.ranking:PairwiseLoss",
        config=PairwiseConfig,
        summary="Softplus of score differences to a query's own negatives",
        cite=RANKNET,
        receives=("pairs",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="kl-distillation",
        target="drkit.losses.distillation:KlDistillationLoss",
        config=KlDistillationConfig,
        summary="KL to a teacher's scores of positives and negatives, plus InfoNCE",
        cite=SIMLM,
        receives=("pairs", "teacher"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="margin-mse",
        target="drkit.losses.distillation:MarginMseLoss",
        config=MarginMseConfig,
        summary="A teacher's margins between positive and own negatives",
        cite=MARGIN_MSE,
        receives=("pairs", "teacher"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="matryoshka",
        target="drkit.losses.matryoshka:MatryoshkaLoss",
        config=MatryoshkaConfig,
        summary="Applies a loss to vector prefixes, so that vectors can be truncated",
        cite=MATRYOSHKA,
        receives=("pairs",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="flops",
        target="drkit.losses.flops:FlopsLoss",
        config=FlopsConfig,
        summary="A loss and a penalty that makes word scores sparse (lexical pooling)",
        cite=SPLADE,
        receives=("pairs",),
    ),
    *(
        ComponentSpec(
            kind=Kind.LOSS,
            name=f"vector-{what}",
            target=f"drkit.losses.vectors:Vector{what.title()}Loss",
            config=VectorLossConfig,
            summary=summary,
            cite=cite,
            receives=("pairs",),
        )
        for what, summary, cite in (
            ("cosine", "1 - cosine of query and passage vectors and a teacher's", EMBED_DISTILL),
            ("mse", "Squared error of query and passage vectors and a teacher's", MULTILINGUAL_DISTILL),
            ("relation", "Similarities of all texts of a batch as a teacher's vectors have", RELATIONAL),
        )
    ),
    *(
        ComponentSpec(
            kind=Kind.LOSS,
            name=f"text-vector-{what}",
            target=f"drkit.losses.vectors:TextVector{what.title()}Loss",
            config=TextVectorLossConfig,
            summary=summary,
            cite=cite,
            receives=("bottleneck",),
            scope="batch" if what == "relation" else "rows",
            files=("path", "encoder"),
        )
        for what, summary, cite in (
            ("cosine", "Pre-training: 1 - cosine of a text's vector and a teacher's", EMBED_DISTILL),
            ("mse", "Pre-training: squared error of a text's vector and a teacher's", MULTILINGUAL_DISTILL),
            ("relation", "Pre-training: similarities of texts as a teacher's vectors have", RELATIONAL),
        )
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="per-vector",
        target="drkit.losses.per_vector:PerVectorLoss",
        config=PerVectorConfig,
        summary="A loss of each named vector of a pooling, and of their sum",
        receives=("pairs",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="listwise",
        target="drkit.losses.ranking:ListwiseLoss",
        config=NoSettings,
        summary="Cross-encoder: the positive first among a query's passages",
        cite=LISTNET,
        receives=("groups",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="bow-reconstruction",
        target="drkit.losses.bag_of_words:BowReconstructionLoss",
        config=BowReconstructionConfig,
        summary="Yes or no for every word of the vocabulary",
        cite=CPDAE,
        receives=("vocab_logits", "words"),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="info-nce",
        target="drkit.losses.self_contrastive:InfoNceLoss",
        config=InfoNceConfig,
        summary="InfoNCE between two maskings of one text, with in-batch negatives",
        cite=SIMCSE,
        receives=("bottleneck", "partners"),
    ),
)
