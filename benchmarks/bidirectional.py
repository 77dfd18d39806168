"""A pre-training step of a decoder-only model that reads in both directions, beside transformers' causal LM step.

    python benchmarks/bidirectional.py MODEL [--texts 16] [--length 128] [--steps 5] [--turns 3] [--loss mntp]

MODEL: a folder, such as SmolLM2-135M-Instruct. Both read the same random tokens, without padding, forward and backward
in float32 (`--optimizer`: and an update by AdamW, whose state both keep). drkit masks 30 % of the tokens and computes
logits at these alone; transformers' own forward computes those of all positions, as its Trainer does. Each turn has a
fresh process for each side, one after the other; a side's time is its fastest step, so that other programs count less.
The last line has the median ratios of the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATIO = 0.3
SIDES = ("drkit", "transformers")


def tokens(texts: int, length: int, vocabulary: int) -> Any:
    """Return the same texts for both sides, every token of which may be hidden but the last."""
    import torch

    from drkit.core.types import TokenBatch

    ids = torch.randint(20, vocabulary, (texts, length), generator=torch.Generator().manual_seed(0))
    words = torch.arange(length).expand(texts, length).clone()
    words[:, -1] = -1
    return TokenBatch(
        ids=ids,
        attention=torch.ones_like(ids, dtype=torch.bool),
        maskable=words >= 0,
        words=words,
        keys=torch.arange(texts),
    )


def step_of_drkit(model: str, texts: int, length: int, loss: str) -> tuple[Callable[[], None], Any]:
    """Return a step of drkit's pre-training without decoders, and its module."""
    import torch

    from drkit.core.draws import Draws
    from drkit.core.registry import installed
    from drkit.data.vocabulary import with_last_token, with_mask_token
    from drkit.encoders import MaskedLmEncoder, context_from
    from drkit.maskers import UniformConfig, UniformMasker
    from drkit.train.checkpoints import load_tokenizer
    from drkit.train.gradients import GradientStrategy, backward
    from drkit.train.pretrain import AutoEncoder, Term, side_tensors

    encoder = MaskedLmEncoder.from_pretrained(model, pooling="mean", attention="bidirectional").train()
    context = context_from(encoder, with_mask_token(with_last_token(load_tokenizer(model))))
    spec = installed().registry.get("loss", loss)
    term = Term(spec.load()(spec.config(), context), spec.receives, "encoder")
    module = AutoEncoder(encoder, {}, {loss: term})
    batch = tokens(texts, length, context.vocabulary_size)
    view = UniformMasker(UniformConfig(ratio=RATIO), context)(batch, Draws(1, 0, batch.keys.numpy()))
    tensors = side_tensors("encoder", view, batch)
    strategy = GradientStrategy(forward=module, backward=torch.Tensor.backward)
    return lambda: backward(module, tensors, strategy), module


def step_of_transformers(model: str, texts: int, length: int) -> tuple[Callable[[], None], Any]:
    """Return a step of transformers' causal LM, and its module."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32").train()
    batch = tokens(texts, length, loaded.config.vocab_size)

    def step() -> None:
        given = {"input_ids": batch.ids, "attention_mask": batch.attention.long(), "labels": batch.ids}
        loaded(**given, use_cache=False).loss.backward()

    return step, loaded


def measure(side: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the time of the fastest step, in seconds, and the peak memory, in MB."""
    import torch

    sizes = (options.model, options.texts, options.length)
    step, module = step_of_drkit(*sizes, options.loss) if side == SIDES[0] else step_of_transformers(*sizes)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5) if options.optimizer else None
    times = []
    for _ in range(options.steps + 1):
        start = time.perf_counter()
        step()
        if optimizer is not None:
            optimizer.step()
        module.zero_grad()
        times.append(time.perf_counter() - start)
    status = Path("/proc/self/status").read_text()
    return {"seconds": min(times[1:]), "peak_mb": int(status.split("VmHWM:")[1].split()[0]) / 1024}


def measured_apart(side: str) -> dict[str, Any]:
    """`measure` in a process of its own. Raises RuntimeError with its last words where it fails."""
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--side", side], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{side}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--loss", choices=("mlm", "mntp"), default="mlm")
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--side", choices=SIDES, help="measure this side in this process and print it as JSON")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options)))
        return
    ratios: dict[str, list[float]] = {"seconds": [], "peak_mb": []}
    print("| turn | drkit, s | transformers, s | drkit, MB | transformers, MB |\n|---|---|---|---|---|")
    for turn in range(options.turns):
        order = SIDES if turn % 2 == 0 else SIDES[::-1]
        found = {side: measured_apart(side) for side in order}
        own, theirs = (found[side] for side in SIDES)
        for key, values in ratios.items():
            values.append(own[key] / theirs[key])
        print(
            f"| {turn + 1} | {own['seconds']:.2f} | {theirs['seconds']:.2f} | {own['peak_mb']:,.0f} "
            f"| {theirs['peak_mb']:,.0f} |",
            flush=True,
        )
    middle = {key: statistics.median(values) for key, values in ratios.items()}
    print(f"\ndrkit / transformers: time {middle['seconds']:.2f}, peak memory {middle['peak_mb']:.2f}")


if __name__ == "__main__":
    main()
