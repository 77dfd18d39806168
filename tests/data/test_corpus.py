"""Passages on disk: values taken from chunks, and ids found, against lists."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.data import corpus
from drkit.data.arrays import Arrays
from drkit.data.corpus import StoredCorpus, take_values
from drkit.data.formats import JsonlCollection
from drkit.data.specs import JsonlConfig
from drkit.data.writing import write_collection


@given(chunks=st.lists(st.lists(st.text(max_size=4), max_size=5), min_size=1, max_size=5), data=st.data())
def test_values_of_chunks_are_those_of_one_list(chunks, data):
    flat = [value for chunk in chunks for value in chunk]
    some = st.lists(st.integers(0, len(flat) - 1), max_size=12) if flat else st.just([])
    indices = np.array(data.draw(some), dtype=np.int64)
    arrays = [pa.array(chunk, pa.string()) for chunk in chunks]
    starts = np.cumsum([0, *map(len, chunks)])
    assert take_values(arrays, starts, indices) == [flat[i] for i in indices]


def test_remembered_ids_are_found_like_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_REMEMBERED", 5)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"_id": "d{i}", "text": "text {i}"}}\n' for i in range(20)), encoding="utf-8")
    write_collection(JsonlCollection(JsonlConfig(path=str(texts))), tmp_path / "stage")
    stored = StoredCorpus(tmp_path / "stage" / "passages")
    for names in (["d1", "d7", "none"], ["d7", "d1", "d1"], ["d9", "d8", "d1", "d0"], [f"d{i}" for i in range(20)], []):
        expected = [int(name[1:]) if name != "none" else -1 for name in names]
        assert stored.find(names).tolist() == expected
        assert stored.find(names).dtype == np.int64


@given(
    names=st.lists(st.text("abc", max_size=3), max_size=40),
    at_once=st.integers(1, 50),
    bits=st.sampled_from([1, 2, 64]),
)
def test_an_index_written_in_parts_finds_every_id_and_every_duplicate(tmp_path_factory, names, at_once, bits):
    """Also where ids share a hash, and where the parts cut those of equal hashes."""
    folder = tmp_path_factory.mktemp("index")
    of_name = corpus.id_hash
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_HASHES_AT_ONCE", at_once)
        patch.setattr(corpus, "id_hash", lambda name: of_name(name) % 2**bits)
        with corpus.IndexWriter(folder) as index:
            for start in range(0, len(names), 3):
                some = [corpus.id_hash(name) for name in names[start : start + 3]]
                index.add(np.array(some, dtype=np.uint64))
            if not names:
                return
            index.finish()
        assert [path.name for path in folder.iterdir()] == ["ids.arrow"]
        found = Arrays(folder / "ids.arrow")
        hashes, indices = found["hashes"], found["places"]
        order = np.argsort([corpus.id_hash(name) for name in names], kind="stable")
        assert indices.tolist() == order.tolist()
        ids_at = lambda chosen: [names[i] for i in chosen]  # noqa: E731
        if len(set(names)) == len(names):
            assert corpus.find_ids(names, hashes, indices, ids_at).tolist() == list(range(len(names)))
            assert not list(corpus.equal_ids(hashes, indices, ids_at))
        elif bits == 64:
            again = [name for name, count in Counter(names).items() for _ in range(count - 1)]
            assert sorted(name for name, _, _ in corpus.equal_ids(hashes, indices, ids_at)) == sorted(again)
