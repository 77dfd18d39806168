"""The texts of a token store with their characters, as a signal reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise, tee
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from drkit.data.store import TokenStore, encoded
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@frozen(eq=False)
class StoredTexts:
    """The texts that a signal is computed for.

    store: their tokens. tokenizer: the tokenizer that made the store. vocab_size: rows of the encoder's embedding
    matrix, which may exceed the tokenizer's vocabulary; 0 if the signal has no values per entry. characters: the texts
    in the order of the store, without `prompt`; None if only their tokens are kept (candidate queries), which are then
    decoded.
    """

    store: TokenStore
    tokenizer: Any
    vocab_size: int
    characters: Callable[[], Iterable[str]] | None = None
    prompt: str = ""

    def __len__(self) -> int:
        return len(self.store)

    def read(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Stream (text, i64[tokens,2]: start and end of each content token in it), in the order of the store.

        Tokens of the prompt have (0, 0). Raises DrkitError if the texts are not those of the store, or the signal's
        spec does not require `characters`.
        """
        if self.tokenizer is None:
            raise DrkitError("this signal reads characters: add requires=('characters',) to its spec")
        return _decode(self) if self.characters is None else _read(self, self.characters())


def _read(texts: StoredTexts, characters: Iterable[str]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    store, skip, index = texts.store, len(texts.prompt), 0
    own, read = tee(characters)
    encodings = chain.from_iterable(encoded((texts.prompt + text for text in read), texts.tokenizer))
    for text, encoding in zip(own, encodings, strict=True):
        kept = int(store.offsets[index + 1] - store.offsets[index]) if index < len(store) else -1
        if not 0 <= kept <= len(encoding.ids):
            raise DrkitError(
                f"text {index} differs from the one in the token store {store.path}; tokenise the texts again"
            )
        spans = np.array(encoding.offsets[:kept], dtype=np.int64).reshape(-1, 2)
        yield text, np.maximum(spans - skip, 0)
        index += 1
    if index != len(store):
        raise DrkitError(
            f"got {index} texts, but the token store {store.path} has {len(store)}; tokenise the texts again"
        )


def _decode(texts: StoredTexts) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the texts decoded from their tokens, with a space before each word."""
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
