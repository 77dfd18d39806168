"""How long masking a batch takes: 128 texts x 150 tokens, every installed masker, one thread.

    python benchmarks/masking.py [--generator] [--json FILE]

A masker that gives the decoder another text masks a second batch of that size. A generator's samples are drawn in
training, on its device: `--generator` measures these two forward passes (of the encoder's and of the decoder's view) on
this machine, with random weights of ELECTRA-base's generator, and counts their operations. `benchmarks/parts.py` prints
the maskers and the pre-training step as one table.
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
from torch.utils.flop_counter import FlopCounterMode
from transformers import ElectraConfig, ElectraForMaskedLM

from drkit.core.draws import Draws
from drkit.core.registry import installed
from drkit.core.types import BackboneInfo, BuildContext, TokenBatch
from drkit.encoders import MaskedLmEncoder
from drkit_simlm import GeneratorConfig
from drkit_simlm.masker import GeneratorMasker

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


def electra_generator() -> MaskedLmEncoder:
    """Return a masked LM of the sizes of `google/electra-base-generator`, with random weights."""
    config = ElectraConfig(
        vocab_size=VOCAB, embedding_size=768, hidden_size=256, num_hidden_layers=12, num_attention_heads=4,
        intermediate_size=1024,
    )  # fmt: skip
    return MaskedLmEncoder(ElectraForMaskedLM(config))


def measure_generator(repeats: int) -> dict:
    """Return the time and operations of filling the encoder's and the decoder's view of a batch."""
    tokens, context = batch(), BuildContext(backbone=BACKBONE, generator=electra_generator())
    rng = Draws(1, 0, np.arange(TEXTS))
    outer, inner = (GeneratorMasker(GeneratorConfig(ratio=ratio), context) for ratio in (0.3, 0.5))
    read = outer(tokens, rng)
    views, fill = (read, inner(tokens, rng, nested=read)), outer.replacer(context)
    with FlopCounterMode(display=False) as counted:
        for view in views:
            fill(view, tokens)
    ms = milliseconds(lambda: [fill(view, tokens) for view in views], repeats)
    return {"masker": "generator, two forward passes", "rows": 0, "ms": ms, "tflop": counted.get_total_flops() / 1e12}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--generator", action="store_true", help="also the forward passes of SimLM's generator")
    options = parser.parse_args()
    found = measure(options.repeats)
    if options.generator:
        torch.set_num_threads(1)
        found.append(measure_generator(min(options.repeats, 3)))
    print("| masker | visibility rows | median ms |\n|---|---|---|")
    for row in found:
        operations = f" ({row['tflop']:.2f} TFLOP)" if "tflop" in row else ""
        print(f"| {row['masker']}{operations} | {row['rows']} | {row['ms']:.1f} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
