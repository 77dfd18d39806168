"""The splits of a collection: those with queries of their own, and those that are a share of another one's."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import evolve, field, frozen

from drkit.core.quantities import counted
from drkit.errors import UnknownNameError

SPLITS = ("train", "dev", "test")
# The split of queries that a run makes from held-out passages.
PSEUDO = "pseudo"
# Queries that are looked at to see whether each share has one.
MOST_COUNTED = 200_000
# Queries that are too few to give one to a split whose share is less than one.
FEWEST = 5


def fraction(name: str) -> float:
    """Return a number in [0, 1) that depends on `name` alone.

    >>> fraction("json.decoder") == fraction("json.decoder"), 0 <= fraction("json") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def split_by_hash(name: str, *, dev_share: float, test_share: float) -> str:
    """Return `test`, `dev` or `train` for a name, so that test and dev get these shares of all names."""
    value = fraction(name)
    if value < test_share:
        return "test"
    return "dev" if value < test_share + dev_share else "train"


@frozen
class Splits:
    """Which splits a collection has, and which queries belong to each; decided by the hash of a query's id.

    collection: its name, for errors. own: splits with queries of their own. held_out: splits that are a share of the
    training queries. train_share: of the test queries, in a collection without training queries; a tenth of these are
    dev if it has no dev queries either. moved: queries that a split without others takes; empty: splits without any,
    of `counted` queries.
    """

    collection: str
    own: frozenset[str]
    held_out: Mapping[str, float]
    train_share: float = 0.0
    moved: Mapping[str, str] = field(factory=dict)
    empty: frozenset[str] = frozenset()
    counted: int = 0

    @classmethod
    def of(
        cls,
        collection: str,
        own: Iterable[str],
        *,
        dev_share: float = 0.0,
        test_share: float = 0.0,
        train_share: float = 0.0,
    ) -> Splits:
        """Return splits by a collection's shares; a share is ignored if the split has queries of its own."""
        own = frozenset(own)
        shares = {"dev": dev_share, "test": test_share} if "train" in own else {}
        held_out = {split: share for split, share in shares.items() if share and split not in own}
        return cls(collection, own, held_out, train_share if "test" in own and "train" not in own else 0.0)

    def names(self) -> tuple[str, ...]:
        """Return the splits: of train, dev, test, in this order."""
        taken = {*self.own, *self.held_out, *(("train", "dev") if self.train_share else ())}
        return tuple(split for split in SPLITS if split in taken - self.empty)

    def source(self, split: str) -> str:
        """Return the split whose queries `split` is taken from. Raises DrkitError for an unknown split."""
        if split not in self.names():
            raise UnknownNameError("split", split, self.names(), where=self.collection)
        if split in self.own:
            return split
        return "test" if self.train_share else "train"

    def share(self, split: str) -> float:
        """Return the share of the queries of `source(split)` that belong to a split, as hashes divide many.

        >>> splits = Splits.of("c", ["train", "test"], dev_share=0.25)
        >>> [splits.share(split) for split in splits.names()]
        [0.75, 0.25, 1.0]
        """
        if not self._is_shared(split):
            return 1.0
        if self.train_share:
            dev = 0.0 if "dev" in self.own else self.train_share / 10
            return {"train": self.train_share - dev, "dev": dev, "test": 1 - self.train_share}[split]
        return self.held_out.get(split, 1 - sum(self.held_out.values()))

    def membership(self, split: str) -> Callable[[str], bool]:
        """Return the function that says whether a query id of `source(split)` belongs to `split`."""
        source = self.source(split)
        if source == self._shared:
            return lambda query_id: self._split_of(query_id) == split
        return lambda _: True

    def filled(self, answered: Callable[[], Iterable[str]]) -> Splits:
        """Return splits of which each has a query, as far as there are enough: a share of few queries may be none.

        answered: returns the ids of the queries that are shared out, those with a relevant passage, which are read
        until each split has one. Of at least `FEWEST`, a split without any takes one of the largest split, that with
        the lowest hash; training takes one of fewer, too.
        """
        if not self._shared:
            return self
        sharing = [split for split in ("train", "test", "dev") if split in self.names() and self._is_shared(split)]
        found, missing = dict[str, str](), {*sharing}
        for number, query_id in enumerate(answered()):
            found[query_id] = split = self._split_of(query_id)
            missing.discard(split)
            if not missing or number > MOST_COUNTED:
                return self
        order, moved = sorted(found, key=fraction), dict[str, str]()
        for split in (one for one in sharing if one not in found.values()):
            if len(found) >= FEWEST or (split == "train" and found):
                donor = Counter(found.values()).most_common(1)[0][0]
                query_id = next(one for one in order if found[one] == donor)
                found[query_id] = moved[query_id] = split
        return evolve(self, moved=moved, empty=frozenset({*sharing} - {*found.values()}), counted=len(found))

    def notes(self) -> Iterator[str]:
        """Yield a note for each split whose share of the queries is none."""
        for query_id, split in self.moved.items():
            yield (
                f"{self._few} none is in the share for {split}: it gets one of them, {query_id!r}. Results on so few "
                f"queries say little"
            )
        for split in sorted(self.empty):
            yield f"{self._few} none is left for {split}; give {split} queries of their own, or more of them"

    @property
    def _few(self) -> str:
        which = "training" if self._shared == "train" else "test"
        return f"of the {counted(self.counted, f'{which} query')} with a relevant passage,"

    def _is_shared(self, split: str) -> bool:
        return self.source(split) == self._shared

    @property
    def _shared(self) -> str:
        """The split whose queries are shared out; empty if all splits have their own."""
        return "train" if self.held_out else "test" if self.train_share else ""

    def _split_of(self, query_id: str) -> str:
        if query_id in self.moved:
            return self.moved[query_id]
        if self.train_share:
            return self._taken_from_test(query_id)
        dev, test = (self.held_out.get(name, 0.0) for name in ("dev", "test"))
        return split_by_hash(query_id, dev_share=dev, test_share=test)

    def _taken_from_test(self, query_id: str) -> str:
        value = fraction(query_id)
        if value >= self.train_share:
            return "test"
        return "dev" if "dev" not in self.own and value < self.train_share / 10 else "train"
