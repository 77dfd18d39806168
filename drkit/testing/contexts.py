"""The contract of a context: one text for each text, chosen by index, seed and epoch alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import TokenBatch
from drkit.data.arrays import ArrayWriter, SignalValues
from drkit.data.contexts import PretrainingTexts
from drkit.data.queries import CANDIDATES_FILE as QUERIES
from drkit.data.queries import Queries
from drkit.data.spans import SPANS_FILE as SPANS
from drkit.data.spans import Spans
from drkit.data.store import TokenStore, tokenise
from drkit.testing.specs import build, checked_spec, pickled, require, running
from drkit.testing.toys import rows_of, toy_context, toy_texts, toy_tokenizer


def check_context(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of contexts on a spec or the name of an installed part, with default settings or `config`.

    It returns a TokenBatch with one text per text and the texts' own keys; the same seed and epoch give the same texts,
    also after pickling; the rest of the batch and its order do not matter; the input is unchanged.
    """
    spec, config = checked_spec(Kind.CONTEXT, part, config)
    context = build(spec, config, toy_context())
    require(callable(context), f"{spec.name}: a context must be callable, got {type(context).__name__}")
    with TemporaryDirectory() as folder:
        named = ((str(number), text) for number, text in enumerate(toy_texts()))
        tokenise(named, toy_tokenizer(), Path(folder), max_length=40)
        texts = toy_pretraining_texts(TokenStore.open(Path(folder)), {}, Path(folder))
        tokens = texts.batch(np.arange(len(texts.store)))
        ids = tokens.ids.clone()
        found = _choose(context, tokens, texts, spec.name)
        require(torch.equal(tokens.ids, ids), f"{spec.name}: the context changed its input")
        again = _choose(context, tokens, texts, spec.name)
        require(_texts(again) == _texts(found), f"{spec.name}: the same seed and epoch give other texts")
        some = [3, 0, 1]
        alone = _choose(context, rows_of(tokens, some), texts, spec.name)
        expected = [_texts(found)[row] for row in some]
        require(_texts(alone) == expected, f"{spec.name}: a text's context depends on the other texts of the batch")
        thawed = _choose(pickled(spec.name, context), tokens, texts, spec.name)
        require(_texts(thawed) == _texts(found), f"{spec.name}: pickling changes the texts")


def toy_pretraining_texts(store: TokenStore, signals: Mapping[str, SignalValues], folder: Path) -> PretrainingTexts:
    """Return texts that are all spans of one document, each the only candidate query of itself.

    folder: of the store; it gets the files of spans and queries.
    """
    zeros, ones = np.zeros(len(store), dtype=np.int64), np.ones(len(store), dtype=np.int32)
    with ArrayWriter(folder / SPANS, dict.fromkeys(("documents", "begins", "ends"), np.int64)) as spans:
        spans.append(documents=zeros, begins=zeros, ends=zeros)
    with ArrayWriter(folder / QUERIES, {"counts": np.int32}) as queries:
        queries.append(counts=ones)
    return PretrainingTexts(store, Spans.open(folder), Queries(folder), signals, signals)


def require_contexts(found: Any, tokens: TokenBatch, name: str) -> TokenBatch:
    """Return what a context returned; raises ContractError unless it is a batch with one text per text."""
    require(isinstance(found, TokenBatch), f"{name}: a context must return a TokenBatch, got {type(found).__name__}")
    assert isinstance(found, TokenBatch)
    count = len(found.ids)
    require(count == len(tokens.ids), f"{name}: expected {len(tokens.ids)} texts, one per text, got {count}")
    require(torch.equal(found.keys, tokens.keys), f"{name}: the keys must be those of the texts")
    return found


def _choose(context: Any, tokens: TokenBatch, texts: PretrainingTexts, name: str) -> TokenBatch:
    with running(name, f"choosing contexts of {len(tokens.ids)} text(s)"):
        found = context(tokens, texts, seed=1, epoch=2)
    return require_contexts(found, tokens, name)


def _texts(batch: TokenBatch) -> list[list[int]]:
    return [ids[attended].tolist() for ids, attended in zip(batch.ids, batch.attention, strict=True)]
