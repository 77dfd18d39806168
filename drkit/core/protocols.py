"""What a part looks like: one or two methods a kind, matched by shape, never inherited from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.draws import Draws
    from drkit.core.types import (
        DecoderInput,
        Judgement,
        MaskedView,
        Mined,
        MiningRequest,
        Passage,
        Query,
        StepOutput,
        TokenBatch,
        Views,
    )


class LmHeads(Protocol):
    """An encoder's embeddings and language-model head, lent for one call (`drkit.encoders.Heads`)."""

    @property
    def weight(self) -> Tensor:
        """The word embeddings f[V,D], which are the projection too."""

    def embed(self, ids: Tensor) -> Tensor:
        """The encoder's whole embedding layer: ids i64[B,L] -> f[B,L,D]."""

    def embed_vectors(self, vectors: Tensor) -> Tensor:
        """The same layer with these word vectors f[B,L,D] in the place of the ids' own -> f[B,L,D]."""

    def positions(self, length: int) -> Tensor:
        """Raw position embeddings f[L,D]."""

    def logits(self, states: Tensor) -> Tensor:
        """Scores of all words f[..., V] for states f[..., D]."""

    def lm_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy f[] of states f[N,D] against labels i64[N]."""


@runtime_checkable
class Masker(Protocol):
    """Hides tokens. Runs in the collator: pure, picklable, vectorised over the batch.

    `rows` > 0 asks for a visibility pattern per row beside the decoder's view (`MaskedView.visible`). A masker that
    has a model fill the masked positions marks them by `MaskedView.noise`, and has a method
    `replacer(context) -> Replacer` besides.
    """

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> Views:
        """Two views of the batch."""


class Replacer(Protocol):
    """Fills masked positions on the model's device; an nn.Module, made by a masker's `replacer`."""

    def __call__(self, view: MaskedView, tokens: TokenBatch, *, learn: bool) -> tuple[MaskedView, StepOutput | None]:
        """The view, its masked positions filled, and the filler's own loss where it is trained and `learn` is True."""


class Decoder(Protocol):
    """Rebuilds the text from the bottleneck; an nn.Module.

    `needs_layers` are the encoder layers it reads; `rows(L)` is how many visibility rows it wants for L
    tokens. The result's keys are the names its spec provides.
    """

    needs_layers: tuple[int, ...]

    def rows(self, length: int) -> int:
        """How many visibility rows it wants for texts of `length` tokens (0: a plain masked view)."""

    def __call__(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, Any]:
        """What the spec provides, by name."""


class Loss(Protocol):
    """Called with what its spec needs, by name; an nn.Module or a function. Sees data, never a model or a rank.

    A loss is a mean. One that is not a mean over the rows of the batch has a method `items(**needs) -> Tensor`, f[] or
    i64[]: how many items its mean runs over, so that parts of a batch add up to the whole. A loss that needs
    `partners` compares rows with each other and always gets the rows of the whole batch, of all processes.
    """

    def __call__(self, **needs: Any) -> StepOutput:
        """The loss of what the spec needs."""


class Corpus(Protocol):
    """Passages by place and by id, however large; iterating streams them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Passage]: ...
    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """The passages of these ids, in this order."""


class NegativeMiner(Protocol):
    """Finds hard negatives; streams in both directions; never returns a judged positive; same seed, same answer."""

    def index(self, corpus: Corpus) -> None:
        """Take in the passages that may become negatives."""

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, in the requests' order."""


class NegativeFilter(Protocol):
    """Leaves out candidates that a source found; streams, never adds one or reorders them, and counts what it drops.

    One that looks past a ranking's usual depth has a method `reach(depth: int) -> int`: how many candidates it wants
    to see where `depth` are asked for. Its spec needs `candidates`; that tells it from a source.
    """

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:
        """What is left of each query's candidates, in the order given, with the new counts in `dropped`."""


class Collection(Protocol):
    """Where texts, queries and judgements come from."""

    name: str

    def passages(self) -> Iterator[Passage]:
        """Every passage."""

    def splits(self) -> tuple[str, ...]:
        """The splits that have judged queries: of train, dev, test."""

    def queries(self, split: str) -> Iterator[Query]:
        """The queries of a split."""

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split."""

    def describe(self) -> Mapping[str, Any]:
        """Facts for the manifest: sources, versions, counts."""
