"""Passages on disk: values taken from chunks, and ids found, against lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from drkit.data import corpus
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
