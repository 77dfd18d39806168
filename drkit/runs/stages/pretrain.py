"""Stage: pre-training. Mask twice, encode one view, rebuild the text from its bottleneck and the other view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.core.compose import context_kind
from drkit.core.protocols import Masker
from drkit.core.recipe import Pretrain
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.contexts import open_contexts, open_importance, open_texts
from drkit.data.spans import Spans
from drkit.encoders import MaskedLmEncoder
from drkit.runs.checkpoints import load_encoder, load_generator, restore, save_parts
from drkit.runs.pretraining.autoencoder import AutoEncoder, Term
from drkit.runs.pretraining.masking import MaskingCollator
from drkit.runs.pretraining.probes import held_out, probing
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer
from drkit.runs.training.batches import Chosen
from drkit.runs.training.training import train_stage


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the pre-trained masked LM, its decoder and generator; returns steps, seconds and the loss at the end."""
    recipe, settings = stage.recipe, stage.recipe.pretrain
    assert settings is not None
    tokenizer = load_tokenizer(str(stage.inputs["initial"]))
    encoder = load_encoder(stage.inputs["initial"], pooling=recipe.encoder.pooling)
    context = BuildContext(
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=load_generator(stage.inputs.get("generator")),
        idf=_idf(stage),
        seed=recipe.seed,
    )
    masker = stage.registry.build(Kind.MASKER, settings.masker.use, settings.masker.config, context)
    module = auto_encoder(settings, stage.registry, encoder, context, masker=masker)
    for note in restore(module, settings, stage.inputs["initial"]):
        stage.progress.note(note)
    store = open_texts(stage.inputs)
    collate = MaskingCollator(
        store=store,
        importance=open_importance(stage.inputs),
        masker=masker,
        rows=module.decoder.rows,
        seed=recipe.seed,
        contexts=open_contexts(stage.inputs, context_kind(settings, stage.registry)),
        paired=module.paired(),
    )
    documents = Spans.open(stage.inputs["spans"]).documents if "spans" in stage.inputs else None
    trained, kept = held_out(len(store), settings.probe.texts, seed=recipe.seed, documents=documents)
    result = train_stage(
        stage,
        module,
        Chosen(collate, trained),
        training=settings,
        lengths=store.lengths[trained],
        callbacks=probing(stage, module, tokenizer, collate, held_out=kept),
    )
    save_parts(module, settings, tokenizer, stage.folder)
    return {"steps": result.steps, "loss": result.loss, "seconds": result.seconds, "held_out": len(kept)}


def auto_encoder(
    settings: Pretrain, registry: Registry, encoder: MaskedLmEncoder, context: BuildContext, *, masker: Masker
) -> AutoEncoder:
    """Encoder, decoder and weighted losses, built from the recipe; what a generator of the masker replaces with."""
    decoder = registry.build(Kind.DECODER, settings.decoder.use, settings.decoder.config, context)
    if hasattr(decoder, "init_from"):
        decoder.init_from(encoder)
    terms = {}
    for name, term in settings.losses.items():
        spec, loss = registry.get(Kind.LOSS, term.use), registry.build(Kind.LOSS, term.use, term.config, context)
        receives = tuple(sorted(spec.receives_of(term.config)))
        terms[name] = Term(loss, receives, term.on, term.weight, spec.scope_of(term.config))
    replacer = masker.replacer(context) if hasattr(masker, "replacer") else None
    return AutoEncoder(encoder, decoder, terms, replacer)


def _idf(stage: StageRun) -> Any:
    if "frequencies" not in stage.inputs:
        return None
    from drkit.data.frequencies import open_idf

    return open_idf(stage.inputs["frequencies"])
