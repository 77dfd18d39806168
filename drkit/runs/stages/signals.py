"""Stages: compute a signal of the pre-training texts, and of the candidate queries that are their contexts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.protocols import FittedSignal
from drkit.core.spec import Kind
from drkit.recipe.schema import Choice
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    from drkit.data.store import StoredTexts

# Folders of a signal: the statistics that its values depend on (counts, frequencies), and the values.
FITTED, VALUES = "fitted", "values"


@frozen
class SignalSettings:
    """A signal with its settings; prompt: the prefix of every passage, which is not part of the text."""

    signal: Choice
    prompt: str = from_recipe("encoder.passage_prompt")


@frozen
class QuerySignalSettings:
    """A signal with its settings, for candidate queries."""

    signal: Choice


def of_texts(stage: StageRun[SignalSettings]) -> Mapping[str, Any]:
    """Fit the signal to the whole corpus and write its values; returns facts of the fit and the number of values."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    texts, fitted = _texts(stage.inputs, stage.settings.prompt), stage.folder / FITTED
    fitted.mkdir(parents=True, exist_ok=True)
    facts = dict(signal.fit(texts, fitted)) if isinstance(signal, FittedSignal) else {}
    return {**facts, "values": _write(stage, signal, texts, fitted)}


def of_queries(stage: StageRun[QuerySignalSettings]) -> Mapping[str, Any]:
    """Write the signal's values of the candidate queries, fitted to the texts; returns the number of values."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    return {"values": _write(stage, signal, _texts(stage.inputs, ""), stage.inputs["fitted"])}


def _write(stage: StageRun[Any], signal: Any, texts: StoredTexts, fitted: Path) -> int:
    from drkit.data.arrays import write_signal

    chosen = stage.settings.signal
    scope = stage.registry.get(Kind.SIGNAL, chosen.use).scope_of(chosen.config)
    counts = {"token": len(texts.store.flat_ids), "text": len(texts), "vocabulary": texts.vocab_size}
    values = signal.values(texts, fitted)
    return len(write_signal(chosen.use, values, stage.folder / VALUES, scope=scope, count=counts[scope]))


def _texts(inputs: Mapping[str, Path], prompt: str) -> StoredTexts:
    """Open the texts with all inputs that the plan has added for the signal."""
    from drkit.data.store import StoredTexts, TokenStore
    from drkit.train.checkpoints import load_tokenizer

    return StoredTexts(
        store=TokenStore.open(inputs["texts"]),
        tokenizer=load_tokenizer(str(inputs["vocabulary"])) if "vocabulary" in inputs else None,
        vocab_size=_vocab_size(inputs["encoder"]) if "encoder" in inputs else 0,
        characters=_characters(inputs) if "passages" in inputs else None,
        prompt=prompt,
    )


def _vocab_size(config: Path) -> int:
    # The encoder's embedding table may be longer than its tokenizer's vocabulary (padded to a round number).
    return int(json.loads(config.read_text(encoding="utf-8"))["vocab_size"])


def _characters(inputs: Mapping[str, Path]) -> Any:
    from drkit.data.corpus import StoredCorpus
    from drkit.data.spans import NamedTexts, Spans

    corpus = StoredCorpus(inputs["passages"])
    named = NamedTexts(corpus, Spans.open(inputs["spans"]) if "spans" in inputs else None)
    return lambda: (text for _, text in named)


_TEXT = {
    "vocabulary": "the tokenizer, for a signal that requires characters",
    "encoder": "for the size of its vocabulary, for a signal of the vocabulary",
}
SIGNAL = StageSpec(
    name="signal",
    version=1,
    settings=SignalSettings,
    run=of_texts,
    inputs={
        "texts": "tokens of the texts that pre-training reads",
        "passages": "the texts themselves, for a signal that requires characters",
        "spans": "the position of each span in its passage, for such a signal",
        **_TEXT,
    },
)
QUERY_SIGNAL = StageSpec(
    name="query-signal",
    version=1,
    settings=QuerySignalSettings,
    run=of_queries,
    inputs={"texts": "tokens of the candidate queries", "fitted": "the signal's statistics of the texts", **_TEXT},
)
