"""Every declaration that sentence-transformers saves in an encoder folder: the same vectors, or a refusal by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer, SparseEncoder

from drkit.commands import open_encoder
from drkit.errors import DrkitError
from tests.search.folders import CASES, REFUSED, UNREADABLE
from tests.search.toys import TEXTS

LONG = ["file number " * 600 + "string", "remove " + "suffix each " * 40 + "abba cafe"]
ALL = [*TEXTS, *LONG, "Number FILE"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def expected(folder, texts):
    """Return the vectors of queries and of passages in sentence-transformers, one text at a time."""
    file = folder / "config_sentence_transformers.json"
    saved = json.loads(file.read_text()) if file.is_file() else {}
    is_sparse = saved.get("model_type") == "SparseEncoder"
    model = (SparseEncoder if is_sparse else SentenceTransformer)(str(folder), device="cpu", local_files_only=True)
    options = {"convert_to_sparse_tensor": False} if is_sparse else {}
    found = [
        np.asarray(encode(texts, batch_size=1, **options)) for encode in (model.encode_query, model.encode_document)
    ]
    if model.similarity_fn_name == "cosine":
        found = [each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in found]
    return found


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_sentence_transformers(name, tmp_path):
    CASES[name](tmp_path / "e")
    texts = [text for text in ALL if not UNREADABLE.get(name, bool)(text) or name not in UNREADABLE]
    ours, theirs = open_encoder(tmp_path / "e", device="cpu"), expected(tmp_path / "e", texts)
    tolerance = 5e-3 if name == "half precision" else 2e-5
    for encode, vectors in zip((ours.encode_queries, ours.encode_passages), theirs, strict=True):
        np.testing.assert_allclose(encode(texts), vectors, atol=tolerance * max(1, np.abs(vectors).max()))
    assert ours.dimension == theirs[0].shape[1]


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name, tmp_path):
    build, pattern = REFUSED[name]
    build(tmp_path / "e")
    with pytest.raises(DrkitError, match=pattern):
        open_encoder(tmp_path / "e", device="cpu")
