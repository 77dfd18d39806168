"""The masked LM that a part requires of the run (`generator`), as a masker does whose masked positions it fills.

It is an existing model, one with random weights, or one that the run trains first. ELECTRA's generators have a quarter
to half of the encoder's width. The small scale follows this: one layer, trained by plain masked language modelling on
the texts of pre-training.
"""

from __future__ import annotations

from attrs import evolve, frozen

from drkit.core.files import LOG, TRAINING, path_state
from drkit.core.settings import GeneratorSettings
from drkit.core.types import EncoderSizes
from drkit.data.titles import JOINED
from drkit.encoders.architectures import check_start_model
from drkit.recipe.schema import Pretrain
from drkit.recipe.training import Training
from drkit.runs.stage import PlanBuilder, Stage, StageOutput, StageSpec, from_recipe
from drkit.runs.stages.texts import VOCABULARY, tokens_of_pretraining
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

# BERT's rate: the generator should be a good language model, not a bottleneck.
MASK_RATIO = 0.15


@frozen
class GeneratorSizes(EncoderSizes):
    """Sizes of a generator made from scratch; positions: tokens of the longest text."""

    positions: int


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
    model = ModelSize.of(made, vocabulary=sizes.encoder.vocabulary, dropout=0.0)
    pretraining = count_examples(settings.training, sizes.passages)
    examples = settings.steps * examples_per_step(settings.training) or pretraining / 3
    tokens = sizes.collection.passage_tokens(made.positions)
    at_once = examples_at_once(settings.training) * tokens * MASK_RATIO
    length = sizes.kept_length(made.positions)
    trained = training_work(
        model, settings.training, examples=examples, texts=1, tokens=tokens, length=length, gpu=sizes.gpu
    )
    return trained + target_work(model, examples * tokens * MASK_RATIO, at_once)


EXISTING_GENERATOR = StageSpec(
    name="existing-generator",
    version=1,
    settings=ExistingGeneratorSettings,
    run="drkit.runs.making.generator:load_generator",
    inputs={"vocabulary": "the run's tokenizer, which a model must share"},
    folders=("generator",),
)
TRAINED_GENERATOR = StageSpec(
    name="trained-generator",
    version=3,
    settings=TrainedGeneratorSettings,
    run="drkit.runs.making.generator:train_generator",
    inputs={"vocabulary": "the tokenizer", "tokens": "the passages' tokens"},
    records=(LOG, TRAINING),
    resumable=True,
    joint=True,
    folders=("generator",),
    work=_generator_work,
)


def plan_generator(builder: PlanBuilder, pretrain: Pretrain, required: GeneratorSettings | None) -> StageOutput:
    """Add the masked LM that a part requires: an existing model, random weights, or one trained first."""
    encoder, settings = builder.recipe.encoder, required or GeneratorSettings()
    sizes = GeneratorSizes.of(settings, positions=max(encoder.passage_length, encoder.query_length))
    if settings.is_trained_first:
        check_step(pretrain, "pretrain")
        name = builder.add(
            "generator",
            TRAINED_GENERATOR,
            "the generator: train a small masked LM",
            {"vocabulary": VOCABULARY, "tokens": tokens_of_pretraining(builder)},
            extra={"sizes": sizes, "steps": settings.steps, "training": evolve(pretrain.training_only(), lora=None)},
        )
        return StageOutput(name)
    if settings.model:
        check_start_model(settings.model)
    action = "random weights" if settings.random else "load"
    name = builder.add(
        "generator",
        EXISTING_GENERATOR,
        f"the generator: {' '.join(filter(None, (action, settings.model)))}",
        {"vocabulary": VOCABULARY},
        sources={"pretrain.generator": path_state(settings.model)},
        extra={"model": settings.model, "random": settings.random, "sizes": None if settings.model else sizes},
    )
    return StageOutput(name)
