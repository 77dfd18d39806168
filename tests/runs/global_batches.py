"""Trainings with a global batch size, by the run's own trainer, alone or as one of several processes.

Plain gradient descent: the weights differ by as much as the gradients do.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from attrs import evolve

from drkit.core import processes
from drkit.core.draws import Draws
from drkit.core.progress import Silent
from drkit.recipe.training import Training
from drkit.testing.toys import rows_of, toy_tokens
from drkit.train.batches import Schedule
from drkit.train.pretrain import PARTNER, AutoEncoder, stacked
from drkit.train.trainer import train
from tests.runs.every_loss import GROUPS, batch_of, module_of, spread
from tests.runs.test_gradients import auto_encoder, masked

# Texts of very different lengths: averaged by micro-batches, those of short texts would weigh too much.
LENGTHS = tuple(3 + (7 * row * row) % 29 for row in range(48))
# What is trained, and its settings.
TRAININGS = {
    "pretrain": {"batch_size": 16},
    "contrast": {"batch_size": 16},
    "kl-distillation": {"batch_size": 16},
    "all": {"batch_size": 16, "gradient_cache_chunk": 3},
    "listwise": {"batch_size": 16},
}


def pretraining(*, compares):
    """The toy auto-encoder, with or without the loss that compares texts."""
    module = auto_encoder()
    terms = {name: term for name, term in module.terms.items() if compares or not term.compares}
    spread(module.encoder)
    return AutoEncoder(module.encoder, dict(module.decoders), terms)


def masked_texts(examples, *, compares):
    """The tensors of some texts, padded to the longest of them; if they are compared, each with itself masked anew."""
    rows = [row for _, row in examples]
    tokens = rows_of(toy_tokens(LENGTHS), rows)
    width = int(tokens.attention.sum(1).max())
    tokens = evolve(
        tokens, **{name: getattr(tokens, name)[:, :width] for name in ("ids", "attention", "maskable", "words")}
    )
    partners = {}
    if compares:
        tokens = stacked(tokens, evolve(tokens, keys=tokens.keys + PARTNER), pad_id=0)
        partners = {"partners": torch.arange(2 * len(rows)).roll(len(rows))}
    return {**masked(tokens, Draws(1, examples[0][0], tokens.keys.numpy())), **partners}


def trained(name, folder, *, steps=3, double=False, **settings):
    """The module after a few steps, and the loss of each."""
    if name in ("pretrain", "contrast"):
        module, count = pretraining(compares=name == "contrast"), len(LENGTHS)

        def collate(examples):
            return masked_texts(examples, compares=name == "contrast")
    else:
        module, count = module_of(name), 32

        def collate(examples):
            return batch_of(name, [query % len(GROUPS) for _, query in examples])

    training = Training(
        **{
            **{"max_steps": steps, "learning_rate": 0.05, "warmup_steps": 0, "lr_scheduler_type": "constant"},
            **{"weight_decay": 0.0, "max_grad_norm": 0.0, "logging_steps": 1, "arguments": {"optim": "sgd"}},
            **{"per_device_train_batch_size": 1, **TRAININGS[name], **settings},
        }
    )
    lengths = np.array(LENGTHS if count == len(LENGTHS) else [9] * count, np.int32)
    result = train(
        module.double() if double else module,
        Schedule.of(training, lengths, seed=5, compares=module.compares()),
        collate,
        training=training,
        folder=folder,
        progress=Silent(),
        seed=1,
    )
    return module, [{key: value for key, value in entry.items() if key.endswith("loss")} for entry in result.log]


def main(folder, *names):
    """Names: a training; or `double`, one step of pre-training in float64, in two micro-batches a process."""
    with processes.group(), tempfile.TemporaryDirectory() as scratch:
        for name in names:
            if name == "double":
                how = {"steps": 1, "double": True, "per_device_train_batch_size": 4}
                module, losses = trained("pretrain", Path(scratch, name), **how)
            else:
                module, losses = trained(name, Path(scratch, name))
            if processes.rank() == 0:
                weights = {n: p.detach() for n, p in module.named_parameters()}
                torch.save({"weights": weights, "losses": losses}, Path(folder, f"{name}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
