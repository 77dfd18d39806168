"""How fast an encoder reads and learns on this machine, measured with texts of a collection in a few seconds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence

import torch
from attrs import frozen
from transformers import BertTokenizerFast

from drkit.core.processes import local_device
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.folder import PRECISIONS
from drkit.encoders.pooling import POOLINGS
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.train.checkpoints import load_tokenizer

# Texts that are read at once, in the order of their lengths as an index is made; and that are learned from at once, in
# random order as in training: the padding is that of real batches.
_READ, TIMED_TEXTS = 16, 64
# The least seconds of a measurement, and the steps that one of a recipe's encoder takes.
_SECONDS, _STEPS = 0.5, 3
# bfloat16 is used where it reads this many times as fast.
_FASTER = 1.2


# Token ids and attention mask, [B,L].
_Batch = tuple[torch.Tensor, torch.Tensor]


@frozen
class Speed:
    """Seconds for each token that is read, and that is learned from (a whole step of training), at a precision."""

    precision: str
    read: float
    learned: float


def measure_speed(encoder: str, texts: Sequence[str], *, length: int, learned_length: int, pooling: str) -> Speed:
    """Return the speed of an encoder, in bfloat16 if that reads clearly faster than float32.

    texts: of which up to 64 are used, cut after `length` tokens where they are read and after `learned_length` where
    they are learned from.

    Raises DrkitError if the encoder cannot be loaded.
    """
    device = torch.device(local_device())
    model = _load(encoder, pooling if pooling in POOLINGS else "mean").to(device)
    tokenizer = load_tokenizer(encoder)

    def batch(some: Sequence[str], cut: int) -> _Batch:
        made = tokenizer(list(some), truncation=True, max_length=cut, padding=True, return_tensors="pt")
        return made["input_ids"].to(device), made["attention_mask"].bool().to(device)

    by_length = sorted(texts[:TIMED_TEXTS], key=len)
    to_read = [batch(by_length[start : start + _READ], length) for start in range(0, len(by_length), _READ)]
    to_learn = [batch(texts[:TIMED_TEXTS], learned_length)]

    def seconds(do: Callable[[Sequence[_Batch]], None], batches: Sequence[_Batch], precision: str) -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision != PRECISIONS[0]):
            do(to_read[:1])  # the first time takes longer
            taken = _mean_seconds(lambda: do(batches), device)
        return taken / _tokens(batches)

    read, learn = _passes(model)
    whole, half = (seconds(read, to_read, precision) for precision in PRECISIONS[:2])
    precision, reading = (PRECISIONS[1], half) if whole > _FASTER * half else (PRECISIONS[0], whole)
    return Speed(precision, reading, seconds(learn, to_learn, precision))


def measure_steps(encoder: EncoderSettings, *, texts: int, length: int) -> Speed:
    """Return the speed of a recipe's encoder in float32, by the fastest of three steps.

    texts, length: the random texts of a step, and their tokens. An encoder that is made from scratch has
    random weights, on which its speed does not depend.

    Raises DrkitError if an existing encoder cannot be loaded.
    """
    device = torch.device(local_device())
    model = (_load(encoder.pretrained, "mean") if encoder.pretrained else _random(encoder)).to(device)
    ids = torch.randint(5, model.config.vocab_size, (texts, length), device=device)
    batch = [(ids, torch.ones_like(ids, dtype=torch.bool))]
    taken = []
    for one in _passes(model):
        one(batch)  # the first time takes longer
        taken.append(min(_seconds(one, batch, device) for _ in range(_STEPS)) / _tokens(batch))
    return Speed(PRECISIONS[0], *taken)


def _seconds(do: Callable[[Sequence[_Batch]], None], batches: Sequence[_Batch], device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    do(batches)
    _wait(device)
    return time.perf_counter() - started


def _load(encoder: str, pooling: str) -> MaskedLmEncoder:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no language-model head")  # which is not measured
        return MaskedLmEncoder.from_pretrained(encoder, pooling=pooling)


def _random(encoder: EncoderSettings) -> MaskedLmEncoder:
    longest = max(encoder.passage_length, encoder.query_length)
    return MaskedLmEncoder.from_scratch(
        BertSizes.of(encoder, max_positions=longest, dropout=encoder.dropout, lm_head=encoder.lm_head),
        BertTokenizerFast(vocab={f"word{number}": number for number in range(encoder.vocab_size)}),
        model_type=encoder.architecture or "bert",
        pooling="mean",
        **(encoder.architecture_settings or {}),
    )


def _passes(model: MaskedLmEncoder) -> tuple[Callable[[Sequence[_Batch]], None], Callable[[Sequence[_Batch]], None]]:
    """Return what reads batches, and what learns from them: forward, backward, and a step that changes nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    def read(batches: Sequence[_Batch]) -> None:
        model.eval()
        with torch.no_grad():
            for ids, attention in batches:
                model.vectors(ids, attention)

    def learn(batches: Sequence[_Batch]) -> None:
        model.train()
        for ids, attention in batches:
            torch.autograd.backward(model.vectors(ids, attention).float().sum())
            optimizer.step()
            optimizer.zero_grad()

    return read, learn


def _tokens(batches: Sequence[_Batch]) -> float:
    return sum(float(attention.sum()) for _, attention in batches)


def _mean_seconds(do: Callable[[], None], device: torch.device) -> float:
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
