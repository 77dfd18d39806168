"""What the first rows of a collection in files tell before a run: its splits, and faults that would stop it later."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from attrs import define, field

from drkit.core.protocols import Collection, ExplainsReading, KnowsTitles
from drkit.core.quantities import counted
from drkit.core.types import Passage, Query
from drkit.data.collection import FileCollection, drops_unknown_ids
from drkit.data.titles import JOINED
from drkit.errors import DrkitError

# Queries and judgements of a split that a plan reads; larger files are checked when they are stored.
LIMIT = 100_000
# Given negatives of a split that a plan reads: those of pairs stand in rows that were read already.
_NEGATIVES = 1_000
# Passages that a plan reads.
_PASSAGES = 2_000
_SHOWN = 3


def preview(collection: FileCollection) -> Iterator[str]:
    """Read the first rows of a collection, and yield notes on how they are read and on texts in several splits.

    Raises DrkitError for what would stop the run when its collection is stored: no passages, a query in two splits, a
    judged query without a text, negatives by id that are none, or a split without a relevant passage.
    """
    yield from collection.notes()
    first = list(islice(collection.passages(), _PASSAGES))
    if not first:
        raise DrkitError(f"{collection.name} has no passages; give a collection with at least one text")
    yield from _title_notes(first)
    rules = collection.split_rules
    splits = [split for split in rules.names() if split in rules.own or rules.train_share]
    texts = QueryTexts(collection.name)
    for split in splits:
        _look_at(collection, split, texts)
    yield from texts.notes()


def _title_notes(passages: Sequence[Passage]) -> Iterator[str]:
    """Yield a note if most passages with a title begin with it."""
    titled = [one for one in passages if one.title.strip()]
    twice = sum(_words(one.text).startswith(_words(one.title)) for one in titled)
    if twice * 2 > len(passages):
        yield (
            f"{twice:,} of the first {counted(len(passages), 'text')} begin with their own title, which is read twice "
            f"(a passage is its title and its text): --columns title=none leaves the titles out"
        )


def _words(text: str) -> str:
    """Return a text in which case and blanks do not count."""
    return " ".join(text.casefold().split())


def reading_notes(collection: object) -> Iterator[str]:
    """Yield notes on a collection of any format: those of `preview` for files, else its own, if it has any."""
    if isinstance(collection, FileCollection):
        yield from preview(collection)
    elif isinstance(collection, ExplainsReading):
        yield from collection.notes()


def title_note(collection: Collection, titles: str) -> Iterator[str]:
    """Yield a note if passages have no title that could be read as `titles` says, as far as is known before a run.

    That is known by the first rows of files, and of a collection that is a `KnowsTitles`.
    """
    name, effect = collection.name, f"so encoder.titles = {titles!r} has no effect"
    if titles != JOINED and isinstance(collection, FileCollection):
        first = list(islice(collection.passages(), _PASSAGES))
        if not any(one.title.strip() for one in first):
            yield (f"{name}: the first {counted(len(first), 'passage')} have no title, {effect} on them")
    elif titles != JOINED and isinstance(collection, KnowsTitles) and not collection.has_titles:
        yield f"{name} has no titles, {effect}"


def _look_at(collection: FileCollection, split: str, texts: QueryTexts) -> None:
    """Read the first queries, judgements and negatives of a split. Raises DrkitError as `preview` does."""
    queries = list(islice(collection.located_queries(split), LIMIT + 1))
    for where, query in queries:
        texts.add(query, split, where)
    judgements = list(islice(collection.located_judgements(split), LIMIT + 1))
    negatives = list(islice(collection.located_negatives(split), _NEGATIVES))
    if len(queries) <= LIMIT:
        known = {query.query_id for _, query in queries}
        _refuse_unknown(collection, "judgement", [(where, item.query_id) for where, item in judgements], known)
        _refuse_unknown(collection, "negative", [(where, query_id) for where, (query_id, _) in negatives], known)
    if len(judgements) <= LIMIT and not any(judgement.relevance > 0 for _, judgement in judgements):
        raise no_positives(collection.name, split)


def _refuse_unknown(collection: FileCollection, what: str, rows: Iterable[tuple[object, str]], known: set[str]) -> None:
    """Raise DrkitError for rows with the id of a query without a text, unless the collection drops them."""
    if drops_unknown_ids(collection):
        return
    found = [(where, query_id) for where, query_id in rows if query_id not in known]
    if found:
        lines = [f"unknown query {query_id!r:.80} @ {where}" for where, query_id in found[:_SHOWN]]
        more = [f".. and {len(found) - _SHOWN:,} more"] if len(found) > _SHOWN else []
        raise DrkitError(
            f"{collection.name}: {len(found):,} {what}(s) with unknown ids; fix the ids or delete the lines, or "
            f"drop them with --set collection.unknown_judgements=drop{alike(found[0][1], known)}:"
            + "".join(f"\n  - {line}" for line in [*lines, *more])
        )


def alike(query_id: str, known: Iterable[str]) -> str:
    """Return a hint at an id that differs only by case, blanks or zeros in front, or an empty string."""
    wanted = _plain(query_id)
    found = next((one for one in known if _plain(one) == wanted), None)
    return "" if found is None else f" (the texts have {found!r} for {query_id!r})"


def _plain(name: str) -> str:
    return name.strip().lower().lstrip("0")


def no_positives(collection: str, split: str) -> DrkitError:
    """Return the error for a split without a relevant passage."""
    return DrkitError(
        f"{collection}: no judgement of {split} has a relevance above 0; leave the split out "
        f"(a share of few queries may be empty: set the share to 0, or higher)"
    )


@define
class QueryTexts:
    """The ids and texts of the queries of several splits: ids must differ, equal texts are noted."""

    collection: str
    ids: dict[str, tuple[str, object]] = field(factory=dict)
    texts: dict[bytes, dict[str, str]] = field(factory=dict)
    repeated: dict[str, int] = field(factory=dict)

    def add(self, query: Query, split: str, where: object) -> None:
        """Add a query. Raises DrkitError, with both lines, for an id that occurs again."""
        if query.query_id in self.ids:
            first, before = self.ids[query.query_id]
            raise duplicate_query(self.collection, query.query_id, (first, before), (split, where))
        self.ids[query.query_id] = split, where
        self.count(query, split)

    def count(self, query: Query, split: str) -> None:
        """Add a query whose id is known to be new."""
        found = self.texts.setdefault(text_hash(query.text), {})
        if split in found:
            self.repeated[split] = self.repeated.get(split, 0) + 1
        found.setdefault(split, query.query_id)

    def notes(self) -> Iterator[str]:
        """Yield a note on texts that several ids of a split have, and on texts in several splits."""
        if number := self.repeated.get("train"):
            yield (
                f"{counted(number, 'training query has', 'training queries have')} the text of another one: the "
                f"passages relevant to one are no "
                f"negatives of the other"
            )
        for split in ("test", "dev"):
            shared = [found for found in self.texts.values() if split in found and "train" in found]
            if shared:
                yield (
                    f"{counted(len(shared), f'{split} query has', f'{split} queries have')} the text of a "
                    f"training query ({shared[0][split]!r} that of "
                    f"{shared[0]['train']!r}): results on them do not show how the encoder does on new queries"
                )


def text_hash(text: str) -> bytes:
    """Return a hash of a query's text, in which all blanks are one space."""
    return hashlib.blake2b(" ".join(text.split()).encode(errors="replace"), digest_size=10).digest()


def duplicate_query(collection: str, query_id: str, first: tuple[str, object], later: tuple[str, object]) -> DrkitError:
    """Return the error for a query id that occurs twice, each time in a split and at a place."""
    is_leak = first[0] != later[0]
    advice = f"remove its judgements from one of the two splits, so that no {later[0]} query is trained on"
    return DrkitError(
        f"{collection}: duplicate query id {query_id!r}, in {first[0]} @ {first[1]} and in {later[0]} @ {later[1]}; "
        f"query ids must be unique within and across splits{f': {advice}' if is_leak else ''}"
    )
