"""A fine-tuning step: drkit's trainer against sentence-transformers', on the same model, texts, batches and lengths.

    python benchmarks/finetune_step.py [--encoder FOLDER] [--kinds plain cached] [--length 256] [--steps 6] [--runs 3]

MultipleNegativesRankingLoss with batches of 32 pairs against the loss `contrastive`, and
CachedMultipleNegativesRankingLoss with batches of 128 in chunks of 32 against `gradient_cache_chunk = 32`; temperature
.05, cosine, mean pooling, AdamW, at most 256 tokens (what all-MiniLM-L6-v2 declares). A pair is a docstring's first
sentence and the rest of it. Both trainers get the same random batches: drkit's own schedule, which puts texts of
similar length into a batch, is not used. The model has no dropout, so that the losses of the first step show that both
do the same work; it is random, 6 layers of 384, without --encoder. Each measurement is a fresh process on one thread;
the sides take turns. A step is the time from the end of one step to the end of the next, and the first, which warms up,
is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from encoding import peak_memory, random_encoder

SIDES = ("drkit", "sentence-transformers")
SIZES = {"plain": (32, 0), "cached": (128, 32)}  # pairs in a batch, and in a chunk
TEMPERATURE, SEED = 0.05, 1


def sample_pairs(count: int) -> list[tuple[str, str]]:
    from drkit.data import PydocsCollection, PydocsConfig

    pairs = {}
    for passage in PydocsCollection(PydocsConfig(limit=200)).passages():
        query, _, text = " ".join(passage.content.split()).partition(". ")
        if 15 < len(query) < 200 and len(text) > 60:
            pairs[query] = text
    unique = list({text: query for query, text in pairs.items()}.items())
    if len(unique) < count:
        raise SystemExit(f"only {len(unique)} pairs in the installed docstrings; use fewer steps")
    return [(query, text) for text, query in unique[:: len(unique) // count][:count]]


def without_dropout(encoder: Path, folder: Path) -> Path:
    shutil.copytree(encoder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {name: 0.0 for name in config if name.endswith(("dropout_prob", "dropout"))}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def batches(pairs: int, size: int, steps: int):
    """The schedule of drkit without lengths: random batches."""
    import numpy as np

    from drkit.train.batches import Schedule

    return Schedule(lengths=np.ones(pairs, dtype=np.int32), batch_size=size, batches=steps, seed=SEED)


def clock():
    """A callback of transformers' Trainer that notes the time at the end of every step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.times: list[tuple[float, float]] = []

        def on_step_end(self, *_args, **_options) -> None:
            self.times.append((time.process_time(), time.perf_counter()))

    return Clock()


def run_drkit(encoder: str, pairs: list[tuple[str, str]], size: int, chunk: int, length: int, steps: int, folder: Path):
    import numpy as np
    from transformers import AutoTokenizer

    from drkit.core.progress import Silent
    from drkit.core.registry import installed
    from drkit.data.store import TokenStore, tokenise
    from drkit.encoders import MaskedLmEncoder
    from drkit.recipe.schema import Training
    from drkit.train.biencoder import BiEncoder, PairCollator, TrainingPairs
    from drkit.train.trainer import train

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    for side, name in enumerate(("queries", "passages")):
        tokenise(((str(i), pair[side]) for i, pair in enumerate(pairs)), tokenizer, folder / name, max_length=length)
    queries, passages = (TokenStore.open(folder / name) for name in ("queries", "passages"))
    registry = installed().registry
    spec = registry.get("loss", "contrastive")
    loss = registry.build("loss", "contrastive", spec.config(temperature=TEMPERATURE, similarity="cosine"))
    module = BiEncoder(MaskedLmEncoder.from_pretrained(encoder, pooling="mean"), loss)
    own = [np.array([i]) for i in range(len(pairs))]
    none = [np.empty(0, dtype=np.int64) for _ in pairs]
    collate = PairCollator(TrainingPairs(np.arange(len(pairs)), own, none), queries, passages, negatives=0, seed=SEED)
    how = {"learning_rate": 1e-5, "max_steps": steps, "per_device_train_batch_size": size, "warmup_steps": 0}
    training = Training(**how, gradient_cache_chunk=chunk, logging_steps=1, save_steps=10_000)
    schedule, ticks = batches(len(pairs), size, steps), clock()
    done = train(
        module,
        schedule,
        collate,
        training=training,
        folder=folder / "checkpoints",
        progress=Silent(),
        seed=SEED,
        callbacks=[ticks],
    )
    return ticks.times, done.log[0]["loss"]


def run_sentence_transformers(
    encoder: str, pairs: list[tuple[str, str]], size: int, chunk: int, length: int, steps: int, folder: Path
):
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
    from torch.utils.data import BatchSampler, SequentialSampler

    model = SentenceTransformer(encoder, device="cpu", local_files_only=True)
    model.max_seq_length = length
    how = {"scale": 1 / TEMPERATURE}
    loss = (
        CachedMultipleNegativesRankingLoss(model, mini_batch_size=chunk, **how)
        if chunk
        else MultipleNegativesRankingLoss(model, **how)
    )
    order = [row for batch in batches(len(pairs), size, steps) for _, row in batch]
    columns = {name: [pairs[row][side] for row in order] for side, name in enumerate(("anchor", "positive"))}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=size,
        learning_rate=1e-5,
        weight_decay=0.01,
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=SEED,
    )

    class Ordered(SentenceTransformerTrainer):
        def get_batch_sampler(self, dataset, batch_size, drop_last, **_options):
            return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    ticks = clock()
    trainer = Ordered(model, args=arguments, train_dataset=Dataset.from_dict(columns), loss=loss, callbacks=[ticks])
    trainer.train()
    return ticks.times, next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


def one(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    size, chunk = SIZES[options.kind]
    pairs = [tuple(pair) for pair in json.loads(Path(options.read).read_text())]
    run = run_drkit if options.one == "drkit" else run_sentence_transformers
    with tempfile.TemporaryDirectory() as folder:
        times, loss = run(options.encoder, pairs, size, chunk, options.length, options.steps, Path(folder))
    steps = [[b - a for a, b in zip(one, two, strict=True)] for one, two in pairwise(times)]
    processor, wall = map(statistics.median, zip(*steps, strict=True))
    print(json.dumps({"processor": processor, "wall": wall, "loss": float(loss), "peak_mb": peak_memory()}))


def measure(side: str, kind: str, options: argparse.Namespace, read: Path, encoder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", side, "--kind", kind, "--read", str(read)]
    command += ["--encoder", str(encoder)]
    command += ["--length", str(options.length), "--steps", str(options.steps)]
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **quiet})
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    pairs = sample_pairs(max(options.steps * SIZES[kind][0] for kind in options.kinds))
    (folder / "pairs.json").write_text(json.dumps(pairs))
    given = Path(options.encoder) if options.encoder else None
    encoder = given or random_encoder(folder / "random", [text for pair in pairs for text in pair])
    encoder = without_dropout(encoder, folder / "encoder")
    words = sorted(len(text.split()) for _, text in pairs)
    print(
        f"{len(pairs)} pairs; passages of {words[len(words) // 20]} to {words[-len(words) // 20]} words (5% to 95%)\n"
    )
    print(
        "| batch | trainer | processor s | wall s | times drkit's | peak MB | first loss |\n"
        "|---|---|---|---|---|---|---|"
    )
    rows: dict[str, object] = {}
    for kind in options.kinds:
        size, chunk = SIZES[kind]
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(options.runs):
            for side in SIDES:
                found[side].append(measure(side, kind, options, folder / "pairs.json", encoder))
        for side, runs in found.items():
            ratios = sorted(
                run["processor"] / ours["processor"] for run, ours in zip(runs, found["drkit"], strict=True)
            )
            middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            batch = f"{size}, chunks of {chunk}" if chunk else str(size)
            ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(
                f"| {batch} | {side} | {middle['processor']:.2f} | {middle['wall']:.2f} | {ratio} "
                f"| {middle['peak_mb']:.0f} | {middle['loss']:.5f} |",
                flush=True,
            )
            rows[f"{kind} {side}"] = runs
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder")
    parser.add_argument("--kinds", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--length", type=int, default=256, help="tokens of a text at most")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    for hidden in ("--one", "--kind", "--read"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
