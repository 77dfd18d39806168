"""Limits of memory: what is counted on disk equals what is counted at once, and too many words lose the rarest."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.data import merging, train_wordpiece, vocabulary, word_embeddings
from drkit.data.arrays import Arrays
from drkit.data.merging import merged, spill
from tests.data.stores import store_of

VOCABULARY = 24


def pairs_of(store, folder, window, bytes_per_pair):
    folder.mkdir()
    with (
        mock.patch.object(word_embeddings, "_BYTES_PER_PAIR", bytes_per_pair),
        mock.patch.object(word_embeddings, "_RUNS", 3),
    ):
        sums = word_embeddings._count_pairs(store, VOCABULARY, window, folder, memory_mb=1)
    found = Arrays(folder / "pairs.arrow")
    return sums, dict(zip(found["keys"].tolist(), found["counts"].tolist(), strict=True)), found["keys"].tolist()


@given(
    texts=st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=12), min_size=1, max_size=12),
    window=st.integers(1, 4),
    at_once=st.integers(1, 40),
)
def test_pairs_counted_on_disk_are_those_of_the_texts(tmp_path_factory, texts, window, at_once):
    expected = Counter(
        one * VOCABULARY + other
        for text in texts
        for i, a in enumerate(text)
        for b in text[i + 1 : i + 1 + window]
        for one, other in ((a, b), (b, a))
    )
    folder = tmp_path_factory.mktemp("pairs")
    store = store_of(texts, folder)
    for name, bytes_per_pair in (("held", 1), ("spilled", 2**20 // at_once)):
        sums, found, keys = pairs_of(store, folder / name, window, bytes_per_pair)
        assert found == expected
        assert keys == sorted(found)  # each once
        rows = Counter(dict.fromkeys(range(VOCABULARY), 0))
        for key, number in expected.items():
            rows[key // VOCABULARY] += number
        assert sums.tolist() == [rows[token] for token in range(VOCABULARY)]


@pytest.mark.parametrize("lengths", [[20_000] * 40, [1_000_000, *[10_000] * 20]], ids=["equal", "one-is-long"])
def test_merged_runs_are_never_all_in_memory(tmp_path, monkeypatch, lengths):
    monkeypatch.setattr(merging, "_BLOCK", 1 << 12)
    rng, runs, expected, top = np.random.default_rng(0), [], Counter(), max(200_000, 2 * max(lengths))
    for number, length in enumerate(lengths):
        keys = np.sort(rng.choice(top, length, replace=False))
        runs.append(
            (spill(keys, f"{tmp_path / str(number)}.keys"), spill(keys % 7, f"{tmp_path / str(number)}.counts"))
        )
        expected.update(dict(zip(keys.tolist(), (keys % 7).tolist(), strict=True)))
    peaks = []
    for _ in range(2):  # Python's table of strings may grow meanwhile, once
        tracemalloc.start()
        held = [(int(keys[0]), int(keys[-1]), len(keys), int(counts.sum())) for keys, counts in merged(runs, 40_000)]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert len(held) > 15
    assert all(last < first for (_, last, *_), (first, *_) in pairwise(held))
    assert sum(length for _, _, length, _ in held) == len(expected)
    assert sum(total for *_, total in held) == sum(expected.values())
    assert min(peaks) < sum(lengths) * 16 / 4, "a quarter of what the runs hold"


def test_runs_merged_on_disk_are_one_run(tmp_path):
    rng, files = np.random.default_rng(0), [str(tmp_path / name) for name in "abc"]
    keys = [np.unique(rng.integers(0, 300, 99)) for _ in files]
    runs = [(spill(k, f"{file}.keys"), spill(k % 7, f"{file}.counts")) for k, file in zip(keys, files, strict=True)]
    (expected,) = merged(runs, 10_000)
    one = merging.merge_on_disk(runs, str(tmp_path / "one"), 40)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.counts", "one.keys"]
    assert [column[:].tolist() for column in one] == [column.tolist() for column in expected]


def test_embeddings_do_not_depend_on_the_memory_limit(tmp_path):
    rng = np.random.default_rng(0)
    store = store_of([rng.integers(0, VOCABULARY, rng.integers(0, 30)) ** 2 // VOCABULARY for _ in range(60)], tmp_path)
    how = {"vocab_size": VOCABULARY, "dim": 6, "seed": 1}
    held = word_embeddings.ppmi_svd(store, **how)
    for pairs in (7, 100, 3000):
        with mock.patch.object(word_embeddings, "_BYTES_PER_PAIR", 2**20 // pairs):
            spilled = word_embeddings.ppmi_svd(store, **how, folder=tmp_path, memory_mb=1)
        assert np.array_equal(held, spilled)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.arrow"]


def corpus():
    """Texts of 40 frequent words, each with a word that occurs nowhere else."""
    frequent = [first + second + "e" for first in "bdfgklmn" for second in ("ar", "or", "is", "en", "ul")]
    rng = random.Random(0)
    for number in range(600):
        rare = "".join("qzxjv"[int(digit, 5)] for digit in np.base_repr(number + 700, 5))
        yield " ".join([*rng.choices(frequent, k=6), rare])


def entries(folder, texts, words):
    with mock.patch.object(vocabulary, "_BYTES_PER_WORD", 2**20 // words):
        return train_wordpiece(iter(texts), folder, size=160, memory_mb=1).get_vocab()


def of_rare_words(found):
    """Entries of several letters that only the rare words have."""
    return {entry for entry in found if len(entry.removeprefix("##")) > 1 and set(entry) <= set("##qzxjv")}


def test_words_that_fit_are_all_used(tmp_path):
    plain = train_wordpiece(corpus(), tmp_path / "plain", size=160).get_vocab()
    assert entries(tmp_path / "fits", corpus(), 640) == plain
    assert of_rare_words(plain)


def test_too_many_words_lose_the_rarest(tmp_path):
    found = entries(tmp_path / "one", corpus(), 100)
    assert found == entries(tmp_path / "two", corpus(), 100)
    assert not of_rare_words(found)
    assert {"bare", "dore", "nule"} <= set(found)
    assert {"q", "z", "##x", "##j", "##v"} <= set(found)  # no text becomes [UNK]


@pytest.mark.parametrize("limit", [1, 5, 60])
def test_counting_words_holds_at_most_the_limit(tmp_path, limit):
    sizes = []
    prune = vocabulary._prune

    def spied(counted, *given):
        kept, rare = prune(counted, *given)
        sizes.append((len(counted), len(kept)))
        return kept, rare

    with mock.patch.object(vocabulary, "_prune", spied):
        _, kept = vocabulary._write_lines(corpus(), tmp_path / "lines", limit)
    assert kept is not None
    assert len(kept) <= limit
    assert sizes
    assert all(before <= limit + 7 and after <= limit // 2 for before, after in sizes)  # 7 words in a text
