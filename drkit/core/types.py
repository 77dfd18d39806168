"""The bundles that parts pass to each other.

Shapes: B batch, L tokens, D hidden size, V vocabulary, R rows of a visibility pattern, N target positions,
Q queries, P passages, G passages of a query's own group. Tensors are torch
tensors; this module imports torch for type checkers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from attrs import field, frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.protocols import LmHeads

Bundle = TypeVar("Bundle")


def map_tensors(bundle: Bundle, change: Any) -> Bundle:
    """A copy of a bundle with `change` applied to every tensor in it, nested bundles included."""
    fields = attrs.fields(type(bundle))  # type: ignore[arg-type]
    return type(bundle)(**{a.name: _map_value(getattr(bundle, a.name), change) for a in fields})


def _map_value(value: Any, change: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map_value(item, change) for item in value)
    if isinstance(value, Mapping):
        return {name: _map_value(item, change) for name, item in value.items()}
    return map_tensors(value, change) if attrs.has(type(value)) else value


class Movable:
    """`.to()` and `.pin_memory()` for a bundle, as accelerate expects of what a collator returns."""

    def to(self: Bundle, *args: Any, **kwargs: Any) -> Bundle:
        """A copy whose tensors went through `Tensor.to`."""
        return map_tensors(self, lambda t: t.to(*args, **kwargs))

    def pin_memory(self: Bundle) -> Bundle:
        """A copy whose tensors are in page-locked memory."""
        return map_tensors(self, lambda t: t.pin_memory())


@frozen(eq=False)
class TokenBatch(Movable):
    """Tokenised texts, padded on the right.

    ids i64[B,L]; attention bool[B,L]; maskable bool[B,L] (False at special tokens and padding); words
    i64[B,L], the number of the word a token belongs to (-1 outside words); keys i64[B], permanent numbers of
    the examples. signals: what parts asked for, by name: f32[B,L] or f32[B,L,K] of tokens, 0 at special tokens and
    padding; f32[B] or f32[B,K] of texts. context: where the masker asks for it, another text a row that the decoder is
    to rebuild instead (a span of the same document, a query).
    """

    ids: Tensor
    attention: Tensor
    maskable: Tensor
    words: Tensor
    keys: Tensor
    signals: Mapping[str, Tensor] = field(factory=dict)
    context: TokenBatch | None = None

    def signal(self, name: str) -> Tensor:
        """A signal of these texts. Raises DrkitError where the batch does not carry it."""
        if name not in self.signals:
            raise DrkitError(
                f"the batch carries no signal {name!r} (signals: {', '.join(self.signals) or 'none'}). In a run the "
                f"part's spec names it in `signals`; in your own loop, give TokenBatch.signals[{name!r}]"
            )
        return self.signals[name]


@frozen(eq=False)
class MaskedView(Movable):
    """One corrupted view of a batch.

    ids i64[B,L]; labels i64[B,L] (-100: no target); attention bool[B,L]; visible bool[B,R,L] where the
    decoder asked for rows (True: row r may see that position as far as the masker is concerned), else None;
    noise f32[B,L] where a generator is to fill the hidden positions: a uniform draw at each, -1 elsewhere; else None.
    """

    ids: Tensor
    labels: Tensor
    attention: Tensor
    visible: Tensor | None = None
    noise: Tensor | None = None


@frozen(eq=False)
class Views(Movable):
    """What a masker makes of a batch: the encoder's view, the decoder's, and the clean text the decoder rebuilds."""

    encoder: MaskedView
    decoder: MaskedView
    context: TokenBatch


@frozen(eq=False)
class Encoded(Movable):
    """An encoder's output: bottleneck f[B,D]; hidden f[B,L,D]; layers, the f[B,L,D] that the decoder asked for."""

    bottleneck: Tensor
    hidden: Tensor
    layers: tuple[Tensor, ...] = ()


@frozen(eq=False)
class TokenStates:
    """States at target positions only: states f[N,D] (before the LM head), labels i64[N], and the head itself."""

    states: Tensor
    labels: Tensor
    heads: LmHeads


@frozen(eq=False)
class TextStates:
    """States of whole texts f[B,L,D] (before the LM head), the clean text they stand for, and the head itself."""

    states: Tensor
    tokens: TokenBatch
    heads: LmHeads


@frozen(eq=False)
class DecoderInput(Movable):
    """All a decoder gets.

    encoded: the encoder's output. tokens: the clean text to rebuild. view: the decoder's view of it.
    encoder_view: what the encoder read, of its own text, and its targets; None where nobody asked for it.
    """

    encoded: Encoded
    tokens: TokenBatch
    view: MaskedView
    encoder_view: MaskedView | None = None


@frozen(eq=False)
class StepOutput:
    """A loss f[] and the figures that go into the log beside it."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(factory=dict)


@frozen(eq=False)
class EmbeddedPairs(Movable):
    """Vectors of a fine-tuning batch.

    queries f[Q,D]; passages f[P,D]; positives i64[Q], the passage that answers each query; candidates
    bool[Q,P], False where a passage must not serve as this query's negative (another judged positive, or a
    second copy of any), None where all may; groups i64[Q,G], each query's own passages, its positive first, padded with
    -1, or None; teacher f[Q,G], a teacher's scores of those (NaN: unscored), or None; numbers i64[P], equal where two
    rows are copies of one passage, None where every row is another one; sharing bool[Q,Q], True where two queries share
    a judged positive, None where that is only known of the passages at hand.
    """

    queries: Tensor
    passages: Tensor
    positives: Tensor
    candidates: Tensor | None = None
    groups: Tensor | None = None
    teacher: Tensor | None = None
    numbers: Tensor | None = None
    sharing: Tensor | None = None


@frozen(eq=False)
class ScoredGroups(Movable):
    """A cross-encoder's scores of each query's own passages.

    scores f[Q,G], column 0 the positive's; mask bool[Q,G], False at padding; teacher f[Q,G], a teacher's scores of
    the same passages (NaN: unscored), or None.
    """

    scores: Tensor
    mask: Tensor
    teacher: Tensor | None = None


@frozen
class Passage:
    """A text that can be found."""

    doc_id: str
    text: str
    title: str = ""

    @property
    def content(self) -> str:
        """Title and text as the encoder reads them: the same in training, encoding and search."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


@frozen
class Query:
    """A text to search with."""

    query_id: str
    text: str


@frozen
class Judgement:
    """One line of a qrels file; relevance > 0 is a positive."""

    query_id: str
    doc_id: str
    relevance: int


@frozen
class MiningRequest:
    """A query that wants negatives, and all its judged positives.

    excluded: passages that are no negatives either, unjudged as they are: the query's own, where queries are passages.
    """

    query_id: str
    text: str
    positives: frozenset[str]
    excluded: frozenset[str] = frozenset()


@frozen
class Mined:
    """Negatives of one query, best first: doc_ids, and their scores.

    positive_scores: what the source scores the judged positives, as far as it can. dropped: how many candidates were
    left out on the way, by reason.
    """

    query_id: str
    doc_ids: tuple[str, ...]
    scores: tuple[float, ...]
    positive_scores: Mapping[str, float] = field(factory=dict)
    dropped: Mapping[str, int] = field(factory=dict)


@frozen
class BackboneInfo:
    """The sizes and special ids of an encoder that parts build against."""

    hidden: int
    heads: int
    intermediate: int
    layers: int
    vocab: int
    max_positions: int
    mask_id: int
    pad_id: int
    special_ids: tuple[int, ...] = field(default=(), converter=tuple)
    layer_norm_eps: float = 1e-12
    dropout: float = 0.0
    initializer_range: float = 0.02
    activation: str = "gelu"


@frozen(eq=False)
class BuildContext:
    """What a part may know of its surroundings when it is built.

    `backbone` is None for parts that see no tokens. `retriever` is what a miner may search with, `reranker` what a
    filter may score pairs with: `score(pairs: Sequence[tuple[str, str]]) -> f32[n]`. `negatives` are passages that
    the collection brings to train against, ids by query id. `generator` is the masked LM
    (`drkit.encoders.MaskedLmEncoder`) that fills masked positions, where a part asked for it, and `signals` are the
    signals of scope `vocabulary` that parts asked for, by name: f32[V] or f32[V,K].
    """

    backbone: BackboneInfo | None = None
    tokenizer: Any = None
    retriever: Any = None
    reranker: Any = None
    negatives: Mapping[str, Sequence[str]] | None = None
    generator: Any = None
    signals: Mapping[str, Any] = field(factory=dict)
    seed: int = 42
