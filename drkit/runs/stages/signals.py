"""Stages: a signal of the texts that pre-training reads, and of the candidate queries that are their contexts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.protocols import FittedSignal
from drkit.core.recipe import Choice
from drkit.core.spec import Kind
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    from drkit.data.signals import StoredTexts

# In a signal's folder: what its values depend on (counts, frequencies), and the values.
FITTED, VALUES = "fitted", "values"


@frozen
class SignalSettings:
    """A signal with its settings; prompt: what stands before every passage, and belongs to no text."""

    signal: Choice
    prompt: str = from_recipe("encoder.passage_prompt")


@frozen
class QuerySignalSettings:
    """A signal with its settings, for candidate queries."""

    signal: Choice


def of_texts(stage: StageRun[SignalSettings]) -> Mapping[str, Any]:
    """Write what the signal takes from the whole corpus, and its values; returns its facts and how many values."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    texts, fitted = _texts(stage.inputs, stage.settings.prompt), stage.folder / FITTED
    fitted.mkdir(parents=True, exist_ok=True)
    facts = dict(signal.fit(texts, fitted)) if isinstance(signal, FittedSignal) else {}
    return {**facts, "values": _write(stage, signal, texts, fitted)}


def of_queries(stage: StageRun[QuerySignalSettings]) -> Mapping[str, Any]:
    """Write the signal's values of the candidate queries, by what it took from the texts; returns how many."""
    chosen = stage.settings.signal
    signal = stage.registry.build(Kind.SIGNAL, chosen.use, chosen.config)
    return {"values": _write(stage, signal, _texts(stage.inputs, ""), stage.inputs["fitted"])}


def _write(stage: StageRun[Any], signal: Any, texts: StoredTexts, fitted: Path) -> int:
    from drkit.data.signals import write_signal

    chosen = stage.settings.signal
    scope = stage.registry.get(Kind.SIGNAL, chosen.use).scope_of(chosen.config)
    counts = {"token": len(texts.store.flat_ids), "text": len(texts), "vocabulary": texts.vocab_size}
    values = signal.values(texts, fitted)
    return len(write_signal(chosen.use, values, stage.folder / VALUES, scope=scope, count=counts[scope]))


def _texts(inputs: Mapping[str, Path], prompt: str) -> StoredTexts:
    """The texts with as much beside their tokens as the plan has given."""
    from drkit.data.signals import StoredTexts
    from drkit.data.store import TokenStore
    from drkit.runs.tokenizers import load_tokenizer

    return StoredTexts(
        store=TokenStore.open(inputs["texts"]),
        tokenizer=load_tokenizer(str(inputs["vocabulary"])) if "vocabulary" in inputs else None,
        vocab_size=_vocab_size(inputs["encoder"]) if "encoder" in inputs else 0,
        characters=_characters(inputs) if "passages" in inputs else None,
        prompt=prompt,
    )


def _vocab_size(config: Path) -> int:
    from transformers import AutoConfig

    # The encoder's table may be longer than its tokenizer's vocabulary (padded to a round number).
    return int(AutoConfig.from_pretrained(config).vocab_size)


def _characters(inputs: Mapping[str, Path]) -> Any:
    from drkit.data.corpus import StoredCorpus
    from drkit.data.spans import NamedTexts, Spans

    corpus = StoredCorpus(inputs["passages"])
    named = NamedTexts(corpus, Spans.open(inputs["spans"]) if "spans" in inputs else None)
    return lambda: (text for _, text in named)


_TEXT = {
    "vocabulary": "the tokenizer, for a signal that requires characters",
    "encoder": "for the size of its vocabulary, where the signal has a value an entry",
}
SIGNAL = StageSpec(
    name="signal",
    version=1,
    settings=SignalSettings,
    run=of_texts,
    inputs={
        "texts": "tokens of the texts that pre-training reads",
        "passages": "the texts themselves, for a signal that requires characters",
        "spans": "where in a passage each span stands, for such a signal",
        **_TEXT,
    },
)
QUERY_SIGNAL = StageSpec(
    name="query-signal",
    version=1,
    settings=QuerySignalSettings,
    run=of_queries,
    inputs={"texts": "tokens of the candidate queries", "fitted": "what the signal took from the texts", **_TEXT},
)
