"""Mine hard negatives: a chain of miners, a source and then filters, run for all queries of a collection.

What was dropped on the way is counted by reason. Negatives are written by passage index, or as training rows of texts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field
from numpy.typing import NDArray

from drkit.core.checksums import check_unchanged
from drkit.core.files import digest, remove_folder, replacing_folder
from drkit.core.protocols import (
    Corpus,
    HasIdentity,
    LooksDeeper,
    MinesInBatches,
    NegativeFilter,
    NegativeMiner,
    RankingDepth,
    SavesIndex,
    VectorRetriever,
)
from drkit.core.quantities import counted
from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice, Kind
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.arrays import arrow_file, read_arrow, record_batch
from drkit.data.corpus import StoredCollection, StoredCorpus
from drkit.data.rows import batched
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.compose import part_table
from drkit.recipe.schema import MinerChoice
from drkit.recipe.toml import assign, problems_of, recipe_converter

_CANDIDATES = "candidates"  # What a filter's spec receives; a source's does not.
DEFAULT_DEPTH = 200
# Of a task of an engine, at least.
QUERIES_PER_BLOCK = 1024

Item = TypeVar("Item")


class Chain:
    """A source of negatives and the filters that follow it, in order.

    source: any `NegativeMiner`; a `RankingDepth` says how deep its ranking is read, and a filter that is a
    `LooksDeeper` makes the chain read deeper. Of what the filters keep, the chain returns up to `depth`. Judged
    positives and excluded passages that the source returns are dropped before the filters.
    """

    def __init__(self, source: NegativeMiner, filters: Sequence[NegativeFilter] = ()) -> None:
        self.source, self.filters = source, tuple(filters)
        self._corpus: Corpus | None = None

    @property
    def depth(self) -> int:
        """How deep the source's ranking is read: the source's own setting, or more if a filter needs it."""
        depth = self.source.depth if isinstance(self.source, RankingDepth) else DEFAULT_DEPTH
        for part in reversed(self.filters):
            depth = max(depth, part.candidate_depth(depth)) if isinstance(part, LooksDeeper) else depth
        return depth

    def index(self, corpus: Corpus) -> None:
        """Index the passages that may become negatives."""
        self.source.index(corpus)
        self._corpus = corpus

    def save_index(self, folder: Path, corpus: Corpus) -> None:
        """Index the passages and save that for other processes, if the source can; an intact folder is kept."""
        if isinstance(self.source, SavesIndex) and not _is_intact(folder):
            remove_folder(folder)
            self.index(corpus)
            with replacing_folder(folder) as temporary:
                self.source.save_index(temporary)

    def load_index(self, folder: Path, corpus: Corpus) -> None:
        """Do what `index` does, from the folder that `save_index` wrote if the source can save its index."""
        if not isinstance(self.source, SavesIndex):
            self.index(corpus)
            return
        self.source.load_index(folder, corpus)
        self._corpus = corpus

    def queries_per_block(self, depth: int) -> int:
        """Return a number of requests, at least 1,024, after which a stream may be cut without changing any result."""
        read = self._source_depth(depth)
        parts = [part for part in (self.source, *self.filters) if isinstance(part, MinesInBatches)]
        batch = math.lcm(1, *(part.queries_per_batch(read) for part in parts))
        return batch * math.ceil(QUERIES_PER_BLOCK / batch)

    def _source_depth(self, depth: int) -> int:
        """Return how deep the source's ranking is read for up to `depth` negatives."""
        return max(depth, self.depth) if self.filters else depth

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, in the order of the requests.

        Raises DrkitError before `index`, and if a part answers in another order or leaves a request out.
        """
        if self._corpus is None:
            raise DrkitError("the chain has no corpus yet; call index(corpus) before mine(requests, depth)")
        mine = partial(self.source.mine, depth=self._source_depth(depth))
        pairs = _pair_answers(requests, mine, lambda request: request, self.source)
        pairs = ((request, _without_positives(request, mined)) for request, mined in pairs)
        for part in self.filters:
            pairs = _pair_answers(pairs, partial(part.keep, corpus=self._corpus), lambda pair: pair[0], part)
        for _, mined in pairs:
            yield evolve(mined, doc_ids=mined.doc_ids[:depth], scores=mined.scores[:depth])


def _without_positives(request: MiningRequest, mined: Mined) -> Mined:
    for reason, excluded in (("judged-positive", request.positives), ("own-passage", request.excluded)):
        if not excluded.isdisjoint(mined.doc_ids):
            mined = keep_candidates(mined, [doc_id not in excluded for doc_id in mined.doc_ids], reason)
    return mined


def _pair_answers(
    items: Iterable[Item],
    answer: Callable[[Iterator[Item]], Iterable[Mined]],
    request_of: Callable[[Item], MiningRequest],
    part: object,
) -> Iterator[tuple[MiningRequest, Mined]]:
    """Yield each request with its answer; requests that the part has read but not yet answered wait in a queue."""
    waiting: deque[MiningRequest] = deque()

    def queued() -> Iterator[Item]:
        for item in items:
            waiting.append(request_of(item))
            yield item

    miner = f"the miner {type(part).__name__}"
    for mined in answer(queued()):
        expected = waiting.popleft() if waiting else None
        if expected is None or expected.query_id != mined.query_id:
            query = repr(expected.query_id) if expected else "no further query"
            raise DrkitError(
                f"{miner} returned an answer for query {mined.query_id!r}, expected {query}; it must return one answer "
                f"per request, in the order of the requests"
            )
        yield expected, mined
    if waiting:
        raise DrkitError(
            f"{miner} did not answer query {waiting[0].query_id!r}; it must return one answer per request, empty if "
            f"it finds no negatives"
        )


def keep_candidates(mined: Mined, keep: Sequence[bool], reason: str) -> Mined:
    """Return the candidates whose entry in `keep` is True; the others are counted as dropped for `reason`.

    >>> keep_candidates(Mined("q", ("a", "b"), (2.0, 1.0)), [False, True], "margin").dropped
    {'margin': 1}
    """
    kept = [index for index, is_kept in enumerate(keep) if is_kept]
    doc_ids = tuple(mined.doc_ids[index] for index in kept)
    scores = tuple(mined.scores[index] for index in kept)
    return add_dropped(evolve(mined, doc_ids=doc_ids, scores=scores), reason, len(mined.doc_ids) - len(kept))


def add_dropped(mined: Mined, reason: str, count: int) -> Mined:
    """Return `mined` with `count` more candidates dropped for `reason`; a count of 0 is not recorded."""
    return evolve(mined, dropped={**mined.dropped, reason: mined.dropped.get(reason, 0) + count}) if count else mined


# Reasons of candidates that a run file names, or of queries that it lacks.
_FOREIGN_IDS = ("query-not-in-run", "unknown-id")


@define
class MiningCounts:
    """Counts of a stream of mined negatives.

    queries, negatives; queries_without: queries without negatives; unscored: queries whose positives the source did
    not score; dropped: dropped candidates, by the reason that the source or filter gives.
    """

    queries: int = 0
    negatives: int = 0
    queries_without: int = 0
    unscored: int = 0
    dropped: Counter[str] = field(factory=Counter)

    def count(self, mined: Iterable[Mined]) -> Iterator[Mined]:
        """Yield the stream unchanged and count it."""
        for item in mined:
            self.queries += 1
            self.negatives += len(item.doc_ids)
            self.queries_without += not item.doc_ids
            self.unscored += not item.positive_scores
            self.dropped.update(item.dropped)
            yield item

    def summary(self) -> dict[str, Any]:
        """Return the counts as they are written to a manifest."""
        return {
            "queries": self.queries,
            "negatives": self.negatives,
            "queries_without": self.queries_without,
            "negatives_per_query": round(self.negatives / max(self.queries, 1), 2),
            "queries_with_unscored_positives": self.unscored,
            "dropped": dict(sorted(self.dropped.items())),
        }

    def check_ids(self) -> None:
        """Raise DrkitError if no query has a negative, as the ids of a run file are not those of the collection."""
        unknown = {reason: self.dropped[reason] for reason in _FOREIGN_IDS if self.dropped[reason]}
        if self.queries and not self.negatives and unknown:
            raise DrkitError(
                f"none of the {counted(self.queries, 'query')} has a negative (dropped: "
                f"{self.describe_dropped()}); give a run "
                f"file with the ids of this collection's training queries and passages"
            )

    def describe_dropped(self) -> str:
        """Return the dropped candidates by reason, the most frequent first, for a message.

        >>> MiningCounts(dropped=Counter({"margin": 1200, "judged-positive": 40})).describe_dropped()
        'margin 1,200, judged-positive 40'
        """
        return ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.most_common()) or "none"


def build_chain(choices: Sequence[Choice], registry: Registry, context: BuildContext) -> Chain:
    """Build the chain that a recipe chose: a source first, then filters.

    Raises DrkitError if no miner is chosen, the first is a filter, or a later one is a source.
    """
    if not choices:
        raise DrkitError(f"no miner is chosen; name a source first: {', '.join(source_names(registry))}")
    first, *others = choices
    if is_filter(first, registry):
        raise DrkitError(
            f"the filter {first.use!r} comes first, but it can only filter what a source found; put a source before "
            f"it: {', '.join(source_names(registry))}"
        )
    second_source = next((choice.use for choice in others if not is_filter(choice, registry)), None)
    if second_source:
        raise DrkitError(
            f"the source {second_source!r} comes after the source {first.use!r}; a chain has one source, its first "
            f"miner, so remove one of the two"
        )
    built: list[Any] = [registry.build(Kind.MINER, choice.use, choice.config, context) for choice in choices]
    return Chain(built[0], built[1:])


def is_filter(choice: Choice, registry: Registry) -> bool:
    """Return whether the chosen miner is a filter of candidates, not a source."""
    return _CANDIDATES in registry.get(Kind.MINER, choice.use).receives_of(choice.config)


def source_names(registry: Registry) -> tuple[str, ...]:
    """Return the names of the miners that can start a chain."""
    return tuple(spec.name for spec in registry.specs(Kind.MINER) if _CANDIDATES not in spec.receives)


def are_known(corpus: Corpus, doc_ids: Sequence[str]) -> list[bool]:
    """Return for each id whether the corpus has that passage."""
    return [index >= 0 for index in corpus.find(doc_ids)] if doc_ids else []


def contents(corpus: Corpus, doc_ids: Iterable[str]) -> dict[str, str]:
    """Return the content of each passage that the corpus has, by id; ids may be repeated."""
    unique = list(dict.fromkeys(doc_ids))
    present = [doc_id for doc_id, known in zip(unique, are_known(corpus, unique), strict=True) if known]
    return {passage.doc_id: passage.content for passage in (corpus.get_many(present) if present else ())}


def mine(
    corpus: Corpus,
    requests: Iterable[MiningRequest],
    miners: Sequence[str | NegativeMiner | NegativeFilter],
    *,
    depth: int | None = None,
    settings: Sequence[str] = (),
    context: BuildContext | None = None,
    registry: Registry | None = None,
) -> Iterator[Mined]:
    """Yield the hard negatives of each request, in the order of the requests; never a judged positive.

    corpus: passages by id (`drkit.data.open_collection(folder).corpus`, or any `Corpus`). miners: a source, then
    filters: either names as on the command line (`bm25`, `ranks:10-100`) with their settings (`margin.absolute=0.1`),
    or objects. depth: maximum number of negatives per query; None: as deep as the source's ranking is read. context:
    what miners are built with: `retriever` for dense, `reranker` for cross-encoder-filter, `negatives` for given, and
    `seed`. registry: the miners that names refer to; None: all installed ones.

    Raises DrkitError if the chain cannot be built, and UnknownNameError for an unknown name.

    >>> from drkit.testing.toys import ToyCorpus, toy_requests
    >>> found = next(mine(ToyCorpus(), toy_requests(1), ["bm25", "ranks:1-2"]))
    >>> found.query_id, found.doc_ids, found.dropped
    ('q0', ('d2', 'd3'), {'judged-positive': 2, 'ranks': 36})
    """
    given: list[Any] = list(miners)
    objects = [part for part in given if not isinstance(part, str)]
    if not objects:
        registry = registry or installed().registry
        chain = build_chain(parse_chain(given, settings, registry), registry, context or BuildContext())
    elif len(objects) < len(miners) or not (
        isinstance(objects[0], NegativeMiner) and all(isinstance(part, NegativeFilter) for part in objects[1:])
    ):
        raise DrkitError("give the miners all as names or all as objects: a source with `mine`, filters with `keep`")
    else:
        source, *filters = given
        chain = Chain(source, filters)
    chain.index(corpus)
    return chain.mine(requests, depth or chain.depth)


def parse_chain(names: Sequence[str], settings: Sequence[str], registry: Registry) -> tuple[Choice, ...]:
    """Return the miners named `NAME` or `NAME:VALUE`, with settings given as `NAME.SETTING=VALUE`.

    Raises UnknownNameError, ProblemsError for invalid settings, and DrkitError for settings of a miner not chosen.
    """
    tables = [part_table(Kind.MINER, name, registry) for name in names]
    by_name: dict[str, Any] = {}
    for table in tables:
        by_name.setdefault(table["use"], table)
    for assignment in settings:
        owner = assignment.partition("=")[0].partition(".")[0].strip()
        if owner not in by_name:
            raise DrkitError(
                f"--set {assignment}: the miner {owner!r} is not chosen; chosen: {', '.join(by_name) or 'none'}"
            )
        assign(by_name, assignment)
    converter = recipe_converter(registry)
    try:
        choices: tuple[Choice, ...] = converter.structure(tables, tuple[MinerChoice, ...])
    except Exception as error:
        named = partial(re.sub, r"@ recipe\[(\d+)\]", lambda found: f"@ {tables[int(found[1])]['use']}")
        raise ProblemsError("miners", [named(problem) for problem in problems_of(error)]) from None
    return choices


def requirements_of(choices: Sequence[Choice], registry: Registry) -> frozenset[str]:
    """Return what the miners of a chain require of their context, as in `retriever`."""
    return frozenset(
        name for choice in choices for name in registry.get(Kind.MINER, choice.use).requires_of(choice.config)
    )


_FILE = "negatives.arrow"
_SCHEMA = pa.schema([("query_id", pa.string()), ("passages", pa.list_(pa.int64())), ("scores", pa.list_(pa.float32()))])
_BATCH_ROWS = 1024


def mining_requests(
    collection: StoredCollection, split: str = "train", *, exclude_self: bool = False
) -> Iterator[MiningRequest]:
    """Yield every query of a split that has a positive, with all passages judged relevant to it and its answers.

    What is relevant to a query with the same text is excluded.

    exclude_self: a passage with the query's own id is never its negative.
    """
    positives, by_text = collection.positives(split), collection.positives_by_text(split)
    answers = collection.answers(split)
    for query in collection.queries(split):
        if judged := positives.get(query.query_id):
            own = [query.query_id] if exclude_self else []
            excluded = frozenset([*own, *(by_text[query.query_id].keys() - judged.keys())])
            known = answers.get(query.query_id)
            yield MiningRequest(query.query_id, query.text, frozenset(judged), excluded, known)


def write_negatives(mined: Iterable[Mined], corpus: StoredCorpus, folder: Path, name: str = _FILE) -> dict[str, Any]:
    """Stream mined negatives to a file in `folder`, atomically; passages as indices in the corpus. Returns counts.

    Raises DrkitError as `MiningCounts.check_ids` does.
    """
    counts = MiningCounts()
    with arrow_file(folder / name, _SCHEMA) as writer:
        for batch in batched(counts.count(mined), _BATCH_ROWS):
            ends = np.cumsum([len(item.doc_ids) for item in batch])
            passages = np.split(corpus.positions([name for item in batch for name in item.doc_ids]), ends[:-1])
            columns = [item.query_id for item in batch], passages, [item.scores for item in batch]
            writer.write_batch(record_batch(columns, _SCHEMA))
        counts.check_ids()
    return counts.summary()


def _is_intact(folder: Path) -> bool:
    """Return whether a saved index is there, and none of its files has changed."""
    try:
        check_unchanged(folder)
    except DrkitError:
        return False
    return folder.is_dir()


def read_negatives(folder: Path, name: str = _FILE) -> Mapping[str, NDArray[np.int64]]:
    """Return the corpus indices of each query's negatives, best first, by query id.

    Raises DrkitError if the file is missing or damaged.
    """
    table = read_arrow(folder / name)
    lists = table["passages"].combine_chunks()
    flat, offsets = lists.flatten().to_numpy(zero_copy_only=False), lists.offsets.to_numpy()
    offsets = offsets - offsets[0] if len(offsets) else offsets
    return {q: flat[offsets[i] : offsets[i + 1]] for i, q in enumerate(table["query_id"].to_pylist())}


def model_hashes(context: BuildContext) -> dict[str, str]:
    """Return hashes of the models' identities that a chain searches and scores with; paths do not identify models."""
    retriever = context.retriever.encoder if isinstance(context.retriever, VectorRetriever) else None
    models: dict[str, Any] = {"retriever": retriever, "reranker": context.reranker}
    return {name: digest(model.identity()) for name, model in models.items() if isinstance(model, HasIdentity)}
