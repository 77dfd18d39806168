"""Scores of given passages are those that searching gives them; unknown ids have none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drkit.core.types import Passage
from drkit.errors import DrkitError
from drkit.search import Bm25Retriever, FlatIndex, Retriever
from drkit.search.vectors import DocIds
from tests.search.made import reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

NAMES = [f"d {i} é" for i in range(len(TEXTS))]


def dense():
    made = reader_of(masked_lm().base_model, tokenizer(), passage_length=48)
    return Retriever(made, FlatIndex.build(made.encode_passages(TEXTS), NAMES))


def bm25():
    return Bm25Retriever().index(Passage(name, text) for name, text in zip(NAMES, TEXTS, strict=True))


@pytest.mark.parametrize("make", [dense, bm25])
def test_a_score_is_what_a_search_gives(make):
    retriever = make()
    queries = ["remove the suffix", "number file"]
    for hits, scores in zip(
        retriever.search(queries, len(TEXTS)), retriever.score(queries, [NAMES, NAMES]), strict=True
    ):
        found = dict(zip(NAMES, scores, strict=True))
        assert hits.doc_ids
        assert [found[name] for name in hits.doc_ids] == list(hits.scores)
        if make is bm25:
            assert all(found[name] == 0 for name in NAMES if name not in hits.doc_ids)


@pytest.mark.parametrize("make", [dense, bm25])
def test_unknown_ids_no_ids_and_wrong_counts(make):
    retriever = make()
    first, second = retriever.score(["number", "file"], [["none", NAMES[2]], []])
    assert math.isnan(first[0])
    assert not math.isnan(first[1])
    assert second == []
    with pytest.raises(DrkitError, match=r"1 lists .*2 queries"):
        retriever.score(["number", "file"], [[]])
    with pytest.raises(DrkitError, match="query 2 of 2 is empty"):
        retriever.score(["number", ""], [[], []])


def test_ids_with_the_same_hash_are_found(monkeypatch):
    for module in ("drkit.data.corpus", "drkit.search.vectors"):
        monkeypatch.setattr(f"{module}.id_hash", len)
    names = ["aa", "b", "cc", "dd"]
    ids = DocIds.of(names)
    assert ids.find(["dd", "aa", "xx", "b", "cc", "long"]).tolist() == [3, 0, -1, 1, 2, -1]
    assert ids.take(np.array([1, 1])) == ["b", "b"]
