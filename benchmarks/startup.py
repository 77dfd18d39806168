"""Start-up: whole-process wall time of the commands that only look, median of several runs.

python benchmarks/startup.py [--runs 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = (
    ("python -c pass", [sys.executable, "-c", "pass"]),
    ("drkit --help", None),
    ("drkit compose --help", None),
    ("drkit list", None),
    ("drkit show masker pmi", None),
    ("drkit compose --dry-run", None),
    ("import drkit.decoders.EnhancedConfig", [sys.executable, "-c", "from drkit.decoders import EnhancedConfig"]),
    ("import drkit.decoders.EnhancedDecoder", [sys.executable, "-c", "from drkit.decoders import EnhancedDecoder"]),
)


def measure(arguments: list[str], runs: int) -> float:
    """Median seconds of a process, after one run that is not counted."""
    times = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(arguments, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    drkit = str(Path(sys.executable).with_name("drkit"))
    rows = {}
    print("| command | median s |\n|---|---|")
    for name, given in COMMANDS:
        rows[name] = measure(given or [drkit, *name.split()[1:]], options.runs)
        print(f"| `{name}` | {rows[name]:.3f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
