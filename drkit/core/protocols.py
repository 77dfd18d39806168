"""The protocols of parts: one or two methods per kind, matched structurally; nothing inherits from them.

Each optional ability of a part is a protocol of its own, checked with isinstance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from drkit.core.types import (
    BatchRows,
    BuildContext,
    CollectionSize,
    DecoderInput,
    Judgement,
    LmHeads,
    MaskedView,
    Mined,
    MiningRequest,
    Passage,
    Query,
    StepOutput,
    TokenBatch,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from drkit.core.draws import Draws
    from drkit.core.engine import Engine


@runtime_checkable
class Masker(Protocol):
    """Hides tokens of one text. Runs in the collator: pure, picklable, vectorised over the batch.

    `rows` > 0 requests a visibility pattern per row (`MaskedView.visible`). `nested` is an earlier view of the same
    texts: the tokens that it hides are hidden, too, and count towards the masker's ratio. A masker that lets a model
    fill the masked positions marks them in `MaskedView.noise`, and is a `ReplacingMasker`.
    """

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0, nested: MaskedView | None = None) -> MaskedView:
        """Return a view of the batch."""


class Pooling(Protocol):
    """Turns the states of a text's tokens into a vector, or into several; an nn.Module."""

    def __call__(self, hidden: Tensor, attention: Tensor, *heads: LmHeads) -> Tensor | Mapping[str, Tensor]:
        """Return a vector for each text, or several by name, from states f[B,L,D] under attention [B,L] (0: padding).

        heads: the encoder's LM head, if the part's spec receives it.
        """


@runtime_checkable
class NamedVectors(Protocol):
    """A pooling that may give several vectors by name; its spec provides `bottleneck:NAME` for each."""

    @property
    def vector_lengths(self) -> Mapping[str, int]:
        """The length of each vector, in the order in which they are joined; empty if it gives one without a name."""


@runtime_checkable
class WeighsVectors(Protocol):
    """A pooling whose named vectors count differently in the score of two texts."""

    @property
    def score_weights(self) -> Mapping[str, float]:
        """What the product of two vectors is multiplied by before the products are added, above 0; by default 1."""


@runtime_checkable
class SizedVectors(Protocol):
    """A pooling whose vectors are not as long as the encoder's hidden states."""

    @property
    def dimension(self) -> int:
        """The length of a vector."""


@runtime_checkable
class DenseAndSparse(Protocol):
    """A pooling, or an encoder, whose vectors may have dense numbers before the scores of words."""

    @property
    def dense_dimension(self) -> int:
        """How many numbers come before the scores; 0 for none."""


class Context(Protocol):
    """Chooses another text for each text: for a decoder to rebuild, or for a loss to compare. Pure and picklable."""

    def __call__(self, tokens: TokenBatch, texts: Any, *, seed: int, epoch: int) -> TokenBatch:
        """Return one text per text of the batch; or the batch itself, for the text itself.

        `tokens.keys` are indices of the texts in `texts`, a `drkit.data.contexts.PretrainingTexts`. The choice depends
        on index, seed and epoch alone.
        """


@runtime_checkable
class ReplacingMasker(Protocol):
    """A masker whose masked positions are filled by a model."""

    def replacer(self, context: BuildContext) -> Replacer:
        """Return the module that fills them; `context.generator` is the run's masked LM."""


class Replacer(Protocol):
    """Fills masked positions on the model's device; an nn.Module, built by a masker's `replacer`."""

    def __call__(self, view: MaskedView, tokens: TokenBatch, *, learn: bool) -> tuple[MaskedView, StepOutput | None]:
        """Return the filled view, and the replacer's own loss if it is trained and `learn` is True."""


@runtime_checkable
class LearningReplacer(Protocol):
    """A replacer that may be trained together with the encoder (if it `learns`), and is saved in checkpoints."""

    learns: bool

    def save(self, folder: Path) -> None:
        """Write what training goes on from into a folder."""

    def load(self, folder: Path) -> None:
        """Go on from such a folder. Raises DrkitError if it does not fit."""


class MaskedLm(Protocol):
    """A masked language model and its head (`drkit.encoders.MaskedLmEncoder`)."""

    def __call__(self, ids: Tensor, attention: Tensor) -> Mapping[str, Tensor]:
        """Return `hidden`, the states f[B,L,D] of texts."""

    def heads(self) -> LmHeads:
        """Return its embeddings and head."""


class Decoder(Protocol):
    """Rebuilds the text from the bottleneck; an nn.Module. Its result has the names that its spec provides."""

    def __call__(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, Any]:
        """Return what the spec provides, by name."""


@runtime_checkable
class ReadsRows(Protocol):
    """A decoder that reads a visibility pattern for each row (`MaskedView.visible`), not a plain masked view."""

    def rows(self, length: int) -> int:
        """Return the number of visibility rows for texts of `length` tokens; 0: a plain masked view."""


@runtime_checkable
class ReadsLayers(Protocol):
    """A decoder that reads the states of some of the encoder's layers, by number (0: the embeddings)."""

    needs_layers: tuple[int, ...]


@runtime_checkable
class CountsTargets(Protocol):
    """A decoder that knows its targets without computing anything: their number weighs a micro-batch of a step."""

    def targets(self, inputs: DecoderInput) -> Mapping[str, Any]:
        """Return the outputs with states f[N,0], of which losses count the items; `inputs.encoded` has no numbers."""


@runtime_checkable
class StartsFromEncoder(Protocol):
    """A decoder that copies weights of the encoder before training starts."""

    def init_from(self, encoder: Any) -> None:
        """Copy the initial weights from `encoder`, a `drkit.encoders.MaskedLmEncoder`."""


@runtime_checkable
class WordDistribution(Protocol):
    """A decoder that predicts words from a vector, as `drkit inspect words` shows them."""

    def word_distribution(self, bottleneck: Tensor) -> Tensor:
        """Return a distribution f[B,V] over the vocabulary for each of the vectors f[B,D]."""


class Loss(Protocol):
    """Computes a loss from what its spec receives and its signals, as keyword arguments; an nn.Module or a function.

    It sees data, never a model or a rank. A loss is a mean; if it is not a mean over the rows of the batch, it is also
    a `CountsItems`. If its spec has scope `batch`, it gets the rows of the whole batch, from all processes.
    """

    def __call__(self, **given: Any) -> StepOutput:
        """Return the loss of a batch and its metrics, from the inputs that its spec names in `receives`."""


@runtime_checkable
class CountsItems(Protocol):
    """A loss that is a mean over items other than rows; their number makes the parts of a step add up correctly."""

    def items(self, **given: Any) -> Tensor:
        """Return the number of items that the mean is over, f[] or i64[]; called with the arguments of the loss."""


@runtime_checkable
class FollowsProgress(Protocol):
    """A module, such as a loss, that changes over a training: the trainer says before each step how far it is."""

    def set_progress(self, progress: float) -> None:
        """Take the optimizer steps already made, as a share of those planned, in [0, 1)."""


@runtime_checkable
class MeasuresAccuracy(Protocol):
    """A loss of pre-training whose predictions can be counted as right or wrong, as probes do."""

    def accuracy(self, **given: Any) -> tuple[float, float]:
        """Return how many predictions are right, and how many there are; called with the arguments of the loss."""


class SignalTexts(Protocol):
    """The texts that a signal is computed for; see `drkit.data.store.StoredTexts`."""

    @property
    def store(self) -> Any:
        """The tokens as a `drkit.data.TokenStore`: `flat_ids` i32[tokens], `offsets` i64[texts + 1], `len`."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that produced the tokens."""

    @property
    def vocab_size(self) -> int:
        """The number of entries in the encoder's embedding table."""

    @property
    def engine(self) -> Engine | None:
        """The engine that carries out tasks; None: this process."""

    @property
    def scratch(self) -> Path | None:
        """A folder for temporary files that all machines of the engine share; None: a temporary folder."""

    def read(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield (text, i64[tokens,2] start and end of each content token in it), in the order of the store."""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield (id, text), in the order of the store: the ids of passages, or `DOC#n` of their spans."""


@runtime_checkable
class Signal(Protocol):
    """A number or a vector of size K for each token, text or vocabulary entry (its spec's `scope`), computed once."""

    def values(self, texts: SignalTexts, folder: Path) -> Iterable[NDArray[Any]]:
        """Yield values f32[n] or f32[n,K] in order, in chunks of any size; folder: what `fit` wrote, if it exists."""


@runtime_checkable
class FittedSignal(Protocol):
    """A signal whose values depend on the whole corpus: counts, frequencies."""

    def fit(self, texts: SignalTexts, folder: Path) -> Mapping[str, Any]:
        """Write the statistics that values depend on to `folder`, and return facts for the manifest."""


@runtime_checkable
class ColumnSource(Protocol):
    """A value for each query, passage or pair (its spec's `scope`) that a round of fine-tuning draws.

    It is a number, or, if the spec provides `vectors`, a vector for each query or passage, all of one length.
    """

    def values(self, items: Iterable[Any]) -> Iterable[Any]:
        """Yield a finite number or a bool for each item, in order; None: the column's default. Or vectors f[D].

        items: each a `Query`, a `Passage`, or a tuple of both.
        """


class Batches(Protocol):
    """Decides which training queries make up each batch of an epoch of fine-tuning.

    The result depends on the arguments alone. A part may leave queries out of an epoch, or read them several times.
    """

    def __call__(
        self, rows: BatchRows, *, size: int, count: int, seed: int, epoch: int
    ) -> Sequence[NDArray[np.integer[Any]]]:
        """Return `count` batches, each an array of 1 to `size` different rows (0 to len(rows) - 1), in any order."""


@runtime_checkable
class RefreshesBatches(Protocol):
    """Settings of batches that receive the vectors of queries, which are encoded again during training.

    The default is every epoch.
    """

    @property
    def refresh_every(self) -> int:
        """Epochs between two encodings."""


@runtime_checkable
class QuerySource(Protocol):
    """Makes training queries from passages. What it makes of a passage depends on its settings and the passage alone.

    So it may be called with any passages, in any process, and an interrupted run goes on where it was. Random numbers
    are drawn with the seed of its `BuildContext` and the passage.
    """

    def queries(self, passages: Sequence[Passage]) -> Iterable[tuple[str, str]]:
        """Yield (passage id, query), any number for each passage, in the order of the passages."""


@runtime_checkable
class ChecksQueryIds(Protocol):
    """Settings of batches that need ids of training queries of some form."""

    def check_query_id(self, query_id: str) -> None:
        """Raise DrkitError for an id of another form; a plan asks for the first one in the collection's files."""


@runtime_checkable
class SearchSimilarity(Protocol):
    """Settings of a fine-tuning loss that choose the similarity for search; the default is `dot`."""

    @property
    def search_similarity(self) -> str:
        """How two vectors are compared: `cosine` or `dot`."""


@runtime_checkable
class InBatchNegatives(Protocol):
    """Settings of a fine-tuning loss that choose whether a query is compared with other queries' passages.

    The default is yes.
    """

    @property
    def in_batch(self) -> bool:
        """Whether other queries' passages serve as negatives."""


@runtime_checkable
class ReadsVectors(Protocol):
    """Settings of a fine-tuning loss that receives columns of vectors; the others that it receives hold numbers."""

    @property
    def vector_columns(self) -> Mapping[str, str]:
        """What has a vector, `query` or `passage`, by the name of each such column."""


@runtime_checkable
class TargetShare(Protocol):
    """Settings of a decoder or loss that scores only some positions, for the estimate of a run's cost."""

    @property
    def target_share(self) -> float:
        """The share of positions that are scored, in (0, 1]; the default is 1."""


@runtime_checkable
class MaskingRatio(Protocol):
    """Settings of a masker that hides this share of a text; a masker that replaces another one takes its `ratio`."""

    @property
    def ratio(self) -> float:
        """The share of the tokens that is hidden, in [0, 1]."""


@runtime_checkable
class NamesModel(Protocol):
    """Settings of a filter that scores with a cross-encoder of its own, instead of the run's re-ranker."""

    @property
    def model(self) -> str:
        """Path or hub id; empty: the run's re-ranker. A path is checked before the run."""


@runtime_checkable
class HoldsOutQueries(Protocol):
    """Settings of a collection that can hold out a share of its queries for test."""

    @property
    def test_share(self) -> float:
        """The share, by the hash of their ids; 0: none."""


@runtime_checkable
class NamesDataset(Protocol):
    """Settings of a collection of ir_datasets, whose results stand beside those of papers."""

    @property
    def test_dataset(self) -> str | None:
        """The id of the dataset with the test queries; None if there are several."""


@runtime_checkable
class RefreshesNegatives(Protocol):
    """Settings of a source that mines again during training, with the retriever's current weights."""

    @property
    def refresh_every(self) -> int:
        """Epochs between two rounds of mining."""


class Corpus(Protocol):
    """Passages by id, of any number; iterating streams them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Passage]: ...
    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in this order."""

    def find(self, doc_ids: Sequence[str]) -> Any:
        """Return the index of each id, i64[n], or -1 if it is unknown."""


class TextIds(Protocol):
    """The ids of a run's queries or passages, by the indices that `EmbeddedPairs` has; see `BuildContext.ids`."""

    def find(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index of each id, i64[n], or -1 if it is unknown."""

    def ids_at(self, indices: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids at these indices, in this order."""


class TextRetriever(Protocol):
    """Anything that finds passages for texts: `Retriever`, `Bm25Retriever`, `HybridRetriever`."""

    def search(self, texts: Sequence[str], depth: int) -> Any:
        """Return the best `depth` passages of each text as (doc_ids, scores), best first."""


@runtime_checkable
class PairScorer(Protocol):
    """Anything that scores pairs of texts: a `Reranker`, or your own class."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one score f32[n] per (query, passage) pair; higher is better."""


@runtime_checkable
class ScoringRetriever(Protocol):
    """A retriever, or an index, that can also score given passages."""

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> Any:
        """Return a score for each passage of each text, comparable with those of `search`; NaN for unknown passages."""


@runtime_checkable
class VectorRetriever(Protocol):
    """A retriever made of an encoder and an index: queries are encoded once, for both searching and scoring."""

    encoder: Any
    index: Any


@runtime_checkable
class CutsDocuments(Protocol):
    """A retriever whose index may hold several passages of each document (`EncoderCard.passages_per_document`)."""

    @property
    def passages_per_document(self) -> int | None:
        """The largest number of passages of a document; None or 1: documents are not cut."""


@runtime_checkable
class HasIdentity(Protocol):
    """A model that says what its results depend on; without it, records name no hash of the model."""

    def identity(self) -> Mapping[str, Any]:
        """Return what the results depend on, as plain data."""


@runtime_checkable
class ReadsPassages(Protocol):
    """An encoder that joins title and text itself; others are given both joined by a space."""

    def read(self, passage: Passage) -> str:
        """Return the text of a passage, as the encoder encodes it."""


@runtime_checkable
class ReadsTokenIds(Protocol):
    """An encoder that encodes stored token ids, without tokenising a text again."""

    def encode_tokens(self, texts: Sequence[Any]) -> NDArray[np.float32]:
        """Encode n passages given as token ids, with special tokens, as f32[n,D]."""


@runtime_checkable
class SparseEncoder(Protocol):
    """An encoder whose vectors may be scores of words, most of them 0, which are stored sparse."""

    @property
    def is_sparse(self) -> bool:
        """Whether they are."""


@runtime_checkable
class NegativeMiner(Protocol):
    """Finds hard negatives. It streams, never returns a judged positive, and is deterministic given the seed."""

    def index(self, corpus: Corpus) -> None:
        """Prepare the passages that may become negatives."""

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives per request, in the order of the requests."""


@runtime_checkable
class RankingDepth(Protocol):
    """A source of negatives that reads rankings to its own depth; the default is 200."""

    @property
    def depth(self) -> int:
        """The number of passages read from each ranking."""


@runtime_checkable
class SavesIndex(Protocol):
    """A source of negatives whose index other processes can load instead of indexing the passages themselves."""

    def save_index(self, folder: Path) -> None:
        """Write what `index` has made into an empty folder."""

    def load_index(self, folder: Path, corpus: Corpus) -> None:
        """Do what `index(corpus)` does, from such a folder."""


@runtime_checkable
class MinesInBatches(Protocol):
    """A source or filter that computes for several queries at once, so that scores may differ with the others."""

    def queries_per_batch(self, depth: int) -> int:
        """Return how many queries it takes together, for rankings of `depth` passages."""


@runtime_checkable
class NegativeFilter(Protocol):
    """Drops some of the candidates that a source found. It streams, keeps their order, and counts what it drops.

    Its spec receives `candidates`, which distinguishes it from a source.
    """

    def keep(self, mined: Iterable[tuple[MiningRequest, Mined]], corpus: Corpus) -> Iterator[Mined]:
        """Yield the remaining candidates of each query, in the given order, with updated counts in `dropped`."""


@runtime_checkable
class LooksDeeper(Protocol):
    """A filter that needs more candidates than the usual depth of a ranking."""

    def candidate_depth(self, depth: int) -> int:
        """Return the number of candidates it needs in order to yield `depth` of them."""


class Collection(Protocol):
    """A source of passages, queries and judgements."""

    name: str

    def passages(self) -> Iterator[Passage]:
        """Yield every passage once, in the same order each time."""

    def splits(self) -> tuple[str, ...]:
        """Return the splits that have judged queries, out of train, dev and test."""

    def queries(self, split: str) -> Iterator[Query]:
        """Yield the queries of a split, each id once."""

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Yield the judgements of a split's queries, by the ids of query and passage."""

    def describe(self) -> Mapping[str, Any]:
        """Return facts for the manifest: sources, versions, counts."""


@runtime_checkable
class EstimatesSize(Protocol):
    """A collection that can estimate its size within a second or so, for the costs that a plan prints."""

    def size(self) -> CollectionSize | None:
        """Return the size; None if it cannot be estimated without reading everything."""


@runtime_checkable
class CarriesNegatives(Protocol):
    """A collection whose training files contain negatives."""

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield the (query id, passage id) pairs of a split."""


@runtime_checkable
class CarriesScores(Protocol):
    """A collection whose training files contain a teacher's scores."""

    def teacher_scores(self, split: str) -> Iterator[tuple[str, str, float]]:
        """Yield (query id, passage id, score) of a split; of a pair that is scored twice, the first counts."""


@runtime_checkable
class ExplainsReading(Protocol):
    """A collection that says how it reads its files, where their names and headers leave it open."""

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each choice, with the setting that makes another one."""


@runtime_checkable
class LocatesRows(Protocol):
    """A collection that can locate a row in its files, for error messages."""

    def locate(self, table: str, split: str, row: int) -> str:
        """Return `file:line` of a row (from 0) of `passages`, `queries`, `judgements` or `negatives`."""


@runtime_checkable
class ReadsAhead(Protocol):
    """A collection that reads its sources before its first row, which takes a while."""

    def read_ahead(self, on_progress: Callable[[int, int], None]) -> None:
        """Read the sources, once; on_progress: called with the number of files read, and of all."""


@runtime_checkable
class KnowsTitles(Protocol):
    """A collection that knows before it is read whether its passages have titles."""

    @property
    def has_titles(self) -> bool:
        """Whether they may have one."""


@runtime_checkable
class KeepsSettings(Protocol):
    """A collection that keeps its settings, of which `unknown_judgements` is read with its rows."""

    @property
    def config(self) -> Any:
        """The settings that it was built with."""


@runtime_checkable
class UnknownJudgements(Protocol):
    """Settings of a collection that choose how to handle judgements and negatives with unknown ids.

    `refuse` (the default): they are an error. `drop`: they are dropped and counted.
    """

    unknown_judgements: str
