"""Stage: the generator, a masked LM that fills masked positions: an existing one, or a small one trained on the texts.

ELECTRA's generators are a quarter to a half of the encoder's width, and so is what is made here at the embedded scale:
one layer, trained by plain masked language modelling on the texts that pre-training sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch

from drkit.core.compose import capabilities
from drkit.core.recipe import Pretrain, Recipe, Training
from drkit.core.registry import Registry
from drkit.core.types import BuildContext
from drkit.data.store import TokenStore
from drkit.decoders import NoDecoder, NoDecoderConfig
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.architectures import longest_text
from drkit.encoders.seeding import seeded
from drkit.errors import DrkitError
from drkit.losses import MlmLoss
from drkit.maskers import GeneratorConfig, UniformConfig, UniformMasker
from drkit.maskers.generator import check_vocabulary
from drkit.runs import processes
from drkit.runs.checkpoints import save_masked_lm
from drkit.runs.pretraining.autoencoder import AutoEncoder, Term
from drkit.runs.pretraining.masking import MaskingCollator
from drkit.runs.pretraining.probes import held_out
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer
from drkit.runs.training.batches import Chosen, count_batches
from drkit.runs.training.training import TrainingResult, train_stage

# BERT's rate: the generator is to be a good language model, not a bottleneck.
MASKED = 0.15


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes a masked-LM checkpoint of the run's vocabulary; returns its parameters, and steps where it was trained."""
    recipe = stage.recipe
    assert recipe.pretrain is not None
    settings = generator_settings(recipe.pretrain, stage.registry)
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    generator = _start(settings, recipe, tokenizer)
    backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
    context = BuildContext(backbone=backbone, tokenizer=tokenizer, seed=recipe.seed)
    if settings.model:
        check_vocabulary(generator, context)
        _check_length(generator, settings.model, recipe)
    figures: dict[str, Any] = {"parameters": sum(p.numel() for p in generator.backbone.parameters())}
    if settings.trained_first:
        result = _train(stage, generator, context, settings)
        figures |= {"steps": result.steps, "loss": result.loss, "seconds": result.seconds}
    save_masked_lm(generator, tokenizer, stage.folder)
    return figures


def generator_settings(pretrain: Pretrain, registry: Registry) -> GeneratorConfig:
    """What the masker wants of the generator; the defaults where it does not say."""
    wanted = capabilities(pretrain, registry).get("generator")
    return wanted if isinstance(wanted, GeneratorConfig) else GeneratorConfig()


def _start(settings: GeneratorConfig, recipe: Recipe, tokenizer: Any) -> MaskedLmEncoder:
    """The masked LM of `model`; or random weights, in its sizes or in those of the settings."""
    if not settings.model:
        sizes = BertSizes(
            hidden=settings.generator_hidden,
            layers=settings.generator_layers,
            heads=settings.generator_heads,
            intermediate=settings.generator_intermediate,
            max_positions=max(recipe.encoder.passage_length, recipe.encoder.query_length),
            dropout=0.0,
        )
        return MaskedLmEncoder.from_scratch(sizes, tokenizer, seed=recipe.seed + 1)  # not the encoder's own start
    loaded = MaskedLmEncoder.from_pretrained(settings.model)
    return _random(loaded, recipe.seed) if settings.random else loaded


def _random(like: MaskedLmEncoder, seed: int) -> MaskedLmEncoder:
    """A masked LM of the same architecture and sizes, with random weights."""
    from transformers import AutoModelForMaskedLM

    with seeded(seed, "generator"):
        return MaskedLmEncoder(AutoModelForMaskedLM.from_config(like.config))


def _check_length(generator: MaskedLmEncoder, name: str, recipe: Recipe) -> None:
    longest, wanted = longest_text(generator.config), recipe.encoder.passage_length
    if longest < wanted:
        raise DrkitError(
            f"the generator {name!r} reads texts of {longest} tokens at most, passages have up to {wanted}: "
            f"--set encoder.passage_length={longest}, or take another generator"
        )


def _train(
    stage: StageRun, generator: MaskedLmEncoder, context: BuildContext, settings: GeneratorConfig
) -> TrainingResult:
    pretrain, seed = stage.recipe.pretrain, stage.recipe.seed
    assert pretrain is not None
    store = TokenStore.open(stage.inputs["tokens"] / "passages")
    seen = np.bincount(store.flat_ids, minlength=len(context.tokenizer)) + 0.5
    generator.set_lm_bias(torch.from_numpy(np.log(seen / seen.sum())).float())
    mlm: Any = MlmLoss()
    terms = {"mlm": Term(mlm, receives=("token_states",), on="encoder")}
    module = AutoEncoder(generator, NoDecoder(NoDecoderConfig(), context), terms)
    masker = UniformMasker(UniformConfig(encoder_ratio=MASKED), context)
    collate = MaskingCollator(store=store, importance=None, masker=masker, rows=module.decoder.rows, seed=seed)
    trained, _ = held_out(len(store), pretrain.probe.texts, seed=seed)
    training = schedule(pretrain, settings, count_batches(pretrain, len(trained), processes=processes.count()))
    return train_stage(stage, module, Chosen(collate, trained), training=training, lengths=store.lengths[trained])


def schedule(pretrain: Training, settings: GeneratorConfig, batches: int) -> Training:
    """Pre-training's own batches and rates, for the generator's steps: a third of its `batches` if no number is set.

    >>> schedule(Training(), GeneratorConfig(), 300).max_steps
    100
    """
    steps = settings.generator_steps or math.ceil(batches / pretrain.gradient_accumulation_steps / 3)
    same = {a.name: getattr(pretrain, a.name) for a in attrs.fields(Training)}
    return Training(**{**same, "max_steps": steps, "gradient_cache_chunk": 0})
