"""The contrast of word distributions and of vectors: equal to the formulas, whatever the blocks; memory as stated."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drkit.decoders import word_distribution
from drkit.errors import DrkitError
from drkit.losses import InfoNceConfig, InfoNceLoss
from drkit.testing import check_loss
from drkit_cpdae import JsContrastiveConfig
from drkit_cpdae import loss as self_contrastive
from drkit_cpdae.loss import JsContrastiveLoss, js_divergences


def halves(rows: int) -> torch.Tensor:
    return (torch.arange(rows) + rows // 2) % rows


def naive_js(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    m = (p + q) / 2
    return ((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2


def naive_contrast(similarity, rows: int, partners: list[int]) -> torch.Tensor:
    total = 0.0
    for i in range(rows):
        others = [torch.exp(similarity(i, k)) for k in range(rows) if k != i]
        total = total - torch.log(torch.exp(similarity(i, partners[i])) / torch.stack(others).sum())
    return total


def naive_js_contrastive(z: torch.Tensor, partners: list[int]) -> torch.Tensor:
    tilde = [torch.sigmoid(row) / torch.sigmoid(row).sum() for row in z]
    return naive_contrast(lambda i, k: -naive_js(tilde[i], tilde[k]), len(z), partners)


def test_contracts():
    check_loss("js-contrastive", JsContrastiveConfig(reduction="mean"))
    check_loss("info-nce", InfoNceConfig(similarity="dot", reduction="sum", temperature=1.0))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(2, 40), st.sampled_from([1, 7, 64, 10**6]), st.integers(0, 10**6))
def test_blocks_of_any_size_give_the_formula_and_its_gradient(pairs, vocab, at_once, seed):
    draw = torch.Generator().manual_seed(seed)
    z = (torch.randn(2 * pairs, vocab, generator=draw, dtype=torch.float64) * 3).requires_grad_()
    order = torch.randperm(2 * pairs, generator=draw)
    partners = torch.empty(2 * pairs, dtype=torch.long)
    partners[order[:pairs]], partners[order[pairs:]] = order[pairs:], order[:pairs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_contrastive, "AT_ONCE", at_once)
        got = JsContrastiveLoss()(vocab_logits=z, partners=partners).loss
        (gradient,) = torch.autograd.grad(got, z)
    wanted = naive_js_contrastive(z, partners.tolist())
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, z)[0], rtol=1e-7, atol=1e-12)


def test_a_temperature_of_a_half_is_the_expansion_of_equation_7():
    z, partners = torch.randn(6, 12, generator=torch.Generator().manual_seed(8), dtype=torch.float64), halves(6)
    tilde = torch.sigmoid(z) / torch.sigmoid(z).sum(1, keepdim=True)

    def equation_7(i: int, k: int) -> torch.Tensor:
        p, q = tilde[i], tilde[k]
        return -(p * p.log()).sum() - (q * q.log()).sum() + ((p + q) * (p + q).log()).sum()

    got = JsContrastiveLoss(JsContrastiveConfig(temperature=0.5))(vocab_logits=z, partners=partners).loss
    torch.testing.assert_close(got, naive_contrast(equation_7, 6, partners.tolist()))
    assert got.item() != pytest.approx(JsContrastiveLoss()(vocab_logits=z, partners=partners).loss.item(), rel=1e-3)


def test_the_derivative_by_finite_differences():
    p = torch.softmax(torch.randn(4, 6, dtype=torch.float64), 1).requires_grad_()
    assert torch.autograd.gradcheck(js_divergences, (p,))


def test_float32_keeps_the_small_divergences_of_nearly_equal_distributions():
    draw = torch.Generator().manual_seed(3)
    z = torch.randn(6, 4000, generator=draw) * 0.01 - 4.6
    exact = js_divergences(word_distribution(z.double()))
    off_diagonal = ~torch.eye(6, dtype=torch.bool)
    assert exact[off_diagonal].max() < 1e-4
    torch.testing.assert_close(js_divergences(word_distribution(z)).double(), exact, rtol=1e-2, atol=1e-8)


def test_divergences_are_symmetric_bounded_and_0_on_the_diagonal():
    p = torch.softmax(torch.randn(7, 50) * 9, 1)
    js = js_divergences(p)
    assert torch.equal(js, js.T)
    assert not js.diag().any()
    assert js.min() > -1e-6
    assert js.max() <= math.log(2) + 1e-6
    apart = js_divergences(torch.eye(3))
    assert apart[0, 1].item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_of_0_leave_everything_finite(dtype):
    z = torch.tensor([[200.0, -200.0, -200.0], [-200.0, 200.0, -200.0]] * 2, dtype=dtype).requires_grad_()
    out = JsContrastiveLoss()(vocab_logits=z, partners=halves(4))
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert out.loss.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("make", [JsContrastiveLoss, InfoNceLoss])
def test_the_order_of_rows_does_not_matter(make):
    draw = torch.Generator().manual_seed(4)
    rows, partners = torch.randn(8, 30, generator=draw, dtype=torch.float64), halves(8)
    name = "vocab_logits" if make is JsContrastiveLoss else "bottleneck"
    order = torch.randperm(8, generator=draw)
    new_index = order.argsort()
    one = make()(**{name: rows, "partners": partners})
    two = make()(**{name: rows[order], "partners": new_index[partners[order]]})
    assert one.loss.item() == pytest.approx(two.loss.item(), rel=1e-12)
    assert one.metrics["accuracy"] == two.metrics["accuracy"]


def test_sum_and_mean():
    rows, partners = torch.randn(6, 9), halves(6)
    for make, config, name in (
        (JsContrastiveLoss, JsContrastiveConfig, "vocab_logits"),
        (InfoNceLoss, InfoNceConfig, "bottleneck"),
    ):
        summed, mean = (make(config(reduction=r))(**{name: rows, "partners": partners}).loss for r in ("sum", "mean"))
        torch.testing.assert_close(summed, 6 * mean)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_info_nce_is_the_formula(similarity, temperature):
    draw = torch.Generator().manual_seed(5)
    h = torch.randn(8, 5, generator=draw, dtype=torch.float64).requires_grad_()

    def score(i: int, k: int) -> torch.Tensor:
        norms = h[i].norm() * h[k].norm() if similarity == "cosine" else 1.0
        return (h[i] * h[k]).sum() / norms / temperature

    got = InfoNceLoss(InfoNceConfig(temperature=temperature, similarity=similarity))(bottleneck=h, partners=halves(8))
    wanted = naive_contrast(score, 8, halves(8).tolist()) / 8
    torch.testing.assert_close(got.loss, wanted)
    torch.testing.assert_close(torch.autograd.grad(got.loss, h)[0], torch.autograd.grad(wanted, h)[0])


class Largest(TorchDispatchMode):
    """The number of values of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.values = max(self.values, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


def test_the_watch_sees_what_the_formula_in_one_piece_would_take():
    p = torch.softmax(torch.randn(8, 11), 1)
    with Largest() as watch:
        ((p[:, None] + p[None]) / 2).log()
    assert watch.values == 8 * 8 * 11


@pytest.mark.parametrize(("rows", "vocab"), [(24, 1000), (64, 500), (6, 5000)])
def test_memory_is_that_of_the_docstring_forward_and_backward(monkeypatch, rows, vocab):
    """Nothing larger than f[R,V], f[R,R] or a block; a block of one mixture at the least."""
    monkeypatch.setattr(self_contrastive, "AT_ONCE", 3 * vocab)
    z = torch.randn(rows, vocab, requires_grad=True)
    with Largest() as watch:
        JsContrastiveLoss()(vocab_logits=z, partners=halves(rows)).loss.backward()
    assert watch.values <= max(rows * vocab, rows * rows, 3 * vocab)


@pytest.mark.parametrize(
    ("rows", "partners"),
    [((4, 3, 2), torch.arange(4)), ((1, 3), torch.zeros(1).long()), ((4, 3), torch.arange(3))],
)
def test_shapes_that_do_not_fit_are_refused(rows, partners):
    with pytest.raises(DrkitError, match=r"rows f\[R,\.\] .*partners i64\[R\] "):
        JsContrastiveLoss()(vocab_logits=torch.zeros(rows), partners=partners)
    with pytest.raises(DrkitError, match=r"rows f\[R,\.\] .*partners i64\[R\] "):
        InfoNceLoss()(bottleneck=torch.zeros(rows), partners=partners)
