"""Run in two processes: one process' part of a training that mines with its own model."""

import sys
from pathlib import Path

from drkit.core import processes
from tests.runs.test_refreshing import BATCH, PLAIN, go, made, word_tokenizer


def main(folder, checkpoints):
    with processes.group():
        module, collate, refresher = made((Path(folder), word_tokenizer()), Path(checkpoints), dropout=0.0)
        refresher._per_epoch = 14 // BATCH
        go(module, collate, Path(checkpoints), refresher, world=2, **PLAIN)


if __name__ == "__main__":
    main(*sys.argv[1:])
