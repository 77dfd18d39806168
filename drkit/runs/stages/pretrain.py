"""Pre-training: mask a text, encode that view, and rebuild texts from the vector and views of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from drkit.core.files import LOG, PROBES, TRAINING
from drkit.core.protocols import TargetShare
from drkit.core.spec import part_name
from drkit.encoders.card import EncoderCard
from drkit.evaluate.names import INITIAL
from drkit.recipe.parts import compares_texts, join_names, required_capabilities
from drkit.recipe.schema import PRETRAINED, Pretrain
from drkit.runs.stage import PlanBuilder, Stage, StageOutput, StageSpec, from_recipe, settings_from
from drkit.runs.stages.generator import plan_generator
from drkit.runs.stages.texts import MIXTURE, PASSAGES, SOURCES_FILE, TOKENS, plan_signals, split_of
from drkit.runs.work import (
    TRAINED,
    Sizes,
    Work,
    count_examples,
    describe_schedule,
    examples_at_once,
    examples_per_step,
    reading_work,
    target_work,
    training_work,
)


@frozen
class PretrainSettings:
    """The pre-training of the recipe; reading: how probes read whole texts."""

    reading: EncoderCard = from_recipe("reading", observes=True)
    pretrain: Pretrain = from_recipe("pretrain")
    pooling: str = from_recipe("encoder.pooling", converter=part_name)
    seed: int = from_recipe("seed")


# Share of the encoder's positions that are targets.
_ENCODER_TARGETS = 0.3


def _pretraining_work(stage: Stage[PretrainSettings], sizes: Sizes) -> Work:
    """Count the encoder, a layer per decoder, the scores of targets, and probes; a replacer is left out."""
    settings, model, length = stage.settings.pretrain, sizes.encoder, stage.settings.reading.passage_length
    tokens, examples = sizes.collection.passage_tokens(length), count_examples(settings, sizes.passages)
    kept = sizes.kept_length(length)
    scored = [_target_share(term.config) for term in settings.encoder.losses.values()]
    rebuilt = [_target_share(task.decoder.config) for task in settings.decoders.values()]
    targets = sum(rebuilt) + _ENCODER_TARGETS * max(scored, default=0.0)
    probe, texts = settings.probe, examples_at_once(settings)
    probes = examples / examples_per_step(settings) // probe.every + 1 if probe.every else 0
    # Held-out texts are read twice, forward only.
    read = tokens * (examples + 2 / 3 * probes * min(probe.texts, sizes.passages / 10))
    # Keys and values are those of all tokens, the rest of a decoder's layer those of its targets.
    decoder, rows = evolve(model, layers=1), sum((1 + 2 * share) / 3 for share in rebuilt)
    decoded = Work(
        amount=TRAINED * decoder.layer * read * rows,
        memory=texts * decoder.text_bytes(kept, gpu=sizes.gpu) * len(rebuilt),
    )
    return (
        training_work(model, settings, examples=examples, texts=1, tokens=tokens, length=kept, gpu=sizes.gpu)
        + decoded
        + target_work(model, targets * read, targets * texts * kept)
        + Work(disk=4.0 * model.weights * len(settings.kept))
        + reading_work(model, probes * min(probe.passages, sizes.passages) * tokens, tokens)
    )


def _target_share(config: Any) -> float:
    """Return the share of positions that a decoder or loss with these settings scores."""
    return min(max(config.target_share, 0.0), 1.0) if isinstance(config, TargetShare) else 1.0


@frozen
class KeptSettings:
    """The step whose checkpoint is kept."""

    step: int


PRETRAIN = StageSpec(
    name="pretrain",
    version=5,
    settings=PretrainSettings,
    run="drkit.runs.making.pretrain:pretrain",
    inputs={
        "start": "the checkpoint that training starts from",
        "tokens": "the passages' tokens, without spans",
        "spans": "the spans' tokens, if documents are cut into spans",
        "sources": "the number of texts of each collection, if there are several",
        "signals/*": "values of signals: of the texts' tokens, of the texts, or of the vocabulary",
        "query-signals/*": "the same of the candidate queries",
        "queries": "candidate queries, as contexts",
        "generator": "the masked LM that a part requires",
        "probe/*": "for retrieval probes: tokens, passages and a split of the collection",
    },
    records=(LOG, TRAINING, PROBES),
    resumable=True,
    joint=True,
    folders=(PRETRAINED, f"{PRETRAINED}-*=*"),
    work=_pretraining_work,
)
# Its files are links to those of the training, so that a kept checkpoint is used like any other.
KEPT_STEP = StageSpec(
    name="kept-checkpoint",
    version=1,
    settings=KeptSettings,
    run="drkit.runs.making.pretrain:link_kept",
    inputs={"checkpoint": "the checkpoint, in the folder of the training"},
    folders=("*@*",),
)


def plan_rival(builder: PlanBuilder, name: str, pretrain: Pretrain) -> str:
    """Add the pre-training that a baseline starts from, of the same texts; it keeps no steps and has no probes.

    name: of the baseline, `SLOT=PART`, which may have a learning rate of its own.
    """
    own = builder.stages[PRETRAINED].inputs
    texts = {key: own[key] for key in ("spans", "tokens", "queries") if key in own}
    if "generated-queries" not in required_capabilities(pretrain, builder.registry):
        texts.pop("queries", None)
    rates = {baseline.replace(":", "-"): rate for baseline, rate in (pretrain.baseline_learning_rates or {}).items()}
    pretrain = evolve(
        pretrain,
        learning_rate=rates.get(name, pretrain.learning_rate),
        baseline_learning_rates=None,
        keep_steps=None,
        probe=evolve(pretrain.probe, every=0),
    )
    return plan_pretraining(builder, f"{PRETRAINED}-{name}", pretrain, texts)


def plan_pretraining(builder: PlanBuilder, name: str, pretrain: Pretrain, texts: Mapping[str, StageOutput]) -> str:
    """Add a pre-training, its signals and generator."""
    required = required_capabilities(pretrain, builder.registry)
    inputs = {"start": StageOutput(INITIAL), **texts}
    inputs |= plan_signals(builder, pretrain, texts)
    if builder.has(MIXTURE):
        inputs["sources"] = StageOutput(MIXTURE.name, SOURCES_FILE)
    if "generator" in required:
        inputs["generator"] = plan_generator(builder, pretrain, required["generator"])
    compares = compares_texts(pretrain, builder.registry)
    schedule = describe_schedule(pretrain, compares=compares, table="pretrain")
    reading, pooling = (
        settings_from(EncoderCard, builder.recipe),
        pretrain.encoder.pooling or builder.recipe.encoder.pooling,
    )
    return builder.add(
        name,
        PRETRAIN,
        f"pre-train with {_tasks_in_words(pretrain)}, {schedule}",
        {**inputs, **_probe_inputs(builder)},
        extra={
            "reading": evolve(reading, passages_per_document=None, pooling=pooling.use),
            "pretrain": pretrain,
            "pooling": pooling.use,
        },
    )


def _tasks_in_words(pretrain: Pretrain) -> str:
    """Return the maskers and decoders of a pre-training in words."""
    tasks = pretrain.decoders.values()
    if not tasks:
        return f"masker {pretrain.encoder.masker.use}, without a decoder"
    return join_names(
        f"masker {(task.masker or pretrain.encoder.masker).use} and decoder {task.decoder.use}" for task in tasks
    )


def _probe_inputs(builder: PlanBuilder) -> dict[str, StageOutput]:
    """Return the inputs of probes, which only measure.

    They search for the queries of dev, else of train, but never of the evaluated split. If all training queries are
    made from the passages, nothing reads those of the collection.
    """
    splits = [*(["dev"] if "dev" in builder.splits else []), *(["train"] if builder.learns_from_judgements else [])]
    split = next((split for split in splits if split != builder.recipe.evaluation.split), None)
    read = {"tokens": TOKENS, "passages": PASSAGES, **({split: split_of(split)} if split else {})}
    return {f"probe/{name}": StageOutput(one.stage, one.path, observed=True) for name, one in read.items()}


def plan_kept(builder: PlanBuilder, training: str, step: int) -> str:
    """Add the stage of a checkpoint that a training keeps; returns its name."""
    name = f"{training}@{step}"
    checkpoint = {"checkpoint": StageOutput(training, name)}
    return builder.add(name, KEPT_STEP, f"the checkpoint of step {step:,}", checkpoint, extra={"step": step})
