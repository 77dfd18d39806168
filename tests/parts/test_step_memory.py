"""What a pre-training step holds at once: logits of some targets, and one visibility pattern for all heads."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from drkit.core.draws import Draws
from drkit.core.types import DecoderInput
from drkit.decoders import EnhancedConfig, EnhancedDecoder
from drkit.encoders import heads
from drkit.encoders.heads import projected_cross_entropy
from drkit.maskers import UniformConfig, UniformMasker
from drkit.maskers.views import keep_targets
from drkit.testing.toys import toy_context, toy_encoder, toy_tokens

TARGETS, WORDS, WIDTH, AT_ONCE = 96, 50, 8, 400


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that an operation makes, by kind of number."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.found[tensor.dtype] = max(self.found.get(tensor.dtype, 0), tensor.numel())
        return made


def parts():
    draw = torch.Generator().manual_seed(1)
    states, weight = torch.randn(TARGETS, WIDTH, generator=draw), torch.randn(WORDS, WIDTH, generator=draw)
    bias, labels = torch.randn(WORDS, generator=draw), torch.randint(WORDS, (TARGETS,), generator=draw)
    return [part.requires_grad_() for part in (states, weight, bias)], labels


def gradients(loss, inputs):
    return torch.autograd.grad(loss, inputs)


@pytest.mark.skipif(not heads._FUSED, reason="older versions of torch project all targets at once")
def test_the_projection_of_targets_holds_the_logits_of_some_of_them(monkeypatch):
    inputs, labels = parts()
    expected = F.cross_entropy(F.linear(*inputs), labels)
    with Largest() as plain:
        gradients(F.cross_entropy(F.linear(*inputs), labels), inputs)
    monkeypatch.setattr(heads, "LOGITS_AT_ONCE", AT_ONCE)
    with Largest() as chunked:
        loss = projected_cross_entropy(*inputs, labels)
        found = gradients(loss, inputs)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for one, two in zip(found, gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    assert plain.found[torch.float32] == TARGETS * WORDS
    assert chunked.found[torch.float32] == max(TARGETS * WIDTH, AT_ONCE)


def test_in_bfloat16_gradients_are_as_accurate_as_the_plain_projections_and_the_loss_has_three_digits():
    inputs, labels = parts()
    expected = F.cross_entropy(F.linear(*inputs), labels)
    exact = gradients(expected, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = F.cross_entropy(F.linear(*inputs), labels)
        fused = projected_cross_entropy(*inputs, labels)
    errors = [
        sum(float((a.float() - b).norm() / b.norm()) for a, b in zip(gradients(loss, inputs), exact, strict=True))
        for loss in (plain, fused)
    ]
    assert errors[1] < 1.2 * errors[0] < 0.1
    assert float(fused.detach()) == pytest.approx(float(expected.detach()), rel=2**-7)


def visibility(targets):
    """The largest tensors of the enhanced decoder's forward and backward pass, and the texts' shape."""
    encoder, tokens, context = toy_encoder(), toy_tokens(), toy_context()
    decoder = EnhancedDecoder(EnhancedConfig(targets=targets), context)
    batch, length = tokens.ids.shape
    masker = UniformMasker(UniformConfig(), context)
    rng = Draws(1, 0, tokens.keys.numpy())
    read, view = masker(tokens, rng), masker(tokens, rng, rows=decoder.rows(length))
    view = view if targets == 1 else keep_targets(view, decoder.rows, rng)
    encoded = encoder.encode(tokens.ids, tokens.attention)
    with Largest() as largest:
        states = decoder(DecoderInput(encoded, tokens, view, read), encoder.heads())["token_states"]
        states.states.square().sum().backward()
    return largest.found, batch, length, decoder.rows(length)


@pytest.mark.parametrize("targets", [1.0, 0.25])
def test_the_enhanced_decoder_has_one_pattern_for_all_heads_and_only_the_rows_of_targets(targets):
    found, batch, length, rows = visibility(targets)
    assert found[torch.bool] == batch * rows * length
    assert rows == (length if targets == 1 else -(-length // 4))
