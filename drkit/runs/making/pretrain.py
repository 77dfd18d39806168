"""Pre-train an encoder: build it with its decoders and losses, probe it, and keep the best step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.files import WRITTEN, link_or_copy
from drkit.core.progress import Progress
from drkit.core.protocols import Masker, ReplacingMasker, StartsFromEncoder
from drkit.core.registry import Registry
from drkit.core.spec import Choice, Kind, vector_names
from drkit.core.types import BuildContext
from drkit.data.arrays import SignalValues
from drkit.data.contexts import PretrainingTexts, open_signals
from drkit.data.corpus import collection_of
from drkit.data.store import TokenStore
from drkit.data.word_embeddings import log_frequencies
from drkit.decoders.layers import visibility_rows
from drkit.encoders import MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.recipe.parts import call_signals, signal_scopes
from drkit.recipe.schema import ENCODER_SIDE, Pretrain
from drkit.recipe.training import Validation
from drkit.runs.making.retriever import encoder_of
from drkit.runs.stage import StageRun
from drkit.runs.stages.pretrain import KeptSettings, PretrainSettings
from drkit.train.batches import SubsetCollator
from drkit.train.callbacks import KeepCheckpoints
from drkit.train.checkpoints import load_encoder, load_encoder_with, load_tokenizer, restore, save_parts
from drkit.train.pretrain import AutoEncoder, DecoderText, MaskingCollator, Term
from drkit.train.probes import Probes, held_out
from drkit.train.retrieval_probe import retrieval_probe
from drkit.train.trainer import train_in
from drkit.train.validation import ValidationCallback


def pretrain(stage: StageRun[PretrainSettings]) -> Mapping[str, Any]:
    """Write the pre-trained masked LM, its decoders and replacer; returns steps, seconds, loss and the best probe."""
    settings, inputs, registry = stage.settings.pretrain, stage.inputs, stage.registry
    tokenizer = load_tokenizer(str(inputs["start"]))
    if pooling := settings.encoder.pooling:
        how = {"tokenizer": tokenizer, "seed": stage.settings.seed, "registry": registry}
        encoder = load_encoder_with(inputs["start"], pooling, **how)
    else:
        encoder = load_encoder(inputs["start"], pooling=stage.settings.pooling)
    signals = open_signals(inputs)
    context = BuildContext(
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=load_encoder(inputs["generator"], pooling="cls") if "generator" in inputs else None,
        signals=vocabulary_signals(signals),
        vector_sizes={**encoder.vector_sizes, **signal_sizes(signals)},
        seed=stage.settings.seed,
    )
    maskers = build_maskers(settings, registry, context)
    module = auto_encoder(settings, registry, encoder, context, maskers)
    for note in restore(module, settings, inputs["start"]):
        stage.progress.note(note)
    texts = PretrainingTexts.open(inputs)
    collate = masking_collator(settings, registry, module, context, maskers, texts)
    _start_untrained_head(encoder, texts, stage.progress)
    documents = texts.spans.documents if texts.spans else None
    trained, kept = held_out(len(texts.store), settings.probe.texts, seed=stage.settings.seed, documents=documents)
    rates = _rates(settings, inputs, texts, signals)
    probes = _probes(stage, module, tokenizer, collate, held_out=kept)
    save = partial(save_parts, module, settings, tokenizer)
    keeping = KeepCheckpoints(
        {step: stage.folder / name for name, step in settings.kept.items()}, save, "pretrain.keep_steps"
    )
    result = train_in(
        stage.folder,
        module,
        SubsetCollator(collate, trained),
        training=settings,
        lengths=texts.store.lengths[trained],
        seed=stage.settings.seed,
        progress=stage.progress,
        callbacks=[*probes, keeping],
        rates=None if rates is None else rates[trained] / rates[trained].max(),
    )
    save(stage.folder)
    return {
        **result.metrics,
        "held_out": len(kept),
        **{key: value for callback in probes for key, value in callback.result().items()},
    }


def _start_untrained_head(encoder: MaskedLmEncoder, texts: PretrainingTexts, progress: Progress) -> None:
    """Set the bias of an LM head that nothing has trained to the words' frequencies.

    Otherwise the encoder would learn them for the head, and all vectors would move together.
    """
    if encoder.has_untrained_head():
        encoder.set_lm_bias(torch.from_numpy(log_frequencies(texts.store, vocab_size=encoder.config.vocab_size)))
        progress.note("the language-model head is untrained: its bias starts from the words' frequencies")


def _rates(
    settings: Pretrain, inputs: Mapping[str, Path], texts: PretrainingTexts, signals: Mapping[str, SignalValues]
) -> NDArray[np.float64] | None:
    """Return how often each text is drawn, relative to the others, f64[n]; None if all are drawn alike.

    Raises DrkitError for values of a signal that cannot be weights: negative, vectors, or all 0.
    """
    rates: NDArray[np.float64] | None = None
    if "sources" in inputs:
        counts = json.loads(inputs["sources"].read_text(encoding="utf-8"))
        weights = [(settings.text_weights or {}).get(name, 1.0) for name in counts]
        rates = np.repeat(np.array(weights, np.float64), list(counts.values()))
        rates = rates[texts.spans.documents] if texts.spans else rates
    if settings.weigh_by:
        values = np.asarray(signals[settings.weigh_by].values, np.float64)
        if values.ndim > 1 or values.min(initial=0) < 0 or not values.any():
            raise DrkitError(
                f"the signal {settings.weigh_by!r} cannot weigh texts: expected a number from 0 for each, and not only "
                f"0 @ pretrain.weigh_by"
            )
        rates = values if rates is None else rates * values
    return rates


def link_kept(stage: StageRun[KeptSettings]) -> Mapping[str, Any]:
    """Link or copy a kept checkpoint into a stage of its own; returns its step."""
    shutil.copytree(
        stage.inputs["checkpoint"],
        stage.folder,
        ignore=shutil.ignore_patterns(WRITTEN),
        copy_function=link_or_copy,
        dirs_exist_ok=True,
    )
    return {"kept": stage.settings.step}


def _probes(
    stage: StageRun[PretrainSettings],
    module: AutoEncoder,
    tokenizer: Any,
    collate: MaskingCollator,
    *,
    held_out: NDArray[np.int64],
) -> list[ValidationCallback]:
    """Return the callback that probes pre-training, in a list that is empty if probes are off."""
    settings, kept = stage.settings.pretrain.probe, stage.settings.pretrain.kept.values()
    if not settings.every:
        return []
    searched = {name.removeprefix("probe/"): path for name, path in stage.inputs.items() if name.startswith("probe/")}
    retrieval = retrieval_probe(collection_of(searched), settings, seed=stage.settings.seed)
    probes = Probes(
        module=module,
        encoder=encoder_of(module.encoder, tokenizer, stage.settings.reading),
        collate=collate,
        passages=TokenStore.open(searched["tokens"]),
        held_out=held_out,
        retrieval=retrieval,
    )
    only = Validation(every=settings.every, keep_best=False)
    return [ValidationCallback(module, probes, only, folder=stage.folder, progress=stage.progress, also=kept)]


def build_maskers(settings: Pretrain, registry: Registry, context: BuildContext) -> dict[str, Masker]:
    """Build the masker of each side that has one, the encoder's first."""
    chosen = {
        ENCODER_SIDE: settings.encoder.masker,
        **{name: task.masker for name, task in settings.decoders.items()},
    }
    return {side: registry.build(Kind.MASKER, one.use, one.config, context) for side, one in chosen.items() if one}


def auto_encoder(
    settings: Pretrain,
    registry: Registry,
    encoder: MaskedLmEncoder,
    context: BuildContext,
    maskers: Mapping[str, Masker],
) -> AutoEncoder:
    """Build decoders, weighted losses and replacer from the recipe, and combine them with the encoder.

    Raises DrkitError if decoders read a vector that is not as long as hidden states.
    """
    decoders = {}
    _check_bottleneck(settings, registry, encoder)
    for name, task in settings.decoders.items():
        decoder = decoders[name] = registry.build(Kind.DECODER, task.decoder.use, task.decoder.config, context)
        if isinstance(decoder, StartsFromEncoder):
            decoder.init_from(encoder)
    terms, scopes = {}, signal_scopes(settings, registry)
    for name, (side, term) in settings.losses().items():
        spec, loss = registry.get(Kind.LOSS, term.use), registry.build(Kind.LOSS, term.use, term.config, context)
        receives = tuple(sorted(spec.receives_of(term.config)))
        signals = call_signals(spec, term.config, scopes)
        weight = 1.0 if term.weight is None else term.weight
        terms[name] = Term(loss, receives, side, weight, spec.scope_of(term.config), signals)
    # The maskers of a run require the same model (`drkit.recipe.check`), and so have the same replacer.
    replacing = next((masker for masker in maskers.values() if isinstance(masker, ReplacingMasker)), None)
    return AutoEncoder(encoder, decoders, terms, replacing.replacer(context) if replacing else None)


def _check_bottleneck(settings: Pretrain, registry: Registry, encoder: MaskedLmEncoder) -> None:
    """Raise DrkitError if a decoder reads the bottleneck, but it is not as long as hidden states.

    A decoder that receives token states, or vectors by name, may read these alone.
    """
    length = next(iter(encoder.vector_lengths.values()), encoder.dimension)
    chosen = [task.decoder for task in settings.decoders.values()]
    received = [registry.get(Kind.DECODER, one.use).receives_of(one.config) for one in chosen]
    is_read = not all("hidden" in names or vector_names(names) for names in received)
    if length != encoder.config.hidden_size and is_read:
        raise DrkitError(
            f"the pooling {encoder.pooling!r} makes vectors of {length} numbers, but decoders read the "
            f"hidden size, {encoder.config.hidden_size}: choose that size, or leave pre-training out (pretrain=none)"
        )


def masking_collator(
    settings: Pretrain,
    registry: Registry,
    module: AutoEncoder,
    context: BuildContext,
    maskers: Mapping[str, Masker],
    texts: PretrainingTexts,
) -> MaskingCollator:
    """Return the collator of the texts, with the masker and context of each side."""
    rows = {name: partial(visibility_rows, decoder) for name, decoder in module.decoders.items()}

    def built(choice: Choice) -> Any:
        return registry.build(Kind.CONTEXT, choice.use, choice.config, context)

    return MaskingCollator(
        texts=texts,
        masker=maskers[ENCODER_SIDE],
        seed=context.seed,
        decoders={
            name: DecoderText(maskers.get(name), rows[name], built(task.context), task.nested)
            for name, task in settings.decoders.items()
        },
        partner=built(settings.encoder.context) if module.paired() else None,
    )


def signal_sizes(signals: Mapping[str, SignalValues]) -> dict[str, int]:
    """Return the lengths of the vectors of signals that hold vectors, by name."""
    return {name: found.values.shape[1] for name, found in signals.items() if found.values.ndim == 2}


def vocabulary_signals(signals: Mapping[str, SignalValues]) -> dict[str, Tensor]:
    """Return the signals of the vocabulary by name, f32[V] or f32[V,K]."""
    return {
        name: torch.tensor(values.values, dtype=torch.float32)
        for name, values in signals.items()
        if values.scope == "vocabulary"
    }
