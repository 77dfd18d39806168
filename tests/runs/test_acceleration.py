"""Compiled layers and chosen attention: equal results, equal names of weights, and refusals before a run starts.

With the backend `eager` torch traces and splits the code, with `aot_eager` it differentiates it too, as it does for a
GPU; both run it by torch's own kernels. Tests with `inductor` need a C++ compiler, and a minute.
"""

import copy
import shutil

import numpy as np
import pytest
import torch
from attrs import asdict, evolve
from torch import nn

from drkit.core.draws import Draws
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.decoders.layers import visibility_rows
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.architectures import architecture
from drkit.losses import ContrastiveConfig, ContrastiveLoss
from drkit.recipe.training import Training
from drkit.testing.toys import toy_context, toy_encoder, toy_tokens
from drkit.train.arguments import compile_options, problems, training_arguments
from drkit.train.batches import Schedule
from drkit.train.biencoder import BiEncoder
from drkit.train.pretrain import AutoEncoder, Term
from drkit.train.trainer import checkpointed_layers, compile_layers, train, transformer_layers
from tests.encoders.toys import CAUSAL, NAMES, tiny
from tests.runs.every_loss import batch_of, module_of
from tests.runs.test_gradients import TRAINED, close, masked, pairs_batch, taken
from tests.runs.test_loss_gradients import one_graph

SPLIT, TRACED = {"torch_compile_backend": "eager"}, {"torch_compile_backend": "aot_eager"}
COMPILED = {"torch_compile": True}
STEPS = 4


@pytest.fixture(autouse=True)
def forget():
    """Leave no compiled code to other tests."""
    yield
    torch.compiler.reset()


def rebuilding(encoder=None, decoder="enhanced"):
    """An auto-encoder with a decoder, at every token and at masked ones."""
    registry, context = installed().registry, toy_context()
    encoder = encoder or toy_encoder()
    context = evolve(context, backbone=evolve(encoder.info(context.tokenizer), dropout=0.0))
    mlm = registry.build(Kind.LOSS, "mlm", None, context)
    made = registry.build(Kind.DECODER, decoder, None, context)
    terms = {side: Term(mlm, ("token_states",), side) for side in ("encoder", "decoder")}
    return AutoEncoder(encoder, {"decoder": made}, terms)


class MaskedTexts:
    """Batches of eight texts of two lengths, masked anew at every step."""

    def __init__(self, module, cut_off=None):
        self.module, self.cut_off, self.calls = module, cut_off, 0

    def __call__(self, examples):
        self.calls += 1
        if self.calls == self.cut_off:
            raise KeyboardInterrupt
        (epoch, first), *_ = examples
        tokens = toy_tokens((30, 22, 9, 14, 17, 30)) if first % 2 else toy_tokens((20, 12, 9, 4, 17, 11))
        rows = visibility_rows(self.module.decoders["decoder"], tokens.ids.shape[1])
        return masked(tokens, Draws(epoch, first, tokens.keys.numpy()), rows)


def go(module, folder, collate=None, **settings):
    chosen = {"max_steps": STEPS, "save_steps": 2, "logging_steps": 1, "learning_rate": 0.01, **settings}
    return train(
        module,
        Schedule(lengths=np.arange(32, dtype=np.int32), batch_size=4, batches=STEPS, seed=3),
        collate or MaskedTexts(module),
        training=Training(per_device_train_batch_size=4, **chosen),
        folder=folder,
        progress=Silent(),
        seed=7,
    )


def assert_close(one, two, tolerance=1e-5):
    assert one.state_dict().keys() == two.state_dict().keys()
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def changed(one, two):
    return any((a - b).abs().max() > 1e-3 for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_the_layers_of_every_architecture_are_found(name):
    model, _ = tiny(name)
    encoder = MaskedLmEncoder(model)
    assert transformer_layers(encoder) == [*encoder.layers]
    assert len(encoder.layers) == model.config.num_hidden_layers


def test_the_layers_of_decoders_and_of_both_encoders_are_found():
    assert len(transformer_layers(rebuilding())) == 2 + 1
    assert len(transformer_layers(module_of("separate encoders"))) == 2 + 2
    assert transformer_layers(toy_encoder(layers=0)) == []


@pytest.mark.parametrize("name", ["modernbert", "mpnet"])
def test_traced_layers_have_the_gradients_of_eager_ones(name):
    model, _ = tiny(name)
    eager = MaskedLmEncoder(model).train()
    traced = copy.deepcopy(eager)
    assert compile_layers(traced, compile_options(TRACED)) == len(eager.layers)
    tokens = toy_tokens((30, 22, 9, 4))
    for module in (eager, traced):
        module(tokens.ids, tokens.attention, (1,))["bottleneck"].square().sum().backward()
    for (name, one), two in zip(eager.named_parameters(), traced.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("name", "chunk"), [("kl-distillation", 4), ("listwise", 4)])
def test_traced_fine_tuning_has_the_weights_of_an_eager_one(tmp_path, name, chunk):
    modules = [module_of(name), module_of(name)]
    for index, (module, arguments) in enumerate(zip(modules, ({}, TRACED), strict=True)):
        go(
            module,
            tmp_path / str(index),
            lambda examples: batch_of(name, sorted({query % 5 for _, query in examples})),
            gradient_cache_chunk=chunk,
            learning_rate=0.5,
            arguments={"optim": "sgd", **arguments},
        )
    assert_close(*modules)
    assert changed(module_of(name), modules[1])


@pytest.mark.parametrize("options", [SPLIT, pytest.param(COMPILED, marks=pytest.mark.slow)])
def test_chunks_are_computed_again_with_the_same_dropout(options):
    """The gradients are those of one graph with these random numbers, whatever draws them."""
    contrast = ContrastiveLoss(ContrastiveConfig(temperature=0.2))
    module, batch = BiEncoder(toy_encoder(layers=1, dropout=0.2), contrast).train(), pairs_batch()
    compile_layers(module, compile_options(options))
    torch.manual_seed(12)
    other, *_ = taken(module, batch, 2)
    torch.manual_seed(11)
    loss, _, found = taken(module, batch, 2)
    assert float(other) != float(loss), "dropout is on"
    torch.manual_seed(11)
    module.zero_grad()
    expected = one_graph(module, module.chunks(batch, 2))
    expected.backward()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-4)
    close(found, {n: p.grad for n, p in module.named_parameters() if p.grad is not None})


def test_a_traced_training_resumes_to_the_weights_of_an_uninterrupted_one(tmp_path):
    whole, cut, resumed = (rebuilding(toy_encoder(layers=1, dropout=0.1)) for _ in range(3))
    expected = go(whole, tmp_path / "whole", arguments=SPLIT)
    with pytest.raises(KeyboardInterrupt):
        go(cut, tmp_path / "cut", MaskedTexts(cut, cut_off=4), arguments=SPLIT)
    names = {path.name for path in tmp_path.glob("cut/*")}
    result = go(resumed, tmp_path / "cut", arguments=SPLIT)
    assert "checkpoint-2" in names
    assert_close(whole, resumed, 1e-6)
    assert [line["loss"] for line in result.log] == pytest.approx([line["loss"] for line in expected.log], abs=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="inductor compiles C++")
@pytest.mark.parametrize(
    ("options", "layers", "bf16"), [(COMPILED, 0, False), (TRACED, 1, True)], ids=["compiled", "traced bf16"]
)
def test_a_compiled_pre_training_has_the_weights_of_an_eager_one(tmp_path, options, layers, bf16):
    """By inductor the layer of the decoder; one of an encoder is compiled by it above."""
    start, eager, compiled = (rebuilding(toy_encoder(layers=layers)) for _ in range(3))
    losses = []
    for module, arguments in ((eager, {}), (compiled, options)):
        settings = {"bf16": bf16, "learning_rate": 0.1, "arguments": {"optim": "sgd", **arguments}}
        log = go(module, tmp_path / str(len(arguments)), **settings).log
        losses.append([line["loss"] for line in log])
    assert changed(start, compiled)
    assert_close(eager, compiled, 2e-3 if bf16 else 1e-5)
    assert losses[0] == pytest.approx(losses[1], abs=2e-2 if bf16 else 1e-4)
    assert not any("_orig_mod" in name for name in compiled.state_dict())


def test_transformers_does_not_compile_the_whole_module(tmp_path):
    training = Training(arguments={"torch_compile": True, "torch_compile_mode": "default"})
    arguments = training_arguments(training, tmp_path, 4, 0)
    assert not arguments.torch_compile
    assert arguments.torch_compile_backend is None


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ({}, None),
        ({"torch_compile": False}, None),
        ({"torch_compile": True}, {"backend": "inductor", "dynamic": True}),
        ({"torch_compile_mode": "max-autotune"}, {"backend": "inductor", "dynamic": True, "mode": "max-autotune"}),
    ],
)
def test_compiling_is_asked_for_as_in_transformers(arguments, options):
    assert compile_options(arguments) == options


# -- activations computed again

CHECKPOINTED = {"use_reentrant": False}


def gradients_of(module, batch, chunk=0):
    torch.manual_seed(3)  # dropout
    return taken(module.train(), batch, chunk)


@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("kind", TRAINED)
def test_checkpointed_layers_have_the_gradients_of_others_in_chunks_too(kind, chunk):
    module, batch = (made() for made in TRAINED[kind])
    for one in module.modules():
        if isinstance(one, nn.Dropout):
            one.p = 0.2
    loss, _, expected = gradients_of(module, batch, chunk)
    with checkpointed_layers(module, CHECKPOINTED):
        again, _, found = gradients_of(module, batch, chunk)
    assert float(loss) == float(again)
    close(found, expected, 1e-7)


@pytest.mark.parametrize("name", [*NAMES, *CAUSAL])
def test_checkpointed_layers_of_every_architecture_keep_less(name):
    model, _ = tiny(name, use_cache=False)  # as models that read from left to right are loaded
    encoder, tokens = MaskedLmEncoder(model).train(), toy_tokens((30, 22, 9, 4))
    kept, found = [], []
    for options in (None, CHECKPOINTED):
        sizes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: (s.append(t.numel()), t)[1], lambda t: t)
        encoder.zero_grad()
        with checkpointed_layers(encoder, options):
            with hooks:
                vectors = encoder(tokens.ids, tokens.attention)["bottleneck"]
                kept.append(sum(sizes))
            vectors.square().sum().backward()
        found.append({n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None})
    close(found[1], found[0], 1e-7)
    assert kept[1] < kept[0] / 2


def test_a_training_checkpoints_layers_with_every_name_of_the_setting(tmp_path):
    start = rebuilding()
    plain = copy.deepcopy(start)
    go(plain, tmp_path / "plain")
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        module = copy.deepcopy(start)
        go(module, tmp_path / name, arguments={name: True})
        assert_close(plain, module, 1e-7)
        assert not [layer for layer in transformer_layers(module) if "forward" in vars(layer)]
    assert changed(start, plain)


def test_checkpointed_layers_are_compiled_too(tmp_path):
    start = rebuilding()
    plain, module = copy.deepcopy(start), copy.deepcopy(start)
    go(plain, tmp_path / "plain")
    go(module, tmp_path / "both", arguments={**TRACED, "gradient_checkpointing": True})
    assert_close(plain, module)


# -- attention


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("mpnet", "deberta", "deberta-v2")])
def test_eager_attention_and_sdpa_have_the_same_gradients(name):
    model, _ = tiny(name)
    # In float64 the two are equal up to its rounding; ModernBERT's eager attention is NaN there for padding.
    dtype, near = (torch.float32, (1e-5, 1e-4)) if name == "modernbert" else (torch.float64, (1e-12, 1e-9))
    encoder, tokens = MaskedLmEncoder(model.to(dtype)).train(), toy_tokens((30, 22, 9, 4))
    found = []
    for implementation in ("eager", "sdpa"):
        encoder.zero_grad()
        encoder.model.set_attn_implementation(implementation)
        encoder(tokens.ids, tokens.attention)["bottleneck"].square().sum().backward()
        found.append({n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for key, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][key], atol=near[0], rtol=near[1])


def test_sdpa_is_what_an_encoder_is_loaded_with(tmp_path):
    for name in NAMES:
        model, tokenizer = tiny(name)
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        config = MaskedLmEncoder.from_pretrained(str(tmp_path / name)).config
        assert config._attn_implementation == architecture(config.model_type).attention
        assert config._attn_implementation == ("eager" if name in ("mpnet", "deberta", "deberta-v2") else "sdpa")


@pytest.mark.parametrize("arguments", [{"torch_compile_backend": "nosuch"}, {"torch_compile_mode": "nosuch"}])
def test_an_unknown_way_to_compile_is_refused_before_a_run(arguments):
    (found,) = problems({"pretrain": asdict(Training(arguments=arguments))})
    assert "nosuch" in found
    assert found.endswith("@ pretrain")


def test_a_missing_compiler_is_refused_before_a_run(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(nn.Module, "compile", fail)
    monkeypatch.setattr(torch, "compile", fail)
    (found,) = problems({"pretrain": asdict(Training(arguments=COMPILED))})
    assert found == "No working C++ compiler found @ pretrain"
