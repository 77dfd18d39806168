"""How an encoder reads a passage's title and text: joined by a space, separated, as a pair, or the text alone.

Separated, the tokenizer's separator is between them, as in the code of RetroMAE (Xiao et al. 2022). As a pair, they are
separated as the tokenizer separates two texts, and a model with token types is given those of a pair, as in the code of
SimLM (Wang et al. 2023). The choice is kept in the configuration of the model, so that it travels with every checkpoint
and exported folder.
"""

from __future__ import annotations

from typing import Any

from attrs import asdict, field, frozen
from attrs.validators import in_, instance_of, optional

from drkit.core.types import Passage
from drkit.errors import DrkitError

JOINED, SEPARATED, AS_PAIR, TEXT_ALONE = "joined", "separated", "pair", "text"
TITLES = (JOINED, SEPARATED, AS_PAIR, TEXT_ALONE)
# The key of a model's configuration.
TITLES_SETTING = "drkit_titles"
_TYPES = "token_type_ids"
_PROBE = ("A title of some words", "and its text, too.")


@frozen
class Titles:
    """How titles are read: `joined`, `separated`, `pair` or `text`.

    separator: what stands between title and text, spelled as the tokenizer reads it, unless they are joined.
    types_after: the token after which tokens have type 1; None: the model has no token types, or the texts are no pair.
    """

    reads: str = field(default=JOINED, validator=in_(TITLES))
    separator: str = field(default="", validator=instance_of(str))
    types_after: int | None = field(default=None, validator=optional(instance_of(int)))

    @classmethod
    def of(cls, reads: str, tokenizer: Any, config: Any = None) -> Titles:
        """Return how a model with this configuration and fast tokenizer reads titles.

        Without a configuration, the texts are the same; the types of tokens are not known.
        Raises DrkitError if the tokenizer has no separator, or reads pairs otherwise than one text with its separator
        written out.
        """
        if reads == SEPARATED and tokenizer.sep_token:
            return cls(reads, tokenizer.sep_token)
        if reads in (JOINED, TEXT_ALONE):
            return cls(reads)
        name = type(tokenizer).__name__
        between = _between(tokenizer) if reads == AS_PAIR else []
        if not between:
            raise DrkitError(
                f"this {name} puts no token between two texts, so titles cannot be read apart from them: "
                f"--set encoder.titles={JOINED} @ encoder.titles"
            )
        found = cls(AS_PAIR, "".join(tokenizer.convert_ids_to_tokens(between)))
        pair, written = tokenizer(*_PROBE), tokenizer(found.text_of(*_PROBE))
        has_types = getattr(config, "type_vocab_size", 0) > 1 and _TYPES in pair
        if has_types:
            found = cls(AS_PAIR, found.separator, between[0])
        if pair["input_ids"] != written["input_ids"] or (
            has_types and pair[_TYPES] != found.types_of(pair["input_ids"])
        ):
            raise DrkitError(
                f"this {name} reads a pair of texts in a way that drkit does not compute (its separator is "
                f"{found.separator!r}), so titles cannot be read as pairs: --set encoder.titles={JOINED} "
                f"@ encoder.titles"
            )
        return found

    @classmethod
    def of_config(cls, config: Any) -> Titles:
        """Return how a model reads titles, by its configuration. Raises DrkitError for an unknown way."""
        saved = getattr(config, TITLES_SETTING, None)
        if saved is None:
            return cls()
        try:
            return cls(**saved)
        except (TypeError, ValueError):
            raise DrkitError(
                f"the configuration of the model has {TITLES_SETTING} = {saved!r:.80}, which this version of drkit "
                f"does not know; update drkit, or remove it from config.json to read titles and texts joined"
            ) from None

    def save(self, config: Any) -> None:
        """Keep the choice in a model's configuration; none is kept of titles that are joined to their texts."""
        if self.reads != JOINED:
            setattr(config, TITLES_SETTING, asdict(self))
        elif hasattr(config, TITLES_SETTING):
            delattr(config, TITLES_SETTING)

    def read(self, passage: Passage) -> str:
        """Return a passage as the tokenizer is given it; without a title, all ways are the same."""
        return passage.content if self.reads == JOINED else self.text_of(passage.title, passage.text)

    def has_title(self, passage: Passage) -> bool:
        """Return whether a passage has a title, so that it matters how titles are read."""
        return bool(passage.title)

    def text_of(self, title: str, text: str) -> str:
        """Return a title and a text, which are not joined, as the tokenizer is given them."""
        return f"{title}{self.separator}{text}" if self.separator and title else text

    def without_separator(self, text: str) -> str:
        """Return a part of a text with a space for the separator."""
        return text.replace(self.separator, " ") if self.separator else text

    def types_of(self, ids: list[int]) -> list[int]:
        """Return the token types of one text, given as ids with special tokens.

        >>> Titles("pair", "[SEP]", types_after=3).types_of([2, 8, 3, 9, 3])
        [0, 0, 0, 1, 1]
        """
        first = ids.index(self.types_after) if self.types_after in ids else len(ids)
        return [int(at > first) for at in range(len(ids))]

    def inputs(self, ids: Any) -> dict[str, Any]:
        """Return what the model is given besides ids i64[B,L]: token types i64[B,L] of pairs, else nothing."""
        if self.types_after is None:
            return {}
        separators = ids == self.types_after
        return {_TYPES: (separators.cumsum(1) > separators).long()}


def _between(tokenizer: Any) -> list[int]:
    """Return the tokens between the two texts of a pair."""
    pair = tokenizer("a", "a", verbose=False)
    sides = pair.sequence_ids()
    ids: list[int] = pair["input_ids"]
    if 1 not in sides:
        return []
    second = sides.index(1)
    last = max((at for at, side in enumerate(sides[:second]) if side == 0), default=second - 1)
    return ids[last + 1 : second]
