"""Is pre-training working? Probes measure it at steps that the recipe sets, on held-out texts and on queries.

They measure what the encoder and the decoders predict, how much the vector helps the decoders, how the vectors are
spread, and how well they retrieve. `probes.jsonl` in the stage's folder has one line per probe,
`{"step": 500, "gain": 0.42, ..}`; docs/guide/is-it-working.md explains each number. Training with and without probes
gives the same weights, bit for bit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor, nn

from drkit.core.files import CHECKPOINTS, PROBES, read_log, write_text
from drkit.core.protocols import MeasuresAccuracy
from drkit.core.quantities import counted
from drkit.core.scheduled_parts import follow_progress
from drkit.data.store import TokenStore
from drkit.recipe.schema import ENCODER_SIDE
from drkit.search import TextEncoder
from drkit.train.pretrain import AutoEncoder, MaskingCollator, swap_vectors
from drkit.train.resuming import CALLBACKS
from drkit.train.retrieval_probe import MEASURE, RetrievalProbe

# Every probe uses the masks of this epoch, which training never reaches.
EPOCH = -1
# And the settings at the end of the training, so that probes of different steps measure the same.
AT_THE_END = 1.0
_BATCH = 32
_HELD_OUT_SEED = 0x68656C64

_Record = Mapping[str, float]

Outputs = Mapping[str, Any]


@frozen
class Measured:
    """What was measured at a step: metrics by name, and the value of each query for the metric that decides.

    values: empty if no weights are chosen by them.
    """

    metrics: Mapping[str, float]
    values: Mapping[str, float] = field(factory=dict)


@frozen(eq=False)
class Probes:
    """Everything that a probe measures, by the callback of `drkit.train.validation`.

    held_out: i64[n], indices of the held-out texts in the store of `collate`, which masks them as in training. encoder:
    encodes whole texts with the module's weights. passages: the tokens of the corpus that `retrieval` searches.
    retrieval: None if the collection has no queries.
    """

    module: AutoEncoder
    encoder: TextEncoder
    collate: MaskingCollator
    passages: TokenStore
    held_out: NDArray[np.int64]
    retrieval: RetrievalProbe | None

    setting: ClassVar[str] = "pretrain.probe"
    file: ClassVar[str] = PROBES
    decides: ClassVar[str] = MEASURE
    measures_start: ClassVar[bool] = True

    def measure(self) -> Measured:
        """Return the current metrics by name; see docs/guide/is-it-working.md."""
        follow_progress(self.module, AT_THE_END)
        metrics = measure_branches(self.module, self._batches())
        with evaluating(self.module):
            if len(self.held_out) > 1:
                store = self.collate.texts.store
                vectors = self.encoder.encode_tokens([store.tokens(index) for index in self.held_out])
                metrics |= {"anisotropy": anisotropy(vectors), "top_direction": top_direction(vectors)}
            if self.retrieval is not None:
                metrics[MEASURE] = self.retrieval.measure(self.encoder, self.passages)
        return Measured({name: float(f"{value:.6g}") for name, value in metrics.items()})

    def describe(self) -> str:
        """Return in one line what is measured, and on what."""
        texts = f"probing {counted(len(self.held_out), 'text')} held out of pre-training"
        probe = self.retrieval
        if probe is None:
            return f"{texts}; the collection has no queries for a retrieval probe"
        return (
            f"{texts}, and {counted(len(probe.queries), f'{probe.split} query')} over "
            f"{counted(len(probe.indices), 'passage')}"
        )

    def line(self, record: _Record) -> str:
        """Format a probe in one line."""
        return probe_line(record)

    def _batches(self) -> Iterator[Mapping[str, Tensor]]:
        """Yield batches of at least two texts, because the gain is measured by swapping vectors within a batch."""
        if len(self.held_out) > 1:
            for indices in np.array_split(self.held_out, -(-len(self.held_out) // _BATCH)):
                yield self.collate.at_progress(AT_THE_END)([(EPOCH, int(index)) for index in indices])


def measure_branches(module: AutoEncoder, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return losses and accuracies of the encoder and of each decoder, and the gain from the bottleneck.

    batches: of at least two texts each. The metrics are `TERM_loss` for each local loss; `encoder_accuracy` and
    `DECODER_accuracy` in [0, 1], by the side's first loss that measures one (`MeasuresAccuracy`); and `gain` in nats:
    how much the decoders' losses rise if every text gets the vector of another text of the batch, all else equal.

    The module's mode and weights and torch's random state do not change.
    """
    means = _Means()
    with evaluating(module):
        device = next(module.parameters()).device
        for batch in batches:
            tensors = {name: tensor.to(device) for name, tensor in batch.items()}
            views, _ = module.filled_views(tensors)
            encoder_pass = module.encode(views, tensors)
            outputs = module.outputs(encoder_pass, views, tensors)
            rows = len(encoder_pass.view.ids)
            right = _local_losses(module, outputs, rows)
            _add_accuracies(means, module, outputs)
            wrong = _local_losses(module, module.decode(swap_vectors(encoder_pass), views, tensors), rows)
            for name, (loss, items) in right.items():
                means.add(f"{name}_loss", loss * items, items)
                if module.terms[name].on != ENCODER_SIDE:
                    means.add(f"{name}_gain", (wrong[name][0] - loss) * items, items)
    found = means.result()
    gains = [found.pop(name) for name in list(found) if name.endswith("_gain")]
    return {**found, "gain": sum(gains)} if gains else found


class _Means:
    """Weighted means by name."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)

    def add(self, name: str, total: float, weight: float) -> None:
        self._sums[name] += total
        self._weights[name] += weight

    def result(self) -> dict[str, float]:
        return {name: self._sums[name] / weight for name, weight in self._weights.items() if weight}


def _local_losses(module: AutoEncoder, outputs: Mapping[str, Outputs], rows: int) -> dict[str, tuple[float, float]]:
    """Return each local loss on these outputs, with the number of items that it is a mean over."""
    found = {}
    for name, term in module.terms.items():
        if not term.compares and term.on in outputs:
            inputs = term.inputs(outputs[term.on])
            found[name] = (float(term.loss(**inputs).loss), float(term.items(inputs, torch.tensor(rows))))
    return found


def _add_accuracies(means: _Means, module: AutoEncoder, outputs: Mapping[str, Outputs]) -> None:
    for branch, provided in outputs.items():
        for term in (term for term in module.terms.values() if term.on == branch):
            if isinstance(term.loss, MeasuresAccuracy):
                means.add(f"{branch}{ACCURACY}", *term.loss.accuracy(**term.inputs(provided)))
                break


def anisotropy(vectors: NDArray[np.float32]) -> float:
    """Return the mean cosine of two different vectors of f[n,D]: 0 if they spread evenly, 1 if all have one direction.

    NaN for fewer than two vectors. A zero vector has cosine 0 with every other vector.

    Source: Ethayarajh 2019, section 4.1 (over all pairs instead of a random sample).

    >>> anisotropy(np.array([[1.0, 0.0], [0.0, 2.0]])), anisotropy(np.array([[1.0, 1.0], [3.0, 3.0]]))
    (0.0, 1.0)
    """
    count = len(vectors)
    if count < 2:
        return float("nan")
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    own = float((units**2).sum())  # the cosines of vectors with themselves
    return round((float((units.sum(0) ** 2).sum()) - own) / (count * (count - 1)), 12)


def top_direction(vectors: NDArray[np.float32]) -> float:
    """Return the share of the variance of f[n,D] around its mean in one direction: 1/D at best, 1 at worst.

    Unlike `anisotropy`, it ignores a common offset: vectors may share a mean and still spread around it. NaN if all
    vectors are equal.

    >>> top_direction(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]))
    1.0
    """
    rows = np.asarray(vectors, dtype=np.float64)
    centred = rows - rows.mean(0)
    spectrum = np.linalg.svd(centred, compute_uv=False) ** 2
    total = float(spectrum.sum())
    return round(float(spectrum[0]) / total, 12) if total > 0 else float("nan")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run a block without dropout or graph; the module's mode and torch's random state are restored afterwards."""
    modes = {inner: inner.training for inner in module.modules()}
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    module.eval()
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        for inner, mode in modes.items():
            inner.training = mode


def held_out(
    count: int, texts: int, *, seed: int, documents: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split `count` texts at random; returns the indices to train on and those held out, both in ascending order.

    texts: how many to hold out, a tenth of all at most. documents: i64[count], the document of each
    text. Documents are held out whole, because their texts are contexts of each other. None: every text is a document.

    >>> trained, kept = held_out(30, 2, seed=1)
    >>> len(trained), len(kept), len(np.union1d(trained, kept))
    (28, 2, 30)
    """
    limit = min(texts, count // 10)
    document_of = np.arange(count) if documents is None else documents
    numbers, sizes = np.unique(document_of, return_counts=True)
    drawn = np.random.default_rng([seed, _HELD_OUT_SEED]).choice(len(numbers), min(limit, len(numbers)), replace=False)
    kept = np.isin(document_of, numbers[drawn[np.cumsum(sizes[drawn]) <= limit]])
    return np.flatnonzero(~kept), np.flatnonzero(kept)


class ProbeLog:
    """The measurements of a training, one line each.

    Every checkpoint contains them as they were at its step; `NAME` in the stage's folder is a copy.
    """

    def __init__(self, folder: Path, name: str = PROBES) -> None:
        self.path = folder / name
        self._resumed = folder / CHECKPOINTS / CALLBACKS / name
        self.records: list[_Record] = []

    def resume(self) -> None:
        """Keep the measurements of the checkpoint that training resumes from; an interrupted attempt may have more."""
        self.records = [*read_log(self._resumed)]
        self._write()

    def has(self, step: int) -> bool:
        """Return whether this step was measured."""
        return any(record["step"] == step for record in self.records)

    def add(self, record: _Record) -> None:
        """Append a measurement and write the file."""
        self.records.append(record)
        self._write()

    def _write(self) -> None:
        lines = "".join(f"{json.dumps(dict(record))}\n" for record in self.records)
        for path in (self._resumed, self.path):
            write_text(path, lines)


ACCURACY = "_accuracy"
# (metric, label, unit) of each metric that `probe_line` shows after the accuracies.
_LINE: Sequence[tuple[str, str, str]] = (
    ("gain", "gain", "nats"),
    ("anisotropy", "anisotropy", ""),
    (MEASURE, MEASURE, ""),
)


def probe_line(record: _Record) -> str:
    """Format a probe in one line.

    >>> probe_line({"step": 500, "encoder_accuracy": 0.3121, "gain": 0.42, "RR@10": 0.2124})
    'probe @ 500: encoder 31.2 % · gain 0.42 nats · RR@10 0.212'
    """
    sides = [(name, name.removesuffix(ACCURACY), "%") for name in record if name.endswith(ACCURACY)]
    shown = [f"{label} {_format_value(record[name], unit)}" for name, label, unit in (*sides, *_LINE) if name in record]
    return f"probe @ {record['step']:,}: {' · '.join(shown) or 'nothing to measure'}"


def _format_value(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.1f} %"
    return f"{round(value, 2) + 0.0:.2f} nats" if unit == "nats" else f"{value:.3f}"
