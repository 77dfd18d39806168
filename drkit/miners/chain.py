"""A chain of miners: a source of negatives, then filters, with counts of what was dropped on the way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, evolve, field

from drkit.core.protocols import (
    Corpus,
    FindsIds,
    LooksDeeper,
    NegativeFilter,
    NegativeMiner,
    RankingDepth,
    RefreshesNegatives,
)
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.core.registry import Registry
    from drkit.recipe.schema import Choice

CANDIDATES = "candidates"  # What a filter's spec receives; a source's does not.
DEFAULT_DEPTH = 200

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

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, in the order of the requests.

        Raises DrkitError before `index`, and if a part answers in another order or leaves a request out.
        """
        if self._corpus is None:
            raise DrkitError("the chain has no corpus yet; call index(corpus) before mine(requests, depth)")
        read = max(depth, self.depth) if self.filters else depth
        pairs = _pair_answers(requests, partial(self.source.mine, depth=read), lambda request: request, self.source)
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
    built = [registry.build(Kind.MINER, choice.use, choice.config, context) for choice in choices]
    return Chain(built[0], built[1:])


def is_filter(choice: Choice, registry: Registry) -> bool:
    """Return whether the chosen miner is a filter of candidates, not a source."""
    return CANDIDATES in registry.get(Kind.MINER, choice.use).receives_of(choice.config)


def source_names(registry: Registry) -> tuple[str, ...]:
    """Return the names of the miners that can start a chain."""
    return tuple(registry.name_of(spec) for spec in registry.specs(Kind.MINER) if CANDIDATES not in spec.receives)


def refresh_settings(choices: Sequence[Choice]) -> RefreshesNegatives | None:
    """Return the settings of the source if it mines again during training, otherwise None."""
    config = choices[0].config if choices else None
    return config if isinstance(config, RefreshesNegatives) else None


class PassageLookup:
    """Looks up passages by id, also ids that the corpus lacks.

    Memory: none if the corpus has a `find` method; otherwise the set of all its ids, built on the first call.
    """

    def __init__(self, corpus: Corpus) -> None:
        self._corpus: Any = corpus

    def contains(self, doc_ids: Sequence[str]) -> list[bool]:
        """Return for each id whether the corpus has that passage."""
        if not doc_ids:
            return []
        if isinstance(self._corpus, FindsIds):
            return [index >= 0 for index in self._corpus.find(doc_ids)]
        return [doc_id in self._all_ids for doc_id in doc_ids]

    def contents(self, doc_ids: Iterable[str]) -> dict[str, str]:
        """Return the content of each passage that the corpus has, by id; ids may be repeated."""
        unique = list(dict.fromkeys(doc_ids))
        present = [doc_id for doc_id, is_known in zip(unique, self.contains(unique), strict=True) if is_known]
        passages = self._corpus.get_many(present) if present else []
        return {passage.doc_id: passage.content for passage in passages}

    @cached_property
    def _all_ids(self) -> frozenset[str]:
        return frozenset(passage.doc_id for passage in self._corpus)
