"""CDMAE written out from its formulas, in float64, one token and one n-gram at a time; no line of drkit.

The encoder is the literal BERT of `tests.goldens.reference`; the decoder's weights are `decoder.projection` and
`decoder.0`, `decoder.1` with the names of a BERT layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.goldens.reference import Weights, dense, embed, layer, token_loss
from tests.references.cpdae import encode

Text = list[int]


def occurrences(texts: list[Text], gram: Text) -> int:
    return sum(text[i : i + len(gram)] == gram for text in texts for i in range(len(text) - len(gram) + 1))


class Counts:
    """log p of an n-gram, by looking through all texts."""

    def __init__(self, texts: list[Text]) -> None:
        self.texts = texts
        self.known: dict[tuple[int, ...], float] = {}
        self.totals: dict[int, int] = {}

    def log_p(self, gram: Text) -> float:
        key = tuple(gram)
        if key not in self.known:
            order = len(gram)
            if order not in self.totals:
                self.totals[order] = sum(max(len(text) - order + 1, 0) for text in self.texts)
            self.known[key] = math.log(occurrences(self.texts, gram) / self.totals[order])
        return self.known[key]

    def ami(self, text: Text, i: int, window: int) -> float:
        """The mean PMI of w_i with the rest of the n-grams that end at it, and of those that start at it."""
        before, after = [], []
        for j in range(1, window):
            if i - j >= 0:
                gram = text[i - j : i + 1]
                before.append(self.log_p(gram) - self.log_p([text[i]]) - self.log_p(gram[:-1]))
            if i + j < len(text):
                gram = text[i : i + j + 1]
                after.append(self.log_p(gram) - self.log_p([text[i]]) - self.log_p(gram[1:]))
        return sum(sum(side) / len(side) for side in (before, after) if side)


def masked_places(importance: list[float], noise: list[float], ratio: float, sigma: float) -> set[int]:
    """The k = floor(n * ratio) indices (at least one) with the largest t_i = AMI_i + sigma * noise_i."""
    t = [a + sigma * e for a, e in zip(importance, noise, strict=True)]
    k = max(1, math.floor(len(t) * ratio + 1e-9)) if t else 0
    return set(sorted(range(len(t)), key=lambda i: -t[i])[:k])


def cdmae(w: Weights, config: dict, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """encoder, decoder (their losses, means over the targets of the batch) and h [B,D].

    batch: ids, labels, attention of `encoder` and `decoder`, [B,L].
    """
    encoder, decoder, hs = [], [], []
    for b in range(len(batch["encoder.ids"])):
        hidden = encode(w, config, batch["encoder.ids"][b], batch["encoder.attention"][b])
        for index, label in enumerate(batch["encoder.labels"][b].tolist()):
            if label != -100:
                encoder.append(token_loss(w, config, hidden[index], label))
        hs.append(hidden[0])
        h = dense(w, "decoder.projection", hidden[0])
        states = torch.cat([h[None], embed(w, config, batch["main.ids"][b])[1:]])
        real = batch["main.attention"][b].nonzero()[:, 0].tolist()
        for number in (0, 1):
            states = layer(w, f"decoder.{number}", config, states, states, [real] * len(states))
        for index, label in enumerate(batch["main.labels"][b].tolist()):
            if label != -100:
                decoder.append(token_loss(w, config, states[index], label))
    return {"encoder": sum(encoder) / len(encoder), "decoder": sum(decoder) / len(decoder), "h": torch.stack(hs)}
