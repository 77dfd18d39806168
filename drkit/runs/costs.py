"""What a run needs: memory and disk, counted from sizes; and its time, as far as this machine has shown it.

The seconds of a stage are those of an earlier stage of its kind on this machine, by the amounts of work of both (see
`drkit.runs.work`): manifests record both, and the runs beside a run are read. A stage that no earlier run shows is
`unknown`: its time is known from its first steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import attrs
import psutil
from attrs import evolve, frozen

from drkit.core import processes
from drkit.core.protocols import Collection, EstimatesSize
from drkit.core.quantities import counted
from drkit.core.types import CollectionSize
from drkit.data.splits import PSEUDO
from drkit.errors import DrkitError
from drkit.recipe.schema import Recipe
from drkit.recipe.training import Training
from drkit.runs.manifest import Manifest, load_manifest, machine
from drkit.runs.stage import Stage
from drkit.runs.work import (
    BERT_BASE,
    OPERATIONS,
    ModelSize,
    Sizes,
    Work,
    encoder_size,
    reading_work,
    stored_size,
    trained_work,
)

# Bytes of Python and its libraries.
_LIBRARIES = 0.7e9
# The newest runs that are read for the seconds of their stages, and the folder of runs unless another one is named.
_NEWEST, RUNS = 12, Path("runs")


@frozen
class Cost:
    """Seconds of a whole run without those of `unknown` stages, and bytes of memory (of a process, at most) and disk.

    unknown: the stages whose time this machine has not shown yet.
    """

    seconds: float
    memory: float
    disk: float
    unknown: tuple[str, ...] = ()

    @property
    def time(self) -> float | None:
        """The seconds of the whole run; None if those of a stage are unknown."""
        return None if self.unknown else self.seconds

    def __str__(self) -> str:
        """The cost in one line.

        >>> print(Cost(500.0, 1.6e9, 0.84e9))
        about 8.3 min, 1.6 GB of memory and 0.8 GB of disk
        >>> print(Cost(500.0, 1.6e9, 0.84e9, unknown=("pretrained",)))
        about 8.3 min without pretrained (unknown until its first step), 1.6 GB of memory and 0.8 GB of disk
        >>> print(Cost(0.0, 1.6e9, 0.84e9, unknown=("pretrained", "retriever-1")))
        time unknown until the first step, 1.6 GB of memory and 0.8 GB of disk
        """
        time = f"about {_duration(self.seconds)}"
        if self.unknown and self.seconds:
            one, *others = self.unknown
            names = f"{one} and {counted(len(others), 'other stage')}" if others else one
            time += f" without {names} (unknown until {'their' if others else 'its'} first step)"
        elif self.unknown:
            time = "time unknown until the first step"
        return f"{time}, {gigabytes(self.memory)} of memory and {gigabytes(self.disk)} of disk"


# The kinds of stages that pass texts forward and backward through the encoder.
_TRAININGS = ("pretrain", "finetune", "reranker")


@frozen
class Shown:
    """A stage that this machine has made: its kind, the amount of its work and the unit, and its seconds."""

    kind: str
    amount: float
    unit: str
    seconds: float


@frozen
class Rates:
    """How fast this machine is, as far as stages have shown."""

    shown: tuple[Shown, ...] = ()

    def seconds(self, kind: str, work: Work) -> float | None:
        """Return the seconds of a stage's work, by the largest stage of its kind and unit; None without any."""
        if not work.amount:
            return 0.0
        alike = [one for one in self.shown if (one.kind, one.unit) == (kind, unit_of(work))]
        largest = max(alike, key=lambda one: one.amount, default=None)
        return largest.seconds * work.amount / largest.amount if largest else None

    def calibrated(
        self, model: ModelSize, *, read: float, learned: float, length: float, learned_length: float
    ) -> Rates:
        """Return the rates with which a token of texts of these lengths takes these seconds, read and learned from."""
        tokens = 1e4
        trained = trained_work(model, tokens, learned_length), learned
        measured = {"index": (reading_work(model, tokens, length), read), **dict.fromkeys(_TRAININGS, trained)}
        shown = [Shown(kind, work.amount, unit_of(work), tokens * each) for kind, (work, each) in measured.items()]
        return Rates(tuple(shown)).or_else(self)

    def or_else(self, measured: Rates) -> Rates:
        """Return these rates, with those of `measured` for what no stage has shown."""
        known = {(one.kind, one.unit) for one in self.shown}
        return Rates((*self.shown, *(one for one in measured.shown if (one.kind, one.unit) not in known)))


def estimate_cost(stages: Sequence[Stage[Any]], sizes: Sizes, rates: Rates) -> Cost:
    """Return the cost of a run of these stages."""
    work = stage_work(stages, sizes)
    seconds = {stage.name: rates.seconds(stage.spec.name, work[stage.name]) for stage in stages if stage.name in work}
    return Cost(
        seconds=sum(filter(None, seconds.values())),
        memory=_LIBRARIES + max((one.memory for one in work.values()), default=0.0),
        disk=sum(one.disk for one in work.values()),
        unknown=tuple(name for name, one in seconds.items() if one is None),
    )


def stage_work(stages: Sequence[Stage[Any]], sizes: Sizes) -> dict[str, Work]:
    """Return the work of each stage that declares it, by name."""
    return {stage.name: stage.spec.work(stage, sizes) for stage in stages if stage.spec.work is not None}


def earlier_rates(run: Path) -> Rates:
    """Return what the newest runs beside a run, and in `runs`, have shown of this machine."""
    folders = {path.resolve(): path for parent in (run.parent, RUNS) if parent.is_dir() for path in parent.iterdir()}
    times = [(_modified(path), path) for path in folders.values() if path.is_dir() and not path.is_symlink()]
    newest = sorted(times, key=itemgetter(0), reverse=True)[:_NEWEST]
    manifests = (manifest for _, path in newest for manifest in _manifests(path))
    return Rates(tuple(Shown(one.stage, one.amount, one.unit, one.seconds) for one in manifests if _is_alike(one)))


def _modified(path: Path) -> float:
    """Return when a folder was changed, or 0 if it has just been removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _manifests(run: Path) -> Iterator[Manifest]:
    for path in run.glob("*/manifest.json"):
        try:
            found = load_manifest(path.parent)
        except DrkitError:  # a link, or another layout
            continue
        if found is not None:
            yield found


def _is_alike(manifest: Manifest) -> bool:
    """Return whether a stage shows the speed of this machine: its processor, its cores, and whether a GPU trained."""
    here, there = machine(), manifest.machine
    same = all(here.get(name) == there.get(name) for name in ("processor", "cores"))
    is_model = manifest.unit.startswith(OPERATIONS)
    return same and manifest.amount > 0 and (("gpu" in there) == has_gpu() or not is_model)


def unit_of(work: Work) -> str:
    """Return the unit of some work, with the number of processes that share it if there are several; "" for none."""
    count = processes.process_count()
    return f"{work.unit} in {count} processes" if work.unit and count > 1 else work.unit


def collection_size(recipe: Recipe, collection: Collection, run: Path) -> CollectionSize | None:
    """Return the size of the collection: as a run has read it, or as the collection estimates it; None if unknown."""
    size = estimated_size(recipe, collection)
    manifest = load_manifest(run / "collection")
    return size if size is None or manifest is None else size_as_read(size, manifest)


def estimated_size(recipe: Recipe, collection: Collection) -> CollectionSize | None:
    """Return the size of the collection as it estimates it; None if unknown."""
    try:
        size = collection.size() if isinstance(collection, EstimatesSize) else None
    except Exception:  # of a damaged file, or a plugin's reader: stage `collection` reports it, and names the part
        return None
    if size is not None and recipe.evaluation.passages:
        size = evolve(size, passages=min(size.passages, recipe.evaluation.passages))
    return size


def size_as_read(size: CollectionSize, manifest: Manifest) -> CollectionSize:
    """Return the size of a collection with the counts of the run that has read it."""
    return evolve(size, passages=manifest.metrics["passages"], queries=manifest.metrics["queries"])


def planned_sizes(recipe: Recipe, collection: CollectionSize) -> Sizes:
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
        length=recipe.encoder.passage_length,
        gpu=has_gpu(),
    )


def memory_notes(recipe: Recipe, stages: Sequence[Stage[Any]], memory: int) -> list[str]:
    """Return a note for each training of which a step needs more than `memory` bytes; none if sizes are unknown."""
    if encoder_size(recipe.encoder) is None:
        return []
    sizes, notes = planned_sizes(recipe, CollectionSize(0, {}, ())), []
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
    sizes, chunks = planned_sizes(recipe, CollectionSize(0, {}, ())), []
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
    """Return whether this machine has an NVIDIA GPU."""
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
