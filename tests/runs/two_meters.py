"""Two processes that count different numbers of tokens, by clocks of their own; writes what each of them logs."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from drkit.core import processes
from drkit.train import logs
from drkit.train.logs import Meter

if __name__ == "__main__":
    with processes.group():
        clock = iter((0.0, 2.0))
        logs.time = SimpleNamespace(perf_counter=lambda: next(clock))
        meter = Meter(("read",))
        meter.start()
        meter.count({"read": torch.ones(3 + processes.rank(), dtype=torch.bool)})
        meter.stop(wait=True)
        Path(sys.argv[1], f"{processes.rank()}.json").write_text(json.dumps(meter.read()))
