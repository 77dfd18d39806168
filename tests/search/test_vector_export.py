"""`drkit export --vectors`: what the file holds, what is refused, and the page's examples for each store."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from drkit.commands import NamedCollection, export_vectors
from drkit.core.files import WRITTEN
from drkit.errors import DrkitError
from drkit.search import (
    FaissSettings,
    Retriever,
    Storage,
    TextEncoder,
    Vectors,
    build_index,
    encode_corpus,
    open_index,
)
from tests.search.made import export_made
from tests.search.toys import WORDS, masked_lm, tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "search-elsewhere.md"
# The stores on the page that need no server, and their modules.
STORES = {"faiss": "faiss", "LanceDB": "lancedb", "Qdrant": "qdrant_client", "usearch": "usearch"}
HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 48}
TITLES = [WORDS[i % 5] if i % 3 else "" for i in range(40)]
WORDED = [f"{WORDS[i % 7]} {'abcdefgh'[i % 8]} {WORDS[(i * i) % 6]} {'cab'[i % 3]}" for i in range(40)]
PASSAGES = {f"d {i} é": both for i, both in enumerate(zip(TITLES, WORDED, strict=True))}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A BEIR folder, an encoder, its vectors in shards, and indexes of them."""
    root = tmp_path_factory.mktemp("files")
    (root / "beir" / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": title, "text": text} for name, (title, text) in PASSAGES.items()]
    (root / "beir" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "file"}\n')
    (root / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td 0 é\t1\n")
    export_made(masked_lm(), tokenizer(), root / "runs" / "R" / "encoder", **HOW)
    texts = ((name, " ".join(filter(None, both))) for name, both in PASSAGES.items())
    encoder = TextEncoder.load(root / "runs" / "R" / "encoder")
    vectors = encode_corpus(encoder, texts, root / "vectors", storage=Storage(shard_size=16))
    build_index(vectors, root / "flat")
    build_index(vectors, root / "int8", kind="int8")
    build_index(vectors, root / "codes", kind="int8", settings=FaissSettings(rescore="codes"))
    return root


def beir(made):
    return NamedCollection(f"beir:{made}/beir")


def file_of(made, source, target, **how):
    count, dimension = export_vectors(made / source, target, **how)
    table = pq.read_table(target)
    assert (len(table), table.schema.field("vector").type.list_size) == (count, dimension)
    return table


@pytest.mark.parametrize("source", ["vectors", "flat", "int8"])
def test_the_file_holds_ids_texts_and_vectors(made, tmp_path, source, monkeypatch):
    monkeypatch.setattr("drkit.commands.vector_export._ROWS", 7)
    steps = []
    table = file_of(
        made, source, tmp_path / "a.parquet", collection=beir(made), on_progress=lambda *at: steps.append(at)
    )
    assert table["id"].to_pylist() == list(PASSAGES)
    assert table["text"].to_pylist() == [" ".join(filter(None, both)) for both in PASSAGES.values()]
    found = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, Vectors.open(made / "vectors").shards[:40])
    groups = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert max(groups.row_group(i).num_rows for i in range(groups.num_row_groups)) == 7
    assert steps[-1] == (40, 40)
    assert json.loads(table.schema.metadata[b"drkit"])["encoder"] == Vectors.open(made / "vectors").encoder


def test_without_a_collection_there_are_no_texts(made, tmp_path):
    assert file_of(made, "vectors", tmp_path / "a.parquet").column_names == ["id", "vector"]


def test_float16_vectors_are_written_as_float32(made, tmp_path, run_drkit):
    code, _, err = run_drkit(
        *("encode", "--encoder", made / "runs" / "R" / "encoder", "--collection", f"beir:{made}/beir"),
        *("--dtype", "float16", "-o", tmp_path / "half"),
    )
    assert code == 0, err
    table = file_of(tmp_path, "half", tmp_path / "a.parquet")
    assert str(table.schema.field("vector").type.value_type) == "float"


def test_an_export_is_replaced_and_nothing_else(made, tmp_path):
    target = tmp_path / "a.parquet"
    file_of(made, "vectors", target)
    before = target.read_bytes()
    file_of(made, "vectors", target)
    assert target.read_bytes() == before
    file_of(made, "flat", target, collection=beir(made))
    pq.write_table(pq.read_table(target).replace_schema_metadata(None), tmp_path / "theirs.parquet")
    (tmp_path / "notes.txt").write_text("mine")
    for other in ("theirs.parquet", "notes.txt"):
        content = (tmp_path / other).read_bytes()
        with pytest.raises(DrkitError, match=f"/{other} exists"):
            export_vectors(made / "vectors", tmp_path / other)
        assert (tmp_path / other).read_bytes() == content


def test_a_failed_export_leaves_what_was_there(made, tmp_path):
    shutil.copytree(made / "beir", tmp_path / "beir")
    lines = (tmp_path / "beir" / "corpus.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "beir" / "corpus.jsonl").write_text("".join([*lines[:30], lines[31], lines[30], *lines[32:]]))
    target = tmp_path / "a.parquet"
    for before in (None, "vectors"):
        if before:
            file_of(made, before, target)
        content = target.read_bytes() if before else None
        with pytest.raises(DrkitError, match="expected 'd 30 é', got 'd 31 é'"):
            export_vectors(made / "vectors", target, collection=NamedCollection(f"beir:{tmp_path}/beir"))
        assert (target.read_bytes() if target.exists() else None) == content
        assert {path.name for path in tmp_path.iterdir()} == {"beir", *(["a.parquet"] if before else [])}


def test_what_holds_no_vectors_is_refused(made, tmp_path):
    def refused(source, match):
        with pytest.raises(DrkitError, match=match):
            export_vectors(source, tmp_path / "a.parquet")
        assert not (tmp_path / "a.parquet").exists()

    refused(made / "codes", "an index of kind 'int8', which keeps codes instead of vectors")
    refused(made / "runs" / "R" / "encoder", "not a run, an index or a folder of vectors; encode a collection first")
    refused(made / "nowhere", "not a run, an index or a folder of vectors")
    broken = shutil.copytree(made / "flat", tmp_path / "broken")
    (broken / "ids.arrow").write_bytes(b"x")
    refused(broken, "broken/ids.arrow: has 1 bytes")
    (broken / "ids.arrow").unlink()
    refused(broken, "missing ids.arrow")
    shutil.copy(made / "vectors" / "00000.arrow", broken / "ids.arrow")
    (broken / WRITTEN).unlink()  # an index without a record of its files
    refused(broken, "got 16 document ids for 40 vectors")


def test_the_command(made, tmp_path, run_drkit, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_drkit(
        *("export", made / "vectors", "--collection", f"beir:{made}/beir", "--vectors", "a.parquet", "--json")
    )
    assert code == 0, err
    assert json.loads(out) == {"file": "a.parquet", "vectors": 40, "dimension": 32}
    for arguments in (
        ["export", made / "vectors"],
        ["export", made / "vectors", "--vectors", "b.parquet", "-o", "folder"],
        ["export", made / "vectors", "--vectors", "b.parquet", "--dimension", "8"],
        ["export", made / "runs" / "R" / "encoder", "-o", "folder", "--collection", f"beir:{made}/beir"],
        ["export", made / "vectors", "--vectors", tmp_path],
    ):
        assert run_drkit(*arguments)[0] == 2, arguments
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet"}


@pytest.mark.parametrize("store", STORES)
def test_the_page_finds_what_drkit_finds(made, tmp_path, monkeypatch, capsys, store):
    pytest.importorskip(STORES[store], reason=f"{STORES[store]} is not installed")
    shutil.copytree(made / "runs", tmp_path / "runs")
    export_vectors(made / "vectors", tmp_path / "passages.parquet", collection=beir(made))
    monkeypatch.chdir(tmp_path)
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    code = {
        title: re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        for title, _, text in (s.partition("\n") for s in sections)
    }
    assert {*code} == {"Read the vectors, encode a query", "OpenSearch", *STORES}
    names = {}
    for block in (*code["Read the vectors, encode a query"], *code[store]):
        exec(block, names)
    retriever = Retriever(TextEncoder.load(made / "runs" / "R" / "encoder"), open_index(made / "flat"))
    (hits,) = retriever.search(["a query"], len(PASSAGES))
    expected = dict(zip(hits.doc_ids, hits.scores, strict=True))
    rows = [re.match(r"(d \d+ é) (\S+)", line).groups() for line in capsys.readouterr().out.splitlines()]
    scores = [float(score) for _, score in rows]
    assert scores == pytest.approx(hits.scores[:3], abs=1e-5)
    assert scores == pytest.approx([expected[name] for name, _ in rows], abs=1e-5)


def test_sentence_transformers_cuts_long_queries_where_the_page_says(made):
    from sentence_transformers import SentenceTransformer

    folder = made / "runs" / "R" / "encoder"
    ours, theirs = TextEncoder.load(folder), SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    short, long = " ".join(WORDS[:4]), " ".join([*WORDS] * 8)
    limit = {"text": {"max_length": HOW["query_length"]}}
    for query in (short, long):
        given = theirs.encode_query(query, processing_kwargs=limit)
        np.testing.assert_allclose(given, ours.encode_queries([query])[0], atol=1e-5)
    np.testing.assert_allclose(theirs.encode_query(short), ours.encode_queries([short])[0], atol=1e-5)
    assert np.abs(theirs.encode_query(long) - ours.encode_queries([long])[0]).max() > 1e-3
    page = PAGE.read_text(encoding="utf-8")
    assert 'processing_kwargs={"text": {"max_length": 32}}' in page
    assert "longer than `query_length`" in page
