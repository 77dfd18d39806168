"""How fast an encoder reads and learns on this machine, measured with texts of a collection in a few seconds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch
from attrs import frozen

from drkit.core.processes import local_device
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.folder import PRECISIONS
from drkit.encoders.pooling import POOLINGS
from drkit.train.checkpoints import load_tokenizer

# Texts of a measurement, and the least seconds that it takes.
_TEXTS, _SECONDS = 8, 0.5


@frozen
class Speed:
    """Seconds for each token that is read, and that is learned from (forward and backward), at a precision."""

    precision: str
    read: float
    learned: float


def measure_speeds(encoder: str, texts: Sequence[str], *, length: int, pooling: str) -> list[Speed]:
    """Return the speeds of an encoder in float32 and in bfloat16.

    texts: of which up to 8 are read at once, cut after `length` tokens.

    Raises DrkitError if the encoder cannot be loaded.
    """
    device = torch.device(local_device())
    own = pooling if pooling in POOLINGS else "mean"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no language-model head")  # which is not measured
        model = MaskedLmEncoder.from_pretrained(encoder, pooling=own).to(device)
    tokenizer = load_tokenizer(encoder)
    batch = tokenizer(list(texts[:_TEXTS]), truncation=True, max_length=length, padding=True, return_tensors="pt")
    ids, attention = batch["input_ids"].to(device), batch["attention_mask"].bool().to(device)
    tokens = float(attention.sum())

    def read() -> None:
        model.eval()
        with torch.no_grad():
            model.vectors(ids, attention)

    def learn() -> None:
        model.train()
        torch.autograd.backward(model.vectors(ids, attention).float().sum())
        model.zero_grad()

    speeds = []
    for precision in PRECISIONS[:2]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision != PRECISIONS[0]):
            speeds.append(Speed(precision, _mean_seconds(read, device) / tokens, _mean_seconds(learn, device) / tokens))
    return speeds


def _mean_seconds(do: Callable[[], None], device: torch.device) -> float:
    do()
    _wait(device)
    started, done = time.perf_counter(), 0
    while not done or time.perf_counter() - started < _SECONDS:
        do()
        _wait(device)
        done += 1
    return (time.perf_counter() - started) / done


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
