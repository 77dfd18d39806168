"""Estimate the cost of a run before it starts: tokens, parameters and floating-point operations, from sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.protocols import TargetShare
from drkit.recipe.schema import RERANKER, EncoderSettings, Finetune, Recipe, Round, Training

# Measured per CPU core in the default run, with all overheads; an order of magnitude, not a promise.
FLOPS_PER_CORE = 1e11
# Names of the sizes in a config.json: layers, hidden and feed-forward size; those of DistilBERT second.
_SIZES = (("num_hidden_layers", "n_layers"), ("hidden_size", "dim"), ("intermediate_size", "hidden_dim"))
# Share of the encoder's positions that are targets.
_ENCODER_TARGETS = 0.3


@frozen
class Cost:
    """Maximum numbers of tokens, of pairs that a teacher scores, and of floating-point operations.

    Zero if they are unknown: they depend on the size of the collection, or of a model on the hub.
    """

    tokens: int = 0
    flops: float = 0.0
    pairs: int = 0

    def seconds(self, cores: int) -> float:
        """Return a rough time on `cores` CPU cores."""
        return self.flops / (FLOPS_PER_CORE * max(cores, 1))


def parameters(encoder: EncoderSettings) -> tuple[int, int]:
    """Return the numbers of embedding and transformer-layer parameters of an encoder made from scratch."""
    tables = encoder.vocab_size * encoder.hidden
    return tables, encoder.layers * _layer_parameters(encoder)


def _layer_parameters(encoder: EncoderSettings) -> int:
    return 4 * encoder.hidden**2 + 2 * encoder.hidden * encoder.intermediate


def steps(training: Training) -> int:
    """Return the number of optimizer steps if the recipe fixes it, else 0: epochs depend on the collection."""
    return max(training.max_steps, 0)


def schedule(training: Training) -> str:
    """Return the length of a training in words.

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
    """Return the cost of encoder, one decoder layer, and vocabulary projection at targets; three passes per step."""
    if recipe.pretrain is None or recipe.encoder.pretrained:
        return Cost()
    tokens = _texts(recipe.pretrain) * recipe.encoder.passage_length
    tables, layers = parameters(recipe.encoder)
    rows = _target_share(recipe.pretrain.decoder.config)
    scored = [_target_share(term.config) for term in recipe.pretrain.losses.values() if term.on == "encoder"]
    targets = rows + _ENCODER_TARGETS * max(scored, default=0.0)
    return Cost(tokens, 6.0 * tokens * (layers + _layer_parameters(recipe.encoder) + targets * tables))


def _target_share(config: Any) -> float:
    """Return the share of positions that a decoder or loss with these settings scores."""
    return min(max(config.target_share, 0.0), 1.0) if isinstance(config, TargetShare) else 1.0


def finetuning(recipe: Recipe, training: Finetune) -> Cost:
    """Return the cost of the queries, positives and hard negatives of one round in the transformer layers."""
    if recipe.encoder.pretrained:
        return Cost()
    lengths = recipe.encoder.query_length + (1 + training.negatives) * recipe.encoder.passage_length
    tokens = _texts(training) * lengths
    return Cost(tokens, 6.0 * tokens * parameters(recipe.encoder)[1])


def reranking(recipe: Recipe) -> Cost:
    """Return the cost of every query with each passage of its group in the cross-encoder."""
    if recipe.reranker is None or recipe.encoder.pretrained or recipe.reranker.pretrained:
        return Cost()
    tokens = _texts(recipe.reranker) * (1 + recipe.reranker.negatives) * recipe.reranker.max_length
    layers = max(recipe.reranker.layers, recipe.encoder.layers)
    return Cost(tokens, 6.0 * tokens * layers * _layer_parameters(recipe.encoder))


def teaching(recipe: Recipe, current: Round) -> Cost:
    """Return the cost of one score for every pair that a round draws; a model on the hub has an unknown size."""
    assert recipe.finetune is not None
    settings, reranker = recipe.finetune.for_round(current), recipe.reranker
    pairs = current.draws * _texts(settings) * (1 + (settings.negatives if current.miners else 0))
    if current.teacher != RERANKER:
        layers = _stored_layer_parameters(current.teacher)
    elif reranker and (given := reranker.pretrained or recipe.encoder.pretrained):
        layers = _stored_layer_parameters(given)
    else:
        layers = max(reranker.layers if reranker else 0, recipe.encoder.layers) * _layer_parameters(recipe.encoder)
    length = reranker.max_length if reranker else recipe.encoder.query_length + recipe.encoder.passage_length
    tokens = pairs * length if layers else 0
    return Cost(tokens, 2.0 * tokens * layers, pairs)


def _stored_layer_parameters(model: str) -> int:
    """Return the number of transformer-layer parameters of a model in a local folder; 0 if it is not there."""
    path = Path(model).expanduser() / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    layers, hidden, inner = (next((config[name] for name in names if name in config), 0) for names in _SIZES)
    return int(layers * (4 * hidden**2 + 2 * hidden * inner))


def encoding(_recipe: Recipe) -> Cost:
    """Return an unknown cost: the number of passages is known only once the collection is read."""
    return Cost()
