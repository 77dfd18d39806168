"""Time and peak memory of a pre-training step: forward + backward, 6 layers x 384, vocabulary 30522, 32 x 144 tokens.

    python benchmarks/pretrain_step.py [--json FILE]

Every decoder with every masker it goes with, and the plain Hugging Face masked LM for scale (logits and loss at
every position, as its own forward does it). Each is measured in a fresh process; masking is not part of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

TEXTS, LENGTH, VOCAB = 32, 144, 30522
PLAIN = "plain masked LM"


class Tokenizer:
    """As much of BERT's tokenizer as is asked of it."""

    pad_token_id, mask_token_id, all_special_ids = 0, 103, (0, 100, 101, 102, 103)

    def __len__(self) -> int:
        return VOCAB


def made():
    """Encoder, batch: 32 full texts."""
    import numpy as np
    import torch

    from drkit.core.types import TokenBatch
    from drkit.encoders import BertSizes, MaskedLmEncoder

    sizes = BertSizes(hidden=384, layers=6, heads=12, intermediate=1536, dropout=0.0)
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(1000, VOCAB, (TEXTS, LENGTH)))
    ids[:, 0], ids[:, -1] = 101, 102
    words = torch.from_numpy(np.cumsum(rng.random((TEXTS, LENGTH)) < 0.75, axis=1))
    words[:, 0] = words[:, -1] = -1
    tokens = TokenBatch(
        ids=ids,
        attention=ids != 0,
        maskable=words >= 0,
        words=words,
        keys=torch.arange(TEXTS),
        importance=torch.rand(ids.shape),
    )
    return MaskedLmEncoder.from_scratch(sizes, Tokenizer()), tokens


def step_of(name: str):
    """A function that does one forward and backward."""
    from drkit.core.discovery import installed
    from drkit.core.draws import Draws
    from drkit.core.types import DecoderInput
    from drkit.encoders import context_from
    from drkit.encoders.heads import token_states

    encoder, tokens = made()
    context, registry = context_from(encoder, Tokenizer()), installed().registry
    draws = Draws(1, 0, tokens.keys.numpy())
    if name == PLAIN:
        view = registry.build("masker", "uniform", None, context)(tokens, draws).encoder
        return lambda: encoder.model(view.ids, attention_mask=view.attention, labels=view.labels).loss.backward()
    masker, decoder = name.split(" + ")
    built, loss = registry.build("decoder", decoder, None, context), registry.build("loss", "mlm")
    views = registry.build("masker", masker, None, context)(tokens, draws, rows=built.rows(LENGTH))

    def step() -> None:
        encoded = encoder.encode(views.encoder.ids, views.encoder.attention, built.needs_layers)
        heads = encoder.heads()
        own = token_states(encoded.hidden, views.encoder.labels, heads)
        rebuilt = built(DecoderInput(encoded=encoded, tokens=views.context, view=views.decoder), heads)
        (loss(token_states=own).loss + loss(**rebuilt).loss).backward()

    return step


def measure(name: str, repeats: int) -> dict:
    """In this process: seconds of a step, and the most memory the process has had."""
    step, times = step_of(name), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"step": name, "seconds": statistics.median(times[1:]), "peak_gib": peak}


def names() -> list[str]:
    from drkit.core.discovery import installed

    registry = installed().registry
    return [PLAIN] + [
        f"{masker.name} + {decoder.name}"
        for decoder in registry.specs("decoder")
        for masker in registry.specs("masker")
        if set(decoder.needs) <= set(masker.provides)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help="measure this one in this process and print it as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.repeats)))
        return
    found = []
    print("| step | seconds | peak GiB |\n|---|---|---|")
    for name in names():
        command = [sys.executable, __file__, "--one", name, "--repeats", str(options.repeats)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        print(f"| {row['step']} | {row['seconds']:.2f} | {row['peak_gib']:.2f} |", flush=True)
        found.append(row)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
