"""MNTP, masked diffusion and LLARA's bag of tokens: each equals its formula, computed in float64 token by token."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from drkit.core.draws import Draws
from drkit.core.types import DecoderInput, TextStates
from drkit.data.contexts import NextSpanContext
from drkit.decoders import LmHeadDecoder
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.heads import preceding_states, token_states
from drkit.losses import BagOfTokensLoss, MaskedDiffusionLoss, MlmLoss, MntpLoss
from drkit.maskers import DiffusionConfig, DiffusionMasker
from drkit.testing.toys import toy_context, toy_encoder, toy_tokens
from drkit.train.pretrain import AutoEncoder, Term, side_tensors

EVERY = slice(None)


def encoder() -> MaskedLmEncoder:
    """A tiny Llama that reads in both directions, in float64."""
    return toy_encoder(model_type="llama", more={"is_causal": False}, pooling="mean").double()


def views(config=None, epoch=0):
    tokens = toy_tokens()
    masker = DiffusionMasker(config or DiffusionConfig(), toy_context())
    return tokens, masker(tokens, Draws(1, epoch, tokens.keys.numpy()))


def log_probabilities(model, ids, attention):
    """f64[B,L,V] of transformers' own causal LM, by its own forward."""
    return model.model(input_ids=ids, attention_mask=attention).logits.log_softmax(-1)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_masked_lm_with_and_without_the_shift(shift):
    model, (tokens, view) = encoder(), views(DiffusionConfig(least=0.3, most=0.3))
    given = log_probabilities(model, view.ids, view.attention)
    expected = [
        -given[row, at - shift, view.labels[row, at]]
        for row in range(len(tokens.ids))
        for at in range(shift, tokens.ids.shape[1])
        if view.labels[row, at] != -100
    ]
    hidden = model.encode(view.ids, view.attention).hidden
    if shift:
        states = preceding_states(hidden, view.labels, model.heads())
        loss, items = MntpLoss()(preceding_states=states), MntpLoss().items(preceding_states=states)
    else:
        states = token_states(hidden, view.labels, model.heads())
        loss, items = MlmLoss()(token_states=states), MlmLoss().items(token_states=states)
    assert items == len(expected) > 20
    torch.testing.assert_close(loss.loss, torch.stack(expected).mean())


def test_a_token_without_one_before_it_is_no_target_of_mntp():
    hidden, labels = torch.randn(2, 3, 16), torch.tensor([[7, -100, 8], [9, -100, -100]])
    states = preceding_states(hidden, labels, toy_encoder().heads())
    assert states.labels.tolist() == [8]
    assert torch.equal(states.states[0], hidden[0, 1])


@pytest.mark.parametrize("hides", ["coins", "count"])
def test_masked_diffusion_is_weighted_by_the_ratio_of_each_text(hides):
    model, (tokens, view) = encoder(), views(DiffusionConfig(least=0.1, hides=hides))
    given = log_probabilities(model, view.ids, view.attention)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(tokens.ids)):
        for at in range(tokens.ids.shape[1]):
            if view.labels[row, at] != -100:
                total -= given[row, at, tokens.ids[row, at]] / view.ratios[row].double()
    expected = total / int(tokens.maskable.sum())
    tensors = side_tensors("encoder", view, tokens)
    term = Term(MaskedDiffusionLoss(), ("token_states", "ratios", "text_states"), "encoder")
    module = AutoEncoder(model, {}, {"diffusion": term})
    out = module(**tensors)
    torch.testing.assert_close(out["loss.diffusion"], expected, atol=1e-6, rtol=1e-6)
    assert out["items.diffusion"] == tokens.maskable.sum()
    assert module.count(tensors)["items.diffusion"] == tokens.maskable.sum(), "known before anything is computed"


def test_the_gradient_of_the_weighted_loss_is_that_of_the_formula():
    model, (tokens, view) = encoder(), views(DiffusionConfig(least=0.1))
    weight = model.model.get_input_embeddings().weight
    hidden = model.encode(view.ids, view.attention).hidden
    states = token_states(hidden, view.labels, model.heads())
    ratios = view.ratios[:, None].expand_as(view.labels)[view.labels != -100]
    text = TextStates(hidden, tokens, model.heads())
    loss = MaskedDiffusionLoss()(token_states=states, ratios=ratios, text_states=text).loss
    (found,) = torch.autograd.grad(loss, weight)
    targets = view.labels != -100
    chosen = log_probabilities(model, view.ids, view.attention)[targets].gather(1, view.labels[targets][:, None])[:, 0]
    (expected,) = torch.autograd.grad(-(chosen / ratios.double()).sum() / tokens.maskable.sum(), weight)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=1e-5)


def test_nothing_hidden_is_a_loss_of_zero_with_a_graph():
    model, tokens = encoder(), toy_tokens()
    hidden = model.encode(tokens.ids, tokens.attention).hidden
    labels = torch.full_like(tokens.ids, -100)
    states, text = token_states(hidden, labels, model.heads()), TextStates(hidden, tokens, model.heads())
    step = MaskedDiffusionLoss()(token_states=states, ratios=torch.zeros(0), text_states=text)
    assert step.loss == 0
    assert step.loss.requires_grad


@pytest.mark.parametrize("hides", ["coins", "count"])
def test_ratios_are_uniform_and_hide_as_much_as_they_say(hides):
    lengths, ratios, shares = toy_tokens().maskable.sum(1).numpy(), [], []
    for epoch in range(300):
        tokens, view = views(DiffusionConfig(hides=hides), epoch)
        hidden = view.labels != -100
        assert not (hidden & ~tokens.maskable).any()
        long = lengths > 20
        ratios += view.ratios[long].tolist()
        shares += (hidden.sum(1).numpy() / np.maximum(lengths, 1))[long].tolist()
    quarters = np.histogram(ratios, bins=4, range=(0, 1))[0] / len(ratios)
    assert quarters == pytest.approx(0.25, abs=0.05)
    if hides == "count":
        assert shares == pytest.approx(ratios)
    else:
        assert np.mean(np.array(shares) / np.array(ratios)) == pytest.approx(1, abs=0.1), "1/ratio is unbiased"
        assert np.corrcoef(shares, ratios)[0, 1] > 0.9


def test_a_smallest_ratio_above_the_largest_is_refused():
    with pytest.raises(ValueError, match=r"'most' must be at least 'least', got 0.2 and 0.5"):
        DiffusionConfig(least=0.5, most=0.2)


def test_the_vector_predicts_each_word_of_the_text_once():
    model, (tokens, view) = encoder(), views()
    encoded = model.encode(view.ids, view.attention)
    other = attrs.evolve(
        tokens, **{name: getattr(tokens, name).roll(1, 0) for name in ("ids", "maskable", "attention")}
    )
    for text in (tokens, other):  # the text itself (EBAE), and another one (EBAR)
        out = LmHeadDecoder()(DecoderInput(encoded, text, view), model.heads())
        step = BagOfTokensLoss()(**out)
        logits = encoded.bottleneck @ model.heads().weight.T
        means = []
        for row in range(len(text.ids)):
            words = {int(word) for word, real in zip(text.ids[row], text.maskable[row], strict=True) if real}
            chances = torch.log(torch.exp(logits[row]) / torch.exp(logits[row]).sum())
            if words:
                means.append(-torch.stack([chances[word] for word in sorted(words)]).mean())
        assert BagOfTokensLoss().items(**out) == len(means) < len(text.ids), "a text without words is left out"
        torch.testing.assert_close(step.loss, torch.stack(means).mean())


def test_the_next_span_follows_in_its_document():

    from drkit.data.contexts import PretrainingTexts

    class Spans:
        documents = np.array([0, 0, 0, 1, 2, 2])

        def of(self, documents):
            first = np.array([0, 3, 4])[documents]
            return first, np.array([3, 1, 2])[documents]

    class Store:
        pad_id = 0

        def batch(self, indices, **_):
            tokens = toy_tokens([4] * len(indices))
            return attrs.evolve(tokens, ids=torch.from_numpy(np.asarray(indices))[:, None].expand(-1, 4))

    texts = PretrainingTexts(Store(), Spans())
    tokens = attrs.evolve(toy_tokens([4] * 6), keys=torch.arange(6))
    found = NextSpanContext()(tokens, texts, seed=1, epoch=2)
    assert found.ids[:, 0].tolist() == [1, 2, 1, 3, 5, 4]
    assert found.keys.tolist() == list(range(6))
