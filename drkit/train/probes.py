"""Is pre-training working? Measured at steps that the recipe sets, on held-out texts, and on queries.

What the two branches of the auto-encoder can do, what the vector is worth to the decoder, how vectors are spread, and
what they find. `probes.jsonl` in the stage's folder has a line a probe, `{"step": 500, "gain": 0.42, ..}`;
docs/guide/is-it-working.md says what each number means. A training with probes and one without end with the same
weights, bit for bit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn
from transformers import TrainerCallback

from drkit.core.files import write_text
from drkit.core.types import TokenStates
from drkit.data.store import TokenStore
from drkit.evaluate.geometry import anisotropy, top_direction
from drkit.train.pretrain import AutoEncoder, with_bottleneck_of
from drkit.train.retrieval_probe import MEASURE, RetrievalProbe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.core.progress import Progress
    from drkit.search import TextEncoder
    from drkit.train.pretrain import MaskingCollator

Outputs = Mapping[str, Any]
# (how many were right, of how many)
Score = tuple[float, float]


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


def measure_branches(module: AutoEncoder, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Losses and accuracies of both branches, and the decoder's gain from the bottleneck, over batches of two or more.

    `TERM_loss` for each loss that is no comparison of rows; `encoder_accuracy` and `decoder_accuracy` in [0, 1],
    where an output tells one (see `accuracy`) and a loss reads it; `gain`, in nats: the decoder's losses when every
    text gets the vector of another one of the batch, minus those with its own; all else, masks too, is the same.

    The module stays as it was: its mode, its weights, torch's random numbers.
    """
    means = _Means()
    with undisturbed(module):
        device = next(module.parameters()).device
        for batch in batches:
            tensors = {name: tensor.to(device) for name, tensor in batch.items()}
            reading = module.read(tensors)
            outputs = module.outputs(reading, tensors)
            rows = len(reading.view.ids)
            right = _losses(module, outputs, rows)
            _add_accuracies(means, module, outputs)
            others = with_bottleneck_of(reading, reading.encoded.bottleneck.roll(1, 0))
            wrong = _losses(module, {"decoder": module.decode(others, tensors)}, rows)
            for name, (loss, items) in right.items():
                means.add(f"{name}_loss", loss * items, items)
                if module.terms[name].on == "decoder":
                    means.add(f"{name}_gain", (wrong[name][0] - loss) * items, items)
    found = means.result()
    gains = [found.pop(name) for name in list(found) if name.endswith("_gain")]
    return {**found, "gain": sum(gains)} if gains else found


def _losses(module: AutoEncoder, outputs: Mapping[str, Outputs], rows: int) -> dict[str, tuple[float, float]]:
    """(loss, items it is a mean over) of each term on these outputs that compares no rows."""
    found = {}
    for name, term in module.terms.items():
        if not term.compares and term.on in outputs:
            given = term.given(outputs[term.on])
            found[name] = (float(term.loss(**given).loss), float(term.items(given, torch.tensor(rows))))
    return found


def _add_accuracies(means: _Means, module: AutoEncoder, outputs: Mapping[str, Outputs]) -> None:
    for branch, provided in outputs.items():
        needed = {name for term in module.terms.values() if term.on == branch for name in term.receives}
        scored = accuracy({name: value for name, value in provided.items() if name in needed})
        if scored:
            means.add(f"{branch}_accuracy", *scored)


def accuracy(outputs: Outputs) -> Score | None:
    """(right, of how many) for the first of these outputs that says what was wanted; None where none does.

    `token_states`: targets whose best-scored token is the right one. `vocab_logits` with `words`: of a text's n words,
    those among its n best-scored (R-precision). `replaced_logits` with `replaced`: tokens rightly told original or
    replaced.
    """
    for names, measure in _ACCURACIES.items():
        if outputs.keys() >= {*names}:
            return measure(outputs)
    return None


def _of_tokens(outputs: Outputs) -> Score:
    states: TokenStates = outputs["token_states"]
    heads: Any = states.heads
    count = len(states.labels)
    return float(heads.lm_accuracy(states.states, states.labels)) * count, count


def _of_words(outputs: Outputs) -> Score:
    logits, words = outputs["vocab_logits"], outputs["words"].bool()
    counts = words.sum(1)
    best = logits.topk(max(int(counts.max()), 1), dim=1).indices
    within = torch.arange(best.shape[1], device=best.device) < counts[:, None]
    return float((words.gather(1, best) & within).sum()), float(counts.sum())


def _of_replaced(outputs: Outputs) -> Score:
    replaced = outputs["replaced"].bool()
    right = (outputs["replaced_logits"] > 0) == replaced
    return float(right.sum()), right.numel()


_ACCURACIES: Mapping[tuple[str, ...], Callable[[Outputs], Score]] = {
    ("token_states",): _of_tokens,
    ("vocab_logits", "words"): _of_words,
    ("replaced_logits", "replaced"): _of_replaced,
}


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """A block that uses a module without dropout or graph, and leaves its mode and torch's random numbers alone."""
    modes = {part: part.training for part in module.modules()}
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    module.eval()
    try:
        with torch.random.fork_rng(devices), torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode


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
