"""What the two branches of an auto-encoder can do on texts they were not trained on, and what the vector is worth.

Every figure is a mean over targets (or over what else a loss is a mean of), whatever the batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from drkit.core.types import TokenStates
from drkit.runs.pretraining.autoencoder import AutoEncoder, with_bottleneck_of

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
