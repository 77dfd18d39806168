"""Lengths in tokens: estimated from texts, and chosen so that an encoder made from scratch reads most texts whole."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import islice
from typing import Any

from attrs import evolve, frozen

from drkit.core.files import local_path
from drkit.core.protocols import Collection
from drkit.core.quantities import counted
from drkit.core.registry import Registry
from drkit.core.spec import Choice, Kind
from drkit.data.data_sets import DataSets
from drkit.data.words import estimate_tokens
from drkit.recipe.compose import SMALL, ComposeRequest
from drkit.recipe.parts import required_capabilities
from drkit.recipe.schema import Recipe

# Texts of a collection that are looked at before it is read whole.
_SAMPLE = 5000
_SHORTEST_PASSAGE, _LONGEST_PASSAGE = 64, 512
_SHORTEST_QUERY, _LONGEST_QUERY = 16, 128
# With a transformer layer, the time of a step grows with the length: an encoder from scratch has minutes.
_LONGEST_WITH_LAYERS = 256


@frozen
class Lengths:
    """Estimated lengths of texts in tokens: half of them, 95 % and all are at most this long."""

    median: int = 0
    most: int = 0
    longest: int = 0

    @classmethod
    def of(cls, tokens: Sequence[int]) -> Lengths:
        """Return the quantiles of some numbers of tokens."""
        ordered = sorted(tokens)
        return cls(*(ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95, 1.0))) if ordered else cls()


def fit_lengths(
    recipe: Recipe, collection: Collection, request: ComposeRequest, registry: Registry
) -> tuple[Recipe, tuple[str, ...]]:
    """Return a composed recipe with lengths that fit the first texts of its collection, and a line on each.

    Lengths that the request sets are kept, and so is that of spans, which documents are cut into.
    """
    if not follows_texts(recipe, request, registry):
        return recipe, ()
    try:
        passages, queries, which = _sample(collection)
    except Exception:  # of a damaged file, or a plugin's reader: stage `collection` reports it, and names the part
        return recipe, ()
    limit = _LONGEST_WITH_LAYERS if recipe.encoder.layers else _LONGEST_PASSAGE
    found = suggest_lengths(passages, queries, which=which, limit=limit)
    kept = {setting.partition("=")[0].strip() for setting in request.settings}
    if "spans" in required_capabilities(recipe.pretrain, registry):
        kept.add("encoder.passage_length")
    chosen = {path: one for path, one in found.items() if path not in kept}
    lengths: dict[str, Any] = {path.removeprefix("encoder."): value for path, (value, _) in chosen.items()}
    notes = tuple(f"{path}={value}: {why}" for path, (value, why) in chosen.items())
    return evolve(recipe, encoder=evolve(recipe.encoder, **lengths)), notes


def follows_texts(recipe: Recipe, request: ComposeRequest, registry: Registry) -> bool:
    """Return whether the lengths of a composed recipe are chosen by its texts.

    They are if it makes an encoder from scratch at the small scale, for a collection in files of this machine.
    """
    if request.scale not in (None, SMALL) or recipe.encoder.pretrained:
        return False
    sets = [one.collection for one in (recipe.collections or {}).values()] or [recipe.collection]
    return all(_is_local(one, registry) for one in sets)


def _is_local(collection: Choice, registry: Registry) -> bool:
    """Return whether a collection is in files of this machine."""
    shorthand = registry.get(Kind.COLLECTION, collection.use).shorthand
    value = getattr(collection.config, shorthand) if shorthand else ""
    return bool(value) and local_path(str(value)).exists()


def suggest_lengths(
    passages: Lengths, queries: Lengths | None, *, which: str = "the", limit: int = _LONGEST_PASSAGE
) -> dict[str, tuple[int, str]]:
    """Return (value, reason) of the settings that read 95 % of the texts whole, passages up to a limit, by path.

    which: the texts that the lengths are those of, in words: `the`, or `the first 5,000`.
    """
    found = {}
    if passages.most:
        value = _rounded(passages.most, _SHORTEST_PASSAGE, limit)
        cut = f", cut at {limit}" if passages.most + 2 > limit else ""
        reason = f"95 % of {which} passages have at most about {counted(passages.most, 'token')}{cut}"
        found["encoder.passage_length"] = (value, reason)
    if queries and queries.most:
        value = _rounded(queries.most, _SHORTEST_QUERY, _LONGEST_QUERY)
        reason = f"95 % of {which} queries have at most about {counted(queries.most, 'token')}"
        found["encoder.query_length"] = (value, reason)
    return found


def script_of(letter: str) -> str:
    """Return the script of a letter, the first word of its Unicode name.

    >>> [script_of(letter) for letter in "aж字"]
    ['LATIN', 'CYRILLIC', 'CJK']
    """
    return unicodedata.name(letter, "UNKNOWN").partition(" ")[0].partition("-")[0]


def _sample(collection: Collection) -> tuple[Lengths, Lengths, str]:
    """Return the lengths of the first passages, and of the first queries of each split, and which these are."""
    sets = list(collection.sets.values()) if isinstance(collection, DataSets) else [collection]
    first = [list(islice(one.passages(), _SAMPLE + 1)) for one in sets]
    passages = [estimate_tokens(passage.content) for own in first for passage in own[:_SAMPLE]]
    queries = [
        estimate_tokens(query.text)
        for one in sets
        for split in one.splits()
        for query in islice(one.queries(split), _SAMPLE)
    ]
    which = f"the first {_SAMPLE:,}" if max(map(len, first)) > _SAMPLE else "the"
    return Lengths.of(passages), Lengths.of(queries), which


def _rounded(tokens: int, least: int, most: int) -> int:
    """Return a length for texts of so many tokens and two special ones, a multiple of 16 within bounds."""
    return max(least, min(most, -(-(tokens + 2) // 16) * 16))
