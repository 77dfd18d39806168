"""What random steps cost in padding, and what each token weighs: drkit's steps beside batches of texts of like length.

    python benchmarks/padding.py --collection beir:FOLDER --model MODEL [--texts 2048] [--turns 3]

Pre-trains a small encoder (that of the default run, from random weights) on the texts, with the tokenizer of a model:
`pools` sorts pools of 50 batches by length and averages each batch by itself, the others are drkit's steps, which are
drawn at random and sorted only within themselves. Padding is a share of the positions that the encoder reads; seconds
of processor time are for 1,000 texts, the median of the turns. A token's weight is that of its loss in the gradient,
relative to the mean over tokens, of texts with fewer than 32 tokens and of those with at least 128.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, logging

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.contexts import PretrainingTexts
from drkit.data.store import TokenStore, tokenise
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Training
from drkit.runs.making.pretrain import auto_encoder, build_maskers, masking_collator
from drkit.train.batches import Schedule
from drkit.train.trainer import train

PARTS = installed()
# (name, texts of a step, texts at a time, whether pools are sorted)
STEPS = (
    ("pools of 50 batches of 32", 32, 32, True),
    ("steps of 32", 32, 32, False),
    ("steps of 32, 8 at a time", 32, 8, False),
    ("steps of 256, 32 at a time", 256, 32, False),
    ("steps of 2,048, 32 at a time", 2048, 32, False),
)
POOL, SHORT, LONG = 50, 32, 128


class SortedPools(Schedule):
    """Batches of texts of like length: pools of 50 batches are sorted, and the batches then shuffled."""

    def epoch(self, epoch: int) -> list[Any]:
        """Return the batches of one epoch."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        order = order[: len(order) // self.batch_size * self.batch_size]
        size = self.batch_size * POOL
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        ordered = np.concatenate([pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools])
        return list(rng.permutation(ordered.reshape(-1, self.batch_size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", default="beir:FOLDER", help="as that of drkit compose")
    parser.add_argument("--model", required=True, help="whose tokenizer is used")
    parser.add_argument("--texts", type=int, default=2048, help="texts that each turn reads")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        show(Path(folder), options)


def show(folder: Path, options: argparse.Namespace) -> None:
    recipe = compose(ComposeRequest(collection=options.collection, masker="uniform", scale="small"), PARTS)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    source = PARTS.registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config)
    named = ((one.doc_id, one.content) for one in source.passages())
    tokenise(named, tokenizer, folder / "tokens", max_length=recipe.encoder.passage_length)
    store = TokenStore.open(folder / "tokens")
    seconds: dict[str, list[float]] = {name: [] for name, *_ in STEPS}
    for turn in range(options.turns):
        for name, *step in STEPS:
            schedule = schedule_of(store, options.texts, *step)
            took = taken(schedule, store, tokenizer, recipe, folder / f"{turn}{name}")
            seconds[name].append(1000 * took / options.texts)
    print("| examples | padding | CPU s for 1,000 texts | weight of a token, texts under 32 tokens | .., from 128 |")
    print("|---|---|---|---|---|")
    for name, *step in STEPS:
        schedule = schedule_of(store, len(store), *step)
        short, long = weights(schedule, store)
        print(
            f"| {name} | {padding(schedule, store):.1%} | {statistics.median(seconds[name]):.2f} | {short:.2f} | "
            f"{long:.2f} |"
        )


def schedule_of(store: TokenStore, texts: int, size: int, at_once: int, pools: bool) -> Schedule:
    """Return the steps that read so many texts."""
    training = Training(max_steps=max(texts // size, 1), batch_size=size, per_device_train_batch_size=at_once)
    schedule = Schedule.of(training, store.lengths, seed=1, compares=False)
    return SortedPools(schedule.lengths, size, schedule.batches, seed=1) if pools else schedule


def padding(schedule: Schedule, store: TokenStore) -> float:
    """Return the share of positions that are padding."""
    read = [store.lengths[[example for _, example in batch]] for batch in schedule]
    return 1 - sum(map(np.sum, read)) / sum(len(lengths) * lengths.max() for lengths in read)


def weights(schedule: Schedule, store: TokenStore) -> tuple[float, float]:
    """Return the weights of a token in short and in long texts, relative to the mean of all."""
    whole = schedule.micro_batches
    read = [store.lengths[[example for _, example in batch]] for batch in schedule]
    steps = [np.concatenate(read[start : start + whole]) for start in range(0, len(read), whole)]
    lengths = np.concatenate(steps)
    weight = np.concatenate([np.full(len(step), 1 / step.sum()) for step in steps])
    mean = np.average(weight, weights=lengths)
    parts = (lengths < SHORT, lengths >= LONG)
    short, long = (np.average(weight[part], weights=lengths[part]) / mean for part in parts)
    return short, long


def taken(schedule: Schedule, store: TokenStore, tokenizer: Any, recipe: Any, folder: Path) -> float:
    """Return the seconds of processor time of a training on a schedule."""
    sizes, settings = recipe.encoder, recipe.pretrain
    bert = BertSizes(
        **{name: getattr(sizes, name) for name in ("hidden", "layers", "heads", "intermediate", "dropout")},
        max_positions=sizes.passage_length,
    )
    encoder = MaskedLmEncoder.from_scratch(bert, tokenizer, seed=1)
    context = BuildContext(backbone=encoder.info(tokenizer), tokenizer=tokenizer, seed=1)
    maskers = build_maskers(settings, PARTS.registry, context)
    module = auto_encoder(settings, PARTS.registry, encoder, context, maskers)
    collate = masking_collator(settings, PARTS.registry, module, context, maskers, PretrainingTexts(store))
    steps = schedule.batches
    how = {"max_steps": steps, "logging_steps": steps, "save_steps": steps + 1, "per_device_train_batch_size": 2048}
    training = Training(**how)
    started = time.process_time()
    train(module, schedule, collate, training=training, folder=folder, progress=Silent(), seed=1)
    return time.process_time() - started


if __name__ == "__main__":
    main()
