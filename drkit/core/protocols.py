"""What a part looks like: one or two methods a kind, matched by shape, never inherited from.

What a part may do besides is a protocol of its own, asked for with isinstance; docs/protocols.md lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from drkit.core.draws import Draws
    from drkit.core.types import (
        BuildContext,
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
    has a model fill the masked positions marks them by `MaskedView.noise`, and is a `ReplacingMasker`.
    """

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> Views:
        """Two views of the batch."""


@runtime_checkable
class ReplacingMasker(Protocol):
    """A masker whose masked positions are filled by a model."""

    def replacer(self, context: BuildContext) -> Replacer:
        """What fills them; `context.generator` is the run's masked LM."""


class Replacer(Protocol):
    """Fills masked positions on the model's device; an nn.Module, made by a masker's `replacer`."""

    def __call__(self, view: MaskedView, tokens: TokenBatch, *, learn: bool) -> tuple[MaskedView, StepOutput | None]:
        """The view, its masked positions filled, and the filler's own loss where it is trained and `learn` is True."""


@runtime_checkable
class LearningReplacer(Protocol):
    """A replacer that may be trained beside the encoder; `generator` is the masked LM that is saved then."""

    learns: bool
    generator: Any


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


@runtime_checkable
class StartsFromEncoder(Protocol):
    """A decoder that copies weights of the encoder before training starts."""

    def init_from(self, encoder: Any) -> None:
        """Copy what it starts from; encoder: `drkit.encoders.MaskedLmEncoder`."""


@runtime_checkable
class WordDistribution(Protocol):
    """A decoder that can say which words a vector stands for: `drkit inspect words` asks it."""

    def word_distribution(self, bottleneck: Tensor) -> Tensor:
        """Shares f[B,V] that sum to 1, of vectors f[B,D]."""


class Loss(Protocol):
    """Called with what its spec receives and its signals, by name; an nn.Module or a function.

    It sees data, never a model or a rank. A loss is a mean; one that is not a mean over the rows of the batch is a
    `CountsItems` too. One whose spec has scope `batch` gets the rows of the whole batch, of all processes.
    """

    def __call__(self, **given: Any) -> StepOutput:
        """The loss of what the spec receives."""


@runtime_checkable
class CountsItems(Protocol):
    """A loss that is a mean over something else than rows, so that parts of a batch add up to the whole."""

    def items(self, **given: Any) -> Tensor:
        """f[] or i64[]: how many items its mean runs over; called as the loss is."""


class SignalTexts(Protocol):
    """The texts that a signal is computed for (`drkit.data.signals.StoredTexts`)."""

    @property
    def store(self) -> Any:
        """Their tokens, a `drkit.data.TokenStore`: `flat_ids` i32[tokens], `offsets` i64[texts + 1], `len`."""

    @property
    def tokenizer(self) -> Any:
        """What made them."""

    @property
    def vocab_size(self) -> int:
        """Entries of the encoder's embedding table."""

    def read(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """(text, i64[tokens,2]: where in it each content token begins and ends), in the store's order."""


@runtime_checkable
class Signal(Protocol):
    """A number, or a vector of K, for every token, text or vocabulary entry (its spec's `scope`), made once."""

    def values(self, texts: SignalTexts, folder: Path) -> Iterable[NDArray[Any]]:
        """f32[n] or f32[n,K] in order, in chunks of any size; folder: what `fit` left, where the signal has one."""


@runtime_checkable
class FittedSignal(Protocol):
    """A signal whose values depend on the whole corpus: counts, frequencies."""

    def fit(self, texts: SignalTexts, folder: Path) -> Mapping[str, Any]:
        """Write to `folder` what the values of any text depend on; returns facts for the manifest."""


@runtime_checkable
class SearchSimilarity(Protocol):
    """Settings of a fine-tuning loss that say what search is to rank by; without it: `dot`."""

    @property
    def search_similarity(self) -> str:
        """`cosine` or `dot`."""


@runtime_checkable
class InBatchNegatives(Protocol):
    """Settings of a fine-tuning loss that say whether a query stands against other queries' passages.

    Without it: yes.
    """

    @property
    def in_batch(self) -> bool:
        """Whether it does."""


@runtime_checkable
class TargetShare(Protocol):
    """Settings of a decoder or loss that scores a part of the positions only: the estimate of a run's cost reads it."""

    @property
    def target_share(self) -> float:
        """The share of the positions that is scored, in (0, 1]; without the property: all."""


@runtime_checkable
class RefreshesNegatives(Protocol):
    """Settings of a source of negatives that is asked again while a retriever is trained, with its current weights."""

    @property
    def refresh_every(self) -> int:
        """Epochs between two minings."""


class Corpus(Protocol):
    """Passages by place and by id, however large; iterating streams them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Passage]: ...
    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """The passages of these ids, in this order."""


@runtime_checkable
class FindsIds(Protocol):
    """A corpus that knows which ids it has without reading all passages."""

    def find(self, doc_ids: Sequence[str]) -> Any:
        """i64[n]: the places of these ids, -1 where there is no such passage."""


@runtime_checkable
class SearchesTexts(Protocol):
    """A retriever: what negatives are mined with."""

    def search(self, texts: Sequence[str], depth: int) -> Sequence[Any]:
        """(doc_ids, scores) of the best `depth` passages of each text, best first."""


@runtime_checkable
class ScoringRetriever(Protocol):
    """A retriever, or an index, that can also score passages it did not find."""

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> Any:
        """A score for each of each text's passages, as `search` gives them; NaN where there is none."""


@runtime_checkable
class VectorRetriever(Protocol):
    """A retriever of an encoder and an index: queries are encoded once, for searching and scoring."""

    encoder: Any
    index: Any


@runtime_checkable
class NegativeMiner(Protocol):
    """Finds hard negatives; streams in both directions; never returns a judged positive; same seed, same answer."""

    def index(self, corpus: Corpus) -> None:
        """Take in the passages that may become negatives."""

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, in the requests' order."""


@runtime_checkable
class RankingDepth(Protocol):
    """A source of negatives that reads a ranking to a depth of its own; without it: 200."""

    @property
    def depth(self) -> int:
        """How deep."""


@runtime_checkable
class NegativeFilter(Protocol):
    """Leaves out candidates that a source found; streams, never adds one or reorders them, and counts what it drops.

    Its spec receives `candidates`; that tells it from a source.
    """

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:
        """What is left of each query's candidates, in the order given, with the new counts in `dropped`."""


@runtime_checkable
class LooksDeeper(Protocol):
    """A filter that looks past a ranking's usual depth."""

    def candidate_depth(self, depth: int) -> int:
        """How many candidates it wants to see where `depth` are asked for."""


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


@runtime_checkable
class CarriesNegatives(Protocol):
    """A collection whose training files name negatives of the queries."""

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """(query id, passage id) pairs of a split."""


@runtime_checkable
class LocatesRows(Protocol):
    """A collection that can say in which file and line a row stands: errors name it."""

    def locate(self, table: str, split: str, row: int) -> str:
        """`file:line` of a row (from 0) of `passages`, `queries`, `judgements` or `negatives`."""


@runtime_checkable
class UnknownJudgements(Protocol):
    """Settings of a collection that may leave out judgements and negatives that name unknown ids.

    `refuse`: they are an error, as for collections without this setting; `drop`: they are left out and counted.
    """

    unknown_judgements: str
