"""Run in two processes: one process' part of a training whose batches are clusters of its own vectors."""

import sys
from pathlib import Path

from drkit.core import processes
from tests.runs.test_batch_parts import PLAIN, clustered, train_clustered
from tests.runs.test_refreshing import word_tokenizer


def main(folder, checkpoints):
    with processes.group():
        made = clustered((Path(folder), word_tokenizer()), Path(checkpoints), dropout=0.0)
        train_clustered(made, Path(checkpoints), world=2, **PLAIN)


if __name__ == "__main__":
    main(*sys.argv[1:])
