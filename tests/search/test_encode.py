"""Batched, padded, sorted encoding is each text by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.types import BuildContext, MiningRequest, Passage
from drkit.errors import DrkitError
from drkit.miners import DenseConfig, DenseMiner
from drkit.search.flat import FlatIndex
from drkit.search.retriever import Retriever
from drkit.search.text_encoder import length_sorted_batches
from tests.search.made import export_made, reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer


def encoder(**settings):
    return reader_of(masked_lm().base_model, tokenizer(), **{"passage_length": 48, "query_length": 8, **settings})


def one_by_one(model, texts, pooling, length):
    rows = []
    for text in texts:
        batch = tokenizer()(text, truncation=True, max_length=length, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            hidden = model.eval()(**batch).last_hidden_state[0]
        rows.append((hidden[0] if pooling == "cls" else hidden.mean(0)).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("budget", [1, 70, 10_000])
def test_batches_give_what_single_texts_give(pooling, similarity, budget):
    made = encoder(pooling=pooling, similarity=similarity, token_budget=budget)
    for encode, length in ((made.encode_passages, 48), (made.encode_queries, 8)):
        expected = one_by_one(made.model, TEXTS, pooling, length)
        if similarity == "cosine":
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        found = encode(TEXTS)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_mode_of_the_model_comes_back_and_dropout_is_off():
    made = encoder()
    made.model.train()
    made.model.encoder.layer[0].eval()
    first = made.encode_passages(TEXTS)
    np.testing.assert_array_equal(first, made.encode_passages(TEXTS))
    assert made.model.training
    assert not made.model.encoder.layer[0].training
    assert made.model.encoder.layer[1].attention.training


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 1000))
def test_every_text_is_in_one_batch_within_the_budget(lengths, budget):
    batches = list(length_sorted_batches(np.array(lengths, dtype=np.int64), budget))
    assert sorted(index for batch in batches for index in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        width = -(-max(lengths[p] for p in batch) // 16) * 16
        assert len(batch) == 1 or width * len(batch) <= budget


def test_token_ids_give_what_their_texts_give():
    made = encoder()
    rows = tokenizer()(TEXTS, truncation=True, max_length=48)["input_ids"]
    np.testing.assert_allclose(made.encode_tokens(rows), made.encode_passages(TEXTS), atol=1e-6)
    with pytest.raises(DrkitError, match=r"text 1 .*tokens"):
        made.encode_tokens([[2, 3], []])
    assert made.encode_queries([]).shape == (0, 32)


def test_half_precision_products_are_near_and_the_weights_stay():
    whole, half = encoder(), encoder(precision="bfloat16")
    assert (np.sum(whole.encode_passages(TEXTS) * half.encode_passages(TEXTS), axis=1) > 0.95).all()
    assert half.encode_passages(TEXTS).dtype == np.float32
    assert whole.identity()["weights"] == half.identity()["weights"]


def test_a_retriever_of_a_run_folder_and_a_miner_on_it(tmp_path):
    made = encoder()
    passages = [Passage(f"d{i}", text) for i, text in enumerate(TEXTS)]
    export_made(
        masked_lm(), tokenizer(), tmp_path / "encoder",
        pooling="cls", similarity="cosine", query_length=8, passage_length=48,
    )  # fmt: skip
    FlatIndex.build(made.encode_passages(TEXTS), [p.doc_id for p in passages]).save(tmp_path / "index")
    retriever = Retriever.load(tmp_path)
    assert len(retriever) == len(passages)
    ((doc_ids, scores),) = retriever.search(["remove suffix"], 3)
    assert doc_ids[0] == "d0"
    assert scores[0] == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(DrkitError, match=r"query .*empty"):
        retriever.search([" "], 3)
    miner = DenseMiner(DenseConfig(), BuildContext(retriever=retriever))
    miner.index(passages)
    (mined,) = miner.mine([MiningRequest("q", "remove suffix", frozenset({"d0"}))], 100)
    assert set(mined.doc_ids) == {p.doc_id for p in passages} - {"d0"}
    with pytest.raises(DrkitError, match=rf"other .*encoder.*index.*drkit run {tmp_path}/other"):
        Retriever.load(tmp_path / "other")
    with pytest.raises(DrkitError, match=r"encoder .*32.*index 4;"):
        Retriever(made, FlatIndex.build(np.ones((1, 4), np.float32), ["a"]))
