"""Prompts precede texts in training and in encoding, are never masked, and leave room for the text."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import BertConfig

from drkit.data.spans import Punkt, Spans, split_documents, train_punkt
from drkit.data.store import TokenStore, tokenise
from drkit.errors import DrkitError
from tests.search.made import reader_of

PROMPT = "search for: "


def test_training_reads_the_tokens_that_encoding_makes(tokenizer, real_texts, tmp_path):
    texts = ["", "a", *real_texts[:50]]
    tokenise(((str(i), text) for i, text in enumerate(texts)), tokenizer, tmp_path, max_length=40, prompt=PROMPT)
    store = TokenStore.open(tmp_path)
    encoder = reader_of(SimpleNamespace(config=BertConfig()), tokenizer, passage_length=40, passage_prompt=PROMPT)
    expected = encoder._tokens(texts, PROMPT, 40)
    assert [store.tokens(index).tolist() for index in range(len(store))] == expected


def test_a_prompts_tokens_belong_to_no_word(tokenizer, real_texts, tmp_path):
    texts = real_texts[:20]
    for prompt in ("", PROMPT):
        tokenise(((str(i), t) for i, t in enumerate(texts)), tokenizer, tmp_path / "p", max_length=60, prompt=prompt)
        batch = TokenStore.open(tmp_path / "p").batch(range(20))
        size = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        assert not batch.maskable[:, : 1 + size].any()
        for index, text in enumerate(texts):
            words = len(tokenizer(text, add_special_tokens=False)["input_ids"])
            assert int(batch.maskable[index].sum()) == min(words, 58 - size)


def test_every_span_begins_with_the_prompt(tokenizer, real_texts, tmp_path):
    splitter: Punkt = train_punkt(real_texts)
    ids = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    for folder, prompt in (("with", PROMPT), ("without", "")):
        split_documents(
            enumerate(real_texts[:20]), tokenizer, tmp_path / folder, max_length=40, splitter=splitter, prompt=prompt
        )
    store, spans = TokenStore.open(tmp_path / "with"), Spans.open(tmp_path / "with")
    bare = TokenStore.open(tmp_path / "without")
    assert max(store.lengths) <= 40
    rows = [store.tokens(index).tolist()[1:-1] for index in range(len(store))]
    assert all(row[: len(ids)] == ids for row in rows)
    assert not store.batch(range(len(store))).maskable[:, : 1 + len(ids)].any()
    # Without its prompts each document is what it is without any: no token is lost.
    content = [token for row in rows for token in row[len(ids) :]]
    assert content == [int(token) for index in range(len(bare)) for token in bare.tokens(index)[1:-1]]
    assert len(spans) == len(store)


def test_a_prompt_that_leaves_no_room_is_refused(tokenizer, tmp_path):
    with pytest.raises(DrkitError, match=r"'search for: ' .*\d+ tokens .*5; .*encoder\.query_length"):
        tokenise(iter([("a", "text")]), tokenizer, tmp_path, max_length=5, prompt=PROMPT)
