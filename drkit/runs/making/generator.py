"""Load or train the masked LM that a part requires of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from transformers import AutoModelForMaskedLM

from drkit.core.types import BuildContext
from drkit.data.contexts import PretrainingTexts
from drkit.data.store import TokenStore
from drkit.data.word_embeddings import log_frequencies
from drkit.encoders import BertSizes, MaskedLmEncoder, check_same_vocabulary
from drkit.encoders.architectures import longest_text
from drkit.encoders.heads import seeded
from drkit.errors import DrkitError
from drkit.losses import MlmLoss
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.schema import ENCODER_SIDE
from drkit.recipe.training import Training
from drkit.runs.making.start import set_titles
from drkit.runs.stage import StageRun
from drkit.runs.stages.generator import (
    MASK_RATIO,
    ExistingGeneratorSettings,
    GeneratorSizes,
    TrainedGeneratorSettings,
)
from drkit.train.batches import SubsetCollator, count_steps
from drkit.train.checkpoints import load_tokenizer, save_masked_lm
from drkit.train.pretrain import AutoEncoder, MaskingCollator, Term
from drkit.train.probes import held_out
from drkit.train.trainer import train_in


def load_generator(stage: StageRun[ExistingGeneratorSettings]) -> Mapping[str, Any]:
    """Write a masked-LM checkpoint with the run's vocabulary; returns its number of parameters."""
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    if settings.sizes is not None:
        generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    else:
        generator = MaskedLmEncoder.from_pretrained(settings.model)
        generator = _randomised(generator, settings.seed) if settings.random else generator
        backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
        check_same_vocabulary(generator, BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed))
        longest = longest_text(generator.config)
        if longest < settings.passage_length:
            raise DrkitError(
                f"the generator {settings.model!r} reads at most {longest} tokens, but passages have up to "
                f"{settings.passage_length}: --set encoder.passage_length={longest}, or use another generator"
            )
    set_titles(generator, tokenizer, settings.titles)
    save_masked_lm(generator, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in generator.backbone.parameters())}


def train_generator(stage: StageRun[TrainedGeneratorSettings]) -> Mapping[str, Any]:
    """Train a small masked LM on the passages and write its checkpoint; returns parameters, steps and loss."""
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    set_titles(generator, tokenizer, settings.titles)
    backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
    context = BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed)
    store = TokenStore.open(stage.inputs["tokens"])
    generator.set_lm_bias(torch.from_numpy(log_frequencies(store, vocab_size=len(tokenizer))))
    mlm: Any = MlmLoss()
    module = AutoEncoder(
        generator,
        {},
        {"mlm": Term(mlm, receives=("token_states",), on=ENCODER_SIDE)},
    )
    collate = MaskingCollator(
        texts=PretrainingTexts(store),
        masker=UniformMasker(UniformConfig(ratio=MASK_RATIO), context),
        seed=settings.seed,
    )
    trained, _ = held_out(len(store), settings.held_out, seed=settings.seed)
    steps = count_steps(settings.training, len(trained), compares=False)
    result = train_in(
        stage.folder,
        module,
        SubsetCollator(collate, trained),
        training=schedule(settings.training, settings.steps, steps),
        lengths=store.lengths[trained],
        seed=settings.seed,
        progress=stage.progress,
    )
    save_masked_lm(generator, tokenizer, stage.folder)
    parameters = sum(p.numel() for p in generator.backbone.parameters())
    return {"parameters": parameters, **result.metrics}


def _from_scratch(sizes: GeneratorSizes, tokenizer: Any, seed: int) -> MaskedLmEncoder:
    bert_sizes = BertSizes.of(sizes, max_positions=sizes.positions, dropout=0.0)
    return MaskedLmEncoder.from_scratch(bert_sizes, tokenizer, seed=seed + 1)  # other weights than the encoder


def _randomised(like: MaskedLmEncoder, seed: int) -> MaskedLmEncoder:
    """Return a masked LM of the same architecture and sizes with random weights."""
    with seeded(seed, "generator"):
        return MaskedLmEncoder(AutoModelForMaskedLM.from_config(like.config))


def schedule(pretrain: Training, steps: int, pretraining: int) -> Training:
    """Return pre-training's settings for the generator's steps: a third of `pretraining`'s if `steps` is 0.

    >>> schedule(Training(), 0, 300).max_steps
    100
    """
    max_steps = steps or math.ceil(pretraining / 3)
    return attrs.evolve(pretrain, max_steps=max_steps, gradient_cache_chunk=0)
