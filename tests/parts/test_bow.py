"""The bag-of-words decoder and its loss, against their formulas one word at a time."""

from __future__ import annotations

import math

import attrs
import pytest
import torch

from drkit.core.types import BuildContext, Encoded, MaskedView
from drkit.core.types import DecoderInput as Inputs
from drkit.decoders import BowDecoder, BowDecoderConfig, word_distribution
from drkit.decoders.bow import word_mask
from drkit.errors import DrkitError
from drkit.losses import BowReconstructionConfig, BowReconstructionLoss
from drkit.testing import check_loss
from drkit.testing.toys import VOCAB, rows_of, toy_context, toy_tokens


def nothing_to_see(tokens) -> MaskedView:
    return MaskedView(ids=tokens.ids * 0, labels=tokens.ids * 0 - 100, attention=tokens.attention)


def decode(decoder, tokens, h):
    return decoder(Inputs(Encoded(bottleneck=h, hidden=h[:, None]), tokens, nothing_to_see(tokens)), None)


def test_contracts():
    check_loss("bow-reconstruction", BowReconstructionConfig(idf=True))


def test_words_are_the_texts_own_and_no_special_token():
    tokens = toy_tokens()
    words = word_mask(tokens, VOCAB)
    for row in range(len(tokens.ids)):
        found = set(tokens.ids[row][tokens.maskable[row]].tolist())
        assert set(words[row].nonzero()[:, 0].tolist()) == found
        assert not found & {0, 1, 2, 3, 4}


def test_it_reads_the_bottleneck_and_the_clean_text_alone():
    decoder, tokens = BowDecoder(BowDecoderConfig(), toy_context()), toy_tokens()
    h = torch.randn(len(tokens.ids), 16)
    out = decode(decoder, tokens, h)
    hidden = torch.nn.functional.gelu(decoder.hidden(h))
    normed = (hidden - hidden.mean(1, keepdim=True)) / (hidden.var(1, unbiased=False, keepdim=True) + 1e-12).sqrt()
    torch.testing.assert_close(out["vocab_logits"], normed @ decoder.words.weight.T + decoder.words.bias)
    order = [3, 1, 0]
    some = decode(decoder, rows_of(tokens, order), h[order])
    torch.testing.assert_close(some["vocab_logits"], out["vocab_logits"][order])
    assert torch.equal(some["words"], out["words"][order])


def test_every_word_starts_at_the_prior():
    decoder = BowDecoder(BowDecoderConfig(prior=0.125), toy_context())
    assert torch.allclose(decoder.words.bias.sigmoid(), torch.tensor(0.125))
    assert torch.allclose(decoder.word_distribution(torch.randn(3, 16)).sum(1), torch.ones(3))


def test_word_distribution_is_the_formula_and_holds_where_every_probability_is_next_to_nothing():
    z = torch.randn(4, 30, dtype=torch.float64) * 4
    zhat = 1 / (1 + torch.exp(-z))
    torch.testing.assert_close(word_distribution(z), zhat / zhat.sum(1, keepdim=True))
    far = word_distribution(torch.tensor([[-200.0, -200.0, -201.0]]))
    assert far.tolist()[0] == pytest.approx([1 / (2 + math.exp(-1))] * 2 + [math.exp(-1) / (2 + math.exp(-1))])
    assert word_distribution(torch.zeros(1, 2, dtype=torch.bfloat16)).dtype == torch.float32


def naive(logits, words, idf) -> float:
    total = 0.0
    for b in range(len(words)):
        for v in range(words.shape[1]):
            zhat = 1 / (1 + math.exp(-logits[b, v].item()))
            total -= idf[v].item() * math.log(zhat if words[b, v] else 1 - zhat)
    return total / len(words)


@pytest.mark.parametrize("weighted", [False, True])
def test_reconstruction_is_a_sum_over_the_vocabulary_and_a_mean_over_texts(weighted):
    draw = torch.Generator().manual_seed(1)
    logits, words = torch.randn(5, 17, generator=draw) * 3, torch.rand(5, 17, generator=draw) < 0.3
    idf = torch.rand(17, generator=draw) * 5 if weighted else torch.ones(17)
    loss = BowReconstructionLoss(BowReconstructionConfig(idf=weighted), BuildContext(signals={"idf": idf}))
    out = loss(vocab_logits=logits, words=words)
    assert out.loss.item() == pytest.approx(naive(logits, words, idf), rel=1e-6)
    assert out.metrics["recall"].item() == pytest.approx(((logits > 0) & words).sum().item() / words.sum().item())
    permuted = torch.randperm(5, generator=draw)
    again = loss(vocab_logits=logits[permuted], words=words[permuted])
    assert again.loss.item() == pytest.approx(out.loss.item(), rel=1e-6)


def test_it_holds_for_certain_scores_and_half_precision():
    loss, words = BowReconstructionLoss(), torch.tensor([[True, False]])
    assert loss(vocab_logits=torch.tensor([[500.0, -500.0]]), words=words).loss.item() == 0
    assert loss(vocab_logits=torch.tensor([[-500.0, 500.0]]), words=words).loss.item() == 1000
    assert loss(vocab_logits=torch.zeros(1, 2, dtype=torch.bfloat16), words=words).loss.dtype == torch.float32


def test_idf_is_asked_for_only_where_it_is_used_and_moves_with_the_loss():
    assert BowReconstructionConfig().signals == {}
    assert BowReconstructionConfig(idf=True).signals == {"idf": {}}
    loss = BowReconstructionLoss(BowReconstructionConfig(idf=True), toy_context()).double()
    assert loss.idf.dtype == torch.float64
    assert not loss.state_dict()


def test_bad_input_is_refused():
    on = BowReconstructionConfig(idf=True)
    with pytest.raises(DrkitError, match=r"needs BuildContext\.signals\['idf'\]"):
        BowReconstructionLoss(on, attrs.evolve(toy_context(), signals={}))
    with pytest.raises(DrkitError, match=r"idf has \d+ words, expected \d+ as in vocab_logits"):
        BowReconstructionLoss(on, toy_context())(vocab_logits=torch.zeros(1, 3), words=torch.zeros(1, 3).bool())
    with pytest.raises(DrkitError, match=r"\[B,V\], got"):
        BowReconstructionLoss()(vocab_logits=torch.zeros(1, 3), words=torch.zeros(1, 4).bool())


def test_accuracy_is_r_precision():
    words = torch.tensor([[True, True, False, False], [False, False, False, True]])
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    assert BowReconstructionLoss().accuracy(vocab_logits=logits, words=words) == (2.0, 3.0)
