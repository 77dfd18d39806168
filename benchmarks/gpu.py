"""Training steps on a GPU: tokens/s and peak memory in float32 and bfloat16, eager and compiled; and encoding.

    python benchmarks/gpu.py [--texts 64] [--length 512] [--steps 20] [--json FILE]
    python benchmarks/gpu.py --device cpu --tiny      # the same code at toy sizes, to see that it runs

Every installed decoder, beside Hugging Face's masked LM. The encoder has BERT-base's size, random weights and no
dropout; decoders and losses have the settings of `pretrain_step.py`. Steps are those of drkit's trainer, with fused
AdamW, on one batch of full texts over and over: masking is no part of them. As many steps warm up, and compile, as are
measured. Each row is a fresh process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pretrain_step
from encoding import peak_memory
from pretrain_step import PLAIN

NOTHING_CLAIMED = """\
Nothing is claimed about drkit on a GPU until this script has run on one: no number of it has been published.
What it prints is true of this machine, these versions and these sizes only."""
NO_GPU = (
    "error: torch sees no GPU, so there is nothing to measure; `--device cpu --tiny` runs the same code at toy sizes"
)
BASE = {"hidden": 768, "layers": 12, "heads": 12, "intermediate": 3072, "dropout": 0.0}
TINY = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64, "dropout": 0.0}
MODES = {
    "fp32": {},
    "bf16": {"bf16": True},
    "fp32 compiled": {"arguments": {"torch_compile": True}},
    "bf16 compiled": {"bf16": True, "arguments": {"torch_compile": True}},
}
ENCODED = {"fp32": "float32", "bf16": "bfloat16"}
SEED = 1


def set_sizes(options: argparse.Namespace) -> None:
    """Set the sizes of `pretrain_step`: BERT-base, or a toy."""
    sizes = TINY if options.tiny else BASE
    generator = {**sizes, "hidden": sizes["hidden"] // 2}
    pretrain_step.SIZES, pretrain_step.GENERATOR = sizes, generator
    if options.tiny:
        pretrain_step.TEXTS, pretrain_step.LENGTH, pretrain_step.VOCAB = 4, 32, 1100
    else:
        pretrain_step.TEXTS, pretrain_step.LENGTH = options.texts, options.length


def plain_module():
    """Hugging Face's masked LM with its own loss, as drkit's trainer takes a module, and the tensors of a batch."""
    import torch
    from torch import nn

    class Plain(nn.Module):
        row_indices, weights, marks = {}, {"mlm": 1.0}, ("attention_mask",)

        def __init__(self, model) -> None:
            super().__init__()
            self.model = model

        def compares(self) -> bool:
            return False

        def forward(self, local=True, **tensors):  # noqa: ARG002
            ids = tensors["input_ids"]
            return {"loss.mlm": self.model(**tensors).loss, "items.mlm": torch.tensor(len(ids), device=ids.device)}

    model, view = pretrain_step.plain()
    return Plain(model), {"input_ids": view.ids, "attention_mask": view.attention, "labels": view.labels}


def measure(name: str, mode: str, steps: int) -> dict:
    """Train in this process for twice as many steps; return what the log says about the second half."""
    import numpy as np
    import torch

    from drkit.core.progress import Silent
    from drkit.recipe.schema import Training
    from drkit.train.batches import Schedule
    from drkit.train.trainer import train

    module, tensors = plain_module() if name == PLAIN else pretrain_step.pair(name)
    how = {"max_steps": 2 * steps, "logging_steps": steps, "save_steps": 10**6, "learning_rate": 1e-5}
    training = Training(per_device_train_batch_size=pretrain_step.TEXTS, **how, **MODES[mode])
    lengths = np.full(pretrain_step.TEXTS, pretrain_step.LENGTH, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        done = train(
            module,
            Schedule(lengths, pretrain_step.TEXTS, 2 * steps, SEED),
            lambda _: tensors,
            training=training,
            folder=Path(folder),
            progress=Silent(),
            seed=SEED,
        )
    last = done.log[-1]
    return {
        "step": name,
        "mode": mode,
        "tokens_per_second": last["tokens_per_second"],
        "peak_gib": peak_gib(),
        "loss": last["loss"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
    }


def measure_encoding(mode: str, steps: int) -> dict:
    """Encode texts of spread lengths in this process, as many as `steps` batches have, after half as many."""
    import numpy as np
    import torch

    from drkit.search import TextEncoder

    encoder, _ = pretrain_step.new_encoder()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reader = TextEncoder(
        encoder.backbone.to(device), pretrain_step.tokenizer(), pooling="mean", precision=ENCODED[mode]
    )
    rng = np.random.default_rng(SEED)
    lengths = rng.integers(8, pretrain_step.LENGTH + 1, steps * pretrain_step.TEXTS)
    rows = [rng.integers(1000, pretrain_step.VOCAB, length) for length in lengths]
    reader.encode_tokens(rows[: len(rows) // 2])
    start = time.perf_counter()
    reader.encode_tokens(rows)
    seconds = time.perf_counter() - start
    rates = {"tokens_per_second": round(float(lengths.sum()) / seconds, 1), "texts_per_second": len(rows) / seconds}
    return {"step": "encoding", "mode": mode, **rates, "peak_gib": peak_gib()}


def peak_gib() -> float:
    """GiB, of the GPU's memory if there is one."""
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else peak_memory() / 1024


def measured_apart(name: str, mode: str, options: argparse.Namespace) -> dict:
    """Measure in a process of its own; raises RuntimeError with its last words if it fails."""
    command = [sys.executable, __file__, "--one", name, "--mode", mode, "--steps", str(options.steps)]
    command += ["--texts", str(options.texts), "--length", str(options.length), *(["--tiny"] if options.tiny else [])]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **hidden})
    if done.returncode:
        raise RuntimeError(f"{name}, {mode}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def line(row: dict) -> str:
    loss = f"{row['loss']:.4f}" if "loss" in row else ""
    return f"| {row['step']} | {row['mode']} | {row['tokens_per_second']:,.0f} | {row['peak_gib']:.2f} | {loss} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20, help="measured steps, after as many that are not")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="names of the first column, by default all")
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--json", type=Path)
    for hidden in ("--one", "--mode"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_sizes(options)
    if options.one:
        one = measure_encoding if options.one == "encoding" else None
        row = one(options.mode, options.steps) if one else measure(options.one, options.mode, options.steps)
        print(json.dumps(row))
        return 0
    print(NOTHING_CLAIMED, flush=True)
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    return print_rows(options)


def print_rows(options: argparse.Namespace) -> int:
    """Measure and print every row; return 1 if one failed, after all others."""
    chosen = options.only or [*pretrain_step.names(), "encoding"]
    rows, failed = [], 0
    print("\n| step | mode | tokens/s | peak GiB | loss |\n|---|---|---|---|---|", flush=True)
    for name in chosen:
        for mode in (mode for mode in options.modes if name != "encoding" or mode in ENCODED):
            try:
                rows.append(measured_apart(name, mode, options))
            except RuntimeError as error:
                failed += 1
                print(f"| {name} | {mode} | failed: {error} | | |", flush=True)
                continue
            print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
