"""Values of signals: what is known of every token, text or vocabulary entry, written once and mapped.

A signal (`drkit.core.protocols.Signal`) says what the values are; `write_signal` checks and stores them, and a
`TokenStore` lays them out beside the tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from drkit.data.store import TokenStore

FILE = "values.arrow"


class SignalValues:
    """The values of a signal, mapped: `values` f32[n] or f32[n,K], n content tokens, texts or vocabulary entries.

    Those of tokens are aligned with `TokenStore.flat_ids`. Picklable; `TokenStore.batch(.., signals={name: this})` lays
    them out.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        arrays = Arrays(self.path)
        self.scope = arrays.metadata["scope"]
        width = int(arrays.metadata["width"])
        flat: NDArray[np.float32] = arrays["values"]
        self.values = flat.reshape(-1, width) if width else flat

    @classmethod
    def open(cls, folder: Path) -> SignalValues:
        """What `write_signal` wrote to `folder`. Raises DrkitError where it is not there."""
        return cls(Path(folder) / FILE)

    def __reduce__(self) -> tuple[type[SignalValues], tuple[Path]]:
        return SignalValues, (self.path,)

    def __len__(self) -> int:
        return len(self.values)


def write_signal(
    name: str, chunks: Iterable[ArrayLike], folder: Path, *, scope: str, count: int, metadata: Mapping[str, Any] = {}
) -> SignalValues:
    """Write the values of a signal, given in order in chunks of f32[n] or f32[n,K], to `folder`, and map them.

    scope: `token`, `text` or `vocabulary`; count: how many there must be of it.

    Raises DrkitError where there are more or fewer, a value is not finite, or the chunks differ in K.
    """
    width, written = None, 0
    with ArrayWriter(Path(folder) / FILE, {"values": np.float32}) as writer:
        for chunk in chunks:
            values = np.asarray(chunk, dtype=np.float32)
            width = _width(name, values, width)
            if not np.isfinite(values).all():
                raise DrkitError(
                    f"the signal {name!r} is not finite at {scope} {written + _first_wrong(values)} of {count}; "
                    f"a signal is a number everywhere, 0 where nothing is known"
                )
            writer.append(values=values)
            written += len(values)
        writer.metadata = {"scope": scope, "width": width or 0, **metadata}
        if written != count:
            raise DrkitError(
                f"the signal {name!r} gave {written:,} values, and there are {count:,} of scope {scope!r}: one each is "
                f"wanted, in order"
            )
    return SignalValues.open(folder)


def _width(name: str, values: NDArray[np.float32], before: int | None) -> int:
    """K of f32[n,K], 0 of f32[n]."""
    if values.ndim not in (1, 2):
        raise DrkitError(f"the signal {name!r} gave values of shape {values.shape}; give f32[n] or f32[n,K]")
    width = values.shape[1] if values.ndim == 2 else 0
    if before is not None and width != before:
        raise DrkitError(f"the signal {name!r} gave vectors of {width} values after some of {before}; give the same K")
    return width


def _first_wrong(values: NDArray[np.float32]) -> int:
    wrong = ~np.isfinite(values)
    return int(np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(1))[0])


@frozen(eq=False)
class StoredTexts:
    """The texts that a signal is computed for.

    store: their tokens. tokenizer: the one that made them. vocab_size: entries of the encoder's table, at least the
    tokenizer's; 0 where the signal has no value an entry. characters: the texts themselves, in the store's order,
    behind `prompt`; None where they are known by their tokens alone (candidate queries): these spell them out then.
    """

    store: TokenStore
    tokenizer: Any
    vocab_size: int
    characters: Callable[[], Iterable[str]] | None = None
    prompt: str = ""

    def __len__(self) -> int:
        return len(self.store)

    def read(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """(text, i64[tokens,2]: where in it each content token begins and ends), in the store's order; streams.

        Tokens of the prompt are at (0, 0). Raises DrkitError where the texts are not those of the store, or the
        signal's spec does not require `characters`.
        """
        if self.tokenizer is None:
            raise DrkitError("this signal reads characters: its spec says so with requires=('characters',)")
        return _spelled_out(self) if self.characters is None else _read(self, self.characters())


def _read(texts: StoredTexts, characters: Iterable[str]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    from drkit.data.store import encoded

    store, skip, place = texts.store, len(texts.prompt), 0
    own, read = tee(characters)
    encodings = chain.from_iterable(encoded((texts.prompt + text for text in read), texts.tokenizer))
    for text, encoding in zip(own, encodings, strict=True):
        kept = int(store.offsets[place + 1] - store.offsets[place]) if place < len(store) else -1
        if not 0 <= kept <= len(encoding.ids):
            raise DrkitError(f"text {place} is not the one in the token store {store.path}; tokenise the texts again")
        spans = np.array(encoding.offsets[:kept], dtype=np.int64).reshape(-1, 2)
        yield text, np.maximum(spans - skip, 0)
        place += 1
    if place != len(store):
        raise DrkitError(f"{place} texts, and the token store {store.path} has {len(store)}; tokenise them again")


def _spelled_out(texts: StoredTexts) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The texts as their tokens spell them, a space before each word."""
    store = texts.store
    spellings: dict[int, str] = {}
    for first, last in pairwise(store.offsets.tolist()):
        text, spans, before = "", [], None
        for token, word in zip(store.flat_ids[first:last].tolist(), store.flat_words[first:last].tolist(), strict=True):
            if token not in spellings:
                spellings[token] = texts.tokenizer.decode([token]).removeprefix("##").strip()
            if text and word != before:
                text += " "
            spans.append((len(text), len(text) + len(spellings[token])))
            text, before = text + spellings[token], word
        yield text, np.array(spans, dtype=np.int64).reshape(-1, 2)
