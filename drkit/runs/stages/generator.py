"""Stages: the generator, a masked LM that fills masked positions: an existing one, or a small one trained on the texts.

ELECTRA's generators have a quarter to half of the encoder's width. The small scale follows this: one layer, trained by
plain masked language modelling on the texts of pre-training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from drkit.errors import DrkitError
from drkit.recipe.schema import Training
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    from drkit.encoders import MaskedLmEncoder

# BERT's rate: the generator should be a good language model, not a bottleneck.
MASK_RATIO = 0.15


@frozen
class GeneratorSizes:
    """Sizes of a generator made from scratch; positions: tokens of the longest text."""

    positions: int
    layers: int
    hidden: int
    heads: int
    intermediate: int


@frozen
class ExistingSettings:
    """A generator that is not trained first: the weights of `model`, or random weights of its sizes or of `sizes`."""

    model: str
    random: bool
    sizes: GeneratorSizes | None
    passage_length: int = from_recipe("encoder.passage_length")
    seed: int = from_recipe("seed")


@frozen
class TrainedSettings:
    """A small masked LM trained on the texts; steps: 0 means a third of the steps of pre-training.

    held_out: number of texts that are held out, the same as in pre-training.
    """

    sizes: GeneratorSizes
    steps: int
    training: Training = from_recipe("pretrain")
    held_out: int = from_recipe("pretrain.probe.texts")
    seed: int = from_recipe("seed")


def load(stage: StageRun[ExistingSettings]) -> Mapping[str, Any]:
    """Write a masked-LM checkpoint with the run's vocabulary; returns its number of parameters."""
    from drkit.core.types import BuildContext
    from drkit.encoders import MaskedLmEncoder
    from drkit.encoders.architectures import longest_text
    from drkit.maskers.generator import check_vocabulary
    from drkit.train.checkpoints import load_tokenizer, save_masked_lm

    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    if settings.sizes is not None:
        generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    else:
        generator = MaskedLmEncoder.from_pretrained(settings.model)
        generator = _randomised(generator, settings.seed) if settings.random else generator
        backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
        check_vocabulary(generator, BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed))
        longest = longest_text(generator.config)
        if longest < settings.passage_length:
            raise DrkitError(
                f"the generator {settings.model!r} reads at most {longest} tokens, but passages have up to "
                f"{settings.passage_length}: --set encoder.passage_length={longest}, or use another generator"
            )
    save_masked_lm(generator, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in generator.backbone.parameters())}


def train(stage: StageRun[TrainedSettings]) -> Mapping[str, Any]:
    """Train a small masked LM on the passages and write its checkpoint; returns parameters, steps and loss."""
    import numpy as np
    import torch

    from drkit.core import processes
    from drkit.core.types import BuildContext
    from drkit.data.store import TokenStore
    from drkit.decoders import NoDecoder, NoDecoderConfig
    from drkit.losses import MlmLoss
    from drkit.maskers import UniformConfig, UniformMasker
    from drkit.train.batches import SubsetCollator, count_batches
    from drkit.train.checkpoints import load_tokenizer, save_masked_lm
    from drkit.train.pretrain import AutoEncoder, MaskingCollator, Term
    from drkit.train.probes import held_out
    from drkit.train.trainer import train_in

    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    generator = _from_scratch(settings.sizes, tokenizer, settings.seed)
    backbone = attrs.evolve(generator.info(tokenizer), vocab=len(tokenizer))
    context = BuildContext(backbone=backbone, tokenizer=tokenizer, seed=settings.seed)
    store = TokenStore.open(stage.inputs["tokens"])
    seen = np.bincount(store.flat_ids, minlength=len(tokenizer)) + 0.5
    generator.set_lm_bias(torch.from_numpy(np.log(seen / seen.sum())).float())
    mlm: Any = MlmLoss()
    module = AutoEncoder(
        generator,
        NoDecoder(NoDecoderConfig(), context),
        {"mlm": Term(mlm, receives=("token_states",), on="encoder")},
    )
    collate = MaskingCollator(
        store=store,
        masker=UniformMasker(UniformConfig(encoder_ratio=MASK_RATIO), context),
        rows=module.decoder.rows,
        seed=settings.seed,
    )
    trained, _ = held_out(len(store), settings.held_out, seed=settings.seed)
    batches = count_batches(settings.training, len(trained), processes=processes.count())
    result = train_in(
        stage.folder,
        module,
        SubsetCollator(collate, trained),
        training=schedule(settings.training, settings.steps, batches),
        lengths=store.lengths[trained],
        seed=settings.seed,
        progress=stage.progress,
    )
    save_masked_lm(generator, tokenizer, stage.folder)
    parameters = sum(p.numel() for p in generator.backbone.parameters())
    return {"parameters": parameters, "steps": result.steps, "loss": result.loss, "seconds": result.seconds}


def _from_scratch(sizes: GeneratorSizes, tokenizer: Any, seed: int) -> MaskedLmEncoder:
    from drkit.encoders import BertSizes, MaskedLmEncoder

    bert_sizes = BertSizes(
        hidden=sizes.hidden,
        layers=sizes.layers,
        heads=sizes.heads,
        intermediate=sizes.intermediate,
        max_positions=sizes.positions,
        dropout=0.0,
    )
    return MaskedLmEncoder.from_scratch(bert_sizes, tokenizer, seed=seed + 1)  # other weights than the encoder


def _randomised(like: MaskedLmEncoder, seed: int) -> MaskedLmEncoder:
    """Return a masked LM of the same architecture and sizes with random weights."""
    from transformers import AutoModelForMaskedLM

    from drkit.encoders import MaskedLmEncoder
    from drkit.encoders.heads import seeded

    with seeded(seed, "generator"):
        return MaskedLmEncoder(AutoModelForMaskedLM.from_config(like.config))


def schedule(pretrain: Training, steps: int, batches: int) -> Training:
    """Return pre-training's settings for the generator's steps: a third of pre-training's if `steps` is 0.

    >>> schedule(Training(), 0, 300).max_steps
    100
    """
    max_steps = steps or math.ceil(batches / pretrain.gradient_accumulation_steps / 3)
    return attrs.evolve(pretrain, max_steps=max_steps, gradient_cache_chunk=0)


EXISTING = StageSpec(
    name="existing-generator",
    version=1,
    settings=ExistingSettings,
    run=load,
    inputs={"vocabulary": "the run's tokenizer, which a model must share"},
)
TRAINED = StageSpec(
    name="trained-generator",
    version=2,
    settings=TrainedSettings,
    run=train,
    inputs={"vocabulary": "the tokenizer", "tokens": "the passages' tokens"},
    records=("log.jsonl", "training.json"),
    resumable=True,
    joint=True,
)
