"""Checks of a collection's rows: unknown ids are reported with the lines they were read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from drkit.core.protocols import Collection, LocatesRows, UnknownJudgements
from drkit.data.corpus import StoredCorpus
from drkit.errors import DrkitError

SHOWN = 5
_ROWS = 4096
_Item = TypeVar("_Item")


class KnownIds:
    """Keeps rows whose ids are known; counts the others, and refuses them unless the collection drops them."""

    def __init__(
        self, collection: Collection, corpus: StoredCorpus, queries: Mapping[str, set[str]], table: str = "judgements"
    ) -> None:
        self._collection, self._corpus, self._queries, self._table = collection, corpus, queries, table
        self._shown: list[str] = []
        self.count = 0

    def __call__(self, items: Iterable[_Item], split: str, ids: Callable[[_Item], tuple[str, str]]) -> Iterator[_Item]:
        """Yield the rows of a split whose query and passage exist; `ids` returns both ids of a row."""
        stream = enumerate(items)
        while batch := list(islice(stream, _ROWS)):
            exists = self._corpus.find([ids(item)[1] for _, item in batch]) >= 0
            for (row, item), found in zip(batch, exists, strict=True):
                query_id, doc_id = ids(item)
                if not found:
                    self._report(f"no passage {doc_id!r}", split, row)
                elif query_id not in self._queries[split]:
                    self._report(f"no query {query_id!r}", split, row)
                else:
                    yield item

    def _report(self, what: str, split: str, row: int) -> None:
        self.count += 1
        if len(self._shown) < SHOWN:
            self._shown.append(f"{what} @ {locator(self._collection)(self._table, split, row)}")

    def finish(self) -> None:
        """Raise DrkitError for the rows left out, unless the collection is set to drop them."""
        settings = getattr(self._collection, "config", None)
        drop = isinstance(settings, UnknownJudgements) and settings.unknown_judgements == "drop"
        if self.count and not drop:
            what = f"{self._table.removesuffix('s')}(s) with unknown ids"
            advice = ", or drop them with --set collection.unknown_judgements=drop"
            raise refusal(self._collection, what, self._shown, self.count, advice)


def refusal(collection: Collection, what: str, shown: Sequence[str], count: int, advice: str = "") -> DrkitError:
    """Return the error for `count` invalid rows, with the first ones in `shown`."""
    more = [f".. and {count - len(shown)} more"] if count > len(shown) else []
    lines = "".join(f"\n  - {line}" for line in [*shown, *more])
    return DrkitError(f"{collection.name}: {count} {what}; fix the ids or delete the lines{advice}:{lines}")


def locator(collection: Collection) -> Callable[[str, str, int], str]:
    """Return the collection's own `locate`, which gives `file:line` of a row, or a plain description of the row."""
    plain: Callable[[str, str, int], str] = lambda table, split, row: f"{split} {table} row {row + 1}".strip()  # noqa: E731
    return collection.locate if isinstance(collection, LocatesRows) else plain
