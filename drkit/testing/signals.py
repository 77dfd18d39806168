"""The contract of a signal: one finite number or vector for each token, text or vocabulary entry, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from drkit.core.protocols import FittedSignal
from drkit.core.spec import ComponentSpec, Kind
from drkit.data.arrays import write_signal
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.testing.specs import build, check_spec, require, running, spec_of
from drkit.testing.toys import toy_context, toy_texts, toy_tokenizer

_LENGTH = 64


def check_signal(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of signals on a spec or the name of an installed part, with default settings or `config`.

    There is exactly one value per token, text or vocabulary entry, as its `scope` says; all are finite, numbers or
    vectors of one size; the same texts give the same values; without a method `fit`, the values of a text do not depend
    on other texts; no text and an empty text are not an error.
    """
    spec = spec_of(Kind.SIGNAL, part)
    check_spec(spec)
    config = spec.config() if config is None else config
    texts = [*toy_texts(), "", "Turing and Lovelace in Berlin"]
    signal, values = _values(spec, config, texts)
    require(np.array_equal(values, _values(spec, config, texts)[1]), f"{spec.name}: a second run gives other values")
    scope = spec.scope_of(config)
    if scope != "vocabulary":
        _values(spec, config, [])
    if scope != "vocabulary" and not isinstance(signal, FittedSignal):
        parts = [_values(spec, config, [text])[1] for text in texts]
        same = np.array_equal(np.concatenate([part for part in parts if len(part)]), values)
        require(same, f"{spec.name}: the values of a text depend on the other texts, but it has no method `fit`")


def _values(spec: ComponentSpec, config: Any, texts: Sequence[str]) -> tuple[Any, Any]:
    """Return a new signal, and its values of these texts."""
    signal = build(spec, config, toy_context())
    require(callable(getattr(signal, "values", None)), f"{spec.name}: a signal must have a method `values`")
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, scope = toy_tokenizer(), spec.scope_of(config)
        tokenise((("", text) for text in texts), tokenizer, folder / "tokens", max_length=_LENGTH)
        store, size = TokenStore.open(folder / "tokens"), len(tokenizer)
        stored = StoredTexts(store, tokenizer, vocab_size=size, characters=lambda: iter(texts), prompt="")
        fitted = folder / "fitted"
        fitted.mkdir()
        if isinstance(signal, FittedSignal):
            with running(spec.name, "fit(texts, folder)"):
                signal.fit(stored, fitted)
        counts = {"token": len(store.flat_ids), "text": len(store), "vocabulary": size}
        with running(spec.name, f"values(texts, folder) of {len(texts)} text(s)"):
            chunks = signal.values(stored, fitted)
            written = write_signal(spec.name, chunks, folder, scope=scope, count=counts[scope])
        return signal, np.array(written.values)
