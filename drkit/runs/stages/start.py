"""Stages that provide the models training starts from: the encoder, and the generator that fills masked positions.

Each is an existing model or one made from scratch. ELECTRA's generators have a quarter to half of the encoder's width.
The small scale follows this: one layer, trained by plain masked language modelling on the texts of pre-training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.core.files import LOG, TRAINING, path_state
from drkit.core.settings import GeneratorSettings
from drkit.data.titles import JOINED
from drkit.encoders.architectures import check_start_model
from drkit.encoders.pooling import POOLINGS, is_weighted
from drkit.evaluate.names import INITIAL
from drkit.recipe.schema import Pretrain, Recipe, Training
from drkit.recipe.toml import changed_settings
from drkit.runs.stage import WEIGHTS, PlanBuilder, Stage, StageSpec, from_recipe
from drkit.runs.stages.texts import TOKENS, VOCABULARY, tokens_of_pretraining
from drkit.runs.work import (
    ModelSize,
    Sizes,
    Work,
    count_examples,
    examples_at_once,
    examples_per_step,
    target_work,
    training_work,
)
from drkit.train.batches import check_step


@frozen
class PoolingPart:
    """A pooling with settings or weights: its name, settings (plain, those that are not the defaults), and seed."""

    name: str
    settings: Mapping[str, Any]
    seed: int


@frozen
class EncoderSizes:
    """Sizes and initialisation of an encoder made from scratch.

    positions: tokens of the longest text. token_weights: whether the pooling has learned weights of tokens, which start
    from idf. learned_pooling: the pooling, if it has settings or weights of its own.
    """

    positions: int
    token_weights: bool
    learned_pooling: PoolingPart | None
    architecture: str | None = from_recipe("encoder.architecture", absent_when=None)
    architecture_settings: Mapping[str, Any] | None = from_recipe("encoder.architecture_settings", absent_when=None)
    layers: int = from_recipe("encoder.layers")
    hidden: int = from_recipe("encoder.hidden")
    heads: int = from_recipe("encoder.heads")
    intermediate: int = from_recipe("encoder.intermediate")
    dropout: float = from_recipe("encoder.dropout")
    lm_head: str = from_recipe("encoder.lm_head")
    init_embeddings: str = from_recipe("encoder.init_embeddings")
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)
    seed: int = from_recipe("seed")


@frozen
class ExistingEncoderSettings:
    """The path or hub id of the encoder; token_weights: whether the pooling has learned weights of tokens.

    Weights that the encoder lacks start from idf. learned_pooling: the pooling, if it is a part; an encoder that was
    saved with the same one keeps its weights.
    """

    token_weights: bool
    learned_pooling: PoolingPart | None
    pretrained: str = from_recipe("encoder.pretrained")
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)


# Seconds for each token of preparing word embeddings from the PPMI-SVD.
_NEIGHBOURS = 1.8e-6


def _scratch_work(stage: Stage[EncoderSizes], sizes: Sizes) -> Work:
    seconds = 0.0 if stage.settings.init_embeddings == "random" else _NEIGHBOURS * sizes.tokens
    return Work(parallel=seconds, disk=4.0 * sizes.encoder.weights)


ENCODER_FROM_SCRATCH = StageSpec(
    name="encoder-from-scratch",
    version=1,
    settings=EncoderSizes,
    run="drkit.runs.steps.start:make_encoder",
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for frequencies and embeddings"},
    folders=(INITIAL,),
    prunable=WEIGHTS,
    work=_scratch_work,
)
EXISTING_ENCODER = StageSpec(
    name="existing-encoder",
    version=1,
    settings=ExistingEncoderSettings,
    run="drkit.runs.steps.start:load_encoder",
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for token weights that the encoder lacks"},
    folders=(INITIAL,),
    prunable=WEIGHTS,
    work=lambda _stage, sizes: Work(disk=4.0 * sizes.encoder.weights),
)


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
class ExistingGeneratorSettings:
    """A generator that is not trained first: the weights of `model`, or random weights of its sizes or of `sizes`."""

    model: str
    random: bool
    sizes: GeneratorSizes | None
    passage_length: int = from_recipe("encoder.passage_length")
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)
    seed: int = from_recipe("seed")


@frozen
class TrainedGeneratorSettings:
    """A small masked LM trained on the texts; steps: 0 means a third of the steps of pre-training.

    held_out: number of texts that are held out, the same as in pre-training.
    """

    sizes: GeneratorSizes
    steps: int
    training: Training = from_recipe("pretrain")
    held_out: int = from_recipe("pretrain.probe.texts")
    titles: str = from_recipe("encoder.titles", absent_when=JOINED)
    seed: int = from_recipe("seed")


def _generator_work(stage: Stage[TrainedGeneratorSettings], sizes: Sizes) -> Work:
    settings, made = stage.settings, stage.settings.sizes
    model = ModelSize(made.hidden, made.layers, made.heads, made.intermediate, sizes.encoder.vocabulary, dropout=0.0)
    pretraining = count_examples(settings.training, sizes.passages)
    examples = settings.steps * examples_per_step(settings.training) or pretraining / 3
    tokens = sizes.collection.passage_tokens(made.positions)
    at_once = examples_at_once(settings.training) * tokens * MASK_RATIO
    trained = training_work(model, settings.training, examples=examples, texts=1, tokens=tokens, length=made.positions)
    return trained + target_work(model, examples * tokens * MASK_RATIO, at_once)


EXISTING_GENERATOR = StageSpec(
    name="existing-generator",
    version=1,
    settings=ExistingGeneratorSettings,
    run="drkit.runs.steps.start:load_generator",
    inputs={"vocabulary": "the run's tokenizer, which a model must share"},
    folders=("generator",),
)
TRAINED_GENERATOR = StageSpec(
    name="trained-generator",
    version=3,
    settings=TrainedGeneratorSettings,
    run="drkit.runs.steps.start:train_generator",
    inputs={"vocabulary": "the tokenizer", "tokens": "the passages' tokens"},
    records=(LOG, TRAINING),
    resumable=True,
    joint=True,
    folders=("generator",),
    work=_generator_work,
)


def plan_initial(builder: PlanBuilder) -> None:
    """Add the stage of the encoder that the run starts from."""
    encoder = builder.recipe.encoder
    pooling = {"token_weights": is_weighted(encoder.pooling.use), "learned_pooling": _learned_pooling(builder.recipe)}
    if encoder.pretrained:
        builder.add(
            INITIAL,
            EXISTING_ENCODER,
            "load the encoder to start from",
            {"vocabulary": VOCABULARY, **({"tokens": TOKENS} if pooling["token_weights"] else {})},
            sources={"encoder.pretrained": path_state(encoder.pretrained)},
            extra=pooling,
        )
    else:
        builder.add(
            INITIAL,
            ENCODER_FROM_SCRATCH,
            "make the encoder from scratch",
            {"vocabulary": VOCABULARY, "tokens": tokens_of_pretraining(builder)},
            extra={"positions": max(encoder.passage_length, encoder.query_length), **pooling},
        )


def _learned_pooling(recipe: Recipe) -> PoolingPart | None:
    """Return the pooling if it has settings or weights of its own."""
    chosen = recipe.encoder.pooling
    if chosen.use in POOLINGS:
        return None
    return PoolingPart(chosen.use, changed_settings(chosen.config), recipe.seed)


def plan_generator(builder: PlanBuilder, pretrain: Pretrain, settings: GeneratorSettings) -> str:
    """Add the masked LM that fills masked positions: an existing model, random weights, or one trained first."""
    encoder = builder.recipe.encoder
    sizes = GeneratorSizes(
        positions=max(encoder.passage_length, encoder.query_length),
        layers=settings.layers,
        hidden=settings.hidden,
        heads=settings.heads,
        intermediate=settings.intermediate,
    )
    if settings.is_trained_first:
        check_step(pretrain, "pretrain")
        return builder.add(
            "generator",
            TRAINED_GENERATOR,
            "the generator: train a small masked LM",
            {"vocabulary": VOCABULARY, "tokens": tokens_of_pretraining(builder)},
            extra={"sizes": sizes, "steps": settings.steps, "training": pretrain.training_only()},
        )
    if settings.model:
        check_start_model(settings.model)
    action = "random weights" if settings.random else "load"
    return builder.add(
        "generator",
        EXISTING_GENERATOR,
        f"the generator: {' '.join(filter(None, (action, settings.model)))}",
        {"vocabulary": VOCABULARY},
        sources={"pretrain.generator": path_state(settings.model)},
        extra={"model": settings.model, "random": settings.random, "sizes": None if settings.model else sizes},
    )
