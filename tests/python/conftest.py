"""Tiny models that stand in folders, and questions with answers to train on."""

from __future__ import annotations

import pytest

from drkit.encoders import CrossEncoder
from tests.search.made import export_made
from tests.search.toys import WORDS, masked_lm, tokenizer

LETTERS = "abcdefgh"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """An encoder's folder, in sentence-transformers' layout."""
    how = {"pooling": "mean", "similarity": "cosine", "query_length": 24, "passage_length": 24}
    return export_made(masked_lm(), tokenizer(), tmp_path_factory.mktemp("encoder") / "e", **how)


@pytest.fixture
def model(folder, monkeypatch):
    """The same encoder as a SentenceTransformer."""
    from sentence_transformers import SentenceTransformer

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="session")
def judge(tmp_path_factory):
    """A cross-encoder's folder."""
    folder = tmp_path_factory.mktemp("judge")
    masked_lm(seed=3).save_pretrained(folder / "lm")
    tokenizer().save_pretrained(folder / "lm")
    CrossEncoder.start_from(str(folder / "lm"), max_length=40).save(folder / "ce")
    return folder / "ce"


@pytest.fixture(scope="session")
def pairs():
    """(anchor, positive) of 24 questions; the first has two answers, and one text answers two questions."""
    made = [(f"{WORDS[i % 7]} {LETTERS[i % 8]}", f"{WORDS[i % 7]} {LETTERS[i % 8]} {WORDS[i % 3]}") for i in range(24)]
    return [*made, (made[0][0], "number file from"), ("string h e", "number file from")]
