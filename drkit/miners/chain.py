"""A chain of miners: a source of negatives, then filters, and what was dropped on the way."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, evolve, field

from drkit.core.protocols import Corpus, LooksDeeper, NegativeFilter, NegativeMiner, RankingDepth, RefreshesNegatives
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.core.registry import Registry
    from drkit.recipe.schema import Choice


@define
class Tally:
    """Counts of a stream of mined negatives, as it goes by.

    queries, negatives; queries_without: those that got none; unscored: those whose positives the source gave no
    score; dropped: candidates that were left out, by reason (those that filters and sources give).
    """

    queries: int = 0
    negatives: int = 0
    queries_without: int = 0
    unscored: int = 0
    dropped: Counter[str] = field(factory=Counter)

    def watch(self, mined: Iterable[Mined]) -> Iterator[Mined]:
        """The stream itself, counted."""
        for item in mined:
            self.queries += 1
            self.negatives += len(item.doc_ids)
            self.queries_without += not item.doc_ids
            self.unscored += not item.positive_scores
            self.dropped.update(item.dropped)
            yield item

    def figures(self) -> dict[str, Any]:
        """What a manifest keeps of it."""
        return {
            "queries": self.queries,
            "negatives": self.negatives,
            "queries_without": self.queries_without,
            "negatives_per_query": round(self.negatives / max(self.queries, 1), 2),
            "queries_with_unscored_positives": self.unscored,
            "dropped": dict(sorted(self.dropped.items())),
        }

    def words(self) -> str:
        """What was dropped, for a person.

        >>> Tally(dropped=Counter({"margin": 1200, "judged-positive": 40})).words()
        'margin 1,200, judged-positive 40'
        """
        return ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.most_common()) or "nothing"


CANDIDATES = "candidates"
DEPTH = 200
Asked = TypeVar("Asked")


class Chain:
    """A source and the filters behind it, in their order.

    source: any `NegativeMiner`; one that is a `RankingDepth` says how deep its ranking is read. The chain reads
    it deeper where a filter asks for that (`LooksDeeper`), and gives up to `depth` of what the filters leave. A judged
    positive, or an excluded passage, that a source lets through is left out here.
    """

    def __init__(self, source: NegativeMiner, filters: Sequence[NegativeFilter] = ()) -> None:
        self.source, self.filters = source, tuple(filters)
        self._corpus: Corpus | None = None

    @property
    def depth(self) -> int:
        """How deep the source's ranking is read at least: its own setting, or what a filter needs."""
        depth = self.source.depth if isinstance(self.source, RankingDepth) else DEPTH
        for part in reversed(self.filters):
            depth = max(depth, part.candidate_depth(depth)) if isinstance(part, LooksDeeper) else depth
        return depth

    def index(self, corpus: Corpus) -> None:
        """Take in the passages that may become negatives."""
        self.source.index(corpus)
        self._corpus = corpus

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, in the requests' order.

        Raises DrkitError before `index`, and where a part answers other queries than it was asked.
        """
        if self._corpus is None:
            raise DrkitError("the chain has no corpus yet; call index(corpus) before mine(requests, depth)")
        reach = max(depth, self.depth) if self.filters else depth
        pairs = _paired(requests, partial(self.source.mine, depth=reach), _itself, _name(self.source))
        pairs = ((request, _allowed(request, mined)) for request, mined in pairs)
        for part in self.filters:
            pairs = _paired(pairs, partial(part.keep, corpus=self._corpus), _first, _name(part))
        for _, mined in pairs:
            yield evolve(mined, doc_ids=mined.doc_ids[:depth], scores=mined.scores[:depth])


def build_chain(choices: Sequence[Choice], registry: Registry, context: BuildContext) -> Chain:
    """The chain that a recipe chose: a source first, then filters.

    Raises DrkitError where there is no choice, the first is a filter, or a later one is a source.
    """
    if not choices:
        raise DrkitError("no miner is chosen; name a source first: bm25, dense, random ..")
    first, *others = choices
    if is_filter(first, registry):
        raise DrkitError(
            f"the filter {first.use!r} stands first and has nothing to filter; put a source before it: "
            f"{', '.join(sources(registry))}"
        )
    wrong = next((choice.use for choice in others if not is_filter(choice, registry)), None)
    if wrong:
        raise DrkitError(f"the source {wrong!r} stands behind {first.use!r}; a chain has one source, the first")
    made = [registry.build(Kind.MINER, choice.use, choice.config, context) for choice in choices]
    return Chain(made[0], made[1:])


def is_filter(choice: Choice, registry: Registry) -> bool:
    """Whether a chosen miner filters what another one found."""
    return CANDIDATES in registry.get(Kind.MINER, choice.use).receives_of(choice.config)


def refresh_of(choices: Sequence[Choice]) -> RefreshesNegatives | None:
    """The settings of mining again while a model is trained, where a chain begins with that."""
    config = choices[0].config if choices else None
    return config if isinstance(config, RefreshesNegatives) else None


def sources(registry: Registry) -> tuple[str, ...]:
    """The names of miners that a chain may begin with."""
    return tuple(registry.name_of(spec) for spec in registry.specs(Kind.MINER) if CANDIDATES not in spec.receives)


def left(mined: Mined, keep: Sequence[bool], reason: str) -> Mined:
    """The candidates whose place in `keep` is True; the others are counted under `reason`.

    >>> left(Mined("q", ("a", "b"), (2.0, 1.0)), [False, True], "margin").dropped
    {'margin': 1}
    """
    kept = [place for place, stays in enumerate(keep) if stays]
    return evolve(
        mined,
        doc_ids=tuple(mined.doc_ids[place] for place in kept),
        scores=tuple(mined.scores[place] for place in kept),
        dropped=counted(mined, **{reason: len(mined.doc_ids) - len(kept)}),
    )


def counted(mined: Mined, **more: int) -> dict[str, int]:
    """Its counts by reason, and some more; those of nothing are left out."""
    total = Counter(mined.dropped)
    total.update({reason.replace("_", "-"): number for reason, number in more.items() if number})
    return dict(total)


def _allowed(request: MiningRequest, mined: Mined) -> Mined:
    for reason, never in (("judged-positive", request.positives), ("own-passage", request.excluded)):
        if not never.isdisjoint(mined.doc_ids):
            mined = left(mined, [doc_id not in never for doc_id in mined.doc_ids], reason)
    return mined


def _paired(
    items: Iterable[Asked],
    answer: Callable[[Iterator[Asked]], Iterable[Mined]],
    request_of: Callable[[Asked], MiningRequest],
    name: str,
) -> Iterator[tuple[MiningRequest, Mined]]:
    """Each request with its answer; what was asked and is not answered yet waits in a queue."""
    waiting: deque[MiningRequest] = deque()

    def asked() -> Iterator[Asked]:
        for item in items:
            waiting.append(request_of(item))
            yield item

    for mined in answer(asked()):
        request = waiting.popleft() if waiting else None
        if request is None or request.query_id != mined.query_id:
            wanted = request.query_id if request else None
            raise DrkitError(f"the miner {name} answers {mined.query_id!r} where {wanted!r} was asked; it is broken")
        yield request, mined
    if waiting:
        raise DrkitError(f"the miner {name} leaves {waiting[0].query_id!r} without an answer; it is broken")


def _itself(request: MiningRequest) -> MiningRequest:
    return request


def _first(pair: tuple[MiningRequest, Mined]) -> MiningRequest:
    return pair[0]


def _name(part: Any) -> str:
    return type(part).__name__
