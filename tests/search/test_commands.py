"""`drkit encode`, `index`, `search`, `export` on files: what they write, and what they say of what cannot be."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from transformers import BertConfig, BertForSequenceClassification

from drkit.search import Retriever, TextEncoder, Vectors, encode_corpus, open_index, read_run
from tests import warm
from tests.search.made import export_made
from tests.search.toys import TEXTS, masked_lm, tokenizer

SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 48}
QUERIES = {"q 1": "remove suffix", "q é": "number file b", "q3": "string from each"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A BEIR folder of odd ids with an empty text, an encoder folder with prompts, a bare checkpoint."""
    root = tmp_path_factory.mktemp("files")
    beir = root / "beir"
    (beir / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d {i} é", "title": "file" if i else "", "text": text} for i, text in enumerate(TEXTS)]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = [{"_id": name, "text": text} for name, text in QUERIES.items()]
    (beir / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    judged = "".join(f"{name}\td {i} é\t1\n" for i, name in enumerate(QUERIES))
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    prompts = {"query_prompt": "each ", "passage_prompt": "a "}
    export_made(masked_lm(), tokenizer(), root / "encoder", **HOW, **prompts)
    export_made(masked_lm(1), tokenizer(), root / "other", **HOW)
    BertForSequenceClassification(BertConfig(**SMALL, num_labels=1)).save_pretrained(root / "scorer")
    masked_lm().base_model.save_pretrained(root / "bare")
    tokenizer().save_pretrained(root / "bare")
    return root


@pytest.fixture
def drkit(run_drkit, monkeypatch, files):
    """The command line in the files' folder, with all its output as one text."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments):
        code, out, err = run_drkit(*arguments)
        return code, out + err

    return call


def rankings(path):
    return dict(read_run(path))


def test_from_a_folder_of_texts_to_a_trec_run(drkit, files, tmp_path):
    vectors, index, run = tmp_path / "v", tmp_path / "i", tmp_path / "out.trec"
    code, said = drkit("encode", "--encoder", "encoder", "--collection", "beir:beir", "--shard-size", 3, "-o", vectors)
    assert code == 0, said
    assert "7 of 32, float32" in said
    code, said = drkit("index", vectors, "-o", index)
    assert code == 0, said
    code, said = drkit(
        "search", index, "--encoder", "encoder", "--collection", "beir:beir", "--split", "test", "-k", 4, "-o", run
    )
    assert code == 0, said
    assert "3 queries, 4 of 7 passages each" in said
    encoder = TextEncoder.load(files / "encoder")
    found = Retriever(encoder, open_index(index)).search(list(QUERIES.values()), 4)
    expected = {name: set(hits.pairs()) for name, hits in zip(QUERIES, found, strict=True)}
    assert {name: set(hits) for name, hits in rankings(run).items()} == expected
    content = [f"file {text}".strip() if i else text for i, text in enumerate(TEXTS)]
    np.testing.assert_allclose(Vectors.open(vectors).shards[:], encoder.encode_passages(content), atol=1e-5)

    topics = tmp_path / "topics.tsv"
    topics.write_text("".join(f"{name}\t{text}\n" for name, text in QUERIES.items()))
    again = tmp_path / "again.trec"
    assert drkit("search", index, "--encoder", "encoder", "--queries", topics, "-k", 4, "-o", again)[0] == 0
    assert again.read_text() == run.read_text()
    queries = tmp_path / "q"
    code, said = drkit("encode", "--encoder", "encoder", "--collection", "beir:beir", "--split", "test", "-o", queries)
    assert code == 0, said
    np.testing.assert_allclose(Vectors.open(queries).shards[:], encoder.encode_queries([*QUERIES.values()]), atol=1e-5)
    code, said = drkit("search", index, "remove suffix", "--encoder", "encoder", "-k", 2)
    assert code == 0
    assert found[0].doc_ids[0] in said


def test_half_precision_and_a_graph(drkit, tmp_path):
    vectors, index = tmp_path / "v", tmp_path / "i"
    options = ("--dtype", "float16")
    assert drkit("encode", "--encoder", "encoder", "--collection", "beir:beir", *options, "-o", vectors)[0] == 0
    code, said = drkit("index", vectors, "--kind", "hnsw", "-o", index)
    assert code == 0, said
    assert "recall   100.0%" in said
    assert json.loads((index / "index.json").read_text())["settings"]["factory"] == "HNSW32_SQfp16"
    code, said = drkit("index", vectors, "--kind", "ivf-pq", "-o", tmp_path / "j")
    assert code == 2
    assert re.search("ivf-pq .*256 vectors .*got 7", " ".join(said.split()))


class Fixed:
    """Encodes a number as its row of a matrix."""

    def __init__(self, vectors):
        self.vectors, self.dimension = vectors, vectors.shape[1]

    def identity(self):
        return {"weights": "fixed"}

    def encode_passages(self, texts):
        return self.vectors[[int(text) for text in texts]]


def test_a_low_recall_says_what_raises_it(drkit, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(600, 32)).astype(np.float32)
    folder = tmp_path / "v"
    encode_corpus(Fixed(vectors), ((str(i), str(i)) for i in range(len(vectors))), folder)
    low, high = ("IVF30,PQ2np", "--parameters", "nprobe=1"), ("IVF1,PQ32np", "--rescore", "codes")
    code, said = drkit("index", folder, "--kind", *low, "--rescore", "codes", "-o", tmp_path / "low")
    assert code == 0, said
    assert "below 90%: raise --parameters (now nprobe=1)" in said
    code, said = drkit("index", folder, "--kind", *low, "-o", tmp_path / "low")
    assert code == 0, said
    assert "below 90%: raise --candidates (now 4)" in said
    code, said = drkit("index", folder, "--kind", *high, "-o", tmp_path / "high")
    assert code == 0, said
    assert "recall" in said
    assert "below" not in said


def test_what_cannot_be_is_said(drkit, files, tmp_path):
    vectors, index = tmp_path / "v", tmp_path / "i"
    encode = ("encode", "--collection", "beir:beir", "-o", vectors)
    for arguments, message in [
        ((*encode, "--encoder", "bare"), r"bare .*modules\.json.*--pooling cls"),
        ((*encode, "--encoder", "encoder", "--pooling", "cls"), "encoder .*mean pooling.*cls.*--pooling"),
        ((*encode, "--encoder", "encoder", "--device", "cuda:99"), "'cuda:99'.*torch.*auto.*cpu"),
        ((*encode, "--encoder", "scorer"), "scorer .*cross-encoder.*drkit rerank"),
        (("export", "scorer", "--pooling", "cls", "-o", tmp_path / "e"), "scorer .*cross-encoder.*drkit rerank"),
        ((*encode, "--encoder", "beir"), r"\bbeir .*modules\.json"),
        ((*encode, "--encoder", "./none"), r"'\./none'.*OWNER/NAME"),
        ((*encode, "--encoder", "no-such-encoder"), "'no-such-encoder'.*hub id"),
        ((*encode, "--encoder", "encoder", "--device", "abacus"), "device 'abacus'.*auto, cpu, cuda"),
        ((*encode, "--encoder", "encoder", "--split", "dev"), "split .*'dev'.*: test$"),
        (("index", vectors, "-o", index), r"/v .*vectors\.json.*`drkit encode`"),
        (("index", vectors, "--candidates", 9, "-o", index), r"--candidates. .*--kind flat"),
        (("search", index, "a"), f"not found: {index};.*`drkit compose`.*`drkit index`"),
        (("search", files / "encoder", "a"), r"/encoder .*missing .*index\.json.*`drkit index`"),
        (("export", "bare", "-o", tmp_path / "e"), "bare .*--pooling cls"),
        (("export", "encoder", "-o", "encoder"), "^error: .*encoder .*another folder"),
    ]:
        code, said = drkit(*arguments)
        assert code == 2, said
        assert re.search(message, " ".join(said.split())), said
    assert not list(tmp_path.glob("*/*.npy"))
    copies = tmp_path / "copies"
    shutil.copytree("beir", copies)
    for name, options in (("corpus", ()), ("queries", ("--split", "test"))):
        path = copies / f"{name}.jsonl"
        path.write_text(path.read_text() + path.read_text().splitlines()[0])
        code, said = drkit("encode", "--encoder", "encoder", "--collection", f"beir:{copies}", *options, "-o", vectors)
        assert code == 2
        assert all(f"{path}:{line}" in said for line in (1, len(path.read_text().splitlines()))), said
        assert not vectors.exists()
    assert drkit(*encode, "--encoder", "encoder")[0] == 0
    before = sorted((p.name, p.stat().st_mtime_ns) for p in vectors.glob("0*"))
    code, said = drkit(*encode, "--encoder", "other")
    assert code == 2
    assert "(weights, query_prompt, passage_prompt differ)" in said
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in vectors.glob("0*"))
    assert drkit("index", vectors, "-o", index)[0] == 0
    for arguments, message in [
        (("index", vectors, "-o", vectors), r"/v .*: .* \.lock, 00000\.arrow, 00000\.npy and 1 more"),
        (("export", "encoder", "-o", vectors), r"/v .* \.lock"),
        (("export", "encoder", "-o", files / "beir" / "corpus.jsonl"), r"/corpus\.jsonl .*file"),
        ((*encode[:-1], files / "beir" / "corpus.jsonl", "--encoder", "encoder"), r"/corpus\.jsonl .*file"),
        (("search", index, "--encoder", "encoder", "--collection", "beir:beir", "-o", vectors), "/v' .*directory"),
    ]:
        code, said = drkit(*arguments)
        assert code == 2, said
        assert re.search(message, " ".join(said.split())), said
    assert open_index(index), "nothing was lost"
    assert Vectors.open(vectors)
    out = tmp_path / "out.trec"
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"_id": "q", "text": " "}\n')
    twice = tmp_path / "twice.tsv"
    twice.write_text("q\ta\np\tb\nq\tc\n")
    for arguments, message in [
        (("search", index, "a"), r"/i .*\(--encoder\)"),
        (("search", index, "a", "--encoder", "other"), r"index .*another encoder \(weights differ\)"),
        (
            ("search", index, "--encoder", "other", "--collection", "beir:beir", "-o", out),
            r"another encoder \(weights differ\)",
        ),
        (("search", index, "--encoder", "encoder", "--queries", vectors, "-o", out), "queries .*/v;"),
        (("search", index, "--encoder", "encoder", "--queries", "none.tsv", "-o", out), r"queries .*none\.tsv;"),
        (("search", index, "--encoder", "encoder", "--queries", empty, "-o", out), "'q' is empty"),
        (
            ("search", index, "--encoder", "encoder", "--queries", twice, "-o", out),
            r"twice\.tsv:3: duplicate .*'q'",
        ),
        (("search", index, "--encoder", "encoder", "--collection", "beir:beir"), "with -o FILE"),
        (("search", index, " ", "--encoder", "encoder"), "query .*empty"),
    ]:
        code, said = drkit(*arguments)
        assert code == 2, said
        assert re.search(message, " ".join(said.split())), said
    assert not out.exists()


def test_passages_that_are_all_empty_are_not_encoded(drkit, files, tmp_path):
    shutil.copytree(files / "beir", tmp_path / "beir")
    rows = [json.dumps({"_id": f"d{i}", "title": " ", "text": ""}) for i in range(3)]
    (tmp_path / "beir" / "corpus.jsonl").write_text("\n".join(rows))
    given = ("encode", "--encoder", "encoder", "--collection", f"beir:{tmp_path / 'beir'}", "-o")
    code, said = drkit(*given, tmp_path / "v")
    assert code == 2
    assert "none of the 3 passages has a text" in " ".join(said.split())
    assert drkit("index", tmp_path / "v", "-o", tmp_path / "i")[0] == 2
    assert drkit(*given, tmp_path / "queries", "--split", "test")[0] == 0


def test_a_file_without_rankings_is_not_exported(drkit, tmp_path):
    (tmp_path / "none.trec").write_bytes(b"")
    code, said = drkit("export", tmp_path / "none.trec", "--trec", tmp_path / "out")
    assert code == 2
    assert "none.trec is empty" in " ".join(said.split())


def test_a_bare_checkpoint_with_its_pooling_is_exported_and_encodes(drkit, files, tmp_path):
    from sentence_transformers import SentenceTransformer

    assert drkit("export", "bare", "--pooling", "cls", "-o", tmp_path / "e")[0] == 0
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    ours = TextEncoder.bare(files / "bare", pooling="cls")
    np.testing.assert_allclose(theirs.encode(TEXTS), ours.encode_passages(TEXTS), atol=1e-5)
    code, said = drkit("export", "encoder", "-o", tmp_path / "again")
    assert code == 0, said
    first, again = (TextEncoder.load(folder).identity() for folder in (files / "encoder", tmp_path / "again"))
    assert first == again
    options = ("--pooling", "cls", "--collection", "beir:beir", "-o", tmp_path / "v")
    assert drkit("encode", "--encoder", "bare", *options)[0] == 0
    assert Vectors.open(tmp_path / "v").encoder["pooling"] == "cls"


def test_two_processes_of_the_command(files, tmp_path):
    command = ["encode", "--encoder", "encoder", "--collection", "beir:beir", "--shard-size", "2", "-o", tmp_path / "v"]
    for rank, says in ((1, "others"), (0, "7 of 32")):
        code, out, err = warm.drkit(*command, cwd=files, RANK=rank, WORLD_SIZE=2)
        assert code == 0, err
        assert says in out + err
    assert len(Vectors.open(tmp_path / "v")) == len(TEXTS)
