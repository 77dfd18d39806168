"""The data that parts pass to each other.

Shapes: B batch, L tokens, D hidden size, V vocabulary, R rows of a visibility pattern, N target positions, Q queries,
P passages, G passages of a query's own group. Tensors are torch's, which this module imports for type checkers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs
from attrs import field, frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from drkit.core.protocols import MaskedLm, PairScorer, TextIds, TextRetriever
    from drkit.core.registry import Registry


Bundle = TypeVar("Bundle")


def map_tensors(bundle: Bundle, change: Any) -> Bundle:
    """Return a copy of a tensor, or a bundle, list, tuple or mapping of them, with `change` applied to every tensor."""
    value: Any = bundle
    if hasattr(value, "data_ptr"):
        value = change(value)
    elif isinstance(value, (list, tuple)):
        value = type(value)(map_tensors(item, change) for item in value)
    elif isinstance(value, Mapping):
        value = {name: map_tensors(item, change) for name, item in value.items()}
    elif attrs.has(type(value)):
        value = type(value)(**{a.name: map_tensors(getattr(value, a.name), change) for a in attrs.fields(type(value))})
    return value  # type: ignore[no-any-return]


class Movable:
    """`.to()` and `.pin_memory()` for a bundle, as accelerate expects of what a collator returns."""

    def to(self: Bundle, *args: Any, **kwargs: Any) -> Bundle:
        """Return a copy with `Tensor.to` applied to every tensor."""
        return map_tensors(self, lambda t: t.to(*args, **kwargs))

    def pin_memory(self: Bundle) -> Bundle:
        """Return a copy with every tensor in page-locked memory."""
        return map_tensors(self, lambda t: t.pin_memory())


@frozen(eq=False)
class TokenBatch(Movable):
    """Tokenised texts, padded on the right.

    ids i64[B,L]; attention bool[B,L]; maskable bool[B,L] (False at special tokens and padding); words i64[B,L], the
    number of the word that a token belongs to (-1 outside words); keys i64[B], permanent numbers of the examples.
    signals: the signals that parts requested, by name: f32[B,L] or f32[B,L,K] for tokens (0 at special tokens and
    padding), f32[B] or f32[B,K] for texts.
    """

    ids: Tensor
    attention: Tensor
    maskable: Tensor
    words: Tensor
    keys: Tensor
    signals: Mapping[str, Tensor] = field(factory=dict)

    def signal(self, name: str) -> Tensor:
        """Return a signal of these texts. Raises DrkitError if the batch does not have it."""
        if name not in self.signals:
            raise DrkitError(
                f"the batch does not have the signal {name!r} (signals: {', '.join(self.signals) or 'none'}). In a "
                f"run, list it in `signals` of the part's spec; in your own loop, set TokenBatch.signals[{name!r}]"
            )
        return self.signals[name]


@frozen(eq=False)
class MaskedView(Movable):
    """A corrupted view of a batch, which a masker makes for the encoder or for a decoder.

    ids i64[B,L]; labels i64[B,L] (-100: not a target); attention bool[B,L]; visible bool[B,R,L] if the decoder needs
    rows (True: the masker lets row r see that position), else None; noise f32[B,L] if a replacer fills the hidden
    positions (a uniform draw at each, -1 elsewhere), else None; ratios f32[B] if the masker draws the share of each
    text that is hidden, else None.
    """

    ids: Tensor
    labels: Tensor
    attention: Tensor
    visible: Tensor | None = None
    noise: Tensor | None = None
    ratios: Tensor | None = None


@frozen(eq=False)
class Encoded(Movable):
    """The output of an encoder: bottleneck f[B,D]; hidden f[B,L,D]; layers, those f[B,L,D] that the decoder needs.

    vectors: those of a pooling that gives several, by name, f[B,..] each; the first one is the bottleneck.
    """

    bottleneck: Tensor
    hidden: Tensor
    layers: tuple[Tensor, ...] = ()
    vectors: Mapping[str, Tensor] = field(factory=dict)


class LmHeads(Protocol):
    """An encoder's embeddings and language-model head, lent for one call (`drkit.encoders.Heads`)."""

    @property
    def weight(self) -> Tensor:
        """The word embeddings f[V,D], which are also the output projection."""

    def embed(self, ids: Tensor) -> Tensor:
        """Apply the encoder's whole embedding layer: ids i64[B,L] -> f[B,L,D]."""

    def embed_vectors(self, vectors: Tensor) -> Tensor:
        """Apply the same layer to word vectors f[B,L,D] instead of ids -> f[B,L,D]."""

    def positions(self, length: int) -> Tensor:
        """Return raw position embeddings f[L,D]."""

    def logits(self, states: Tensor) -> Tensor:
        """Return the scores of all words f[..., V] for states f[..., D]."""

    def lm_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy f[] of states f[N,D] against labels i64[N]."""


@frozen(eq=False)
class TokenStates:
    """States at target positions only: states f[N,D] (before the LM head), labels i64[N], and the head itself."""

    states: Tensor
    labels: Tensor
    heads: LmHeads


@frozen(eq=False)
class TextStates:
    """States of whole texts f[B,L,D] (before the LM head), the clean text they represent, and the head itself."""

    states: Tensor
    tokens: TokenBatch
    heads: LmHeads


@frozen(eq=False)
class DecoderInput(Movable):
    """The input of a decoder.

    encoded: the encoder's output. tokens: the clean text to rebuild. view: the decoder's view of it. encoder_view: the
    encoder's view of its own text, with targets, or None.
    """

    encoded: Encoded
    tokens: TokenBatch
    view: MaskedView
    encoder_view: MaskedView | None = None


@frozen(eq=False)
class StepOutput:
    """A loss f[] and the metrics that are logged with it."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(factory=dict)


@frozen(eq=False)
class WithColumns(Movable):
    """A batch for a loss that carries further data by name, such as the column `teacher`, a teacher's scores.

    columns: [Q], one value per query, [P], one per passage, or [Q,G], one per passage of each query's own group; NaN,
    -1 or False at padding.
    """

    columns: Mapping[str, Tensor] = field(factory=dict, kw_only=True)

    def column(self, name: str) -> Tensor:
        """Return a column of this batch. Raises DrkitError if the batch does not have it."""
        if name not in self.columns:
            raise DrkitError(
                f"the batch does not have the column {name!r} (columns: {', '.join(self.columns) or 'none'}). In a "
                f"run, list it in `receives` of the loss's spec; in your own loop, pass columns={{{name!r}: ..}}"
            )
        return self.columns[name]


@frozen
class Section:
    """Where a named vector is among the numbers of the joined one, and the factor that it was multiplied by there."""

    start: int
    stop: int
    factor: float = 1.0

    def of(self, joined: Tensor) -> Tensor:
        """Return the named vectors f[B,stop - start] of joined ones f[B,..]."""
        return joined[:, self.start : self.stop] / self.factor


@frozen(eq=False)
class EmbeddedPairs(WithColumns):
    """Vectors of a fine-tuning batch, and its columns.

    queries f[Q,D]; passages f[P,D]; positives i64[Q], the index of each query's positive. candidates bool[Q,P]: False
    if a passage must not be a negative of the query (another judged positive, or a duplicate), None if all may be.
    groups i64[Q,G]: the passages of each query's group, its positive first, padded with -1, or None. numbers i64[P]:
    equal for copies of the same passage, None if all rows are distinct. sharing bool[Q,Q]: True if two queries share a
    judged positive, None if that is known only for the passages in the batch. query_ids i64[Q], passage_ids i64[P]: the
    index of each text in the run, None outside of one; `BuildContext.ids` turns ids of the collection into them.
    sections: where each named vector is, of a pooling that gives several; a product of two joined vectors is the
    weighted sum of the products of each.
    """

    queries: Tensor
    passages: Tensor
    positives: Tensor
    candidates: Tensor | None = None
    groups: Tensor | None = None
    numbers: Tensor | None = None
    sharing: Tensor | None = None
    query_ids: Tensor | None = None
    passage_ids: Tensor | None = None
    sections: Mapping[str, Section] = field(factory=dict)

    def vector(self, name: str) -> EmbeddedPairs:
        """Return the same pairs with one of the named vectors alone. Raises DrkitError if they do not have it."""
        if name not in self.sections:
            raise DrkitError(
                f"the pairs do not have the vector {name!r} (vectors: {', '.join(self.sections) or 'one'}). In a run, "
                f"list 'bottleneck:{name}' in `receives` of the loss's spec; in your own loop, pass `sections`"
            )
        section = self.sections[name]
        return attrs.evolve(self, queries=section.of(self.queries), passages=section.of(self.passages), sections={})


@frozen(eq=False)
class ScoredGroups(WithColumns):
    """A cross-encoder's scores of each query's group of passages, and its columns.

    scores f[Q,G], the positive in column 0; mask bool[Q,G], False at padding.
    """

    scores: Tensor
    mask: Tensor


@frozen(eq=False)
class BatchRows:
    """The training queries of a round, n rows, for a part that makes batches of them (`Batches`).

    It has what the part's spec receives, and else nothing: query_ids, the n ids; query_lengths i32[n], in tokens;
    positive_ids, those of each query's positives; query_vectors f32[n,D], by the encoder in training. columns: the
    values [n] of columns of queries, by name.
    """

    count: int
    query_ids: Sequence[str] = ()
    query_lengths: NDArray[np.int32] = ()  # type: ignore[assignment]
    positive_ids: Sequence[Sequence[str]] = ()
    query_vectors: NDArray[np.float32] = ()  # type: ignore[assignment]
    columns: Mapping[str, NDArray[Any]] = field(factory=dict)

    def __len__(self) -> int:
        return self.count


@frozen
class Passage:
    """A text that can be retrieved."""

    doc_id: str
    text: str
    title: str = ""

    @property
    def content(self) -> str:
        """Title and text as the encoder reads them, in training as in search."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


@frozen
class Query:
    """A search query, and the answers of a question, if they are known."""

    query_id: str
    text: str
    answers: tuple[str, ...] | None = None


# trec_eval keeps one counter per grade, and silently fails if there are too many.
HIGHEST_GRADE = 1_000_000


@frozen
class Judgement:
    """One line of a qrels file; relevance > 0 is a positive, and at most HIGHEST_GRADE.

    subtopic: of the query, in diversity judgements; other judgements have "0".
    """

    query_id: str
    doc_id: str
    relevance: int
    subtopic: str = "0"


@frozen
class CollectionSize:
    """How large a collection is, estimated before it is read.

    queries: their numbers by split. passage_lengths, query_lengths: tokens of some texts. id_length: characters
    of an id.
    """

    passages: int
    queries: Mapping[str, int]
    passage_lengths: Sequence[int]
    query_lengths: Sequence[int] = ()
    id_length: float = 8.0

    def passage_tokens(self, limit: int | None = None) -> float:
        """Return the mean length of passages that are cut after `limit` tokens."""
        return _mean_length(self.passage_lengths, limit)

    def query_tokens(self, limit: int | None = None) -> float:
        """Return the mean length of queries that are cut after `limit` tokens."""
        return _mean_length(self.query_lengths, limit)


def _mean_length(lengths: Sequence[int], limit: int | None) -> float:
    return sum(min(length, limit or length) for length in lengths) / max(len(lengths), 1)


@frozen
class MiningRequest:
    """A query to mine negatives for, with all its judged positives.

    excluded: other passages that must not be negatives either: the query itself if queries are passages, and those
    relevant to a query with the same text.
    answers: those of a question, if they are known.
    """

    query_id: str
    text: str
    positives: frozenset[str]
    excluded: frozenset[str] = frozenset()
    answers: tuple[str, ...] | None = None


@frozen
class Mined:
    """The mined negatives of one query, best first, with their scores.

    positive_scores: the source's scores of judged positives, as far as it can score them. dropped: the number of
    dropped candidates, by reason.
    """

    query_id: str
    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]
    positive_scores: Mapping[str, float] = field(factory=dict)
    dropped: Mapping[str, int] = field(factory=dict)


def _as_tuple(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(ids)


_Sizes = TypeVar("_Sizes", bound="EncoderSizes")


@frozen
class EncoderSizes:
    """The sizes of a transformer's layers. What is made with these sizes, or counted from them, is made by `of`.

    Recipes, users and parts write classes of their own, with defaults and bounds, which are subclasses of this one.
    """

    hidden: int
    heads: int
    intermediate: int
    layers: int

    @classmethod
    def of(cls: type[_Sizes], sizes: EncoderSizes, **more: Any) -> _Sizes:
        """Return the sizes of `sizes` in this class; more: the other settings of this class.

        >>> backbone = BackboneInfo(128, 2, 256, 1, vocab=8000, max_positions=128, mask_id=4, pad_id=0)
        >>> EncoderSizes.of(backbone)
        EncoderSizes(hidden=128, heads=2, intermediate=256, layers=1)
        """
        return cls(**{one.name: getattr(sizes, one.name) for one in attrs.fields(EncoderSizes)}, **more)


@frozen
class BackboneInfo(EncoderSizes):
    """The sizes and special ids of an encoder, as parts need them to be built.

    mask_id: None for a tokenizer without a mask token; parts that mask call `require_mask_id`.
    """

    vocab: int
    max_positions: int
    mask_id: int | None
    pad_id: int
    special_ids: tuple[int, ...] = field(default=(), converter=_as_tuple)
    layer_norm_eps: float = 1e-12
    dropout: float = 0.0
    initializer_range: float = 0.02
    activation: str = "gelu"

    def require_mask_id(self) -> int:
        """Return the id of the mask token. Raises DrkitError if the tokenizer has none."""
        if self.mask_id is None:
            raise DrkitError(
                "the tokenizer has no mask token, which masking needs; choose an encoder that was trained as a masked "
                "language model, or fine-tune without pre-training (--set pretrain=none)"
            )
        return self.mask_id


@frozen(eq=False)
class BuildContext:
    """The context that a part is built in.

    `backbone` is None for parts that do not see tokens. A miner may search with `retriever`; a filter may score pairs
    with `reranker`. `negatives` are the ids of the collection's own negatives, by query id. `generator` is the masked
    LM (`drkit.encoders.MaskedLmEncoder`) that the run makes for a part that requires it. `signals` are the signals
    of scope `vocabulary` that parts read, by name: f32[V] or f32[V,K]. `registry` has the parts that this part's
    settings may choose (`drkit.plugin.registry_of`). `vector_sizes` are the lengths of vectors, by name: those of the
    columns and signals that hold vectors, and `bottleneck`, that of the encoder, with `bottleneck:NAME` for each of a
    pooling that gives several. `ids` has the ids of a run's training queries and passages, under `query` and
    `passage`; empty outside of a run.
    """

    backbone: BackboneInfo | None = None
    tokenizer: Any = None
    retriever: TextRetriever | None = None
    reranker: PairScorer | None = None
    negatives: Mapping[str, Sequence[str]] | None = None
    generator: MaskedLm | None = None
    signals: Mapping[str, Any] = field(factory=dict)
    registry: Registry | None = None
    vector_sizes: Mapping[str, int] = field(factory=dict)
    ids: Mapping[str, TextIds] = field(factory=dict)
    seed: int = 42

    @property
    def vocabulary_size(self) -> int:
        """The number of words: a model's embedding table may be longer than its vocabulary (a round number)."""
        assert self.backbone is not None
        return self.backbone.vocab if self.tokenizer is None else min(self.backbone.vocab, len(self.tokenizer))
