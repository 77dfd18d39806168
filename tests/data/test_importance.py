"""Counts, importance and embeddings against the formulas written out, on real text."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drkit.data.arrays import SignalValues
from drkit.data.counts import _digits, count_ngrams, text_chunks
from drkit.data.merging import sorted_with_positions, spill
from drkit.data.store import TokenStore, tokenise
from drkit.data.word_embeddings import log_frequencies, ppmi_svd
from drkit.errors import DrkitError
from drkit.signals.pmi import NgramCounts, corpus_importance, importance
from drkit.signals.specs import ImportanceConfig
from tests.data.stores import score, store_of


def sequences(store: TokenStore) -> list[list[int]]:
    return [store.flat_ids[a:b].tolist() for a, b in zip(store.offsets[:-1], store.offsets[1:], strict=True)]


def count_all(texts: list[list[int]], window: int) -> list[Counter]:
    return [Counter(tuple(t[i : i + n]) for t in texts for i in range(len(t) - n + 1)) for n in range(1, window + 1)]


class Written:
    """AMI as the formula has it, token by token."""

    def __init__(
        self, counted: list[list[int]], *, window: int, min_count: int, pmi: str, ends: str = "fitting"
    ) -> None:
        self.window, self.min_count, self.pmi, self.ends = window, min_count, pmi, ends
        self.counts = count_all(counted, window)

    def log_p(self, gram: tuple[int, ...]) -> float:
        table = self.counts[len(gram) - 1]
        return math.log(table[gram] / sum(table.values()))

    def of_ngram(self, gram: tuple[int, ...], token: int, rest: tuple[int, ...]) -> float:
        if self.counts[len(gram) - 1][gram] < self.min_count:
            return 0.0
        parts = [(token,), rest] if self.pmi == "fragment" else [(t,) for t in gram]
        return self.log_p(gram) - sum(self.log_p(part) for part in parts)

    def ami(self, text: list[int], i: int) -> float:
        left = [tuple(text[i - j : i + 1]) for j in range(1, self.window) if i - j >= 0]
        right = [tuple(text[i : i + j + 1]) for j in range(1, self.window) if i + j < len(text)]
        sides = (
            [self.of_ngram(g, text[i], g[:-1]) for g in left],
            [self.of_ngram(g, text[i], g[1:]) for g in right],
        )
        if self.ends == "window":  # equation 8 as it is printed
            return sum(sum(side) / (self.window - 1) for side in sides)
        return sum(sum(side) / len(side) for side in sides if side)


def expected(texts, **settings) -> list[list[float]]:
    written = Written(texts, **settings)
    return [[written.ami(text, i) for i in range(len(text))] for text in texts]


@pytest.fixture(scope="module")
def small(real_texts, tokenizer, tmp_path_factory) -> TokenStore:
    folder = tmp_path_factory.mktemp("small")
    texts = [*real_texts[:60], "", "file", "the file", "the file is"]
    tokenise(((str(i), t) for i, t in enumerate(texts)), tokenizer, folder, max_length=40)
    return TokenStore.open(folder)


@pytest.mark.parametrize("pmi", ["fragment", "specific"])
@pytest.mark.parametrize("ends", ["fitting", "window"])
@pytest.mark.parametrize(("window", "min_count"), [(2, 1), (4, 1), (4, 3), (6, 2)])
def test_importance_equals_the_formula(small, tmp_path, pmi, ends, window, min_count):
    counts = count_ngrams(small, tmp_path / "counts", window=window, min_count=min_count)
    got = importance(small, counts, tmp_path / "importance", pmi=pmi, ends=ends)
    read = {"window": window, "min_count": min_count, "pmi": pmi, "ends": ends}
    wanted = [x for text in expected(sequences(small), **read) for x in text]
    np.testing.assert_allclose(got.values, wanted, rtol=1e-6, atol=1e-5)
    assert got.values.dtype == np.float32
    assert len(got) == small.offsets[-1]


def test_both_kinds_agree_on_bigrams(small, tmp_path):
    counts = count_ngrams(small, tmp_path / "counts", window=2)
    one, other = (importance(small, counts, tmp_path / pmi, pmi=pmi).values for pmi in ("fragment", "specific"))
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("min_count", [1, 2])
def test_counts_equal_a_counter(small, tmp_path, min_count):
    counts = count_ngrams(small, tmp_path, window=5, min_count=min_count)
    exact = count_all(sequences(small), 5)
    facts = counts.describe()
    assert facts["total"] == [sum(c.values()) for c in exact]
    assert facts["distinct"] == [sum(n >= min_count for n in c.values()) for c in exact]
    for table, c in zip(counts.tables, exact, strict=True):
        assert sorted(table.counts.tolist()) == sorted(n for n in c.values() if n >= min_count)


@pytest.mark.parametrize("workers", [1, 3])
def test_chunks_spilled_and_merged_count_as_one_pass(store, tmp_path, monkeypatch, workers):
    whole = count_ngrams(store, tmp_path / "whole", workers=1)
    monkeypatch.setattr("drkit.data.counts._SMALLEST_CHUNK", 1)
    monkeypatch.setattr("drkit.data.counts._BYTES_PER_TOKEN", 2**20 // 150)
    parts = count_ngrams(store, tmp_path / "parts", workers=workers, memory_mb=1)
    assert len(list(text_chunks(store.offsets, 150 // workers))) > 20
    for one, other in zip(whole.tables, parts.tables, strict=True):
        assert np.array_equal(one.keys, other.keys)
        assert np.array_equal(one.counts, other.counts)
        assert one.total == other.total
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == [f"{n}.arrow" for n in range(1, 5)]


@given(st.lists(st.integers(-1, 2**62), max_size=50), st.sampled_from([2**62, 2**40, 3]))
def test_keys_are_sorted_with_their_positions_whether_both_fit_one_number_or_not(values, largest):
    keys = np.array([min(value, largest) for value in values], dtype=np.int64)
    in_order, positions = sorted_with_positions(keys)
    assert in_order.tolist() == sorted(key for key in keys.tolist() if key >= 0)
    assert keys[positions].tolist() == in_order.tolist()
    assert sorted(positions.tolist()) == np.flatnonzero(keys >= 0).tolist()


@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize("digits", [1, 2, 3, 5])
def test_keys_of_any_number_of_digits_count_as_a_counter(small, tmp_path, monkeypatch, digits, min_count):
    """With fewer digits than tokens, the first are replaced by their rank, once or several times."""
    monkeypatch.setattr("drkit.data.counts._digits", lambda base, beginnings: digits)
    monkeypatch.setattr("drkit.data.counts._SMALLEST_CHUNK", 1)
    monkeypatch.setattr("drkit.data.counts._BYTES_PER_TOKEN", 2**20 // 150)
    counts = count_ngrams(small, tmp_path, window=5, min_count=min_count, memory_mb=1)
    texts, exact = sequences(small), count_all(sequences(small), 5)
    (found,) = counts.log_shares(small, [(0, len(texts))])
    for n, (table, shares) in enumerate(zip(counts.tables, found, strict=True)):
        wanted = [exact[n][tuple(t[i : i + n + 1])] if i + n < len(t) else 0 for t in texts for i in range(len(t))]
        wanted = np.array([number if number >= min_count else 0 for number in wanted])
        np.testing.assert_array_equal(shares, table.log_shares(wanted))
        assert len(table.keys) == sum(found >= min_count for found in exact[n].values())


@pytest.mark.parametrize(
    ("base", "beginnings", "digits"), [(30_523, 1, 4), (250_003, 1, 3), (250_003, 10**9, 1), (2, 1, 62)]
)
def test_as_many_digits_as_fit_make_a_key(base, beginnings, digits):
    assert _digits(base, beginnings) == digits
    assert beginnings * base**digits < 2**63


def test_spilled_numbers_are_read_and_written_by_slices(tmp_path):
    values = np.arange(10, dtype=np.int32)
    spilled = spill(values, str(tmp_path / "numbers"))
    spilled[3:5] = np.array([30, 40])
    expected = [0, 1, 2, 30, 40, 5, 6, 7, 8, 9]
    assert spilled[:].tolist() == expected
    assert [spilled[slice(*at)].tolist() for at in ((2, 4), (8, 99), (10, 12), (5, 5))] == [[2, 30], [8, 9], [], []]
    assert (len(spilled), spilled[:].dtype, spill(values[:0], str(tmp_path / "none"))[:].tolist()) == (10, np.int32, [])


def test_any_vocabulary_fits(tmp_path):
    """Ids near 2**31: no packing of four of them into 64 bits would do."""
    rng = np.random.default_rng(0)
    ids = rng.choice(rng.integers(2**30, 2**31 - 2, 6), 400).tolist()
    store = store_of([ids[:150], [], ids[150:]], tmp_path)
    got = importance(store, count_ngrams(store, tmp_path / "counts"), tmp_path)
    wanted = [x for text in expected(sequences(store), window=4, min_count=1, pmi="fragment") for x in text]
    np.testing.assert_allclose(got.values, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("beyond", [1, 7])
def test_text_that_was_not_counted_adds_nothing(small, tmp_path, beyond):
    counts = count_ngrams(small, tmp_path)
    text = next(t for t in sequences(small) if len(t) > 10)
    assert np.allclose(score([text], counts, tmp_path)[0], expected_of(small, text), rtol=1e-6, atol=1e-5)
    unseen = int(small.flat_ids.max()) + beyond
    strange = [*text[:4], unseen, *text[5:9]]
    assert np.allclose(score([strange], counts, tmp_path)[0], expected_of(small, strange), rtol=1e-6, atol=1e-5)
    assert score([[unseen, unseen]], counts, tmp_path)[0].tolist() == [0.0, 0.0]
    assert [len(s) for s in score([[], [text[0]], text], counts, tmp_path)] == [0, 1, len(text)]
    assert score([[], [text[0]]], counts, tmp_path)[1].tolist() == [0.0]
    assert score([], counts, tmp_path) == []


def expected_of(store: TokenStore, text: list[int]) -> list[float]:
    written = Written(sequences(store), window=4, min_count=1, pmi="fragment")
    return [written.ami(text, i) for i in range(len(text))]


def test_a_batch_carries_the_importance(small, tmp_path):
    counts = count_ngrams(small, tmp_path / "counts")
    weights = importance(small, counts, tmp_path / "importance")
    batch = small.batch([5, 60, 2], pad_to=8, signals={"importance": weights})
    assert batch.signals["importance"].dtype == torch.float32
    for row, i in enumerate([5, 60, 2]):
        n = small.lengths[i] - 2
        assert (
            batch.signals["importance"][row, 1 : n + 1].tolist()
            == weights.values[small.offsets[i] : small.offsets[i + 1]].tolist()
        )
        assert not batch.signals["importance"][row, 0]
        assert not batch.signals["importance"][row, n + 1 :].any()
    again = pickle.loads(pickle.dumps(weights))
    assert np.array_equal(again.values, weights.values)


def test_an_empty_store_has_counts(tokenizer, tmp_path):
    tokenise([("a", "")], tokenizer, tmp_path, max_length=8)
    store = TokenStore.open(tmp_path)
    counts = count_ngrams(store, tmp_path / "counts")
    assert counts.describe()["total"] == [0, 0, 0, 0]
    assert len(importance(store, counts, tmp_path).values) == 0
    assert score([[1, 2, 3]], counts, tmp_path)[0].tolist() == [0.0, 0.0, 0.0]


def test_what_is_missing_or_unknown_says_so(small, tmp_path):
    with pytest.raises(DrkitError, match=r"/1\.arrow: "):
        NgramCounts(tmp_path)
    with pytest.raises(DrkitError, match=r"/values\.arrow: "):
        SignalValues.open(tmp_path)
    counts = count_ngrams(small, tmp_path)
    with pytest.raises(DrkitError, match=r"pmi .*fragment, specific, got 'broken'"):
        importance(small, counts, tmp_path, pmi="broken")


def ppmi_written_out(texts: list[list[int]], size: int, window: int, smoothing: float) -> np.ndarray:
    counts = np.zeros((size, size))
    for text in texts:
        for i, a in enumerate(text):
            for b in text[i + 1 : i + window + 1]:
                counts[a, b] += 1
                counts[b, a] += 1
    p = counts.sum(1) / counts.sum()
    context = counts.sum(1) ** smoothing / (counts.sum(1) ** smoothing).sum()
    out = np.zeros_like(counts)
    for a, b in zip(*counts.nonzero(), strict=True):
        joint = counts[a, b] / counts.sum()
        both = math.log(joint / (p[a] * context[b])), math.log(joint / (p[b] * context[a]))
        out[a, b] = max(sum(both) / 2, 0)
    return out


def test_embeddings_are_the_factors_of_the_ppmi_matrix(small, tokenizer):
    size = len(tokenizer)
    got = ppmi_svd(small, vocab_size=size, dim=8, seed=1, window=3, power=0.5, std=0.05)
    u, s, _ = np.linalg.svd(ppmi_written_out(sequences(small), size, 3, 0.75))
    wanted = u[:, :8] * np.sqrt(s[:8])
    used = np.unique(small.flat_ids)
    gram, expected_gram = got[used] @ got[used].T, wanted[used] @ wanted[used].T
    scale = np.linalg.norm(gram) / np.linalg.norm(expected_gram)
    np.testing.assert_allclose(gram, expected_gram * scale, atol=1e-4 * np.abs(gram).max())
    assert got[used].std() == pytest.approx(0.05, rel=1e-3)


def test_embeddings_are_reproducible_and_fill_every_row(small, tokenizer):
    one, same, other = (ppmi_svd(small, vocab_size=len(tokenizer), dim=16, seed=s) for s in (1, 1, 2))
    assert np.array_equal(one, same)
    unseen = np.setdiff1d(np.arange(len(tokenizer)), small.flat_ids)
    assert len(unseen)
    assert not np.array_equal(one[unseen], other[unseen])
    assert one.dtype == np.float32
    assert one.shape == (len(tokenizer), 16)
    assert (np.abs(one).sum(1) > 0).all()


def test_embeddings_refuse_what_cannot_be(small, tokenizer):
    with pytest.raises(DrkitError, match=r"token id 597, .* 10;"):
        ppmi_svd(small, vocab_size=10, dim=4, seed=1)
    with pytest.raises(DrkitError, match=r"321 tokens .*5000 .*encoder\.hidden.*encoder\.init_embeddings=random"):
        ppmi_svd(small, vocab_size=len(tokenizer), dim=5000, seed=1)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 22])
def test_log_frequencies_are_shares(small, tokenizer, at_once, monkeypatch):
    monkeypatch.setattr("drkit.data.word_embeddings._TOKENS_AT_ONCE", at_once)
    got = log_frequencies(small, vocab_size=len(tokenizer))
    assert np.exp(got.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
    token, number = Counter(small.flat_ids.tolist()).most_common(1)[0]
    unseen = np.setdiff1d(np.arange(len(tokenizer)), small.flat_ids)[0]
    assert got[token] - got[unseen] == pytest.approx(math.log((number + 0.5) / 0.5), rel=1e-5)


def test_folders_may_be_given_as_paths_or_made(small, tmp_path: Path):
    counts = count_ngrams(small, tmp_path / "deep" / "folder")
    assert NgramCounts(counts.folder).describe() == counts.describe()


def test_importance_of_plain_texts_is_that_of_their_store(tokenizer, tmp_path):
    some = ["remove a suffix of a string", "copy a file", "remove a prefix of a file"]
    found = corpus_importance(iter(some), tokenizer, ImportanceConfig(window=3), max_length=7)
    tokenise(((str(n), text) for n, text in enumerate(some)), tokenizer, tmp_path / "tokens", max_length=7)
    store = TokenStore.open(tmp_path / "tokens")
    values = importance(store, count_ngrams(store, tmp_path / "counts", window=3), tmp_path / "values").values
    assert [len(one) for one in found] == np.diff(store.offsets).tolist()
    np.testing.assert_array_equal(np.concatenate(found), values)
    assert corpus_importance([], tokenizer) == []
