"""The settings of any training, and of what is measured while it runs.

Their names are those of `transformers.TrainingArguments`.
"""

from __future__ import annotations

import re
from typing import Any

from attrs import Factory, fields, frozen
from attrs.validators import and_, ge, lt, min_len, optional

from drkit.core.settings import at_least, more_than, setting, training_steps
from drkit.recipe.trainer_arguments import check_arguments

# The settings of `Training` that decide which examples it reads in which step.
SCHEDULE = (
    *("max_steps", "num_train_epochs", "batch_size", "per_device_train_batch_size", "gradient_accumulation_steps"),
)


def _free_arguments(_instance: Any, attribute: Any, value: dict[str, Any]) -> None:
    """Validate that no argument has a setting of its own, or is one that runs rely on."""
    check_arguments((a.name for a in fields(Training)), attribute, value)


def _module_names(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate names of modules, each once."""
    if wrong := [name for name in value if not re.fullmatch(r"\w+(\.\w+)*", name)]:
        raise ValueError(f"'{attribute.name}' must be names of linear layers, such as 'query'; got {wrong[0]!r:.80}")
    if len({*value}) < len(value):
        raise ValueError(f"'{attribute.name}' must name each layer once, got {value}")


@frozen
class Lora:
    """Low-rank adaptation: train two thin matrices beside each linear layer of an encoder, whose own weights stay.

    Their product, times alpha / rank, is added to the layer's weights, and merged into them when the training ends.
    Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models.
    """

    rank: int = setting(16, at_least(1, 65_536), "columns of the matrices")
    alpha: float = setting(32.0, more_than(0, 1e6), "the product of the matrices is multiplied by alpha / rank")
    dropout: float = setting(0.0, and_(ge(0), lt(1)), "dropout of what the matrices read")
    targets: tuple[str, ...] = setting(
        (), _module_names, "linear layers that are adapted, by the ends of their names; none: all within the layers"
    )


@frozen
class Training:
    """Settings of one training, named as in `transformers.TrainingArguments`."""

    learning_rate: float = setting(1e-3, more_than(0, 100), "peak learning rate")
    max_steps: int = setting(-1, training_steps, "optimizer steps; -1: num_train_epochs decides")
    num_train_epochs: float = setting(3.0, more_than(0), "passes over the data, if max_steps is -1")
    batch_size: int | None = setting(
        None,
        optional(at_least(1, 1_000_000)),
        "texts or queries of an optimizer step, over all processes; none: per_device_train_batch_size x processes x "
        "gradient_accumulation_steps",
        absent_when=None,
    )
    per_device_train_batch_size: int = setting(
        32, at_least(1, 1_000_000), "texts or queries that a process reads at a time, as its memory allows"
    )
    gradient_accumulation_steps: int = setting(
        1, at_least(1, 1_000_000), "batches whose gradients are summed in a step, without batch_size"
    )
    warmup_steps: float = setting(0.1, at_least(0), "warm-up: below 1, a share of all steps; otherwise steps")
    gradient_cache_chunk: int = setting(
        0,
        at_least(0),
        "texts per forward pass with cached gradients, for batches larger than memory; 0: those of "
        "per_device_train_batch_size",
    )
    weight_decay: float = setting(0.01, at_least(0, 100), "decoupled weight decay")
    max_grad_norm: float = setting(1.0, at_least(0), "maximum gradient norm (clipping)")
    lr_scheduler_type: str = setting("linear", min_len(1), "schedule after the warm-up, by its name in transformers")
    logging_steps: int = setting(
        50, at_least(1), "steps between log lines; a tenth of all in a shorter training", observes=True
    )
    save_steps: int = setting(500, at_least(1), "steps between checkpoints", observes=True)
    bf16: bool = setting(False, None, "mixed precision in bfloat16")
    arguments: dict[str, Any] = setting(Factory(dict), _free_arguments, "any other TrainingArguments, by name")
    lora: Lora | None = setting(
        None, None, "train low-rank adapters (LoRA) beside the encoder's weights, and merge them", absent_when=None
    )

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras of drkit that the training needs."""
        return ("peft",) if self.lora else ()

    def training_only(self) -> Training:
        """Return only the training settings of a table that has more (`Pretrain`, `Finetune`, `Reranker`)."""
        return Training(**{a.name: getattr(self, a.name) for a in fields(Training)})

    def schedule_only(self) -> Training:
        """Return only the settings that decide which examples a training reads; the others have their defaults."""
        return Training(**{name: getattr(self, name) for name in SCHEDULE})


@frozen
class Probe:
    """Measurements during pre-training: on held-out texts, and on queries.

    With `every = 0` nothing is measured, but the same texts are held out, so that runs stay comparable.
    """

    every: int = setting(
        500, at_least(0), "steps between probes, besides the first and the last; 0: none", observes=True
    )
    texts: int = setting(256, at_least(0), "held-out texts that are probed, at most a tenth of all")
    queries: int = setting(200, at_least(0), "dev queries of the retrieval probe", observes=True)
    passages: int = setting(2000, at_least(2), "maximum passages to search for them", observes=True)


@frozen
class Validation:
    """Validation on development queries while a retriever is fine-tuned."""

    every: int = setting(0, at_least(0), "steps between validations; 0: none")
    measure: str = setting("RR@10", min_len(1), "deciding measure, by its ir_measures name")
    queries: int = setting(500, at_least(1), "maximum dev queries")
    passages: int = setting(0, at_least(0), "passages to search, the judged ones included; 0: all")
    patience: int = setting(0, at_least(0), "stop after this many validations without a gain; 0: never")
    keep_best: bool = setting(
        True,
        None,
        "end with the weights of the best validation if they gain more than one standard error over the last ones",
    )
