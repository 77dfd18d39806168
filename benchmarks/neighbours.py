"""Threads beside busy neighbours: what a training step gets with different numbers of threads and ways of waiting.

    python benchmarks/neighbours.py [--neighbours 0 1 2] [--of torch] [--rounds 5] [--seconds 5] [--json FILE]

A measurement is a fresh process that takes training steps of a BERT (two layers of 256, 16 texts of 64 tokens) for some
seconds, beside a number of neighbours: programs that compute in plain Python (`--of python`), or that train the same
BERT with the same settings (`--of torch`). The settings take turns, in an order that changes with every round; ratios
are those of steps in one round, so that other programs on the machine disturb all alike.

    as torch comes    no setting: as many threads as cores; a thread that waits for others spins for a while
    passive           OMP_WAIT_POLICY=PASSIVE: a thread that waits sleeps at once
    short spin        GOMP_SPINCOUNT=1000: it spins for some microseconds, then sleeps
    one thread        OMP_NUM_THREADS=1
    drkit             what `drkit.core.processes` sets, as every command of drkit does
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
    "short spin": {"GOMP_SPINCOUNT": "1000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "drkit": {"DRKIT_THREADS": "1"},
}
OURS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "DRKIT_THREADS")
BUSY = "while True: pass"


def train(seconds: float) -> None:
    """Print the steps per second of a small BERT; 0 seconds: train until the process is ended."""
    if os.environ.pop("DRKIT_THREADS", ""):
        from drkit.core.processes import use_available_cores

        use_available_cores(os.environ)
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    model = BertForMaskedLM(BertConfig(vocab_size=2000, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 2000, (16, 64))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    steps, started = 0, time.perf_counter()
    while not seconds or time.perf_counter() - started < seconds:
        step()
        steps += 1
    print(json.dumps({"rate": steps / (time.perf_counter() - started), "threads": torch.get_num_threads()}))


def measured(setting: dict[str, str], neighbours: int, options: argparse.Namespace) -> float:
    clean = {name: value for name, value in os.environ.items() if name not in OURS}
    environment = {**clean, **setting}
    busy = [sys.executable, "-c", BUSY] if options.of == "python" else [sys.executable, __file__, "--train", "0"]
    beside = [subprocess.Popen(busy, env=environment) for _ in range(neighbours)]
    try:
        if neighbours and options.of == "torch":
            time.sleep(options.seconds)  # until they train
        command = [sys.executable, __file__, "--train", str(options.seconds)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        for process in beside:
            process.kill()
            process.wait()
    return float(json.loads(done.stdout.splitlines()[-1])["rate"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--of", choices=("torch", "python"), default="torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return
    found: dict[str, dict[str, list[float]]] = {}
    first = options.settings[0]
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(f"| neighbours | threads | steps/s, median | ratio to {first}: median (least to most) |\n|---|---|---|---|")
    for neighbours in options.neighbours:
        rates: dict[str, list[float]] = {name: [] for name in options.settings}
        for number in range(options.rounds):
            turn = number % len(options.settings)
            for name in (*options.settings[turn:], *options.settings[:turn]):
                rates[name].append(measured(SETTINGS[name], neighbours, options))
        for name, own in rates.items():
            ratios = sorted(rate / base for rate, base in zip(own, rates[first], strict=True))
            print(
                f"| {neighbours} {options.of} | {name} | {statistics.median(own):.2f} | "
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
                flush=True,
            )
        found[str(neighbours)] = rates
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
