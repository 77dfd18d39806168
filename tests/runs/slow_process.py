"""Run in two processes: a joint stage whose second process still reads the checkpoints when the first one is done."""

import sys
import time
from pathlib import Path

from drkit.core import processes
from drkit.core.files import CHECKPOINTS
from drkit.runs.stage import Stage, StageSpec
from tests.runs.test_execute import Toy, go


def train(stage):
    kept = stage.folder / CHECKPOINTS / "negatives.txt"
    if processes.rank() == 0:
        kept.write_text("mined")
    processes.barrier()
    if processes.rank():
        time.sleep(1)
        assert kept.read_text() == "mined"
    return {}


def main(folder):
    spec = StageSpec("train", 1, Toy, f"{__name__}:train", joint=True)
    go([Stage("trained", spec, Toy(), "train")], Path(folder, "run"))


if __name__ == "__main__":
    main(*sys.argv[1:])
