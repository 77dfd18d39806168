"""Signals go where their texts go: into batches, contexts and partners, whatever the padding and the selection."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.types import TokenBatch, map_tensors
from drkit.data.arrays import SignalValues, write_signal
from drkit.data.contexts import MixedContext, PretrainingTexts, QueryContext, SpanContext, stacked
from drkit.data.queries import Queries, write_candidates
from drkit.data.spans import Spans, sample, split_documents, train_punkt
from drkit.data.specs import MixedContextConfig
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.testing.toys import rows_of, toy_tokens

SEED = 5


def every_kind(store: TokenStore, folder) -> dict[str, SignalValues]:
    """A signal of every kind that tells of each value which token or text it belongs to."""
    ids, texts = store.flat_ids.astype(np.float32), np.arange(len(store), dtype=np.float32)
    given = {
        "ids": ("token", ids),
        "both": ("token", np.stack([ids, -ids], 1)),
        "place": ("text", texts),
        "pair": ("text", np.stack([texts, texts + 0.5], 1)),
    }
    return {
        name: write_signal(name, np.array_split(values, 3), folder / name, scope=scope, count=len(values))
        for name, (scope, values) in given.items()
    }


def agrees(batch: TokenBatch, store: TokenStore, places) -> None:
    """Every signal of every row is that of the row's own text."""
    for row, place in enumerate(places):
        content = torch.from_numpy(store.flat_ids[store.offsets[place] : store.offsets[place + 1]].astype(np.float32))
        inside = slice(1, len(content) + 1)
        assert torch.equal(batch.signals["ids"][row, inside], content)
        assert torch.equal(batch.signals["both"][row, inside], torch.stack([content, -content], 1))
        for name in ("ids", "both"):
            assert not batch.signals[name][row, 0].any()
            assert not batch.signals[name][row, len(content) + 1 :].any()
        assert batch.signals["place"][row] == place
        assert batch.signals["pair"][row].tolist() == [place, place + 0.5]


@pytest.fixture(scope="module")
def texts(real_texts, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    tokenise(((str(i), t) for i, t in enumerate([*real_texts[:40], "", "file"])), tokenizer, folder, max_length=40)
    store = TokenStore.open(folder)
    return store, every_kind(store, folder)


@settings(max_examples=30, deadline=None)
@given(places=st.lists(st.integers(0, 41), min_size=1, max_size=6), pad_to=st.sampled_from([None, 4, 16]))
def test_a_batch_carries_them(texts, places, pad_to):
    store, signals = texts
    batch = store.batch(places, pad_to=pad_to, signals=signals)
    assert batch.signals["ids"].shape == batch.ids.shape
    assert batch.signals["both"].shape == (*batch.ids.shape, 2)
    agrees(batch, store, places)


@settings(max_examples=30, deadline=None)
@given(
    first=st.lists(st.integers(0, 41), min_size=1, max_size=5),
    second=st.lists(st.integers(0, 41), min_size=1, max_size=5),
    data=st.data(),
)
def test_stacking_and_selection_keep_them(texts, first, second, data):
    store, signals = texts
    one, two = store.batch(first, signals=signals), store.batch(second, signals=signals)
    both = stacked(one, two, store.pad_id)
    agrees(both, store, [*first, *second])
    chosen = data.draw(st.lists(st.integers(0, len(first) + len(second) - 1), min_size=1, max_size=8))
    agrees(rows_of(both, chosen), store, [[*first, *second][row] for row in chosen])


def test_stacking_refuses_what_only_one_batch_carries(texts):
    store, signals = texts
    with pytest.raises(DrkitError, match="signal both, ids, pair, place"):
        stacked(store.batch([1], signals=signals), store.batch([2]), store.pad_id)


def test_tensors_are_mapped_and_values_are_pickled(texts):
    store, signals = texts
    batch = store.batch([3, 1], signals=signals)
    doubled = map_tensors(batch, lambda tensor: tensor * 2)
    assert all(torch.equal(doubled.signals[name], values * 2) for name, values in batch.signals.items())
    again = pickle.loads(pickle.dumps(signals))
    assert all(np.array_equal(again[name].values, values.values) for name, values in signals.items())
    with pytest.raises(DrkitError, match=r"signal 'idf' \(signals: ids, both, place, pair\)"):
        batch.signal("idf")


def test_contexts_carry_their_own(real_texts, tokenizer, tmp_path):
    punkt = train_punkt(sample(real_texts))
    split_documents(enumerate(real_texts[:30]), tokenizer, tmp_path / "spans", max_length=30, splitter=punkt)
    store, spans = TokenStore.open(tmp_path / "spans"), Spans.open(tmp_path / "spans")
    signals = every_kind(store, tmp_path / "signals")
    write_candidates(store, signals["ids"], tokenizer, tmp_path / "queries", count=3, max_length=16)
    queries = Queries(tmp_path / "queries")
    of_queries = every_kind(queries.store, tmp_path / "of-queries")
    texts = PretrainingTexts(store, spans, queries, signals, of_queries)
    tokens = texts.batch(np.arange(len(store))[:24])
    for epoch, made in enumerate((SpanContext(), QueryContext(), MixedContext(MixedContextConfig()))):
        batch = made(tokens, texts, seed=SEED, epoch=epoch)
        assert batch.signals["ids"].shape == batch.ids.shape
        inner = batch.ids * batch.attention
        inner[:, 0] = 0
        inner.scatter_(1, batch.attention.sum(1, keepdim=True) - 1, 0)
        assert torch.equal(batch.signals["ids"], inner.float())
        assert torch.equal(batch.signals["both"], torch.stack([inner, -inner], 2).float())


@pytest.mark.parametrize(
    ("values", "count", "said"),
    [
        ([np.ones(3)], 4, "gave 3 values for 4 of scope 'token'"),
        ([np.ones(2), np.array([1.0, np.nan])], 4, "finite at token 3"),
        ([np.ones((2, 2)), np.ones((2, 3))], 4, "3 values .* 2"),
        ([np.ones((2, 2, 2))], 2, "shape"),
    ],
)
def test_wrong_values_are_refused(values, count, said, tmp_path):
    with pytest.raises(DrkitError, match=said):
        write_signal("mine", values, tmp_path, scope="token", count=count)
    assert not list(tmp_path.glob("*.arrow"))


def test_characters_are_aligned_with_tokens(real_texts, tokenizer, tmp_path):
    prompt, given = "passage: ", [*real_texts[:20], "", "The File"]
    pairs = ((str(i), t) for i, t in enumerate(given))
    tokenise(pairs, tokenizer, tmp_path, max_length=24, prompt=prompt)
    store = TokenStore.open(tmp_path)
    texts = StoredTexts(store, tokenizer, len(tokenizer), characters=lambda: given, prompt=prompt)
    backend = tokenizer.backend_tokenizer
    for place, (text, spans) in enumerate(texts.read()):
        assert text == given[place]
        ids = store.flat_ids[store.offsets[place] : store.offsets[place + 1]]
        assert len(spans) == len(ids)
        own = backend.encode(text, add_special_tokens=False)
        shown = [tuple(span) for span in spans.tolist() if span[1]]
        assert shown == own.offsets[: len(shown)]
    with pytest.raises(DrkitError, match=r"requires=\('characters',\)"):
        StoredTexts(store, None, 0).read()
    with pytest.raises(DrkitError, match=r"tokenise (the texts|them) again"):
        list(attrs.evolve(texts, characters=lambda: given[:3]).read())


def test_without_characters_tokens_spell_the_text(real_texts, tokenizer, tmp_path):
    tokenise(((str(i), t) for i, t in enumerate(real_texts[:10])), tokenizer, tmp_path, max_length=40)
    store = TokenStore.open(tmp_path)
    for place, (text, spans) in enumerate(StoredTexts(store, tokenizer, len(tokenizer)).read()):
        ids = store.flat_ids[store.offsets[place] : store.offsets[place + 1]].tolist()
        pieces = [text[begin:end] for begin, end in spans.tolist()]
        assert pieces == [tokenizer.decode([token]).removeprefix("##").strip() for token in ids]


def test_the_toys_have_them():
    assert toy_tokens().signal("importance").shape == toy_tokens().ids.shape
