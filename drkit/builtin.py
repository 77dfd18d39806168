"""What drkit itself provides: parts, recipes, architectures and a backend; parts of single papers come from plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.batching.specs import BATCHES
from drkit.data.column_sources import COLUMNS
from drkit.data.query_sources import QUERY_PARTS
from drkit.data.specs import COLLECTIONS, CONTEXTS
from drkit.decoders.specs import DECODERS
from drkit.encoders.pooling import POOLING_PARTS
from drkit.losses.specs import LOSSES
from drkit.maskers.specs import MASKERS
from drkit.miners.specs import MINERS
from drkit.plugin import ComponentSpec, Extension, hookimpl
from drkit.signals.specs import SIGNALS

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the parts of every kind that drkit itself provides."""
    fine_tuning = (*LOSSES, *MINERS, *COLUMNS, *BATCHES)
    reading = (*COLLECTIONS, *SIGNALS, *POOLING_PARTS, *QUERY_PARTS)
    return [*MASKERS, *CONTEXTS, *DECODERS, *fine_tuning, *reading]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the recipes that `drkit compose` starts from if no paper is named, and that of `drkit improve`."""
    folder = files("drkit") / "recipes"
    return {name: folder / f"{name}.toml" for name in ("default", "improve", "low-resource", "texts", "words")}


@hookimpl
def drkit_pipelines() -> Mapping[str, Traversable]:
    """Return the fine-tuning pipelines of papers; each can follow any pre-training."""
    folder = files("drkit") / "recipes" / "pipelines"
    names = ("ance", "dpr", "gpl", "iterative", "low-resource", "texts", "three-stage", "two-stage", "words")
    return {name: folder / f"{name}.toml" for name in names}


@hookimpl
def drkit_architectures() -> Sequence[Extension]:
    """Return the architectures of transformers, and drkit's own without layers."""
    declared = (
        ("bert", "BERT_LAYOUT", "BERT; what drkit makes from scratch"),
        ("roberta", "ROBERTA", "RoBERTa; positions start after the padding id"),
        ("xlm-roberta", "ROBERTA", "XLM-R, multilingual; built like RoBERTa"),
        ("camembert", "ROBERTA", "CamemBERT, French; built like RoBERTa"),
        ("electra", "ELECTRA", "ELECTRA; embeddings and hidden states may differ in size"),
        ("distilbert", "DISTILBERT", "DistilBERT; no token types"),
        ("mpnet", "MPNET", "MPNet; a relative attention bias, eager attention only"),
        ("modernbert", "MODERNBERT", "ModernBERT; rotary positions, layers without a LayerNorm at the end"),
        ("deberta", "DEBERTA_V1", "DeBERTa, the first version; disentangled attention, eager only"),
        ("deberta-v2", "DEBERTA", "DeBERTa v2 and v3; disentangled attention, eager only"),
        ("llama", "LLAMA", "Llama, decoder-only; from left to right or both directions"),
        ("mistral", "LLAMA", "Mistral; built like Llama"),
        ("qwen2", "LLAMA", "Qwen 2 and 2.5; built like Llama"),
        ("qwen3", "LLAMA", "Qwen 3; built like Llama"),
        ("gemma", "LLAMA", "Gemma; built like Llama"),
        ("gemma3-text", "GEMMA3", "Gemma 3, text only; built like Llama"),
        ("drkit-static", "WORD_VECTORS", "Word embeddings without layers, made by drkit"),
    )
    return [Extension(name, f"drkit.encoders.architectures:{record}", summary) for name, record, summary in declared]


@hookimpl
def drkit_backends() -> Sequence[Extension]:
    """Return the backend that needs no conversion."""
    return [Extension("torch", "drkit.search.backends:load_torch", "torch, on the CPU or a GPU; needs no conversion")]
