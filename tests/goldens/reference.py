"""RetroMAE written out literally from its formulas, in float64, with loops over texts, rows and heads.

It shares no code with drkit. `python -m tests.goldens.reference` records the small golden beside this file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

Weights = dict[str, Tensor]
SMALL = {
    "vocab_size": 61,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
GRADIENTS = (
    "lm.bert.embeddings.word_embeddings.weight",
    "lm.bert.embeddings.position_embeddings.weight",
    "lm.bert.encoder.layer.1.output.dense.weight",
    "c_head.attention.self.query.weight",
    "c_head.output.dense.weight",
)


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "gelu_new": gelu_by_tanh,
    "gelu_pytorch_tanh": gelu_by_tanh,
    "gelu": gelu,
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def dense(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def layer(w: Weights, name: str, config: dict, queries: Tensor, context: Tensor, sees: list[list[int]]) -> Tensor:
    """One text: queries [Q,D], context [L,D], and for every query the indices it sees."""
    heads = config["num_attention_heads"]
    width = config["hidden_size"] // heads
    q = dense(w, f"{name}.attention.self.query", queries)
    k = dense(w, f"{name}.attention.self.key", context)
    v = dense(w, f"{name}.attention.self.value", context)
    rows = []
    for i, indices in enumerate(sees):
        parts = []
        for head in range(heads):
            cut = slice(head * width, (head + 1) * width)
            scores = k[indices][:, cut] @ q[i, cut] / math.sqrt(width)
            share = torch.exp(scores - scores.max())
            parts.append((share / share.sum()) @ v[indices][:, cut])
        rows.append(torch.cat(parts))
    attended = dense(w, f"{name}.attention.output.dense", torch.stack(rows))
    eps = config["layer_norm_eps"]
    states = layer_norm(w, f"{name}.attention.output.LayerNorm", queries + attended, eps)
    widened = ACTIVATIONS[config["hidden_act"]](dense(w, f"{name}.intermediate.dense", states))
    return layer_norm(w, f"{name}.output.LayerNorm", states + dense(w, f"{name}.output.dense", widened), eps)


def embed(w: Weights, config: dict, ids: Tensor) -> Tensor:
    table = "lm.bert.embeddings"
    summed = w[f"{table}.word_embeddings.weight"][ids] + w[f"{table}.position_embeddings.weight"][: len(ids)]
    summed = summed + w[f"{table}.token_type_embeddings.weight"][0]
    return layer_norm(w, f"{table}.LayerNorm", summed, config["layer_norm_eps"])


def token_loss(w: Weights, config: dict, state: Tensor, label: int) -> Tensor:
    head = "lm.cls.predictions"
    changed = ACTIVATIONS[config["hidden_act"]](dense(w, f"{head}.transform.dense", state))
    changed = layer_norm(w, f"{head}.transform.LayerNorm", changed, config["layer_norm_eps"])
    logits = w["lm.bert.embeddings.word_embeddings.weight"] @ changed + w[f"{head}.bias"]
    return torch.logsumexp(logits, 0) - logits[label]


def retromae(w: Weights, config: dict, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """loss_enc, loss_dec, loss and cls [B,D] of one batch, given as in the recorded files (`in.*`)."""
    encoder_losses, decoder_losses, bottlenecks = [], [], []
    for b in range(len(inputs["encoder_input_ids"])):
        real = inputs["encoder_attention_mask"][b].nonzero()[:, 0].tolist()
        length = len(inputs["encoder_input_ids"][b])
        hidden = embed(w, config, inputs["encoder_input_ids"][b])
        for number in range(config["num_hidden_layers"]):
            hidden = layer(w, f"lm.bert.encoder.layer.{number}", config, hidden, hidden, [real] * length)
        for index, label in enumerate(inputs["encoder_labels"][b].tolist()):
            if label != -100:
                encoder_losses.append(token_loss(w, config, hidden[index], label))
        h = hidden[0]
        bottlenecks.append(h)
        indices = [i for i, label in enumerate(inputs["decoder_labels"][b].tolist()) if label != -100]
        queries = torch.stack([h + w["lm.bert.embeddings.position_embeddings.weight"][i] for i in indices])
        context = torch.cat([h[None], embed(w, config, inputs["decoder_input_ids"][b])[1:]])
        sees = [inputs["decoder_attention_mask"][b, i].nonzero()[:, 0].tolist() for i in indices]
        states = layer(w, "c_head", config, queries, context, sees)
        for index, state in zip(indices, states, strict=True):
            decoder_losses.append(token_loss(w, config, state, int(inputs["decoder_labels"][b, index])))
    losses = {"loss_enc": torch.stack(encoder_losses).mean(), "loss_dec": torch.stack(decoder_losses).mean()}
    return {**losses, "loss": losses["loss_enc"] + losses["loss_dec"], "cls": torch.stack(bottlenecks)}


def small_weights(config: dict, draw: torch.Generator) -> Weights:
    """Random and non-trivial, biases and LayerNorms too, under the names of the recorded files."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "lm.bert.embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "lm.bert.embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "lm.bert.embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "lm.cls.predictions.bias": (config["vocab_size"],),
    }
    linear = {"lm.cls.predictions.transform.dense": (width, width)}
    norms = ["lm.bert.embeddings.LayerNorm", "lm.cls.predictions.transform.LayerNorm"]
    stacks = [f"lm.bert.encoder.layer.{number}" for number in range(config["num_hidden_layers"])]
    for name in [*stacks, "c_head"]:
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            linear[f"{name}.{part}"] = (width, width)
        linear[f"{name}.intermediate.dense"], linear[f"{name}.output.dense"] = (inner, width), (width, inner)
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    for name, (outer, across) in linear.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outer, across), (outer,)
    made = {name: torch.randn(shape, generator=draw) * 0.3 for name, shape in shapes.items()}
    for name in norms:
        made[f"{name}.weight"] = 1 + torch.randn(width, generator=draw) * 0.2
        made[f"{name}.bias"] = torch.randn(width, generator=draw) * 0.2
    return made


def small_inputs(config: dict, draw: torch.Generator) -> dict[str, Tensor]:
    """Four texts of 14 tokens at most: [CLS] = 2, [SEP] = 3, [MASK] = 4, [PAD] = 0."""
    lengths, longest = (14, 11, 9, 14), 14
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    attention, visible = torch.zeros_like(ids), torch.zeros(len(lengths), longest, longest, dtype=torch.long)
    encoder, labels, targets = ids.clone(), torch.full_like(ids, -100), torch.full_like(ids, -100)
    for b, length in enumerate(lengths):
        ids[b, :length] = torch.randint(5, config["vocab_size"], (length,), generator=draw)
        ids[b, 0], ids[b, length - 1], attention[b, :length] = 2, 3, 1
        hidden = 1 + torch.randperm(length - 2, generator=draw)[: max(1, round(0.3 * (length - 2)))]
        encoder[b] = ids[b]
        encoder[b, hidden], labels[b, hidden] = 4, ids[b, hidden]
        targets[b, 1 : length - 1] = ids[b, 1 : length - 1]
        visible[b, :, :length] = torch.rand(longest, length, generator=draw).lt(0.5).long()
        visible[b, :, 0], visible[b, :, length - 1] = 1, 1
        visible[b, range(longest), range(longest)] = 0
    return {
        "encoder_input_ids": encoder,
        "encoder_attention_mask": attention,
        "encoder_labels": labels,
        "decoder_input_ids": ids,
        "decoder_attention_mask": visible,
        "decoder_labels": targets,
    }


def record(folder: Path) -> None:
    """Write retromae_small_weights.safetensors, retromae_small_b1.safetensors and retromae_small_b1.json."""
    draw = torch.Generator().manual_seed(20)
    weights, inputs = small_weights(SMALL, draw), small_inputs(SMALL, draw)
    exact = {name: value.double().requires_grad_() for name, value in weights.items()}
    out = retromae(exact, SMALL, inputs)
    out["loss"].backward()
    tensors = {f"in.{name}": value for name, value in inputs.items()}
    tensors |= {f"out.{name}": value.detach().float().clone() for name, value in out.items()}
    tensors |= {f"grad.{name}": exact[name].grad.float() for name in GRADIENTS}
    save_file(weights, folder / "retromae_small_weights.safetensors", {"config": json.dumps(SMALL)})
    save_file(tensors, folder / "retromae_small_b1.safetensors")
    main = {
        "losses64": {name: out[name].item() for name in ("loss_enc", "loss_dec", "loss")},
        "grad_norms": {name: value.grad.norm().item() for name, value in exact.items()},
    }
    (folder / "retromae_small_b1.json").write_text(json.dumps({"variants": {"main": main}}, indent=1) + "\n")


if __name__ == "__main__":
    record(Path(__file__).parent)
