"""How long masking a batch takes: 128 texts x 150 tokens, every installed masker, one thread.

    python benchmarks/masking.py [--json FILE]

A masker that gives the decoder another text masks a second batch of that size; a generator's samples are drawn in
training and are no part of it. `benchmarks/parts.py` prints this and the pre-training step as one table.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from drkit.core.draws import Draws
from drkit.core.registry import installed
from drkit.core.types import BackboneInfo, BuildContext, TokenBatch

TEXTS, LENGTH, VOCAB = 128, 150, 30522
BACKBONE = BackboneInfo(
    hidden=384, heads=12, intermediate=1536, layers=6, vocab=VOCAB, max_positions=512, mask_id=103, pad_id=0,
    special_ids=(0, 100, 101, 102, 103),
)  # fmt: skip


def batch(seed: int = 0) -> TokenBatch:
    """Full texts whose words have 1 to 4 tokens, most of them 1, as WordPiece gives."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1000, VOCAB, (TEXTS, LENGTH))
    starts = rng.random((TEXTS, LENGTH)) < 0.75
    words = np.cumsum(starts, axis=1)
    ids[:, 0], ids[:, -1], words[:, 0], words[:, -1] = 101, 102, -1, -1
    return TokenBatch(
        ids=torch.from_numpy(ids),
        attention=torch.ones(TEXTS, LENGTH, dtype=torch.bool),
        maskable=torch.from_numpy(words >= 0),
        words=torch.from_numpy(words),
        keys=torch.arange(TEXTS),
        signals={"importance": torch.from_numpy(rng.normal(size=(TEXTS, LENGTH)).astype(np.float32))},
    )


def milliseconds(call, repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[2:])


def measure(repeats: int) -> list[dict]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tokens, keys = batch(), np.arange(TEXTS)
    found = []
    for spec in installed().registry.specs("masker"):
        config = spec.config()
        masker = spec.load()(config, BuildContext(backbone=BACKBONE))
        for rows in (0, LENGTH) if "rows" in spec.provides_of(config) else (0,):
            found.append(
                {
                    "masker": spec.name,
                    "rows": rows,
                    "ms": milliseconds(lambda m=masker, r=rows: m(tokens, Draws(1, 0, keys), rows=r), repeats),
                }
            )
    torch.set_num_threads(threads)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.repeats)
    print("| masker | visibility rows | median ms |\n|---|---|---|")
    for row in found:
        print(f"| {row['masker']} | {row['rows']} | {row['ms']:.1f} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
