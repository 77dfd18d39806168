"""What a whole run costs on this machine: time, memory and disk, before it starts.

The work of all stages (`drkit.runs.work`) is turned into time by two rates that are measured here and now: how fast all
cores together multiply matrices, and how fast one core runs Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import psutil
from attrs import evolve, frozen

from drkit.core.processes import configured_threads
from drkit.core.protocols import Collection, EstimatesSize
from drkit.core.types import CollectionSize
from drkit.recipe.schema import PSEUDO, Recipe, Training
from drkit.runs.manifest import load_manifest
from drkit.runs.stage import Stage
from drkit.runs.work import (
    BERT_BASE,
    ModelSize,
    Sizes,
    Work,
    encoder_size,
    reading_work,
    stored_size,
    training_work,
)

# Of the core on which the rates of the stages were measured: seconds of `_count_words`.
_REFERENCE = 0.027
# Share of the rate of large products that products of a model reach, and of further cores that other work gains.
_REACHED, _SHARED = 0.9, 0.8
# Seconds of starting, trying the parts, and the report; bytes of Python and its libraries.
_START, _LIBRARIES = 9.5, 0.7e9
_SIZE, _REPEATED = 768, 8


@frozen
class Cost:
    """Seconds of a whole run, and bytes of memory (of a process, at most) and of disk."""

    seconds: float
    memory: float
    disk: float

    @property
    def room(self) -> str:
        """Memory and disk in words, which hold on a machine whose speed is not known, too."""
        return f"{gigabytes(self.memory)} of memory and {gigabytes(self.disk)} of disk"

    def __str__(self) -> str:
        """The cost in one line.

        >>> print(Cost(500.0, 1.6e9, 0.84e9))
        about 8.3 min, 1.6 GB of memory and 0.8 GB of disk
        """
        return f"about {_duration(self.seconds)}, {self.room}"


@frozen
class Rates:
    """How fast this machine is: operations a second in matrix products, and a core relative to that of the rates.

    cores: how many share other work that can be shared. reading, training: how many times as long encoding and
    training take, if that was measured with the encoder.
    """

    flops: float
    core: float
    cores: int
    reading: float = 1.0
    training: float = 1.0

    def seconds(self, work: Work) -> float:
        """Return how long some work takes."""
        shared = work.parallel / (1 + _SHARED * (self.cores - 1))
        return work.flops / (_REACHED * self.flops) + (work.seconds + shared) / self.core

    def calibrated(self, model: ModelSize, length: float, *, read: float, learned: float) -> Rates:
        """Return the rates with which a token of texts of this length takes these seconds, read and learned from."""
        tokens = 1e4
        reading = self.seconds(evolve(reading_work(model, tokens, length), seconds=0.0)) / tokens
        schedule = Training(per_device_train_batch_size=1_000_000, num_train_epochs=1)
        step = training_work(model, schedule, examples=tokens / length, texts=1, tokens=length, length=int(length))
        training = self.seconds(evolve(step, seconds=0.0)) / tokens
        return evolve(self, reading=read / reading, training=learned / training)


def estimate_cost(stages: Sequence[Stage[Any]], sizes: Sizes, rates: Rates) -> Cost:
    """Return the cost of a run of these stages."""
    work = stage_work(stages, sizes)
    seconds = sum(_factor(stage, rates) * rates.seconds(work[stage.name]) for stage in stages if stage.name in work)
    return Cost(
        seconds=_START / rates.core + seconds,
        memory=_LIBRARIES + max((one.memory for one in work.values()), default=0.0),
        disk=sum(one.disk for one in work.values()),
    )


def stage_work(stages: Sequence[Stage[Any]], sizes: Sizes) -> dict[str, Work]:
    """Return the work of each stage that declares it, by name."""
    return {stage.name: stage.spec.work(stage, sizes) for stage in stages if stage.spec.work is not None}


def _factor(stage: Stage[Any], rates: Rates) -> float:
    """Return how many times as long a stage takes as its work says."""
    return rates.training if stage.is_training else rates.reading if stage.spec.name == "index" else 1.0


def measure_rates(environment: Mapping[str, str] = os.environ) -> Rates:
    """Measure the rates, with what other programs leave of the machine, within half a second."""
    threads = configured_threads(environment)
    matrix = np.ones((_SIZE, _SIZE), np.float32)
    products = _mean_seconds(lambda: matrix @ matrix)
    return Rates(2 * _SIZE**3 / products, _REFERENCE / _mean_seconds(_count_words), threads)


def _mean_seconds(do: Callable[[], object]) -> float:
    do()
    started = time.perf_counter()
    for _ in range(_REPEATED):
        do()
    return (time.perf_counter() - started) / _REPEATED


def _count_words() -> dict[str, int]:
    counts: dict[str, int] = {}
    for number in range(100_000):
        word = str(number % 1000)
        counts[word] = counts.get(word, 0) + number
    return counts


def collection_size(recipe: Recipe, collection: Collection, run: Path) -> CollectionSize | None:
    """Return the size of the collection: as a run has read it, or as the collection estimates it; None if unknown."""
    try:
        size = collection.size() if isinstance(collection, EstimatesSize) else None
    except Exception:  # of a damaged file, or a plugin's reader: stage `collection` reports it, and names the part
        return None
    manifest = load_manifest(run / "collection")
    if size is not None and recipe.evaluation.passages:
        size = evolve(size, passages=min(size.passages, recipe.evaluation.passages))
    if size is None or manifest is None:
        return size
    return evolve(size, passages=manifest.metrics["passages"], queries=manifest.metrics["queries"])


def sizes_of(recipe: Recipe, collection: CollectionSize) -> Sizes:
    """Return the sizes from which the work of a recipe's stages is counted, for a collection of this size."""
    pseudo, reranker, encoder = recipe.pseudo_queries, recipe.reranker, encoder_size(recipe.encoder) or BERT_BASE
    split = recipe.evaluation.split
    held_out = min(pseudo.held_out or 0, collection.passages) if pseudo else 0
    learned = min(pseudo.passages or collection.passages, collection.passages - held_out) if pseudo else 0
    made = {"train": learned * pseudo.count * len(pseudo.sources), PSEUDO: held_out} if pseudo else {}
    if reranker and reranker.pretrained:
        scorer = stored_size(reranker.pretrained) or BERT_BASE
    else:
        scorer = evolve(encoder, layers=max(encoder.layers, reranker.layers if reranker else 0))
    return Sizes(
        collection=collection,
        queries={"collection": collection.queries, "pseudo-queries": made},
        encoder=encoder,
        reranker=scorer,
        evaluated=(made if split == PSEUDO else collection.queries).get(split, 0),
    )


def memory_notes(recipe: Recipe, stages: Sequence[Stage[Any]], memory: int) -> list[str]:
    """Return a note for each training of which a step needs more than `memory` bytes; none if sizes are unknown."""
    if encoder_size(recipe.encoder) is None:
        return []
    sizes, notes = sizes_of(recipe, CollectionSize(0, {}, ())), []
    for stage in stages:
        needed, trained = _memory(stage, sizes), _training_setting(stage)
        if trained and needed > memory:
            chunk = _fitting_chunk(stage, trained, sizes, memory)
            notes.append(
                f"a step of {stage.name} needs about {needed / 2**30:.0f} GB of memory, and this machine has "
                f"{memory / 2**30:.0f} GB: the process may be killed (out of memory). From fewer texts at a time, "
                f"--set {trained.metadata['recipe']}.gradient_cache_chunk={chunk} computes the same gradients; a "
                f"smaller per_device_train_batch_size, fewer negatives or shorter texts need less, too"
            )
    return notes


def fitting_chunk(recipe: Recipe, stages: Sequence[Stage[Any]], memory: int) -> int | None:
    """Return the texts of a forward pass with which every training fits the memory; None if all fit as they are."""
    sizes, chunks = sizes_of(recipe, CollectionSize(0, {}, ())), []
    for stage in stages:
        trained = _training_setting(stage)
        if trained and _memory(stage, sizes) > memory:
            chunks.append(_fitting_chunk(stage, trained, sizes, memory))
    return min(chunks, default=None)


def _memory(stage: Stage[Any], sizes: Sizes) -> float:
    return stage.spec.work(stage, sizes).memory if stage.spec.work is not None else 0.0


def _training_setting(stage: Stage[Any]) -> attrs.Attribute[Any] | None:
    """Return the setting of a stage that is a training of the recipe; None if it does not train."""
    declared = attrs.fields(type(stage.settings))
    return next((a for a in declared if a.metadata and isinstance(getattr(stage.settings, a.name), Training)), None)


def _fitting_chunk(stage: Stage[Any], trained: attrs.Attribute[Any], sizes: Sizes, memory: int) -> int:
    """Return the largest power of two of texts whose step takes at most half of the memory, at least 1."""
    chunk, name = 4096, trained.name
    while chunk > 1:
        training = evolve(getattr(stage.settings, name), gradient_cache_chunk=chunk)
        if _memory(evolve(stage, settings=evolve(stage.settings, **{name: training})), sizes) <= memory / 2:
            break
        chunk //= 2
    return chunk


def has_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU, whose speed and memory are not estimated."""
    return Path("/dev/nvidiactl").exists()


def machine_memory() -> int:
    """Return the bytes of memory that a process may use."""
    limits = [psutil.virtual_memory().total]
    group = Path("/sys/fs/cgroup/memory.max")
    if group.is_file() and (limit := group.read_text(encoding="ascii").strip()).isdigit():
        limits.append(int(limit))
    return int(min(limits))


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.{int(seconds < 10 * size)}f} {unit}"
    return f"{seconds:.0f} s"


def gigabytes(number: float) -> str:
    """Return bytes in words, as in `27.0 GB`."""
    return f"{number / 1e12:,.1f} TB" if number >= 1e12 else f"{number / 1e9:,.1f} GB"
