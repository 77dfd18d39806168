"""DupMAE's bag of words: the formula one text, one word and one position at a time; chunks change nothing."""

from __future__ import annotations

import math

import attrs
import pytest
import torch

from drkit.core.types import TextStates
from drkit.testing import check_decoder
from drkit.testing.toys import VOCAB, rows_of, toy_encoder, toy_tokens
from drkit_retromae import loss as bag_of_words
from drkit_retromae.loss import BagOfWordsLoss
from tests.papers.test_contrast import Largest


def texts(dtype=torch.float64, padding: int = 0, rows: list[int] | None = None) -> TextStates:
    tokens = toy_tokens(padding=padding)
    draw = torch.Generator().manual_seed(5)
    states = torch.randn(*toy_tokens(padding=7).ids.shape, 16, generator=draw)[:, : tokens.ids.shape[1]].to(dtype)
    chosen = list(range(len(tokens.ids))) if rows is None else rows
    heads = toy_encoder().to(dtype).heads()
    return TextStates(states=states[chosen].requires_grad_(), tokens=rows_of(tokens, chosen), heads=heads)


def naive(given: TextStates) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for b in range(len(given.states)):
        real = [p for p in range(given.states.shape[1]) if given.tokens.attention[b, p]]
        ids = given.tokens.ids[b][given.tokens.maskable[b]].tolist()
        scores = torch.stack([given.heads.logits(given.states[b, p]) for p in real[1:]])
        peaks = [scores[:, v].max(0).values for v in range(VOCAB)]  # of equal scores one takes the gradient
        normaliser = torch.stack([peak.exp() for peak in peaks]).sum().log()
        for word in set(ids):
            total = total - (peaks[word] - normaliser) / len(ids)
    return total / len(given.states)


def test_contracts():
    from drkit.decoders import EnhancedConfig

    check_decoder("enhanced", EnhancedConfig(query="embedded"))
    check_decoder("enhanced", EnhancedConfig(query="embedded", targets=0.25))


@pytest.mark.parametrize("at_once", [1, 30 * VOCAB * 3, 2**24])
def test_chunks_of_any_size_give_the_formula_and_its_gradient(monkeypatch, at_once):
    monkeypatch.setattr(bag_of_words, "AT_ONCE", at_once)
    given = texts()
    loss, wanted = BagOfWordsLoss()(text_states=given).loss, naive(given)
    torch.testing.assert_close(loss, wanted)
    inputs = [given.states, given.heads.weight]
    for mine, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(wanted, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_padding_and_order_do_not_matter():
    loss = BagOfWordsLoss()
    one = loss(text_states=texts()).loss.item()
    assert loss(text_states=texts(padding=7)).loss.item() == pytest.approx(one)
    assert loss(text_states=texts(rows=[3, 0, 7, 1, 2, 6, 5, 4])).loss.item() == pytest.approx(one)


def test_an_empty_text_has_no_words_and_adds_nothing():
    empty = texts(rows=[5])  # [CLS] [SEP]
    out = BagOfWordsLoss()(text_states=empty).loss
    assert out.item() == 0
    out.backward()
    assert empty.states.grad.isfinite().all()
    both = BagOfWordsLoss()(text_states=texts(rows=[5, 0])).loss.item()
    assert both == pytest.approx(BagOfWordsLoss()(text_states=texts(rows=[0])).loss.item() / 2)


def test_the_scores_of_all_texts_never_stand_in_one_piece(monkeypatch):
    monkeypatch.setattr(bag_of_words, "AT_ONCE", 2 * 30 * VOCAB)
    given = texts(torch.float32)
    with Largest() as watch:
        BagOfWordsLoss()(text_states=given).loss.backward()
    assert watch.values <= 2 * 30 * VOCAB < len(given.states) * 29 * VOCAB


class SameForAll:
    """Heads that score every word alike."""

    weight = torch.zeros(VOCAB, 16)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return states.new_zeros(*states.shape[:-1], VOCAB)


def test_equal_scores_cost_log_v_for_the_share_of_the_text_that_is_new_words():
    given = attrs.evolve(texts(torch.float32, rows=[0]), heads=SameForAll())
    tokens = int(given.tokens.maskable.sum())
    words = len(set(given.tokens.ids[0][given.tokens.maskable[0]].tolist()))
    assert words < tokens
    assert BagOfWordsLoss()(text_states=given).loss.item() == pytest.approx(words / tokens * math.log(VOCAB))
