"""What a stage needs, counted before the run from sizes: of the collection, and of the models that it trains or runs.

Each stage declares its own `work`: bytes of memory and disk, and an amount of what takes its time. No speed is assumed:
`drkit.runs.costs` takes the seconds of an amount from stages that this machine has made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from drkit.core.files import local_path, read_json
from drkit.core.quantities import counted
from drkit.core.types import CollectionSize, EncoderSizes
from drkit.encoders.architectures import SizeNames, find_architecture
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.training import Lora, Training
from drkit.train.batches import StepSize, check_step

# Floating-point operations for each token and each weight that it is multiplied with: forward; in a step, backward too.
FORWARD, TRAINED = 2.0, 6.0
# .. with frozen weights, for which no gradients are computed.
_FROZEN = 4.0
# The units of work on texts, and of models, whose sizes follow.
TOKEN_UNIT, OPERATIONS = "tokens", "operations"
# Logits that are in memory at once, and bytes of each with its gradient.
_MOST_LOGITS, _LOGIT_BYTES = 2**24, 20
# Bytes of the offset of a string in a file of Arrow.
_OFFSET = 8


@frozen
class Work:
    """What a stage needs, counted.

    amount, unit: how much of what takes its time, as in 5000 `tokens`; a stage takes the time of an earlier stage of
    the same kind and unit, by their amounts. memory: bytes, without what Python and its libraries take. disk: bytes.
    """

    amount: float = 0.0
    unit: str = ""
    memory: float = 0.0
    disk: float = 0.0

    def __add__(self, other: Work) -> Work:
        """Return the work of both, in the unit of the first, with all that they keep in memory at once."""
        return Work(
            amount=self.amount + other.amount,
            unit=self.unit or other.unit,
            memory=self.memory + other.memory,
            disk=self.disk + other.disk,
        )


@frozen
class ModelSize(EncoderSizes):
    """The sizes of a model that is built like BERT's, and what is counted from them."""

    vocabulary: int
    dropout: float = 0.1

    @property
    def table(self) -> int:
        """The number of weights of the word embeddings."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """The number of weights of a transformer layer, without biases."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.intermediate

    @property
    def weights(self) -> int:
        """The number of all weights."""
        return self.table + self.layers * self.layer

    @property
    def unit(self) -> str:
        """What the amount of work is counted in: operations of models of these sizes, which are equally fast."""
        return f"{OPERATIONS} of {self.layers} layers of {self.hidden}, {self.heads} and {self.intermediate}"

    def flops(self, tokens: float, length: float) -> float:
        """Return the operations of a forward pass over `tokens`, in texts of `length` tokens."""
        layers = self.layers * (self.layer + 2 * length * self.hidden)
        return FORWARD * tokens * max(layers, self.hidden)  # a static model only adds word embeddings

    def text_bytes(self, length: float, *, gpu: bool = False) -> float:
        """Return the bytes that a text of `length` tokens keeps from the forward pass for the backward pass.

        Counted from the tensors that torch keeps for a layer of BERT: the inputs of its products and norms, queries,
        keys, values, and the feed-forward network before and after its activation. With dropout, its masks, and on a
        CPU three times the scores of attention, which are fused away without dropout and on GPUs. The layer that is
        passed backward has its gradients, too; word embeddings are two more states.
        """
        numbers = 8.0 * self.hidden + 2 * self.intermediate
        if self.dropout:
            numbers += 3 * self.hidden
            numbers += 0 if gpu else 3 * self.heads * length
        layers = self.layers + 1 if self.layers else 0
        return 4 * length * (layers * numbers + 2 * self.hidden)

    def trained_bytes(self, lora: Lora | None = None) -> int:
        """Return the bytes of the weights, and of the gradients and both moments of AdamW of those that are trained.

        With LoRA, these are at most its matrices beside all linear layers.
        """
        if lora is None:
            return 16 * self.weights
        adapted = self.layers * lora.rank * (8 * self.hidden + 2 * (self.hidden + self.intermediate))
        return 4 * self.weights + 16 * adapted


# Assumed of a model on the hub, because planning downloads nothing.
BERT_BASE = ModelSize(hidden=768, heads=12, intermediate=3072, layers=12, vocabulary=30_522)


@frozen
class Sizes:
    """What the work of stages is counted from.

    queries: their numbers by stage and split (`collection`, `train`). encoder: the initial encoder.
    reranker: the cross-encoder that the run trains or loads. evaluated: the queries that the run is evaluated on.
    length: tokens after which the run cuts passages. gpu: whether a GPU trains.
    """

    collection: CollectionSize
    queries: Mapping[str, Mapping[str, float]]
    encoder: ModelSize
    reranker: ModelSize
    evaluated: float
    length: int | None = None
    gpu: bool = False

    @property
    def passages(self) -> int:
        """The number of passages."""
        return self.collection.passages

    @property
    def tokens(self) -> float:
        """The tokens of all passages, as long as they are."""
        return self.passages * self.collection.passage_tokens()

    def count(self, output: str) -> float:
        """Return the number of queries of a split, or of a file in it: `collection/train/queries.arrow`."""
        stage, split, *_ = output.split("/")
        return self.queries.get(stage, {}).get(split, 0.0)

    def kept_length(self, length: int) -> float:
        """Return the mean tokens of a passage in a step; the limit if the lengths are not known."""
        return self.collection.passage_tokens(length) or length

    @property
    def ids(self) -> float:
        """The bytes of the ids of all passages, with their offsets."""
        return (self.collection.id_length + _OFFSET) * self.passages

    def passage_tokens(self, length: int | None) -> float:
        """Return the tokens of all passages, cut after `length` tokens."""
        return self.passages * self.collection.passage_tokens(length)


def examples_per_step(training: Training) -> int:
    """Return the examples of an optimizer step, over all processes."""
    return StepSize.of(training, compares=False).examples


def examples_at_once(training: Training) -> int:
    """Return the examples that a process keeps in memory at once."""
    return min(StepSize.of(training, compares=True).share, training.per_device_train_batch_size)


def count_examples(training: Training, available: float) -> float:
    """Return how many examples a training reads, repeated ones too; available: how many there are."""
    if training.max_steps > 0:
        return float(training.max_steps * examples_per_step(training))
    return training.num_train_epochs * available


def describe_schedule(training: Training, *, compares: bool, table: str) -> str:
    """Return the length of a training in words, and its steps; see `StepSize`. Raises DrkitError as `check_step` does.

    >>> describe_schedule(Training(max_steps=3000), compares=True, table="finetune")
    '3,000 steps of 32'
    >>> describe_schedule(Training(num_train_epochs=3, batch_size=256), compares=False, table="pretrain")
    '3 epochs in steps of 256: at most 32 at a time'
    """
    check_step(training, table)
    step = StepSize.of(training, compares=compares)
    adapted = f", LoRA of rank {training.lora.rank}" if training.lora else ""
    if training.max_steps > 0:
        return f"{counted(training.max_steps, 'step')} of {step}{adapted}"
    return f"{training.num_train_epochs:g} epochs in steps of {step}{adapted}"


def describe_encoder(encoder: EncoderSettings) -> str:
    """Return the size of an encoder, or its name, and how long the texts are that it reads.

    >>> describe_encoder(EncoderSettings(pretrained="bert-base-uncased"))
    'bert-base-uncased; reads 32 tokens of a query, 128 of a passage'
    """
    size, name = encoder_size(encoder), encoder.pretrained
    if size and not name:
        name = f"about {size.weights / 1e6:.1f}M parameters ({size.table / 1e6:.1f}M of them word embeddings)"
    return f"{name}; reads {encoder.query_length} tokens of a query, {encoder.passage_length} of a passage"


def training_work(
    model: ModelSize,
    training: Training,
    *,
    examples: float,
    texts: float,
    tokens: float,
    length: float,
    gpu: bool,
) -> Work:
    """Return the work of a training: the forward and backward passes of a model.

    examples: those of all steps. texts, tokens: of an example. texts: those that a step keeps in memory, cut after
    `length` tokens.
    """
    together = examples_at_once(training) * texts
    kept = min(together, training.gradient_cache_chunk or together) * model.text_bytes(length, gpu=gpu)
    memory = model.trained_bytes(training.lora) + kept * (0.5 if training.bf16 else 1)
    work = trained_work(model, examples * tokens, tokens / texts, is_frozen=training.lora is not None)
    return work + Work(memory=memory, disk=4.0 * model.weights)


def trained_work(model: ModelSize, tokens: float, length: float, *, is_frozen: bool = False) -> Work:
    """Return the work of passing texts of this mean length forward and backward.

    is_frozen: whether the model's own weights get no gradients (LoRA).
    """
    return Work(amount=(_FROZEN if is_frozen else TRAINED) / FORWARD * model.flops(tokens, length), unit=model.unit)


def target_work(model: ModelSize, targets: float, at_once: float) -> Work:
    """Return the work of scoring targets against the vocabulary, `at_once` of them in a step."""
    logits = min(at_once * model.vocabulary, _MOST_LOGITS)
    return Work(amount=TRAINED * targets * model.table, unit=model.unit, memory=_LOGIT_BYTES * logits)


def reading_work(model: ModelSize, tokens: float, length: float) -> Work:
    """Return the work of encoding texts of this mean length."""
    return Work(amount=model.flops(tokens, length), unit=model.unit)


def text_work(disk: float = 0.0) -> Callable[[Any, Sizes], Work]:
    """Return the work of a stage that reads all passages; disk: bytes for each token."""
    return lambda _stage, sizes: Work(sizes.tokens, TOKEN_UNIT, disk=disk * sizes.tokens)


def encoder_size(encoder: EncoderSettings) -> ModelSize | None:
    """Return the size of the encoder that a run starts from; None if it is not in the configuration of a local folder.

    Without biases, positions and the pooler, which are a few per cent.
    """
    if encoder.pretrained:
        return stored_size(encoder.pretrained)
    return ModelSize.of(encoder, vocabulary=encoder.vocab_size, dropout=encoder.dropout)


def stored_size(model: str) -> ModelSize | None:
    """Return the size of a model in a local folder; None if its configuration does not have it."""
    config = local_config(model)
    where = find_architecture(str(config.get("model_type")))
    names = where.sizes if where else SizeNames()
    keys = (names.hidden, names.heads, names.intermediate, names.layers, "vocab_size")
    sizes: list[Any] = [config.get(key) for key in keys]
    if not all(map(_is_size, sizes)):
        return None
    hidden, heads, intermediate, layers, vocabulary = sizes
    return ModelSize(hidden, heads, intermediate, layers, vocabulary, config.get(names.attention_dropout, 0.1))


def local_config(model: str) -> Mapping[str, Any]:
    """Return the configuration of a model in a local folder; empty if it is not there, or no object."""
    path = local_path(model) / "config.json"
    config = read_json(path, "give the folder of a model") if path.is_file() else {}
    return config if isinstance(config, dict) else {}


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
