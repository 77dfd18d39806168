"""Machines and GPUs with their peak FLOP/s, and collections of known sizes: what `hardware.toml` has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from attrs import evolve, frozen

from drkit.errors import DrkitError, did_you_mean
from drkit.recipe.schema import Training
from drkit.runs.estimate import Corpus

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Arguments of transformers for precisions whose peak is not in hardware.toml.
_OTHER_PRECISIONS = {"fp16", "tf32"}


@frozen
class Hardware:
    """A machine: cores, peak FLOP/s, the share of the peak that is reached, GB of memory, US dollars an hour.

    devices: torch's names of its GPU, if it has one.
    """

    about: str
    cores: int
    float32: float
    bfloat16: float
    share: float
    memory: float
    price: float
    devices: Sequence[str] = ()

    def peak(self, *, bf16: bool) -> float:
        """Return the floating-point operations that it does in a second at most."""
        return self.bfloat16 if bf16 else self.float32

    def flops(self, *, bf16: bool) -> float:
        """Return the floating-point operations that it does in a second."""
        return self.share * self.peak(bf16=bf16)


def read_hardware(name: str, price: float | None = None) -> Hardware:
    """Return a machine of hardware.toml; price: replaces its US dollars an hour. Raises DrkitError if it is unknown."""
    found = Hardware(**_entry("hardware", name))
    return found if price is None else evolve(found, price=price)


def device_peak(training: Training) -> float:
    """Return the peak FLOP/s of this process' GPU in the precision of a training; 0 without a GPU, or if unknown."""
    import torch

    return peak_flops(torch.cuda.get_device_name(), training) if torch.cuda.is_available() else 0.0


def peak_flops(device: str, training: Training) -> float:
    """Return the peak FLOP/s of a GPU, by torch's name of it, in the precision of a training; 0 if it is unknown."""
    if training.arguments.keys() & _OTHER_PRECISIONS:
        return 0.0
    found = (Hardware(**entry) for entry in _table("hardware").values() if device in entry.get("devices", ()))
    return next((one.peak(bf16=training.bf16) for one in found), 0.0)


def read_corpus(text: str) -> Corpus:
    """Return a collection of hardware.toml, or one of PASSAGES[:TRAIN[:TEST]]. Raises DrkitError for other texts."""
    sizes = text.replace("_", "").replace(",", "").split(":")
    if not sizes[0].isdigit():
        return Corpus(**_entry("corpora", text))
    if len(sizes) > 3 or not all(size.isdigit() for size in sizes) or not int(sizes[0]):
        raise DrkitError(f"invalid sizes {text!r}; give PASSAGES, PASSAGES:TRAIN or PASSAGES:TRAIN:TEST, in numbers")
    passages, train, test = (*map(int, sizes), 0, 0)[:3]
    return Corpus(passages, train, test, test)


def _entry(table: str, name: str) -> dict[str, Any]:
    known = _table(table)
    if name not in known:
        what = "hardware" if table == "hardware" else "collection of a known size"
        other = "" if table == "hardware" else "; or give PASSAGES:TRAIN:TEST in numbers"
        raise DrkitError(f"no {what} named {name!r}{did_you_mean(name, known)} known: {', '.join(known)}{other}")
    return dict(known[name])


def _table(name: str) -> dict[str, dict[str, Any]]:
    found = tomllib.loads(files("drkit.runs").joinpath("hardware.toml").read_text(encoding="utf-8"))
    return dict(found[name])
