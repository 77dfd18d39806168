"""Stage: pre-training. Mask twice, encode one view, rebuild the text from its bottleneck and the other view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.core.recipe import Pretrain
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.importance import Importance
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.runs.autoencoder import AutoEncoder, MaskingCollator
from drkit.runs.checkpoints import load_encoder, save_decoder, save_masked_lm
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer
from drkit.runs.training import train_stage


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the pre-trained masked LM and its decoder; returns steps, seconds and the loss at the end."""
    recipe, settings = stage.recipe, stage.recipe.pretrain
    assert settings is not None
    tokenizer = load_tokenizer(str(stage.inputs["initial"]))
    encoder = load_encoder(stage.inputs["initial"], pooling=recipe.encoder.pooling)
    context = BuildContext(backbone=encoder.info(tokenizer), tokenizer=tokenizer, seed=recipe.seed)
    module = auto_encoder(settings, stage.registry, encoder, context)
    store = TokenStore.open(stage.inputs["tokens"] / "passages")
    collate = MaskingCollator(
        store=store,
        importance=_importance(stage),
        masker=stage.registry.build(Kind.MASKER, settings.masker.use, settings.masker.config, context),
        rows=module.decoder.rows,
        seed=recipe.seed,
    )
    result = train_stage(stage, module, collate, training=settings, lengths=store.lengths)
    save_masked_lm(encoder, tokenizer, stage.folder)
    save_decoder(module.decoder, stage.folder)
    return {"steps": result.steps, "loss": result.loss, "seconds": result.seconds}


def auto_encoder(
    settings: Pretrain, registry: Registry, encoder: MaskedLmEncoder, context: BuildContext
) -> AutoEncoder:
    """Encoder, decoder and weighted losses, built from the recipe."""
    decoder = registry.build(Kind.DECODER, settings.decoder.use, settings.decoder.config, context)
    if hasattr(decoder, "init_from"):
        decoder.init_from(encoder)
    losses = {
        name: (
            registry.build(Kind.LOSS, term.use, term.config, context),
            registry.get(Kind.LOSS, term.use).needs,
            term.on,
            term.weight,
        )
        for name, term in settings.losses.items()
    }
    return AutoEncoder(encoder, decoder, losses)


def _importance(stage: StageRun) -> Importance | None:
    folder = stage.inputs.get("statistics")
    return Importance.open(folder / "importance") if folder else None
