"""Stage: fine-tune one retriever on judged queries and mined negatives."""

from __future__ import annotations

from attrs import frozen

from drkit.core.files import LOG, TRAINING
from drkit.recipe.schema import BASELINES, Choice, Training, Validation
from drkit.runs.stage import WEIGHTS, Stage, StageSpec, TextReading, from_recipe
from drkit.runs.work import Sizes, Work, count_examples, reading_work, training_work


@frozen
class FinetuneSettings:
    """One retriever's training; the settings of its round override those of all rounds.

    miners: the chain that mines again during training, or empty. validation: None if it is off. queries: number of
    training queries (0: all), drawn at random; `draw` is the index of this draw among `draws`.
    """

    miners: tuple[Choice, ...]
    queries: int
    draw: int
    reading: TextReading
    draws: int = from_recipe("draws", observes=True)
    validation: Validation | None = from_recipe("finetune.validation")
    training: Training = from_recipe("finetune")
    loss: Choice = from_recipe("finetune.loss")
    negatives: int = from_recipe("finetune.negatives")
    encoders: str = from_recipe("finetune.encoders")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    keep_steps: tuple[int, ...] | None = from_recipe("finetune.keep_steps", observes=lambda self: not self.keep_steps)
    seed: int = from_recipe("seed")


def _finetuning_work(stage: Stage[FinetuneSettings], sizes: Sizes) -> Work:
    """Count the queries, positives and negatives; mining during training and validation are left out."""
    settings, collection, passages = stage.settings, sizes.collection, 1 + stage.settings.negatives
    length, training = settings.reading.passage_length, settings.training
    tokens = collection.query_tokens(settings.reading.query_length) + passages * collection.passage_tokens(length)
    examples = count_examples(training, settings.queries or sizes.count(str(stage.inputs["train"])))
    scores = training.per_device_train_batch_size * passages
    work = training_work(
        sizes.encoder, training, examples=examples, texts=passages, tokens=tokens, length=length, scores=scores
    ) + Work(disk=4.0 * sizes.encoder.weights * len(settings.keep_steps or ()))
    if training.gradient_cache_chunk:  # a first forward pass, without a graph
        return work + reading_work(sizes.encoder, examples * tokens, tokens / passages)
    return work


FINETUNE = StageSpec(
    name="finetune",
    version=4,
    settings=FinetuneSettings,
    run="drkit.runs.steps.finetune:finetune",
    inputs={
        "start": "the checkpoint that training starts from",
        "passages": "the corpus",
        "train": "training queries and judgements",
        "dev": "development queries and judgements, for validation",
        "tokens": "the passages' tokens",
        "query-tokens": "the training queries' tokens",
        "negatives": "mined negatives",
        "column/*": "a column that the loss receives, such as a teacher's scores",
        "reranker": "a cross-encoder, if negatives are filtered during training",
    },
    records=(LOG, TRAINING, "validation.jsonl"),
    resumable=True,
    joint=True,
    folders=(*BASELINES, "*"),
    prunable=WEIGHTS,
    work=_finetuning_work,
)
