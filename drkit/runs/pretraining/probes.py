"""Is pre-training working? Measured at steps that the recipe sets, on texts that are kept out of it, and on queries.

`probes.jsonl` in the stage's folder has one line per probe, `{"step": 500, "gain": 0.42, ..}`;
docs/guide/is-it-working.md says what each number means. Probes do not change the weights that training ends with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from transformers import TrainerCallback

from drkit.core.files import write_text
from drkit.data.store import TokenStore
from drkit.data.tables import collection_of
from drkit.evaluate.geometry import anisotropy, top_direction
from drkit.runs.finetuning.retrieval_probe import MEASURE, RetrievalProbe, retrieval_probe
from drkit.runs.pretraining.branches import measure_branches, undisturbed
from drkit.runs.retriever import encoder_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from drkit.runs.pretraining.autoencoder import AutoEncoder
    from drkit.runs.pretraining.masking import MaskingCollator
    from drkit.runs.progress import Progress
    from drkit.runs.stage import StageRun
    from drkit.runs.stages.pretrain import PretrainSettings
    from drkit.search import TextEncoder

FILE = "probes.jsonl"
Record = Mapping[str, float]
# The epoch whose masks a probe sees, every time: no training comes there.
EPOCH = -1
BATCH = 32
_SEED = 0x68656C64


def held_out(
    count: int, texts: int, *, seed: int, documents: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places that are trained on, places kept out), both in order; kept out are `texts` at random, a tenth at most.

    documents: i64[count], which document each text is a part of. A document is kept out whole, or its parts would be
    seen as each other's contexts. None: every text is a document of its own.

    >>> trained, kept = held_out(30, 2, seed=1)
    >>> len(trained), len(kept), len(np.union1d(trained, kept))
    (28, 2, 30)
    """
    wanted = min(texts, count // 10)
    given = np.arange(count) if documents is None else documents
    numbers, sizes = np.unique(given, return_counts=True)
    drawn = np.random.default_rng([seed, _SEED]).choice(len(numbers), min(wanted, len(numbers)), replace=False)
    kept = np.isin(given, numbers[drawn[np.cumsum(sizes[drawn]) <= wanted]])
    return np.flatnonzero(~kept), np.flatnonzero(kept)


@frozen(eq=False)
class Probes:
    """All that a probe measures.

    held_out: i64[n], places of the texts that are kept out, in the store of `collate`, which masks them as in training.
    encoder: the same weights as the module's, for whole texts. retrieval: None where the collection has no queries;
    passages: the tokens of what it searches in.
    """

    module: AutoEncoder
    encoder: TextEncoder
    collate: MaskingCollator
    passages: TokenStore
    held_out: NDArray[np.int64]
    retrieval: RetrievalProbe | None

    def measure(self) -> dict[str, float]:
        """The figures of this moment, by name; see docs/guide/is-it-working.md."""
        found = measure_branches(self.module, self._batches())
        with undisturbed(self.module):
            if len(self.held_out) > 1:
                vectors = self.encoder.encode_tokens([self.collate.store.tokens(place) for place in self.held_out])
                found |= {"anisotropy": anisotropy(vectors), "top_direction": top_direction(vectors)}
            if self.retrieval is not None:
                found[MEASURE] = self.retrieval.measure(self.encoder, self.passages)
        return {name: float(f"{value:.6g}") for name, value in found.items()}

    def _batches(self) -> Iterator[Mapping[str, Tensor]]:
        """Batches of two texts at least, or none: a vector must have another one to be exchanged for."""
        if len(self.held_out) > 1:
            for places in np.array_split(self.held_out, -(-len(self.held_out) // BATCH)):
                yield self.collate([(EPOCH, int(place)) for place in places])

    def describe(self) -> str:
        """What is measured on what, in a line."""
        texts = f"{len(self.held_out):,} texts are kept out of pre-training and probed"
        if self.retrieval is None:
            return f"{texts}; no queries, so no retrieval probe"
        known = self.retrieval
        return f"{texts}, and {len(known.queries):,} {known.split} queries over {len(known.places):,} passages"


def probing(
    stage: StageRun[PretrainSettings],
    module: AutoEncoder,
    tokenizer: Any,
    collate: MaskingCollator,
    *,
    held_out: NDArray[np.int64],
) -> list[ProbeCallback]:
    """Return the callback that probes a pre-training stage, in a list that is empty where probes are off."""
    settings = stage.settings.pretrain.probe
    if not settings.every:
        return []
    searched = {name.removeprefix("probe/"): path for name, path in stage.inputs.items() if name.startswith("probe/")}
    probes = Probes(
        module=module,
        encoder=encoder_of(module.encoder.backbone, tokenizer, stage.settings.reading),
        collate=collate,
        passages=TokenStore.open(searched["tokens"]),
        held_out=held_out,
        retrieval=retrieval_probe(collection_of(searched), settings, seed=stage.settings.seed),
    )
    return [ProbeCallback(probes, settings.every, ProbeLog(stage.folder), stage.progress)]


class ProbeLog:
    """What was measured during a training, a line each; what came after the step that is resumed from is done anew."""

    def __init__(self, folder: Path, name: str = FILE) -> None:
        self.path = folder / name
        self.records: list[Record] = []

    def resume(self, step: int) -> None:
        """Keep what was measured up to `step`, whatever a kill left behind it."""
        before = read_probes(self.path) if self.path.exists() else []
        self.records = [record for record in before if record["step"] <= step]
        self._write()

    def has(self, step: int) -> bool:
        """Whether this step was probed."""
        return any(record["step"] == step for record in self.records)

    def add(self, record: Record) -> None:
        """Write one more probe."""
        self.records.append(record)
        self._write()

    def _write(self) -> None:
        write_text(self.path, "".join(f"{json.dumps(dict(record))}\n" for record in self.records))


def read_probes(path: Path) -> list[Record]:
    """The probes in a file, in the order of their steps."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class ProbeCallback(TrainerCallback):  # type: ignore[misc]
    """Probes at step 0, at every multiple of `every`, and at the end; on the first process alone."""

    def __init__(self, probes: Probes, every: int, log: ProbeLog, progress: Progress) -> None:
        self._probes, self._every, self._log, self._progress = probes, every, log, progress

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Take up what an earlier attempt measured; the first probe comes before the first step."""
        if _may_measure(args, state):
            self._progress.note(self._probes.describe())
            self._log.resume(state.global_step)
            self._probe(state.global_step, due=state.global_step % self._every == 0)

    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """A probe where one is due."""
        if _may_measure(args, state):
            self._probe(state.global_step, due=state.global_step % self._every == 0)

    def on_train_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """The last probe."""
        if _may_measure(args, state):
            self._probe(state.global_step, due=True)

    def _probe(self, step: int, *, due: bool) -> None:
        if due and not self._log.has(step):
            record = {"step": step, **self._probes.measure()}
            self._log.add(record)
            self._progress.note(probe_line(record))


def _may_measure(args: Any, state: Any) -> bool:
    """On the first process, where it has the whole module: weights in shards cannot be used by one process."""
    return bool(state.is_world_process_zero) and not args.fsdp and not args.deepspeed


_LINE: Sequence[tuple[str, str, str]] = (
    ("encoder_accuracy", "encoder", "%"),
    ("decoder_accuracy", "decoder", "%"),
    ("gain", "gain", "nats"),
    ("anisotropy", "anisotropy", ""),
    (MEASURE, MEASURE, ""),
)


def probe_line(record: Record) -> str:
    """A probe in one line.

    >>> probe_line({"step": 500, "encoder_accuracy": 0.3121, "gain": 0.42, "RR@10": 0.2124})
    'probe @ 500: encoder 31.2 % · gain 0.42 nats · RR@10 0.212'
    """
    shown = [f"{label} {_figure(record[name], unit)}" for name, label, unit in _LINE if name in record]
    return f"probe @ {record['step']:,}: {' · '.join(shown) or 'nothing to measure'}"


def _figure(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{round(value, 2) + 0.0:.2f} nats" if unit == "nats" else f"{value:.3f}"
