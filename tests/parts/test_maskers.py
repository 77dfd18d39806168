from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.draws import Draws
from drkit.core.types import BuildContext, TokenBatch
from drkit.encoders import context_from
from drkit.errors import DrkitError
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.maskers.pmi import largest, mean_over_words
from drkit.maskers.views import choose_words, find_units, make_view, rounded_budget
from tests.parts.toys import texts, toy_batch, toy_encoder


# ------------------------------------------------------------------ the greedy choice, against the naive one
def naive_greedy(keys, sizes, budget):
    taken, running = [], 0
    order = sorted((w for w in range(len(sizes)) if sizes[w]), key=lambda w: (keys[w], w))
    for word in order:
        if running + sizes[word] <= budget:
            taken.append(word)
            running += sizes[word]
    if not taken and order:
        taken = [min(order, key=lambda w: (sizes[w], order.index(w)))]
    return [w in taken for w in range(len(sizes))]


text = st.lists(st.integers(1, 9), min_size=0, max_size=25)


@settings(max_examples=max(150, settings().max_examples))
@given(st.lists(text, min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 10**6))
def test_vectorised_greedy_equals_the_naive_one(batch, ratio, seed):
    most = max(map(len, batch))
    sizes = np.array([t + [0] * (most - len(t)) for t in batch], dtype=np.int64).reshape(len(batch), most)
    keys = np.random.default_rng(seed).integers(0, 12, sizes.shape).astype(np.float32)  # with ties
    budget = rounded_budget(sizes.sum(1), ratio)
    chosen = choose_words(keys, sizes, budget)
    for row, t in enumerate(batch):
        assert budget[row] == max(1, round(sum(t) * ratio))
        assert chosen[row].tolist() == naive_greedy(keys[row], sizes[row], budget[row])


def test_words_are_found_whatever_their_numbers():
    words = torch.tensor([[-1, 4, 4, 9, -1, 9, 9, 9, -1], [-1, 0, 1, 1, 2, -1, -1, -1, -1]])
    attention = torch.tensor([[1] * 9, [1] * 6 + [0] * 3]).bool()
    ids = torch.ones_like(words)
    tokens = TokenBatch(ids=ids, attention=attention, maskable=words >= 0, words=words, keys=torch.arange(2))
    found = find_units(tokens)
    assert found.sizes.tolist() == [[2, 1, 3], [1, 2, 1]]
    assert found.index.tolist() == [[3, 0, 0, 1, 3, 2, 2, 2, 3], [3, 0, 1, 1, 2, 3, 3, 3, 3]]
    assert found.counts.tolist() == [6, 4]
    means = mean_over_words(found, np.arange(18, dtype=np.float32).reshape(2, 9))
    np.testing.assert_allclose(means, [[1.5, 3, 6], [10, 11.5, 13]])


def test_largest_equals_sorting_with_ties_in_reading_order():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, (7, 4, 30)).astype(np.float32)
    scores[:, :, 25:] = -np.inf
    counts = np.array([0, 1, 5, 12, 24, 25, 7])
    got = largest(scores, counts)
    for b in range(7):
        for r in range(4):
            order = sorted(range(30), key=lambda i: (-scores[b, r, i], i))[: counts[b]]
            assert np.flatnonzero(got[b, r]).tolist() == sorted(order)


# ------------------------------------------------------------------ on real text
@pytest.fixture(scope="module")
def real(tokenizer):
    return toy_batch(tokenizer, texts(), max_length=150)


@pytest.fixture(scope="module")
def context(tokenizer) -> BuildContext:
    return context_from(toy_encoder(tokenizer), tokenizer)


def draws(tokens, epoch=0):
    return Draws(1, epoch, tokens.keys.numpy())


def hidden(view):
    return view.labels != -100


def important(tokens, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return attrs.evolve(tokens, signals={"importance": torch.randn(tokens.ids.shape, generator=draw) * tokens.maskable})


def test_the_real_texts_are_worth_testing_on(real):
    sizes = find_units(real).sizes
    assert len(real.ids) > 100
    assert (sizes > 2).sum() > 500


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("unit", ["word", "token"])
def test_uniform_hides_the_share_it_should(real, context, ratio, unit):
    view = UniformMasker(UniformConfig(ratio=ratio, unit=unit), context)(real, draws(real))
    count = hidden(view).sum(1)
    wanted = torch.round(real.maskable.sum(1) * ratio).clamp(min=1 if ratio else 0)
    assert (count <= wanted).all()
    if unit == "token" or ratio in (0, 1):
        assert torch.equal(count, wanted.long())
    else:
        assert count.sum() / wanted.sum() > 0.98  # only a word that would overshoot is skipped
    assert not (hidden(view) & ~real.maskable).any()


def test_two_views_are_drawn_independently(real, context):
    masker, rng = UniformMasker(UniformConfig(ratio=0.4), context), draws(real)
    both = hidden(masker(real, rng)) & hidden(masker(real, rng))
    assert (both.sum() / real.maskable.sum()).item() == pytest.approx(0.16, abs=0.01)


def test_words_are_hidden_whole_and_tokens_are_not(real, context):
    views = [UniformMasker(UniformConfig(unit=unit), context)(real, draws(real)) for unit in ("word", "token")]
    words = find_units(real)
    assert_whole(words, hidden(views[0]).numpy())
    with pytest.raises(AssertionError):
        assert_whole(words, hidden(views[1]).numpy())


def assert_whole(words, taken):
    batch, most = words.sizes.shape
    bins = (words.index + np.arange(batch)[:, None] * (most + 1)).ravel()
    counts = np.bincount(bins, weights=taken.ravel(), minlength=batch * (most + 1)).reshape(batch, -1)[:, :most]
    assert ((counts == 0) | (counts == words.sizes)).all()


def test_eighty_ten_ten(real, context, tokenizer):
    masker = UniformMasker(UniformConfig(ratio=0.5), context)
    made = []
    for epoch in range(4):
        view = masker(real, draws(real, epoch))
        ids, clean = view.ids[hidden(view)], view.labels[hidden(view)]
        made.append(torch.stack([(ids == tokenizer.mask_token_id), ids == clean]).float().mean(1))
        drawn = ids[(ids != tokenizer.mask_token_id) & (ids != clean)]
        assert not set(drawn.tolist()) & set(tokenizer.all_special_ids)
    masked, kept = torch.stack(made).mean(0).tolist()
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1, abs=0.01)
    assert 1 - masked - kept == pytest.approx(0.1, abs=0.01)


def test_random_tokens_cover_the_vocabulary_and_shares_are_obeyed(real, context, tokenizer):
    config = UniformConfig(ratio=0.9, mask_token_share=(0.0, 1.0, 0.0))
    view = UniformMasker(config, context)(real, draws(real))
    drawn = view.ids[hidden(view)]
    assert len(drawn.unique()) > 0.95 * (len(tokenizer) - 5)
    config = UniformConfig(mask_token_share=(1.0, 0.0, 0.0))
    view = UniformMasker(config, context)(real, draws(real))
    assert (view.ids[hidden(view)] == tokenizer.mask_token_id).all()


NESTED = {
    "uniform": (UniformMasker, UniformConfig),
    "pmi": (PmiMasker, PmiConfig),
}


@pytest.mark.parametrize("masker", NESTED)
@pytest.mark.parametrize("unit", ["word", "token"])
def test_nested_views_are_supersets_of_the_same_ratio(real, context, masker, unit):
    tokens, (make, config) = important(real), NESTED[masker]
    outer = UniformMasker(UniformConfig(ratio=0.3, unit=unit), context)(tokens, draws(tokens))
    inner = make(config(ratio=0.5, unit=unit), context)(tokens, draws(tokens, 1), nested=outer)
    assert not (hidden(outer) & ~hidden(inner)).any()
    assert (hidden(inner).sum() / tokens.maskable.sum()).item() == pytest.approx(0.5, abs=0.015)
    if unit == "word":
        assert_whole(find_units(tokens), hidden(inner).numpy())
    for ratio in (0.0, 0.2):
        smaller = make(config(ratio=ratio, unit=unit), context)(tokens, draws(tokens, 1), nested=outer)
        assert torch.equal(hidden(outer), hidden(smaller))


@pytest.mark.parametrize("masker", NESTED)
def test_nothing_is_hidden_at_0_and_everything_at_1(real, context, masker):
    tokens, (make, config) = important(real), NESTED[masker]
    for unit in ("word", "token"):
        none, every = (make(config(ratio=ratio, unit=unit), context) for ratio in (0, 1))
        assert not hidden(none(tokens, draws(tokens))).any()
        assert torch.equal(hidden(every(tokens, draws(tokens))), tokens.maskable)
        assert (none(tokens, draws(tokens), rows=3).visible | ~tokens.attention[:, None]).all()
        assert not (every(tokens, draws(tokens), rows=3).visible & tokens.maskable[:, None]).any()


def test_a_plugins_view_hides_what_it_is_told_and_what_an_earlier_view_hides(real, context):
    rng = np.random.default_rng(0)
    chosen, earlier = (torch.from_numpy(rng.random(real.ids.shape) < 0.2) for _ in range(2))
    outer = make_view(real, earlier, draws(real), context)
    assert torch.equal(hidden(outer), earlier & real.maskable)
    both = (chosen | earlier) & real.maskable
    assert torch.equal(hidden(make_view(real, chosen, draws(real), context, nested=outer)), both)
    by_row = torch.stack([chosen, torch.zeros_like(chosen)], 1)
    visible = make_view(real, by_row, draws(real), context, rows=2, nested=outer).visible
    assert torch.equal(visible[:, 0], real.attention & ~both)
    assert torch.equal(visible[:, 1], real.attention & ~hidden(outer))


def test_something_is_hidden_in_every_text_and_an_empty_one_is_no_error(tokenizer, context):
    tokens = toy_batch(tokenizer, ["", "a", "supercalifragilisticexpialidocious", "of the a"])
    view = UniformMasker(UniformConfig(ratio=0.01), context)(tokens, draws(tokens))
    assert hidden(view).any(1).tolist() == [False, True, True, True]
    assert hidden(view)[2].sum() == tokens.maskable[2].sum() > 1  # its one word, longer than the budget
    only_empty = toy_batch(tokenizer, ["", ""])
    for rows in (0, 2):
        view = UniformMasker(UniformConfig(), context)(only_empty, draws(only_empty), rows=rows)
        assert not hidden(view).any()
        view = PmiMasker(PmiConfig(), context)(important(only_empty), draws(only_empty), rows=rows)
        assert not hidden(view).any()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("row_share", ["fixed", "random"])
def test_rows_see_each_word_with_the_decoders_share(real, context, nested, row_share):
    length = real.ids.shape[1]
    outer = UniformMasker(UniformConfig(ratio=0.3), context)(real, draws(real))
    masker = UniformMasker(UniformConfig(ratio=0.5, row_share=row_share), context)
    view = masker(real, draws(real), rows=length, nested=outer if nested else None)
    visible, words = view.visible, find_units(real)
    maskable = real.maskable[:, None].expand_as(visible)
    assert visible[maskable].float().mean().item() == pytest.approx(0.5, abs=0.02)
    for row in (0, 1, length - 1):
        assert_whole(words, (~visible[:, row] & real.maskable).numpy())
    special = real.attention & ~real.maskable
    assert visible.transpose(1, 2)[special].all()
    assert not visible.transpose(1, 2)[~real.attention].any()
    assert torch.equal(view.ids, real.ids)
    assert torch.equal(hidden(view), real.maskable)
    rows = visible[0][:, real.maskable[0]]
    assert len(rows.unique(dim=0)) == length  # every row its own pattern
    if nested:
        assert not (visible & hidden(outer)[:, None]).any()


# ------------------------------------------------------------------ pmi
def test_pmi_hides_exactly_the_share(real, context):
    tokens = important(real)
    for ratio in (0.3, 0.5):
        view = PmiMasker(PmiConfig(ratio=ratio), context)(tokens, draws(tokens))
        wanted = torch.floor(tokens.maskable.sum(1) * ratio + 1e-9).clamp(min=1)
        assert torch.equal(hidden(view).sum(1), wanted.long())


def test_pmi_without_noise_hides_the_most_important(real, context):
    tokens = important(real)
    view = PmiMasker(PmiConfig(ratio=0.5, sigma=0.0), context)(tokens, draws(tokens))
    for b in range(0, len(tokens.ids), 7):
        scored = sorted(tokens.maskable[b].nonzero()[:, 0].tolist(), key=lambda i: -tokens.signals["importance"][b, i])
        wanted = sorted(scored[: max(1, len(scored) // 2)])
        assert hidden(view)[b].nonzero()[:, 0].tolist() == wanted


@pytest.mark.parametrize("rows", [0, 40])
def test_pmi_hides_more_often_what_matters_more(real, context, rows):
    tokens = important(real)
    masker = PmiMasker(PmiConfig(ratio=0.5), context)
    rates = torch.zeros(real.ids.shape)
    for epoch in range(1 if rows else 30):
        view = masker(tokens, draws(tokens, epoch), rows=rows)
        rates += (~view.visible).float().mean(1) if rows else hidden(view).float() / 30
    chosen = tokens.maskable & (tokens.maskable.sum(1) > 20)[:, None]
    importance, rates = tokens.signals["importance"][chosen], rates[chosen]
    steps = [rates[(importance >= a) & (importance < a + 0.5)].mean().item() for a in np.arange(-2, 2, 0.5)]
    assert steps == sorted(steps)
    assert steps[0] < 0.15
    assert steps[-1] > 0.85


def test_pmi_rows_hide_k_each_by_their_own_noise(real, context):
    tokens, length = important(real), real.ids.shape[1]
    view = PmiMasker(PmiConfig(ratio=0.5), context)(tokens, draws(tokens), rows=length)
    k = (tokens.maskable.sum(1) // 2).clamp(min=1)
    concealed = ~view.visible & tokens.maskable[:, None]
    assert (concealed.sum(2) == k[:, None]).all()
    assert len(view.visible[0].unique(dim=0)) == length
    same = PmiMasker(PmiConfig(ratio=0.5, sigma=0.0), context)(tokens, draws(tokens), rows=5)
    assert (same.visible == same.visible[:, :1]).all()


@pytest.mark.parametrize("rows", [0, 6])
def test_pmi_by_word_takes_words_whole(real, context, rows):
    tokens = important(real)
    config = PmiConfig(ratio=0.5, unit="word")
    view = PmiMasker(config, context)(tokens, draws(tokens), rows=rows)
    taken = [hidden(view)] if not rows else [~view.visible[:, r] & tokens.maskable for r in range(rows)]
    words = find_units(tokens)
    for chosen in taken:
        assert_whole(words, chosen.numpy())
        k = (tokens.maskable.sum(1) // 2).clamp(min=1)
        assert (chosen.sum(1) <= k).float().mean() > 0.97
        assert chosen.sum() / k.sum() > 0.97


def test_pmi_by_word_without_noise_equals_the_naive_choice(real, context):
    tokens = important(real)
    view = PmiMasker(PmiConfig(ratio=0.5, unit="word", sigma=0.0), context)(tokens, draws(tokens))
    words = find_units(tokens)
    means = mean_over_words(words, tokens.signals["importance"].numpy())
    for b in range(0, len(tokens.ids), 9):
        chosen = naive_greedy(-means[b], words.sizes[b], max(1, words.counts[b] // 2))
        assert np.array_equal(hidden(view)[b].numpy(), np.append(chosen, False)[words.index[b]])


@pytest.mark.parametrize("constant", [0.0, 3.5])
def test_pmi_with_equal_importance_still_hides_k(real, context, constant):
    tokens = attrs.evolve(real, signals={"importance": torch.full(real.ids.shape, constant)})
    for sigma in (0.0, 1.0):
        view = PmiMasker(PmiConfig(ratio=0.5, sigma=sigma), context)(tokens, draws(tokens))
        assert torch.equal(hidden(view).sum(1), (real.maskable.sum(1) // 2).clamp(min=1))


# ------------------------------------------------------------------ bad input
def test_what_cannot_work_says_why(real, context):
    masker = PmiMasker(PmiConfig(ratio=0.5), context)
    with pytest.raises(DrkitError, match=r"signal 'importance' .*TokenBatch\.signals\['importance'\]"):
        masker(real, draws(real))
    broken = attrs.evolve(real, signals={"importance": torch.full(real.ids.shape, float("nan"))})
    with pytest.raises(DrkitError, match=r"importance .*finite"):
        masker(broken, draws(real))
    with pytest.raises(DrkitError, match=r"mask id .*context_from\(model, tokenizer\)"):
        UniformMasker(UniformConfig(), BuildContext())
    with pytest.raises(DrkitError, match=r"draws .*\d+ texts, got 3"):
        UniformMasker(UniformConfig(), context)(real, Draws(1, 0, [1, 2, 3]))


def test_byte_level_tokenizers_have_whole_words_too():
    """Words come from the tokenizer's own `word_ids()`: `##` is unknown to maskers."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    from drkit.encoders import token_batch

    trainer = ByteLevelBPETokenizer()
    specials = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    trainer.train_from_iterator(texts(), vocab_size=400, special_tokens=specials, show_progress=False)
    made = PreTrainedTokenizerFast(
        tokenizer_object=trainer._tokenizer, pad_token="<pad>", mask_token="<mask>", unk_token="<unk>"
    )
    tokens = token_batch(made(list(texts()[:20]), padding=True, truncation=True, max_length=128))
    words = find_units(tokens)
    assert (words.sizes > 1).mean() > 0.2
    context = context_from(toy_encoder(made), made)
    assert_whole(words, hidden(UniformMasker(UniformConfig(), context)(tokens, draws(tokens))).numpy())
