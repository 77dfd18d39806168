"""Hard negatives for those who train with sentence-transformers: pairs of texts in, a Dataset for its trainer out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from drkit.core.discovery import installed
from drkit.core.protocols import NegativeFilter, SearchesTexts
from drkit.core.types import BuildContext
from drkit.errors import DrkitError
from drkit.miners.chain import Chain, build_chain, sources
from drkit.miners.mining import chain_named
from drkit.miners.tally import Tally
from drkit.miners.text_pairs import ByText, NotTheQuery, TextCorpus, TextPairs, read_corpus
from drkit.search.retrieve import batched

if TYPE_CHECKING:
    from datasets import Dataset

    from drkit.search.reranking import Scorer

# Sources that speak of a collection's ids, or of a model in training.
_NOT_FOR_TEXTS = ("dense", "given", "refresh", "run-file")
_ROWS = 256
Mined: TypeAlias = "tuple[str, str, list[str]]"
Columns: TypeAlias = "dict[str, list[Any]]"


class HardNegatives:
    """Mines passages that look like an answer and are none, for pairs of texts, and gives a `datasets.Dataset`.

    source: where candidates come from: a `SentenceTransformer`, an encoder's folder, a retriever (it has
    `search(texts, depth)`, over ids that the corpus has), or a miner's name (`bm25`, `random`). filters: names
    (`ranks:10-100`, `margin`, `cross-encoder-filter`) with their settings (`margin.absolute=0.1`, also
    `dense.depth=100` of an encoder), or objects with `keep`. teacher: scores pairs, for `scored` and
    `cross-encoder-filter`: a re-ranker's folder or hub id, a `CrossEncoder` of sentence-transformers, or any object
    with `score(pairs)`.

    data, of every method: (anchor, positive) pairs: a Dataset with these columns, else its first two, or any iterable
    of tuples or mappings. corpus: texts, {id: text}, or a Dataset with a column `text`; where None, the positives.
    Positives that the corpus lacks are passages too. Equal texts are one passage, a pair that comes twice is one;
    what answers an anchor anywhere in the data, and the anchor's own text, is never its negative. Rows come by anchor,
    in the data's order. Memory: all texts, the answer, and hits of some queries; vectors go through a temporary folder.

    `figures` says what became of the last call: queries, negatives, what was dropped by reason, pairs, rows.

    Raises DrkitError for a source or teacher that is none, a chain that cannot be built, or data that is no pairs.

    >>> pairs = [("remove a suffix", "Cut the suffix of a text."), ("read a file", "Open the file, read a text."),
    ...          ("sort a list", "Order the list of a text.")]
    >>> hard = HardNegatives("bm25", ["ranks:1-2"])
    >>> hard.triplets(pairs, negatives=1, corpus=["No suffix here: keep the file."])[0]["negative"]
    'No suffix here: keep the file.'
    >>> hard.figures["rows"]
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
        self.teacher = _teacher(teacher)
        self.figures: dict[str, Any] = {}

    def tuples(self, data: Iterable[Any], negatives: int = 5, *, corpus: Iterable[Any] | None = None) -> Dataset:
        """Columns anchor, positive, negative_1 .. negative_n, a row a pair; none for a pair with fewer negatives.

        Raises DrkitError where no row is left.
        """
        return self._dataset(data, negatives, corpus, _as_tuples)

    def triplets(self, data: Iterable[Any], negatives: int = 5, *, corpus: Iterable[Any] | None = None) -> Dataset:
        """Columns anchor, positive, negative: a row for each of up to n negatives of a pair.

        Raises DrkitError where no row is left.
        """
        return self._dataset(data, negatives, corpus, _as_triplets, fewest=1)

    def scored(self, data: Iterable[Any], negatives: int = 5, *, corpus: Iterable[Any] | None = None) -> Dataset:
        """As `tuples`, and a column label: n + 1 scores of the teacher, the positive's first, raw.

        They are what `kl-distillation` and `margin-mse` take in `drkit.runs.CachedGradients`.

        Raises DrkitError where there is no teacher, one of its scores is no finite number, or no row is left.
        """
        teacher = self.teacher
        if teacher is None:
            raise DrkitError("nobody is there to score: HardNegatives(.., teacher=a cross-encoder)")
        return self._dataset(data, negatives, corpus, lambda rows: _with_labels(rows, teacher))

    def _dataset(
        self,
        data: Iterable[Any],
        count: int,
        corpus: Iterable[Any] | None,
        columns: Callable[[Sequence[Mined]], Columns],
        fewest: int = 0,
    ) -> Dataset:
        if count < 1:
            raise DrkitError(f"{count} negatives a pair; ask for one at least")
        texts = TextCorpus()
        for doc_id, text in read_corpus(corpus if corpus is not None else ()):
            texts.add(text, doc_id=doc_id)
        pairs, tally = TextPairs(data, texts), Tally()
        with ExitStack() as stack:
            chain = self._chain(texts, stack)
            rows = self._mined(chain, pairs, texts, tally, count)
            kept = (row for row in rows if len(row[2]) >= (fewest or count))
            table = _table(columns(batch) for batch in batched(kept, _ROWS))
        asked = sum(map(len, pairs.positives.values()))
        self.figures = {**tally.figures(), "pairs": asked, "rows": len(table) if table is not None else 0}
        if table is None:
            raise DrkitError(
                f"none of the {asked:,} pairs has {fewest or count} negatives; dropped: {tally.words()}. "
                f"Ask for fewer, filter less, or give a corpus"
            )
        return table

    def _mined(self, chain: Chain, pairs: TextPairs, texts: TextCorpus, tally: Tally, count: int) -> Iterator[Mined]:
        """(anchor, positive, up to `count` negatives) as texts, for every pair."""
        found = tally.watch(chain.mine(pairs.requests(), count))
        for (anchor, places), mined in zip(pairs.positives.items(), found, strict=True):
            negatives = [passage.content for passage in texts.get_many(mined.doc_ids)]
            for positive in texts.get_many(places):
                yield anchor, positive.content, negatives

    def _chain(self, texts: TextCorpus, stack: ExitStack) -> Chain:
        registry = installed().registry
        name, retriever = self._named(sources(registry)), None
        if name == "dense":
            retriever = self._retriever(texts, stack)
        names = [name, *(part for part in self.filters if isinstance(part, str))]
        context = BuildContext(retriever=retriever, reranker=self.teacher, seed=self.seed)
        chain = build_chain(chain_named(names, self.settings, registry), registry, context)
        built = iter(chain.filters)
        filters = [next(built) if isinstance(part, str) else part for part in self.filters]
        whole = Chain(chain.source, [NotTheQuery(), *filters])
        whole.index(texts)
        return whole

    def _named(self, known: Sequence[str]) -> str:
        """The source's name; `dense` for what encodes or searches."""
        if not isinstance(self.source, str):
            return "dense"
        name, allowed = self.source.partition(":")[0], [one for one in known if one not in _NOT_FOR_TEXTS]
        if name in allowed:
            return self.source
        if name in _NOT_FOR_TEXTS or not Path(self.source).is_dir():
            raise DrkitError(
                f"no source {self.source!r} for texts; give a SentenceTransformer, an encoder's folder, a retriever, "
                f"or one of: {', '.join(allowed)}"
            )
        return "dense"

    def _retriever(self, texts: TextCorpus, stack: ExitStack) -> Any:
        from drkit.search import Retriever
        from drkit.search.sentence_transformers import as_encoder

        if isinstance(self.source, SearchesTexts):
            if not texts.named:
                raise DrkitError("a retriever finds ids: give the corpus as {id: text}, that texts are known by them")
            return ByText(self.source, texts)
        encoder = as_encoder(self.source)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drkit-mine-"))) / "vectors"
        return Retriever.build(encoder, ((p.doc_id, p.content) for p in texts), folder)


def _teacher(given: Any) -> Scorer | None:
    if given is None:
        return None
    from drkit.search.reranking import as_scorer

    return as_scorer(given)


def _as_tuples(rows: Sequence[Mined]) -> Columns:
    anchors, positives, negatives = zip(*rows, strict=True)
    columns = {f"negative_{place}": list(texts) for place, texts in enumerate(zip(*negatives, strict=True), start=1)}
    return {"anchor": list(anchors), "positive": list(positives), **columns}


def _as_triplets(rows: Sequence[Mined]) -> Columns:
    triplets = [(anchor, positive, negative) for anchor, positive, negatives in rows for negative in negatives]
    return dict(zip(("anchor", "positive", "negative"), map(list, zip(*triplets, strict=True)), strict=True))


def _with_labels(rows: Sequence[Mined], teacher: Scorer) -> Columns:
    pairs = [(anchor, text) for anchor, positive, negatives in rows for text in (positive, *negatives)]
    scores = np.asarray(teacher.score(pairs), dtype=np.float32)
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        anchor, text = pairs[int(wrong[0])]
        raise DrkitError(f"the teacher's score of {anchor!r:.60} with {text!r:.60} is no finite number")
    return {**_as_tuples(rows), "label": scores.reshape(len(rows), -1).tolist()}


def _table(batches: Iterable[Columns]) -> Dataset | None:
    """All batches, kept as Arrow; None where there are none."""
    import pyarrow as pa
    from datasets import Dataset

    tables = [pa.table(columns) for columns in batches]
    return Dataset(pa.concat_tables(tables)) if tables else None
