"""Document frequencies equal a count with sets, whatever the chunks; their stage joins a plan where idf is wanted."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from drkit.core.registry import installed
from drkit.data import train_wordpiece
from drkit.data.store import StoredTexts, TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.plan import plan
from drkit.signals import idf as frequencies
from drkit.signals.idf import IdfSignal, document_frequencies, idf
from tests.refusals import refused

TEXTS = ["the cat sat on the mat", "", "the dog sat", "cat and dog and cat", "a mat is a mat is a mat", "x y z"] * 7


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    folder = tmp_path_factory.mktemp("store")
    tokenizer = train_wordpiece(iter(TEXTS), folder / "vocabulary", size=100)
    tokenise(((str(i), text) for i, text in enumerate(TEXTS)), tokenizer, folder / "tokens", max_length=12)
    return TokenStore.open(folder / "tokens")


@pytest.mark.parametrize("tokens_at_once", [1, 5, 1 << 22])
def test_equals_a_count_with_sets(store, monkeypatch, tokens_at_once):
    monkeypatch.setattr(frequencies, "_TOKENS_AT_ONCE", tokens_at_once)
    wanted: Counter[int] = Counter()
    for start, stop in zip(store.offsets[:-1], store.offsets[1:], strict=True):
        wanted.update(set(store.flat_ids[start:stop].tolist()))
    found = document_frequencies(store, vocab_size=110)
    assert {token: n for token, n in enumerate(found.tolist()) if n} == wanted
    assert found.dtype == np.int64


def test_written_and_opened(store, tmp_path):
    counts = IdfSignal().fit(StoredTexts(store, None, vocab_size=110), tmp_path)
    found = document_frequencies(store, vocab_size=110)
    assert counts == {"texts": len(TEXTS), "words": int((found > 0).sum())}
    (weights,) = IdfSignal().values(StoredTexts(store, None, vocab_size=110), tmp_path)
    assert weights.dtype == np.float32
    assert len(weights) == 110
    for token, n in enumerate(found.tolist()):
        assert weights[token].item() == pytest.approx(math.log(len(TEXTS) / max(n, 1)), rel=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["frequencies.arrow"]


def test_a_word_of_every_text_weighs_nothing_and_an_unseen_one_most():
    assert idf(np.array([4, 1, 0]), texts=4).tolist() == pytest.approx([0, math.log(4), math.log(4)])


def test_bad_input(store, tmp_path):
    with pytest.raises(DrkitError, match=r"token id 46, .* 5;"):
        document_frequencies(store, vocab_size=5)
    with refused("No such file", where="/frequencies.arrow"):
        next(IdfSignal().values(StoredTexts(store, None, vocab_size=110), tmp_path))


def stages(paper: str) -> dict[str, tuple[str, ...]]:
    parts = installed()
    recipe = compose(ComposeRequest(paper=paper, scale="quick"), parts)
    return {stage.name: stage.needs for stage in plan(recipe, parts.registry).stages}


def test_the_stage_is_there_where_idf_is_wanted_alone():
    assert "signal-idf" not in stages("cpdae-no-cl")
    with_idf = stages("cpdae-idf")
    assert "tokens" in with_idf["signal-idf"]
    assert "signal-idf" in with_idf["pretrained"]
