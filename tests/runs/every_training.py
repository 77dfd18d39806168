"""A few steps of fine-tuning by the run's own trainer, alone or as one of several processes; writes the weights."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from drkit.core import processes
from drkit.core.progress import Silent
from drkit.recipe.training import Training
from drkit.train.batches import Schedule
from drkit.train.trainer import train
from tests.runs.every_loss import GROUPS, batch_of, module_of

STEPS, BATCH = 4, 4
# (loss, texts a forward pass)
TRAININGS = (("all", 0), ("columns", 2), ("kl-distillation", 3), ("separate encoders", 1), ("listwise", 3))


def trained(name, chunk, folder):
    """The module after a few steps of plain gradient descent, which are as large as the gradients; and its losses."""
    module = module_of(name)
    settings = Training(
        max_steps=STEPS,
        per_device_train_batch_size=BATCH // processes.process_count(),
        learning_rate=0.5,
        warmup_steps=0,
        weight_decay=0.0,
        logging_steps=1,
        gradient_cache_chunk=chunk,
        arguments={"optim": "sgd"},
    )
    schedule = Schedule(lengths=np.full(len(GROUPS), 9, np.int32), batch_size=BATCH, batches=STEPS, seed=5)
    result = train(
        module,
        schedule,
        lambda examples: batch_of(name, [query for _, query in examples]),
        training=settings,
        folder=folder,
        progress=Silent(),
        seed=1,
    )
    return module, [entry["loss"] for entry in result.log]


def main(folder):
    with processes.group(), tempfile.TemporaryDirectory() as scratch:
        for name, chunk in TRAININGS:
            module, _ = trained(name, chunk, Path(scratch, name))
            if processes.rank() == 0:
                own = {n: p.detach().contiguous().clone() for n, p in module.named_parameters()}
                save_file(own, Path(folder, f"{name}.safetensors"))


if __name__ == "__main__":
    main(sys.argv[1])
