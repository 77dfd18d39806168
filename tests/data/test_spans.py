"""Spans: every token once and in order, none too long, sentences whole where they fit; Punkt's model."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from drkit.data.formats import BeirCollection
from drkit.data.spans import (
    Spans,
    pack,
    sample,
    sample_positions,
    sentence_boundaries,
    split_documents,
    train_punkt,
)
from drkit.data.specs import BeirConfig
from drkit.data.store import TokenStore
from drkit.data.vocabulary import train_wordpiece
from drkit.errors import DrkitError
from tests.refusals import refused


def sentences_at(marks: str):
    """A splitter for texts whose sentences end with `marks`."""

    def split(text):
        ends = [i + 1 for i, letter in enumerate(text) if letter == marks]
        borders = sorted({0, *ends, len(text)})
        return [(a + len(text[a:b]) - len(text[a:b].lstrip()), b) for a, b in pairwise(borders) if text[a:b].strip()]

    return split


texts_of_words = st.lists(st.text(alphabet="ab. ,xé", max_size=30), max_size=8)


@given(st.lists(texts_of_words.map(" ".join), min_size=1, max_size=5), st.integers(3, 14))
def test_every_token_is_kept_once_and_in_order(tokenizer, tmp_path_factory, texts, max_length):
    folder = tmp_path_factory.mktemp("spans")
    counts = split_documents(enumerate(texts), tokenizer, folder, max_length=max_length, splitter=sentences_at("."))
    store, spans = TokenStore.open(folder), Spans.open(folder)
    whole = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    rebuilt = [[] for _ in texts]
    for index, document in enumerate(spans.documents):
        rebuilt[document] += store.flat_ids[store.offsets[index] : store.offsets[index + 1]].tolist()
    assert rebuilt == whole
    assert (store.lengths <= max_length).all()
    assert (store.lengths > 2).all()
    assert (np.diff(spans.documents) >= 0).all()
    assert counts["spans"] == len(store) == len(spans)
    assert counts["tokens"] == sum(map(len, whole))
    assert counts["empty"] == sum(not ids for ids in whole)
    assert counts["alone"] == int((np.bincount(spans.documents, minlength=1) == 1).sum())


@st.composite
def documents(draw):
    sentences = draw(st.lists(st.integers(1, 12), min_size=1, max_size=12))
    borders = np.cumsum([0, *sentences]).tolist()
    pieces = draw(st.lists(st.integers(1, 4), min_size=borders[-1], max_size=borders[-1]))
    return borders, np.repeat(np.arange(len(pieces)), pieces)[: borders[-1]].tolist()


@given(documents(), st.integers(2, 15))
def test_spans_are_whole_sentences_where_these_fit(document, limit):
    borders, words = document
    cuts = pack(borders, words, limit)
    assert cuts[0] == 0
    assert cuts[-1] == borders[-1]
    sizes = np.diff(cuts)
    assert (sizes > 0).all()
    assert (sizes <= limit).all()
    long = [(a, b) for a, b in pairwise(borders) if b - a > limit]
    for cut in cuts:
        inside = any(a < cut < b for a, b in long)
        assert cut in borders or inside
        if inside and words[cut] == words[cut - 1]:  # only a word that fits in no span is cut
            assert words.count(words[cut]) > min(limit, 1) or limit < 4
    if len(borders) > 2:
        assert len(cuts) > 2, "several sentences, and one span alone"
    fewest = _greedy(borders, limit) if not long else 0
    assert not fewest or len(cuts) - 1 == max(fewest, 2 if len(borders) > 2 else 1)


def _greedy(borders, limit):
    count, start = 1, 0
    for stop, after in pairwise(borders):
        if after - start > limit:
            count, start = count + 1, stop
    return count


def test_a_document_of_one_span_is_cut_nearest_its_middle():
    assert pack([0, 2, 9, 10], range(10), limit=20) == [0, 2, 10]
    assert pack([0, 4, 6, 10], range(10), limit=20) == [0, 4, 10]
    assert pack([0, 10], range(10), limit=20) == [0, 10]
    assert pack([0], [], limit=20) == [0]


def test_the_last_two_spans_are_made_even():
    # Greedy: 9 + 1 tokens in the last two.
    assert pack([0, 9, 13, 18, 19], range(19), limit=9) == [0, 9, 13, 19]


def test_a_long_sentence_is_cut_between_words_into_like_parts():
    words = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert pack([0, 10], words, limit=6) == [0, 6, 10]
    assert max(np.diff(pack([0, 10], [0] * 10, limit=4))) <= 4
    assert np.diff(pack([0, 10], range(10), limit=9)).tolist() == [5, 5]


def test_tokens_between_sentences_belong_to_one(tokenizer):
    assert sentence_boundaries([(0, 2), (2, 3), (3, 6), (6, 9)], [(0, 3), (4, 9)]) == [0, 2, 4]
    assert sentence_boundaries([(0, 2)], []) == [0, 1]
    assert sentence_boundaries([], []) == [0]
    # A sentence without a token is ignored, and whatever follows the last sentence belongs to it.
    assert sentence_boundaries([(0, 2), (8, 9)], [(0, 2), (3, 4), (5, 6)]) == [0, 1, 2]


def test_spans_know_their_text(tokenizer, tmp_path):
    texts = ["One sentence here. Another one there. A third.", "", "Alone", "Two of them. Here."]
    split_documents(enumerate(texts), tokenizer, tmp_path, max_length=12, splitter=sentences_at("."))
    store, spans = pickle.loads(pickle.dumps((TokenStore.open(tmp_path), Spans.open(tmp_path))))
    for index, document in enumerate(spans.documents):
        text = texts[document][spans.begins[index] : spans.ends[index]]
        ids = store.flat_ids[store.offsets[index] : store.offsets[index + 1]].tolist()
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids
    first, count = spans.of([0, 1, 2, 3])
    assert count.tolist()[1:3] == [0, 1]
    assert [spans.documents[f] for f, c in zip(first, count, strict=True) if c] == [0, 2, 3]
    assert list(spans.names(["a", "b", "c", "d"]))[-3:] == ["c#0", "d#0", "d#1"]


def test_there_are_no_spans_in_an_empty_folder(tmp_path):
    with refused("No such file", where="/spans.arrow"):
        Spans.open(tmp_path)


# ------------------------------------------------------------------------------------------------ Punkt
def test_punkt_learns_from_the_texts_and_downloads_nothing(monkeypatch, real_texts):
    import nltk

    monkeypatch.setattr(nltk, "download", lambda *_: pytest.fail("downloads"))
    punkt = pickle.loads(pickle.dumps(train_punkt(real_texts)))
    text = "Return the first item. Raise an error where it is empty.  Why? It must not be, e.g. in a loop."
    assert [text[a:b] for a, b in punkt(text)] == [
        "Return the first item.",
        "Raise an error where it is empty.",
        "Why?",
        "It must not be, e.g. in a loop.",
    ]
    assert punkt("") == []
    with pytest.raises(DrkitError, match="no words"):
        train_punkt(["", " "])


def test_punkt_learns_the_same_in_another_process(real_texts):
    code = (
        "import sys, json; from drkit.data.spans import train_punkt; "
        "texts = json.load(sys.stdin); punkt = train_punkt(texts); print(json.dumps([punkt(t) for t in texts]))"
    )
    texts = real_texts[:60]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2", "PATH": ""},
    )
    punkt = train_punkt(texts)
    found = [[list(span) for span in punkt(text)] for text in texts]
    assert json.loads(done.stdout) == found
    assert sum(map(len, found)) > 60


def test_the_sample_is_bounded_and_seeded():
    assert list(sample(["x" * 1_500_000, "y" * 90_000, "z"])) == ["x" * 100_000, "y" * 90_000, "z"]
    assert len(list(sample(["x" * 99_000] * 50))) == 21
    assert sample_positions(10_000, 3) == sample_positions(10_000, 3) != sample_positions(10_000, 4)
    assert len(set(sample_positions(10_000, 3))) == 5000
    assert sorted(sample_positions(7, 1)) == list(range(7))


# ------------------------------------------------------------------------------------------------ real collections
@pytest.mark.parametrize(("name", "alone"), [("cranfield", 0.01), ("cacm", 0.55)])
def test_spans_of_a_real_collection(shared, tmp_path, name, alone):
    folder = shared / "collections" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    texts = [p.content for p in BeirCollection(BeirConfig(path=str(folder), unknown_judgements="drop")).passages()]
    texts = texts[::4]
    tokenizer = train_wordpiece(iter(texts), tmp_path / "vocabulary", size=2000)
    punkt = train_punkt(sample(texts[i] for i in sample_positions(len(texts), 42)))
    counts = split_documents(enumerate(texts), tokenizer, tmp_path / "spans", max_length=64, splitter=punkt)
    store, spans = TokenStore.open(tmp_path / "spans"), Spans.open(tmp_path / "spans")
    whole = np.concatenate([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])
    assert np.array_equal(store.flat_ids, whole.astype(np.int32))
    assert store.lengths.max() <= 64
    assert counts["documents"] == len(texts)
    assert counts["alone"] / len(texts) < alone
    # Most borders are ends of sentences.
    ends = [texts[d][:e].rstrip()[-1:] for d, e in zip(spans.documents.tolist(), spans.ends.tolist(), strict=True)]
    assert np.mean([end in ".?!)" for end in ends]) > 0.8 if name == "cranfield" else True


def test_byte_level_tokens_are_cut_too(tmp_path):
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaTokenizerFast

    texts = ["Who went home? Mr. Smith.", "What is it? See there. More? No."]
    trainer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer.train_from_iterator(texts, vocab_size=300, special_tokens=specials)
    trainer.save_model(str(tmp_path))
    RobertaTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    split_documents(enumerate(texts), tokenizer, tmp_path, max_length=30, splitter=sentences_at("?"))
    store = TokenStore.open(tmp_path)
    whole = [t for text in texts for t in tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert store.flat_ids.tolist() == whole
    decoded = [tokenizer.decode(store.flat_ids[a:b]).strip() for a, b in pairwise(store.offsets)]
    assert decoded[:2] == ["Who went home?", "Mr. Smith."]
