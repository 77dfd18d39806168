"""A training step beside busy neighbours, with different numbers of threads and ways of waiting.

    python benchmarks/neighbours.py [--beside none python "python python" torch] [--rounds 3] [--json FILE]

A measurement is a fresh process that takes steps of `pmi` and `enhanced` with AdamW (1 layer x 128, vocabulary 8000,
32 texts of 144 tokens) for some seconds, beside programs that compute in plain Python, or that take the same steps
with as many threads as cores, waiting as torch does by itself. The settings take turns, in an order that changes with
every round; ratios are those of steps in one round, so that other programs on the machine disturb all alike.
`fair share`: the share of the cores that as many threads as cores get beside the neighbours' threads.

    as torch comes    no setting: as many threads as cores; a thread that waits for others spins for a while
    passive           OMP_WAIT_POLICY=PASSIVE: a thread that waits sleeps at once
    one thread        OMP_NUM_THREADS=1
    drkit             what `drkit.core.processes` sets, as every command of drkit does: GOMP_SPINCOUNT=1000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "as torch comes": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "drkit": {"DRKIT_THREADS": "1"},
}
OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "DRKIT_THREADS")
BUSY = {"python": [sys.executable, "-c", "while True: pass"], "torch": [sys.executable, __file__, "--train", "0"]}
BESIDE = ("none", "python", "python python", "torch")


def train(seconds: float) -> None:
    """Print the steps per second; 0 seconds: train until the process is ended."""
    if os.environ.pop("DRKIT_THREADS", ""):
        from drkit.core.processes import use_available_cores

        use_available_cores(os.environ)
    import torch
    from pretrain_step import make_small, pair

    from drkit.train.gradients import GradientStrategy, backward

    torch.manual_seed(0)
    make_small()
    module, tensors = pair("pmi + enhanced")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    strategy = GradientStrategy(forward=module, backward=torch.Tensor.backward)

    def step() -> None:
        backward(module, tensors, strategy)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    steps, started = 0, time.perf_counter()
    while not seconds or time.perf_counter() - started < seconds:
        step()
        steps += 1
    print(steps / (time.perf_counter() - started))


def measured(setting: dict[str, str], neighbours: list[str], seconds: float) -> float:
    """Return the steps per second with a setting, beside neighbours that are started before."""
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    beside = [subprocess.Popen(BUSY[kind], env=clean, stdout=subprocess.DEVNULL) for kind in neighbours]
    try:
        if "torch" in neighbours:
            time.sleep(10)  # until they train
        command = [sys.executable, __file__, "--train", str(seconds)]
        done = subprocess.run(command, env={**clean, **setting}, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        for process in beside:
            process.kill()
            process.wait()
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", nargs="+", default=BESIDE, help="programs: python, torch, or several in quotes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return
    cores, first, alone = len(os.sched_getaffinity(0)), options.settings[0], 0.0
    found: dict[str, dict[str, list[float]]] = {}
    print(f"load before: {os.getloadavg()[0]:.1f} on {cores} cores\n")
    print(f"| beside | fair share | setting | steps/s, median | of {first} alone | to {first} (least to most) |")
    print("|---|---|---|---|---|---|")
    for beside in options.beside:
        kinds = [] if beside == "none" else beside.split()
        threads = sum(cores if kind == "torch" else 1 for kind in kinds)
        rates: dict[str, list[float]] = {name: [] for name in options.settings}
        for number in range(options.rounds):
            turn = number % len(options.settings)
            for name in (*options.settings[turn:], *options.settings[:turn]):
                rates[name].append(measured(SETTINGS[name], kinds, options.seconds))
        alone = alone or statistics.median(rates[first])
        for name, own in rates.items():
            ratios = sorted(rate / base for rate, base in zip(own, rates[first], strict=True))
            median = statistics.median(own)
            print(
                f"| {beside} | {cores / (cores + threads):.2f} | {name} | {median:.2f} | {median / alone:.2f} | "
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
                flush=True,
            )
        found[beside] = rates
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
