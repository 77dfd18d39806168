"""The token store against padding written out, and the vocabulary it is made with."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertConfig, BertTokenizerFast

from drkit.data.arrays import ArrayWriter
from drkit.data.generation import truncate_texts
from drkit.data.store import StoredTexts, TokenStore, count_truncated, tokenise
from drkit.data.vocabulary import train_wordpiece
from drkit.errors import DrkitError
from tests.search.made import reader_of


def padded(store: TokenStore, tokenizer, texts, indices, pad_to):
    """What `batch` should give, text by text and token by token, from the tokenizer itself."""
    rows = []
    for i in indices:
        encoding = tokenizer(texts[i], truncation=True, max_length=store.max_length)
        words = [-1 if w is None else w for w in encoding.word_ids()]
        rows.append((encoding["input_ids"], words))
    width = max(len(ids) for ids, _ in rows)
    if pad_to:
        width = min(-(-width // pad_to) * pad_to, store.max_length)
    special = set(tokenizer.all_special_ids)
    out = {"ids": [], "words": [], "attention": [], "maskable": []}
    for ids, words in rows:
        gap = width - len(ids)
        out["ids"].append(ids + [tokenizer.pad_token_id] * gap)
        out["words"].append([-1 if i in special else w for i, w in zip(ids, words, strict=True)] + [-1] * gap)
        out["attention"].append([True] * len(ids) + [False] * gap)
        out["maskable"].append([i not in special for i in ids] + [False] * gap)
    return {name: torch.tensor(value) for name, value in out.items()}


@given(data=st.data(), pad_to=st.sampled_from([None, 8, 16, 64]))
def test_a_batch_equals_padding_written_out(store, tokenizer, real_texts, data, pad_to):
    texts = [*real_texts, ""]
    indices = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=12))
    batch = store.batch(indices, pad_to=pad_to)
    for name, expected in padded(store, tokenizer, texts, indices, pad_to).items():
        assert torch.equal(getattr(batch, name), expected), name
    assert batch.keys.tolist() == indices
    assert batch.signals == {}
    assert batch.ids.dtype == batch.words.dtype == torch.int64


@pytest.mark.parametrize("prompt", ["", "search for: "])
@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_on_the_side_that_the_tokenizer_declares(side, prompt, tokenizer, real_texts, tmp_path):
    other, length = copy.deepcopy(tokenizer), 20
    other.truncation_side = side
    texts = ["", "a", *real_texts[:80]]
    tokenise(((str(i), text) for i, text in enumerate(texts)), other, tmp_path, max_length=length, prompt=prompt)
    store = TokenStore.open(tmp_path)
    encodings = [other(prompt + text, truncation=True, max_length=length) for text in texts]
    assert [store.tokens(i).tolist() for i in range(len(store))] == [one["input_ids"] for one in encodings]
    encoder = reader_of(SimpleNamespace(config=BertConfig()), other, passage_length=length)
    assert [store.tokens(i).tolist() for i in range(len(store))] == encoder._tokens([prompt + t for t in texts], "", 20)
    stored = StoredTexts(store, other, len(other), characters=lambda: texts, prompt=prompt)
    for (text, spans), encoding in zip(stored.read(), encodings, strict=True):
        offsets = np.array(encoding.encodings[0].offsets)[1:-1] - len(prompt)
        assert spans.tolist() == np.maximum(offsets, 0).tolist()
        shown = "".join(text[a:b] for a, b in spans)
        assert shown in "".join(text.split())
    cut = [text for _, text in truncate_texts(((str(i), text) for i, text in enumerate(texts)), other, length)]
    for text, kept in zip(texts, cut, strict=True):
        tokens = other(text, truncation=True, max_length=length).encodings[0].offsets[1:-1]
        assert kept == text[tokens[0][0] if side == "left" else 0 : tokens[-1][1]] if tokens else kept == ""


def test_lengths_count_special_tokens(store, tokenizer, real_texts):
    expected = [len(tokenizer(t, truncation=True, max_length=40)["input_ids"]) for t in [*real_texts, ""]]
    assert store.lengths.tolist() == expected
    assert store.lengths.dtype == np.int32
    assert len(store) == len(expected)


def test_truncated_and_empty_texts_are_counted(tokenizer, tmp_path):
    texts = ["", "the file", "the file " * 50, "   "]
    counts = tokenise(((str(i), t) for i, t in enumerate(texts)), tokenizer, tmp_path, max_length=10)
    one = len(tokenizer("the file")["input_ids"]) - 2
    longest = len(tokenizer("the file " * 50)["input_ids"])
    lengths = {"truncated": 1, "longest": longest, "p95": longest}
    assert counts == {"texts": 4, "tokens": one + 8, **lengths, "empty": 2, "unknown_rate": 0.0}
    exact = tokenise([("a", "the file")], tokenizer, tmp_path, max_length=one + 2)
    assert exact["truncated"] == 0


@given(st.lists(st.integers(2, 60), min_size=1), st.integers(2, 60))
def test_truncated_texts_are_counted_as_numpy_counts_them(lengths, limit):
    counts = count_truncated(Counter(lengths), limit)
    p95 = int(np.quantile(lengths, 0.95, method="inverted_cdf"))
    assert counts == {"truncated": sum(n > limit for n in lengths), "longest": max(lengths), "p95": p95}


def test_unknown_tokens_are_counted_and_never_maskable(tokenizer, tmp_path):
    counts = tokenise([("a", "the 語 file")], tokenizer, tmp_path, max_length=20)
    assert 0 < counts["unknown_rate"] < 0.5
    batch = TokenStore.open(tmp_path).batch([0])
    unknown = batch.ids == tokenizer.unk_token_id
    assert unknown.sum() == 1
    assert not batch.maskable[unknown].any()


def test_special_tokens_spelled_out_in_a_text_are_never_maskable(tokenizer, tmp_path):
    tokenise([("a", "the [MASK] of [SEP] file")], tokenizer, tmp_path, max_length=20)
    batch = TokenStore.open(tmp_path).batch([0])
    assert batch.ids[0].tolist() == tokenizer("the [MASK] of [SEP] file")["input_ids"]
    special = torch.isin(batch.ids, torch.tensor(tokenizer.all_special_ids))
    assert torch.equal(batch.maskable, ~special)
    assert (batch.words[special] == -1).all()


def test_an_empty_store_opens(tokenizer, tmp_path):
    assert tokenise([], tokenizer, tmp_path, max_length=8)["texts"] == 0
    assert len(TokenStore.open(tmp_path)) == 0


def test_more_texts_than_are_encoded_at_once(tokenizer, tmp_path):
    texts = [f"file {i}" for i in range(2500)]
    tokenise(((t, t) for t in texts), tokenizer, tmp_path, max_length=16)
    batch = TokenStore.open(tmp_path).batch([2499, 0, 1024])
    for row, i in zip(batch.ids, (2499, 0, 1024), strict=True):
        ids = [int(t) for t in row if t != tokenizer.pad_token_id]
        assert ids == tokenizer(texts[i])["input_ids"]


def test_indices_outside_the_store_are_refused(store):
    for wrong in ([len(store)], [-1], [0, 10**9]):
        with pytest.raises(IndexError, match=f"{wrong[-1]} .* {len(store)} "):
            store.batch(wrong)


def test_a_store_travels_by_path(store):
    copied = pickle.dumps(store)
    assert len(copied) < 500
    again = pickle.loads(copied)
    assert torch.equal(again.batch([3, 1]).ids, store.batch([3, 1]).ids)


def test_bad_tokenizers_and_lengths_are_refused(tokenizer, tmp_path):
    with pytest.raises(DrkitError, match=r"max_length .*3 \(\[CLS\], a token, \[SEP\]\)"):
        tokenise([], tokenizer, tmp_path, max_length=2)

    class Slow:
        is_fast = False

        def num_special_tokens_to_add(self):
            return 2

    with pytest.raises(DrkitError, match=r"Slow .*words; .*fast tokenizer"):
        tokenise([], Slow(), tmp_path, max_length=8)
    bare = BertTokenizerFast(vocab=tokenizer.get_vocab())
    bare.backend_tokenizer.post_processor = None
    bare.cls_token = None
    with pytest.raises(DrkitError, match=r"BertTokenizer .*'\[CLS\] text \[SEP\]'"):
        tokenise([], bare, tmp_path, max_length=8)


def test_a_missing_store_says_so(tmp_path):
    with pytest.raises(DrkitError, match=r"/tokens\.arrow: .*"):
        TokenStore.open(tmp_path)
    (tmp_path / "tokens.arrow").write_bytes(b"ARROW1 and then nothing")
    with pytest.raises(DrkitError, match=r"/tokens\.arrow: .*"):
        TokenStore.open(tmp_path)


def test_a_failure_while_writing_leaves_nothing(tokenizer, tmp_path):
    def texts():
        yield "a", "the file"
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        tokenise(texts(), tokenizer, tmp_path, max_length=8)
    assert not list(tmp_path.iterdir())


def test_the_writer_replaces_what_a_killed_one_left(tmp_path):
    parts = tmp_path / ".x.arrow.parts"
    parts.mkdir()
    (parts / "values").write_bytes(b"left over")
    with ArrayWriter(tmp_path / "x.arrow", {"values": np.int32}) as writer:
        writer.append(values=np.arange(3))
    assert [p.name for p in tmp_path.iterdir()] == ["x.arrow"]


def test_values_that_cannot_be_removed_are_no_silent_part_of_the_folder(tmp_path, monkeypatch):
    def refuse(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    writer = ArrayWriter(tmp_path / "x.arrow", {"values": np.int32})
    with pytest.raises(PermissionError), writer:  # noqa: PT012
        writer.append(values=np.arange(3))
        monkeypatch.setattr("drkit.data.arrays.shutil.rmtree", refuse)


TRAIN = """
import sys
from collections import Counter
from pathlib import Path
from drkit.data.vocabulary import train_wordpiece
texts = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
train_wordpiece(iter(texts), Path(sys.argv[2]), size=700)
"""


def test_the_same_texts_give_the_same_vocabulary(real_texts, tmp_path):
    (tmp_path / "texts").write_text("\n".join([*real_texts, "naïve 語 → ° ß"]), encoding="utf-8")
    files = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", TRAIN, tmp_path / "texts", tmp_path / seed]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        files.append((tmp_path / seed / "tokenizer.json").read_bytes())
    assert files[0] == files[1]


def test_the_vocabulary_loads_as_a_bert_tokenizer(real_texts, tmp_path):
    trained = train_wordpiece(iter(real_texts), tmp_path, size=500)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert len(trained) == len(loaded) <= 500
    assert (loaded.pad_token_id, loaded.unk_token_id, loaded.cls_token_id) == (0, 1, 2)
    assert (loaded.sep_token_id, loaded.mask_token_id) == (3, 4)
    encoded = loaded("Return the File")
    assert encoded["input_ids"] == trained("return the file")["input_ids"]
    assert loaded.convert_ids_to_tokens(encoded["input_ids"])[:3] == ["[CLS]", "return", "the"]
    assert encoded["input_ids"][-1] == loaded.sep_token_id
    assert loaded.unk_token_id not in loaded(real_texts)["input_ids"][0]


def test_case_can_be_kept(real_texts, tmp_path):
    cased = train_wordpiece(iter(real_texts), tmp_path, size=500, lowercase=False)
    assert cased("Return")["input_ids"] != cased("return")["input_ids"]


def test_a_vocabulary_needs_room_and_words(tmp_path):
    with pytest.raises(DrkitError, match="too small"):
        train_wordpiece(iter(["a"]), tmp_path, size=50)
    with pytest.raises(DrkitError, match=r"vocabulary: .*words"):
        train_wordpiece(iter(["", "  "]), tmp_path, size=200)
