"""What every installed masker and decoder costs, in one table: masking a batch, and a pre-training step.

    python benchmarks/parts.py [--repeats 3] [--json FILE]

Masking: 128 texts of 150 tokens, one thread, without and with a visibility row for each position. A step: forward and
backward of 6 layers x 384, vocabulary 30522, 32 texts of 144 tokens; peak memory of a fresh process. masking.py and
pretrain_step.py measure; each in processes of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from pretrain_step import measured_apart, names

MASKING = Path(__file__).with_name("masking.py")


def masking() -> list[dict]:
    """Latency of every masker, measured in a process that has one thread."""
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch) / "masking.json"
        subprocess.run([sys.executable, MASKING, "--json", kept], check=True, stdout=subprocess.DEVNULL)
        return json.loads(kept.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="steps a decoder, after one that is not counted")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print("| part | what | time | peak GiB |\n|---|---|---|---|")
    latencies = masking()
    for row in latencies:
        what = f"mask a batch, {row['rows']} rows a text" if row["rows"] else "mask a batch"
        print(f"| masker {row['masker']} | {what} | {row['ms']:.1f} ms | |")
    steps = []
    for name in names():
        row = measured_apart(name, options.repeats)
        masker, _, decoder = row["step"].rpartition(" + ")
        part, what = (f"decoder {decoder}", f"step with masker {masker}") if masker else (row["step"], "step")
        print(f"| {part} | {what} | {row['seconds']:.2f} s | {row['peak_gib']:.2f} |", flush=True)
        steps.append(row)
    if options.json:
        options.json.write_text(json.dumps({"masking": latencies, "steps": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
