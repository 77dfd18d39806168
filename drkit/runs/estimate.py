"""Estimate the cost of a run before it starts, from sizes: tokens, parameters, floating-point operations, memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import local_path, read_json
from drkit.core.protocols import TargetShare
from drkit.recipe.schema import GIVEN, RERANKER, EncoderSettings, Pretrain, Recipe, Round, Training

# Measured per CPU core in the default run, with all overheads; an order of magnitude, not a promise.
FLOPS_PER_CORE = 1e11
# Names of the sizes in a config.json: layers, hidden and feed-forward size; those of DistilBERT second.
_SIZES = (("num_hidden_layers", "n_layers"), ("hidden_size", "dim"), ("intermediate_size", "hidden_dim"))
# Operations for each token and each weight that it is multiplied with: forward, and in a training step backward too.
_FORWARD, _TRAINED = 2.0, 6.0
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
    tables = encoder.words * encoder.hidden
    return tables, encoder.layers * layer_parameters(encoder.hidden, encoder.intermediate)


def layer_parameters(hidden: int, intermediate: int) -> int:
    """Return the number of weights of a layer that is built like BERT's, without biases."""
    return 4 * hidden**2 + 2 * hidden * intermediate


def steps(training: Training) -> int:
    """Return the number of optimizer steps if the recipe fixes it, else 0: epochs depend on the collection."""
    return max(training.max_steps, 0)


def schedule(training: Training) -> str:
    """Return the length of a training in words.

    >>> schedule(Training(max_steps=3000)), schedule(Training(num_train_epochs=3))
    ('3,000 steps of 64', '3 epochs in steps of 64')
    """
    if training.max_steps > 0:
        return f"{training.max_steps:,} steps of {batch(training):,}"
    return f"{training.num_train_epochs:g} epochs in steps of {batch(training):,}"


@frozen
class Corpus:
    """The size of a collection: passages, queries with judgements by split, and tokens of a passage and of a query.

    parsed: whether its passages are cut from source code (`pydocs`), not read from files with a text a line.
    """

    passages: int
    train: int = 0
    dev: int = 0
    test: int = 0
    tokens: float = 100.0
    query_tokens: float = 10.0
    parsed: bool = False


def batch(training: Training) -> int:
    """Return the examples of an optimizer step, in one process."""
    return training.per_device_train_batch_size * training.gradient_accumulation_steps


def examples(training: Training, available: int = 0) -> int:
    """Return how many examples a training reads, repeated ones too; available: how many there are, if known."""
    return (
        training.max_steps * batch(training) if training.max_steps > 0 else round(training.num_train_epochs * available)
    )


def _lengths(encoder: EncoderSettings, corpus: Corpus | None) -> tuple[float, float]:
    """Return the tokens of a query and of a passage that the encoder reads; at most, if their lengths are unknown."""
    query, passage = encoder.query_length, encoder.passage_length
    return (min(query, corpus.query_tokens), min(passage, corpus.tokens)) if corpus else (query, passage)


def pretraining(recipe: Recipe, corpus: Corpus | None = None) -> Cost:
    """Return the cost of encoder, one decoder layer, and vocabulary projection at targets; three passes per step."""
    if recipe.pretrain is None or recipe.encoder.pretrained:
        return Cost()
    texts = examples(recipe.pretrain, corpus.passages if corpus else 0)
    tokens = round(texts * _lengths(recipe.encoder, corpus)[1])
    tables, layers = parameters(recipe.encoder)
    decoder = layer_parameters(recipe.encoder.hidden, recipe.encoder.intermediate)
    return Cost(tokens, tokens * pretraining_flops(recipe.pretrain, tables=tables, layers=layers, decoder=decoder))


def pretraining_flops(pretrain: Pretrain, *, tables: int, layers: int, decoder: int) -> float:
    """Return the operations of a pre-training step for each token that the encoder reads.

    tables, layers, decoder: numbers of weights of the word embeddings, of the encoder's layers, and of the decoder's
    one layer. The products of queries, keys and values with each other are left out.
    """
    rows = _target_share(pretrain.decoder.config)
    scored = [_target_share(term.config) for term in pretrain.losses.values() if term.on == "encoder"]
    targets = rows + _ENCODER_TARGETS * max(scored, default=0.0)
    return _TRAINED * (layers + decoder + targets * tables)


def training_flops(layers: int) -> float:
    """Return the operations of a training step for each token, in layers with this number of weights."""
    return _TRAINED * layers


def reranking_flops(layers: int, forward_factor: int) -> float:
    """Return the operations of a re-ranker's step for each token of its pairs; see `Reranker.forward_factor`."""
    return training_flops(layers) / forward_factor + (_FORWARD * layers if forward_factor > 1 else 0)


def _target_share(config: Any) -> float:
    """Return the share of positions that a decoder or loss with these settings scores."""
    return min(max(config.target_share, 0.0), 1.0) if isinstance(config, TargetShare) else 1.0


def finetuning(
    recipe: Recipe, training: Training, negatives: int, queries: int = 0, corpus: Corpus | None = None
) -> Cost:
    """Return the cost of the queries, positives and hard negatives of one round in the transformer layers."""
    if recipe.encoder.pretrained:
        return Cost()
    query, passage = _lengths(recipe.encoder, corpus)
    tokens = round(examples(training, queries) * (query + (1 + negatives) * passage))
    return Cost(tokens, tokens * training_flops(parameters(recipe.encoder)[1]))


def encoding(encoder: EncoderSettings, corpus: Corpus) -> Cost:
    """Return the cost of reading every passage once."""
    tokens = round(corpus.passages * _lengths(encoder, corpus)[1])
    return Cost(tokens, _FORWARD * tokens * parameters(encoder)[1])


def reranking(recipe: Recipe, queries: int = 0) -> Cost:
    """Return the cost of every query with each passage of its group in the cross-encoder."""
    if recipe.reranker is None or recipe.encoder.pretrained or recipe.reranker.pretrained:
        return Cost()
    tokens = examples(recipe.reranker, queries) * (1 + recipe.reranker.negatives) * recipe.reranker.max_length
    layers = _own_reranker_parameters(recipe)
    return Cost(tokens, tokens * reranking_flops(layers, recipe.reranker.forward_factor))


def scoring(recipe: Recipe, pairs: float) -> Cost:
    """Return the cost of scoring pairs with the run's own re-ranker."""
    if recipe.reranker is None:
        return Cost()
    tokens = round(pairs * recipe.reranker.max_length)
    return Cost(tokens, _FORWARD * tokens * _own_reranker_parameters(recipe), round(pairs))


def teaching(recipe: Recipe, current: Round) -> Cost:
    """Return the cost of one score for every pair that a round draws; a model on the hub has an unknown size."""
    assert recipe.finetune is not None
    settings, reranker = recipe.finetune.for_round(current), recipe.reranker
    pairs = current.draws * examples(settings) * (1 + (settings.negatives if current.miners else 0))
    if current.teacher == GIVEN:
        return Cost()
    if current.teacher != RERANKER:
        layers = _stored_layer_parameters(current.teacher)
    elif reranker and (given := reranker.pretrained or recipe.encoder.pretrained):
        layers = _stored_layer_parameters(given)
    else:
        layers = _own_reranker_parameters(recipe)
    length = reranker.max_length if reranker else recipe.encoder.query_length + recipe.encoder.passage_length
    tokens = pairs * length if layers else 0
    return Cost(tokens, _FORWARD * tokens * layers, pairs)


def _own_reranker_parameters(recipe: Recipe) -> int:
    """Return the number of transformer-layer parameters of a re-ranker made from the run's own encoder."""
    layers = max(recipe.reranker.layers if recipe.reranker else 0, recipe.encoder.layers)
    return layers * layer_parameters(recipe.encoder.hidden, recipe.encoder.intermediate)


def _stored_layer_parameters(model: str) -> int:
    """Return the number of transformer-layer parameters of a model in a local folder; 0 if it is not there."""
    config = local_config(model)
    found = (next((config[name] for name in names if name in config), 0) for names in _SIZES)
    layers, hidden, inner = (size if _is_size(size) else 0 for size in found)
    return int(layers * layer_parameters(hidden, inner))


def local_config(model: str) -> Mapping[str, Any]:
    """Return the configuration of a model in a local folder; empty if it is not there, or no object."""
    path = local_path(model) / "config.json"
    config = read_json(path, "give the folder of a model") if path.is_file() else {}
    return config if isinstance(config, dict) else {}


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


@frozen
class _Sizes:
    """Sizes of an encoder that decide how much memory a text takes in training."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocab_size: int
    dropout: float

    def text_bytes(self, length: int) -> float:
        """Return the bytes that a text of `length` tokens keeps from the forward pass for the backward pass.

        Numbers per token and layer, fitted to measurements of BERTs on a CPU, within about a third: those of the
        hidden states and of the feed-forward network; and of the attention, which dropout keeps from being fused.
        """
        numbers = 11 * self.hidden + 2.5 * self.intermediate
        if self.dropout:
            numbers += 3 * self.hidden + 3.5 * self.heads * length
        return 4 * length * self.layers * numbers

    @property
    def weights_bytes(self) -> int:
        """The bytes of the weights, their gradients, and the two moments of AdamW."""
        layers = self.layers * layer_parameters(self.hidden, self.intermediate)
        return 16 * (self.vocab_size * self.hidden + layers)


def step_bytes(encoder: EncoderSettings, training: Training, texts_per_row: int) -> float:
    """Return the memory of a step of training an encoder from scratch: weights, AdamW, and what the texts keep."""
    sizes = _Sizes(encoder.hidden, encoder.layers, encoder.heads, encoder.intermediate, encoder.words, encoder.dropout)
    return _step_bytes(sizes, training, texts_per_row, encoder.passage_length)


def _step_bytes(sizes: _Sizes, training: Training, texts_per_row: int, length: int) -> float:
    texts = training.per_device_train_batch_size * texts_per_row
    text = sizes.text_bytes(length) * (0.5 if training.bf16 else 1)
    return sizes.weights_bytes + text * min(texts, training.gradient_cache_chunk or texts)


def stored_sizes(model: str) -> dict[str, Any] | None:
    """Return the sizes, by the names of `EncoderSettings`, of a model in a local folder; None if they are unknown."""
    config = local_config(model)
    found: list[Any] = [config.get(name) for name in _NAMES]
    names = ("hidden", "layers", "heads", "intermediate", "vocab_size")
    return dict(zip(names, found, strict=True)) if all(map(_is_size, found)) else None


_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def _sizes(encoder: EncoderSettings) -> _Sizes | None:
    """Return the encoder's sizes; None if they are not in a local configuration under BERT's names."""
    if encoder.pretrained is None:
        numbers = (encoder.hidden, encoder.layers, encoder.heads, encoder.intermediate, encoder.words)
        return _Sizes(*numbers, encoder.dropout)
    found = stored_sizes(encoder.pretrained)
    if found is None:
        return None
    return _Sizes(
        **found, dropout=1.0 if local_config(encoder.pretrained).get("attention_probs_dropout_prob", 0.1) else 0.0
    )


def memory_notes(recipe: Recipe, memory: int) -> list[str]:
    """Return a note for each training of which a step needs more than `memory` bytes; none if sizes are unknown."""
    sizes = _sizes(recipe.encoder)
    return [
        f"a step of {name} needs about {needed / 2**30:.0f} GB of memory, and this machine has {memory / 2**30:.0f} "
        f"GB: the system may end the run without a word. --set {path}.gradient_cache_chunk={chunk} computes the same "
        f"gradients from {chunk} texts at a time; a smaller per_device_train_batch_size, fewer negatives or shorter "
        f"texts need less, too"
        for name, path, needed, chunk in (_steps(recipe, sizes, memory) if sizes else ())
        if needed > memory
    ]


def _steps(recipe: Recipe, sizes: _Sizes, memory: int) -> Iterator[tuple[str, str, float, int]]:
    """Yield the name, the table, the bytes, and a number of texts that fits into memory, of each training's steps."""
    encoder, finetune, reranker = recipe.encoder, recipe.finetune, recipe.reranker
    groups: list[tuple[str, str, Training, int, int]] = []
    if recipe.pretrain:
        groups.append(("pre-training", "pretrain", recipe.pretrain, 1, encoder.passage_length))
    if finetune:
        rounds = {current.name: finetune.for_round(current) for current in finetune.rounds}
        length = encoder.passage_length
        groups += [(name, "finetune", one, 1 + one.negatives, length) for name, one in rounds.items()]
    if reranker and not reranker.pretrained:
        per_query = -(-(1 + reranker.negatives) // reranker.forward_factor)
        groups.append(("reranker", "reranker", reranker, per_query, reranker.max_length))
    for name, path, training, per_row, length in groups:
        text = sizes.text_bytes(length) * (0.5 if training.bf16 else 1)
        chunk = 2 ** int(math.log2(max((memory / 2 - sizes.weights_bytes) / text, 1))) if text else 1
        yield name, path, _step_bytes(sizes, training, per_row, length), chunk


def machine_memory() -> int | None:
    """Return the bytes of memory that a process may use; None if a GPU, with memory of its own, is what trains."""
    if Path("/dev/nvidiactl").exists():
        return None
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    group = Path("/sys/fs/cgroup/memory.max")
    if group.is_file() and (limit := group.read_text(encoding="ascii").strip()).isdigit():
        limits.append(int(limit))
    return min(limits)
