"""CPDAE written out from its formulas, in float64, one word and one pair of rows at a time; no line of drkit.

The encoder is the literal BERT of `tests.goldens.reference`. Weights carry the names used there (`lm.*`), the decoder's
are `mlp.hidden`, `mlp.norm`, `mlp.words`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.goldens.reference import Weights, dense, embed, gelu, layer, layer_norm, token_loss


def encode(w: Weights, config: dict, ids: Tensor, attention: Tensor) -> Tensor:
    """One text: ids [L] -> the last hidden states [L,D]."""
    real = attention.nonzero()[:, 0].tolist()
    hidden = embed(w, config, ids)
    for number in range(config["num_hidden_layers"]):
        hidden = layer(w, f"lm.bert.encoder.layer.{number}", config, hidden, hidden, [real] * len(ids))
    return hidden


def scores(w: Weights, config: dict, h: Tensor) -> Tensor:
    """z = MLP(h): two feed-forward layers with GELU and LayerNorm between them (section 3.1.2)."""
    normed = layer_norm(w, "mlp.norm", gelu(dense(w, "mlp.hidden", h)), config["layer_norm_eps"])
    return dense(w, "mlp.words", normed)


def sigmoid(z: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-z))


def reconstruction(z: Tensor, words: set[int], idf: list[float]) -> Tensor:
    """Equation 4 for one text; `words`: which occur in it, no special tokens."""
    total = torch.zeros((), dtype=z.dtype)
    for v in range(len(z)):
        zhat = sigmoid(z[v])
        y = 1 if v in words else 0
        total = total - idf[v] * (y * torch.log(zhat) + (1 - y) * torch.log(1 - zhat))
    return total


def js(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence, natural logarithm, word by word."""
    total = torch.zeros((), dtype=p.dtype)
    for v in range(len(p)):
        m = (p[v] + q[v]) / 2
        total = total + p[v] * torch.log(p[v] / m) / 2 + q[v] * torch.log(q[v] / m) / 2
    return total


def words_contrast(zs: list[Tensor], partners: list[int]) -> Tensor:
    """Equation 5: a sum over the rows, of both maskings of every text."""
    tilde = [sigmoid(z) / sigmoid(z).sum() for z in zs]
    return contrast(lambda i, k: -js(tilde[i], tilde[k]), partners)


def vectors_contrast(hs: list[Tensor], partners: list[int], temperature: float) -> Tensor:
    """The same with the cosine of the vectors instead of -JS (CPDAE_R), over a temperature."""
    return contrast(lambda i, k: hs[i] @ hs[k] / hs[i].norm() / hs[k].norm() / temperature, partners)


def contrast(similarity, partners: list[int]) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    rows = len(partners)
    for i in range(rows):
        below = torch.zeros((), dtype=torch.float64)
        for k in range(rows):
            if k != i:
                below = below + torch.exp(similarity(i, k))
        total = total - torch.log(torch.exp(similarity(i, partners[i])) / below)
    return total


def cpdae(w: Weights, config: dict, batch: dict[str, Tensor], idf: list[float] | None = None) -> dict[str, Tensor]:
    """rec, mlm, words (L_cl), and what they are made of; means over rows, over tokens, and a sum over rows.

    batch: encoder.ids, .labels, .attention, encoder.tokens.ids, encoder.tokens.maskable [R,L], partners [R].
    """
    rows = len(batch["encoder.ids"])
    weights = idf or [1.0] * config["vocab_size"]
    mlm, recs, zs, hs = [], [], [], []
    for b in range(rows):
        hidden = encode(w, config, batch["encoder.ids"][b], batch["encoder.attention"][b])
        for index, label in enumerate(batch["encoder.labels"][b].tolist()):
            if label != -100:
                mlm.append(token_loss(w, config, hidden[index], label))
        hs.append(hidden[0])
        zs.append(scores(w, config, hidden[0]))
        words = set(batch["encoder.tokens.ids"][b][batch["encoder.tokens.maskable"][b]].tolist())
        recs.append(reconstruction(zs[-1], words, weights))
    return {
        "mlm": sum(mlm) / len(mlm),
        "rec": sum(recs) / rows,
        "words": words_contrast(zs, batch["partners"].tolist()),
        "z": torch.stack(zs),
        "h": torch.stack(hs),
    }
