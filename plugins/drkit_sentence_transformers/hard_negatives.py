"""Hard negatives for training with sentence-transformers: pairs of texts in, a Dataset for its trainer out.

Texts have no ids there: a `TextCorpus` gives them the form that miners read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from drkit.core.files import SCRATCH
from drkit.core.protocols import NegativeFilter, PairScorer
from drkit.core.quantities import counted
from drkit.core.registry import installed
from drkit.core.types import BuildContext, MiningRequest, Passage
from drkit.data.rows import batched
from drkit.errors import DrkitError, import_extra
from drkit.miners.chain import (
    Chain,
    MiningCounts,
    build_chain,
    parse_chain,
    source_names,
)
from drkit.miners.filters import QueryTextFilter
from drkit.miners.training_rows import TextRow, as_triplets, as_tuples, text_rows
from drkit.search import Retriever
from drkit.search.encode import passage_texts
from drkit.search.reranking import as_scorer
from drkit.search.sentence_encoder import as_encoder

if TYPE_CHECKING:
    from datasets import Dataset

# Sources that need the ids of a collection, or a model in training.
_NOT_FOR_TEXTS = ("dense", "given", "hybrid", "mixed", "refresh", "run-file")
_ROWS_PER_BATCH = 256


class HardNegatives:
    """Mines passages that resemble an answer but are not one, for pairs of texts, as a `datasets.Dataset`.

    source: where candidates come from: a `SentenceTransformer`, an encoder's folder, or a miner's name (`bm25`,
    `random`). filters: names (`ranks:10-100`, `margin`, `cross-encoder-filter`), or objects with `keep`. settings: of
    the named miners, as in `margin.absolute=0.1`, or `dense.depth=100` for an encoder. teacher: scores pairs, for
    `scored` and `cross-encoder-filter`: a re-ranker's folder or hub id, a `CrossEncoder` of sentence-transformers, or
    any object with `score(pairs)`.

    Every method takes data, the (anchor, positive) pairs: a Dataset with these columns, or else its first two, or any
    iterable of tuples or mappings; and corpus: texts, {id: text}, or a Dataset with a column `text`; None: only the
    positives. Positives that the corpus lacks are added to it. Equal texts are one passage, and a repeated pair counts
    once. An anchor's own text and its positives anywhere in the data are never its negatives. Rows are grouped by
    anchor, in the order of the data. Memory: all texts, the result, and the hits of some queries; vectors go through a
    temporary folder.

    `counts` describes the last call: queries, negatives, what was dropped by reason, pairs, rows.

    Raises DrkitError for an invalid source or teacher, a chain that cannot be built, or data that are not pairs.

    >>> pairs = [("remove a suffix", "Cut the suffix of a text."), ("read a file", "Open the file, read a text."),
    ...          ("sort a list", "Order the list of a text.")]
    >>> hard = HardNegatives("bm25", ["ranks:1-2"])
    >>> hard.triplets(pairs, negatives=1, corpus=["No suffix here: keep the file."])[0]["negative"]
    'No suffix here: keep the file.'
    >>> hard.counts["rows"]
    2
    """

    def __init__(
        self,
        source: Any,
        filters: Sequence[str | NegativeFilter] = (),
        *,
        settings: Sequence[str] = (),
        teacher: Any = None,
        seed: int = 42,
    ) -> None:
        self.source, self.filters, self.settings, self.seed = source, tuple(filters), tuple(settings), seed
        self.teacher: PairScorer | None = None if teacher is None else as_scorer(teacher)
        self.registry = installed().registry
        self.counts: dict[str, Any] = {}

    def tuples(self, data: Iterable[Any], negatives: int = 5, *, corpus: Iterable[Any] | None = None) -> Dataset:
        """Return the columns anchor, positive, negative_1 .. negative_n; pairs with fewer negatives are left out.

        Raises DrkitError if no row is left.
        """
        return self._dataset(data, negatives, corpus, lambda rows: as_tuples(rows, negatives), fewest=negatives)

    def triplets(self, data: Iterable[Any], negatives: int = 5, *, corpus: Iterable[Any] | None = None) -> Dataset:
        """Return the columns anchor, positive, negative: one row for each of up to n negatives of a pair.

        Raises DrkitError if no row is left.
        """
        return self._dataset(data, negatives, corpus, as_triplets, fewest=1)

    def scored(self, data: Iterable[Any], negatives: int = 5, *, corpus: Iterable[Any] | None = None) -> Dataset:
        """Return the columns of `tuples` and a column label: n + 1 raw scores of the teacher, the positive's first.

        `kl-distillation` and `margin-mse` take these scores in `CachedGradients`.

        Raises DrkitError without a teacher, if one of its scores is not finite, or if no row is left.
        """
        teacher = self.teacher
        if teacher is None:
            raise DrkitError("scored() needs a teacher; pass HardNegatives(.., teacher=a cross-encoder)")

        def rows_with_labels(rows: Iterable[TextRow]) -> Iterator[dict[str, Any]]:
            for batch in batched(as_tuples(rows, negatives), _ROWS_PER_BATCH):
                yield from _with_labels(batch, teacher)

        return self._dataset(data, negatives, corpus, rows_with_labels, fewest=negatives)

    def _dataset(
        self,
        data: Iterable[Any],
        count: int,
        corpus: Iterable[Any] | None,
        to_columns: Callable[[Iterable[TextRow]], Iterable[dict[str, Any]]],
        *,
        fewest: int,
    ) -> Dataset:
        if count < 1:
            raise DrkitError(f"negatives must be at least 1, got {count}")
        texts = TextCorpus()
        for text in read_corpus(corpus if corpus is not None else ()):
            texts.add(text)
        positives, counts = read_positives(data, texts), MiningCounts()
        requests = (
            MiningRequest(str(number), anchor, frozenset(doc_ids))
            for number, (anchor, doc_ids) in enumerate(positives.items())
        )
        with ExitStack() as stack:
            mined = counts.count(self._chain(texts, stack).mine(requests, count))
            answers = zip(positives.items(), mined, strict=True)
            rows = text_rows(((anchor, ids, found) for (anchor, ids), found in answers), texts, count)
            table = _table(to_columns(rows))
        n_pairs = sum(map(len, positives.values()))
        self.counts = {**counts.summary(), "pairs": n_pairs, "rows": len(table) if table is not None else 0}
        if table is None:
            raise DrkitError(
                f"none of the {counted(n_pairs, 'pair')} has {fewest} negatives (dropped: "
                f"{counts.describe_dropped()}); "
                f"request fewer negatives, filter less, or give a larger corpus"
            )
        return table

    def _chain(self, texts: TextCorpus, stack: ExitStack) -> Chain:
        name = self._source_name()
        retriever = self._index(texts, stack) if name == "dense" else None
        names = [name, *(part for part in self.filters if isinstance(part, str))]
        context = BuildContext(retriever=retriever, reranker=self.teacher, seed=self.seed)
        named = build_chain(parse_chain(names, self.settings, self.registry), self.registry, context)
        named_filters = iter(named.filters)
        filters = [next(named_filters) if isinstance(part, str) else part for part in self.filters]
        chain = Chain(named.source, [QueryTextFilter(), *filters])
        chain.index(texts)
        return chain

    def _source_name(self) -> str:
        """Return the miner's name: the source itself, or `dense` for an encoder."""
        if not isinstance(self.source, str):
            return "dense"
        name = self.source.partition(":")[0]
        allowed = [source for source in source_names(self.registry) if source not in _NOT_FOR_TEXTS]
        if name in allowed:
            return self.source
        if name in _NOT_FOR_TEXTS or not Path(self.source).is_dir():
            raise DrkitError(
                f"the source {self.source!r} cannot mine pairs of texts; give a SentenceTransformer, an encoder's "
                f"folder, or one of: {', '.join(allowed)}"
            )
        return "dense"

    def _index(self, texts: TextCorpus, stack: ExitStack) -> Retriever:
        encoder = as_encoder(self.source)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=SCRATCH))) / "vectors"
        return Retriever.build(encoder, passage_texts(texts, encoder), folder)


def _with_labels(rows: Sequence[dict[str, str]], teacher: PairScorer) -> Iterator[dict[str, Any]]:
    """Yield the rows with a column label, f32[1 + negatives]: the teacher's scores of the anchor with each text."""
    pairs = [(row["anchor"], text) for row in rows for column, text in row.items() if column != "anchor"]
    scores = np.asarray(teacher.score(pairs), dtype=np.float32)
    invalid = np.flatnonzero(~np.isfinite(scores))
    if len(invalid):
        anchor, text = pairs[int(invalid[0])]
        raise DrkitError(f"the teacher's score of {anchor!r:.60} with {text!r:.60} is not a finite number")
    for row, label in zip(rows, scores.reshape(len(rows), -1).tolist(), strict=True):
        yield {**row, "label": label}


def _table(rows: Iterable[dict[str, Any]]) -> Dataset | None:
    """Return all rows, kept as Arrow, or None without rows."""
    library = import_extra("datasets", "HardNegatives")
    tables = [pa.Table.from_pylist(batch) for batch in batched(rows, _ROWS_PER_BATCH)]
    return library.Dataset(pa.concat_tables(tables)) if tables else None


def read_positives(data: Iterable[Any], corpus: TextCorpus) -> dict[str, list[str]]:
    """Return the ids of all positives of each anchor, in the order of the pairs; adds them to the corpus.

    Raises DrkitError if there are no pairs, or as `read_pairs` does.
    """
    positives: dict[str, list[str]] = {}
    for anchor, positive in read_pairs(data):
        doc_ids, doc_id = positives.setdefault(anchor, []), corpus.add(positive)
        if doc_id not in doc_ids:
            doc_ids.append(doc_id)
    if not positives:
        raise DrkitError("the data is empty; give at least one pair (anchor, positive) of texts")
    return positives


def read_pairs(data: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield (anchor, positive): the columns of these names, or else the first two, of a Dataset, mappings or tuples.

    Raises DrkitError with the row's number if a row is not a pair of texts.

    >>> list(read_pairs([("a", "b"), {"query": "c", "answer": "d"}, {"positive": "f", "anchor": "e"}]))
    [('a', 'b'), ('c', 'd'), ('e', 'f')]
    """
    for number, row in enumerate(data, start=1):
        pair = _pair(row)
        if len(pair) < 2 or not all(isinstance(text, str) for text in pair):
            raise DrkitError(
                f"row {number} of the data must be a pair of texts, got {row!r:.80}; give (anchor, positive), or a "
                f"Dataset with these columns (one split, not all of them)"
            )
        yield pair[0], pair[1]


def _pair(row: Any) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        names = ("anchor", "positive") if {"anchor", "positive"} <= row.keys() else tuple(row)[:2]
        return tuple(row[name] for name in names)
    return tuple(row[:2]) if isinstance(row, (tuple, list)) else ()


class TextCorpus:
    """Distinct texts as a `Corpus`: a passage's id is its index, as a string. Memory: the texts.

    >>> corpus = TextCorpus()
    >>> corpus.add("a text"), corpus.add("another"), corpus.add("a text"), len(corpus)
    ('0', '1', '0', 2)
    """

    def __init__(self) -> None:
        self._doc_ids: dict[str, str] = {}
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[Passage]:
        return (Passage(str(index), text) for index, text in enumerate(self._texts))

    def add(self, text: str) -> str:
        """Add a text if it is new, and return its id."""
        doc_id = self._doc_ids.setdefault(text, str(len(self._texts)))
        if int(doc_id) == len(self._texts):
            self._texts.append(text)
        return doc_id

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index of each id, i64[n]; all ids are known."""
        return np.array([int(doc_id) for doc_id in doc_ids], np.int64)

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in this order."""
        return [Passage(doc_id, self._texts[int(doc_id)]) for doc_id in doc_ids]


def read_corpus(corpus: Iterable[Any]) -> Iterator[str]:
    """Yield the texts of a list of texts, a mapping of id to text, passages, or rows with a column `text`.

    Raises DrkitError with the passage's number for anything else.

    >>> list(read_corpus({"d1": "one"})), list(read_corpus([{"_id": "d2", "title": "A", "text": "two"}, "three"]))
    (['one'], ['A two', 'three'])
    """
    for number, item in enumerate(corpus.values() if isinstance(corpus, Mapping) else corpus, start=1):
        text = _text_of(item)
        if not isinstance(text, str):
            raise DrkitError(
                f"passage {number} of the corpus is {item!r:.80}; give texts, a mapping of id to text, or rows with "
                f"a column `text`"
            )
        yield text


def _text_of(item: Any) -> Any:
    if isinstance(item, Mapping):
        text = item.get("text", next(iter(item.values())) if len(item) == 1 else None)
        return Passage("", text, item.get("title") or "").content if isinstance(text, str) else None
    return item if isinstance(item, str) else getattr(item, "content", None)
