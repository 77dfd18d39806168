from __future__ import annotations

import torch

# The pieces of a BERT layer: drkit's decoder layer, and transformers' (and the recordings') names.
PIECES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
CONFIG = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def small_encoder(tokenizer, seed: int = 3):
    """A BERT of CONFIG's sizes for a tokenizer."""
    from drkit.encoders import BertSizes, MaskedLmEncoder

    sizes = BertSizes(
        hidden=CONFIG["hidden_size"],
        layers=CONFIG["num_hidden_layers"],
        heads=CONFIG["num_attention_heads"],
        intermediate=CONFIG["intermediate_size"],
        max_positions=CONFIG["max_position_embeddings"],
        dropout=0.0,
    )
    return MaskedLmEncoder.from_scratch(sizes, tokenizer, seed=seed)


def randomised(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Every weight random and non-trivial, biases and LayerNorms too."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            norm = "norm" in name.lower() and name.endswith("weight")
            p.copy_(torch.randn(p.shape, generator=draw) * 0.25 + norm)
    return module


def composed(paper: str, encoder, context, *, settings: tuple[str, ...] = ()):
    """(the AutoEncoder of a paper's recipe with these settings, in float64; views of a text as tensors)."""
    from drkit.core.registry import installed
    from drkit.recipe.compose import ComposeRequest, compose
    from drkit.runs.making.pretrain import auto_encoder, build_maskers
    from drkit.train.pretrain import side_tensors

    parts = installed()
    recipe = compose(ComposeRequest(paper=paper, settings=settings), parts).pretrain
    maskers = build_maskers(recipe, parts.registry, context)
    module = auto_encoder(recipe, parts.registry, encoder, context, maskers)

    def masked(tokens, rng):
        tensors = side_tensors("encoder", maskers["encoder"](tokens, rng), tokens)
        return tensors | side_tensors("main", maskers["main"](tokens, rng), None)

    return randomised(module, seed=11).double(), masked


def reference_weights(module, decoder_names: dict[str, str]) -> dict[str, torch.Tensor]:
    """The module's weights under the reference's names, as float64 leaves of their own."""
    named = {f"lm.{name}": p for name, p in module.encoder.model.named_parameters()}
    named |= {decoder_names[name]: p for name, p in module.decoders["main"].named_parameters()}
    return {name: p.detach().double().clone().requires_grad_() for name, p in named.items()}


def assert_gradients(module, weights, decoder_names: dict[str, str], *, rtol: float) -> None:
    """Every parameter's gradient equals the reference's, relative to its norm."""
    mine = {f"lm.{name}": p.grad for name, p in module.encoder.model.named_parameters()}
    mine |= {decoder_names[name]: p.grad for name, p in module.decoders["main"].named_parameters()}
    largest = max(w.grad.norm() for w in weights.values() if w.grad is not None)
    for name, weight in weights.items():
        if weight.grad is None:
            assert mine[name] is None or not mine[name].any(), name
            continue
        error = (mine[name].double() - weight.grad).norm()
        assert error <= rtol * weight.grad.norm() + 1e-9 * largest * (rtol / 1e-8), f"{name}: {error:.2e}"
