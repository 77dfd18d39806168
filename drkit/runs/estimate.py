"""What a run will cost, before it starts: tokens, parameters and floating-point operations, counted from sizes."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from drkit.core.protocols import TargetShare
from drkit.recipe.schema import EncoderSettings, Finetune, Recipe, Training

# What a CPU core reached in the default run, all overheads included; an order of magnitude, not a promise.
FLOPS_PER_CORE = 1e11
# Shares of positions that are targets where a part does not say otherwise: all rows, a third of the tokens.
_ENCODER_TARGETS = 0.3


@frozen
class Cost:
    """Tokens read at most, and floating-point operations; zero where the collection's size decides."""

    tokens: int = 0
    flops: float = 0.0

    def seconds(self, cores: int) -> float:
        """A rough time on `cores` CPU cores."""
        return self.flops / (FLOPS_PER_CORE * max(cores, 1))


def parameters(encoder: EncoderSettings) -> tuple[int, int]:
    """(embedding parameters, parameters of the transformer layers) of an encoder made from scratch."""
    tables = encoder.vocab_size * encoder.hidden
    layer = 4 * encoder.hidden**2 + 2 * encoder.hidden * encoder.intermediate
    return tables, encoder.layers * layer


def steps(training: Training) -> int:
    """Optimizer steps where the recipe fixes them, else 0: epochs depend on the collection."""
    return max(training.max_steps, 0)


def schedule(training: Training) -> str:
    """The length of a training in words.

    >>> schedule(Training(max_steps=3000)), schedule(Training(num_train_epochs=3))
    ('3,000 steps of 64', '3 epochs in steps of 64')
    """
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
    if training.max_steps > 0:
        return f"{training.max_steps:,} steps of {batch:,}"
    return f"{training.num_train_epochs:g} epochs in steps of {batch:,}"


def _texts(training: Training) -> int:
    return steps(training) * training.per_device_train_batch_size * training.gradient_accumulation_steps


def pretraining(recipe: Recipe) -> Cost:
    """Encoder, one decoder layer, and the vocabulary projection at target positions; three passes a step."""
    if recipe.pretrain is None or recipe.encoder.pretrained:
        return Cost()
    tokens = _texts(recipe.pretrain) * recipe.encoder.passage_length
    tables, layers = parameters(recipe.encoder)
    rows = _target_share(recipe.pretrain.decoder.config)
    scored = [_target_share(term.config) for term in recipe.pretrain.losses.values() if term.on == "encoder"]
    targets = rows + _ENCODER_TARGETS * max(scored, default=0.0)
    return Cost(tokens, 6.0 * tokens * (layers + layers / recipe.encoder.layers + targets * tables))


def _target_share(config: Any) -> float:
    """The share of positions that a decoder or loss with these settings scores."""
    return min(max(config.target_share, 0.0), 1.0) if isinstance(config, TargetShare) else 1.0


def finetuning(recipe: Recipe, training: Finetune) -> Cost:
    """Queries, positives and hard negatives of one round through the transformer layers."""
    if recipe.encoder.pretrained:
        return Cost()
    lengths = recipe.encoder.query_length + (1 + training.negatives) * recipe.encoder.passage_length
    tokens = _texts(training) * lengths
    return Cost(tokens, 6.0 * tokens * parameters(recipe.encoder)[1])


def reranking(recipe: Recipe) -> Cost:
    """Every query with each passage of its group through the cross-encoder."""
    if recipe.reranker is None or recipe.encoder.pretrained or recipe.reranker.pretrained:
        return Cost()
    tokens = _texts(recipe.reranker) * (1 + recipe.reranker.negatives) * recipe.reranker.max_length
    grown = max(recipe.reranker.layers, recipe.encoder.layers) / recipe.encoder.layers
    return Cost(tokens, 6.0 * tokens * parameters(recipe.encoder)[1] * grown)


def encoding(_recipe: Recipe) -> Cost:
    """Every passage once; how many there are is known when the collection is read."""
    return Cost()
