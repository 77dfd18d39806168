"""Vectors of a corpus on disk: the same however many processes make them and however often they are killed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve

from drkit.core.engine import Loaded
from drkit.core.processes import Shard
from drkit.errors import DrkitError
from drkit.search import FlatIndex, Retriever, Storage, Vectors, build_index, encode_corpus, open_index
from drkit.search.text_encoder import length_sorted_batches
from tests.engine.engines import Pickling
from tests.refusals import refused
from tests.runs.damages import flip_byte, halve
from tests.search.made import reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer
from tests.warm import warm_process

PAIRS = [(f"d {i} é\t%", text) for i, text in enumerate(TEXTS * 3)]
SMALL = Storage(shard_size=4)


def encoder(seed=0, **settings):
    return reader_of(masked_lm(seed).base_model, tokenizer(), passage_length=48, query_length=8, **settings)


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(".")}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_outsider_reads_the_shards_and_their_ids(tmp_path, dtype):
    made = encode_corpus(encoder(), iter(PAIRS), tmp_path / "v", storage=evolve(SMALL, dtype=dtype))
    assert (len(made), made.dimension, made.shards.shape) == (21, 32, (21, 32))
    parts = sorted((tmp_path / "v").glob("*.npy"))
    loaded = np.concatenate([np.load(part) for part in parts])
    assert (len(parts), loaded.dtype) == (6, dtype)
    tables = [pa.ipc.open_file(str(part)).read_all() for part in sorted((tmp_path / "v").glob("*.arrow"))]
    assert pa.concat_tables(tables).column("doc_id").to_pylist() == [name for name, _ in PAIRS]
    np.testing.assert_array_equal(made.shards[:], loaded)
    positions = np.array([20, 0, 7, 7])
    np.testing.assert_array_equal(made.shards[positions], loaded[positions])
    exact = encoder().encode_passages([text for _, text in PAIRS])
    np.testing.assert_allclose(loaded, exact, atol=1e-5 if dtype == "float32" else 1e-3)


def test_progress_counts_texts_as_they_are_encoded(tmp_path, monkeypatch):
    """Within a shard, too, if this process encodes it; shards that are there, or left to others, count at once."""
    monkeypatch.setattr("drkit.search.encode._TEXTS_AT_ONCE", 3)
    told, given = [], {"storage": SMALL, "on_progress": lambda done: told.append((done, len(read)))}
    read = []

    def texts():
        for pair in PAIRS:
            read.append(pair)
            yield pair

    encode_corpus(encoder(), texts(), tmp_path / "v", **given)
    assert [done for done, _ in told] == [3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 21]
    assert all(done >= seen - SMALL.shard_size for done, seen in told), "not when they are read"
    told.clear()
    encode_corpus(encoder(), texts(), tmp_path / "v", **given)
    assert [done for done, _ in told] == [4, 8, 12, 16, 20, 21]
    told.clear()
    encode_corpus(encoder(), texts(), tmp_path / "half", shard=Shard(1, 2), **given)
    assert [done for done, _ in told] == [4, 7, 8, 12, 15, 16, 20, 21]
    told.clear()
    encode_corpus(Loaded(encoder), texts(), tmp_path / "tasks", engine=Pickling(), **given)
    assert [done for done, _ in told] == [4, 8, 12, 16, 20, 21]


def test_an_outsider_searches_the_saved_index_with_faiss(tmp_path):
    faiss = pytest.importorskip("faiss")
    made = encode_corpus(encoder(), PAIRS[:7], tmp_path / "v", storage=SMALL)
    index = build_index(made, tmp_path / "i")
    queries = encoder().encode_queries(["remove suffix", "file b"])
    ids = pa.ipc.open_file(str(tmp_path / "i" / "ids.arrow")).read_all().column("doc_id").to_pylist()
    theirs = faiss.IndexFlatIP(queries.shape[1])
    theirs.add(np.load(tmp_path / "i" / "vectors.npy"))
    scores, positions = theirs.search(queries, 3)
    for hits, found, of in zip(index.search(queries, 3), positions, scores, strict=True):
        assert list(hits.doc_ids) == [ids[position] for position in found]
        np.testing.assert_allclose(hits.scores, of, atol=1e-5)
    np.testing.assert_array_equal(np.load(tmp_path / "i" / "vectors.npy"), made.shards[:])


def test_two_processes_write_what_one_writes(tmp_path):
    encode_corpus(encoder(), PAIRS, tmp_path / "one", storage=SMALL)
    assert encode_corpus(encoder(), PAIRS, tmp_path / "two", storage=SMALL, shard=Shard(1, 2)) is None
    with pytest.raises(DrkitError, match=r"two .*`drkit encode`"):
        Vectors.open(tmp_path / "two")
    assert encode_corpus(encoder(), PAIRS, tmp_path / "two", storage=SMALL, shard=Shard(0, 2)) is not None
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_only_what_is_missing_is_encoded(tmp_path, monkeypatch):
    encode_corpus(encoder(), PAIRS, tmp_path / "v", storage=SMALL)
    before = files(tmp_path / "v")
    (tmp_path / "v" / "00002.arrow").unlink()
    about = json.loads(before["vectors.json"])
    (tmp_path / "v" / "vectors.json").write_text(json.dumps({**about, "count": None, "shards": None}))
    (tmp_path / "v" / ".00002.npy.1.tmp").write_bytes(b"left by a kill")
    seen = []

    def counted(lengths, budget):
        seen.append(len(lengths))
        return length_sorted_batches(lengths, budget)

    monkeypatch.setattr("drkit.search.text_encoder.length_sorted_batches", counted)
    encode_corpus(encoder(), PAIRS, tmp_path / "v", storage=SMALL)
    assert seen == [4]
    assert files(tmp_path / "v") == before
    assert not list((tmp_path / "v").glob(".*.tmp"))
    encode_corpus(encoder(), PAIRS, tmp_path / "v", storage=SMALL)
    assert seen == [4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e, t, s: (encoder(seed=1), t, s), r"\(weights differ\)"),
        (lambda e, t, s: (e.evolve(passage_prompt="a"), t, s), r"\(passage_prompt differ\)"),
        (lambda e, t, s: (e, t, evolve(s, dtype="float16")), r"\(dtype differ\)"),
        (lambda e, t, s: (e, t, evolve(s, role="queries")), r"\(role differ\)"),
        (lambda e, t, s: (e, [*t[:5], ("d 5 é\t%", "other"), *t[6:]], s), r"after text 4\)"),
        (lambda e, t, s: (e, t[:4], s), r"1 shards\)"),
        (lambda e, t, s: (e, [*t, ("more", "a")], s), r"after text 20\)"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, change, message):
    encode_corpus(encoder(), PAIRS, tmp_path / "v", storage=SMALL)
    before = files(tmp_path / "v")
    made_by, texts, storage = change(encoder(), PAIRS, SMALL)
    with pytest.raises(DrkitError, match=message):
        encode_corpus(made_by, texts, tmp_path / "v", storage=storage)
    assert files(tmp_path / "v") == before


@pytest.mark.parametrize("look", ["iterdir", "is_dir"])
def test_another_process_may_begin_the_same_folder_between_two_looks_at_it(tmp_path, monkeypatch, look):
    folder, original, begun = tmp_path / "v", getattr(Path, look), []

    def after_the_other(path):
        if not begun and folder in (path, path.parent):
            begun.append(path)
            assert encode_corpus(encoder(), PAIRS, folder, storage=SMALL, shard=Shard(1, 2)) is None
        return original(path)

    folder.mkdir()
    monkeypatch.setattr(Path, look, after_the_other)
    assert len(encode_corpus(encoder(), PAIRS, folder, storage=SMALL, shard=Shard(0, 2))) == len(PAIRS)
    assert begun


def test_bad_input_and_broken_folders(tmp_path):
    with pytest.raises(DrkitError, match=r"texts .*/none;"):
        encode_corpus(encoder(), [], tmp_path / "none")
    with pytest.raises(DrkitError, match=r"text 2 .*empty id"):
        encode_corpus(encoder(), [("a", "a"), ("", "b")], tmp_path / "ids")
    with pytest.raises(DrkitError, match="not valid Unicode"):
        encode_corpus(encoder(), [("\ud800", "a")], tmp_path / "ids")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(DrkitError, match=r"/full .*vectors"):
        encode_corpus(encoder(), PAIRS, tmp_path / "full")
    with pytest.raises(DrkitError, match=r"missing vectors\.json"):
        Vectors.open(tmp_path / "full")
    diverged = encoder()
    diverged.model.embeddings.LayerNorm.weight.data.fill_(float("nan"))
    with pytest.raises(DrkitError, match=r"'d 0 é\\t%'.*finite.*learning rate"):
        encode_corpus(diverged, PAIRS, tmp_path / "nan")
    large = encoder(similarity="dot")
    large.model.encoder.layer[-1].output.LayerNorm.weight.data.mul_(1e6)
    with pytest.raises(DrkitError, match=r"float16.* dtype float32"):
        encode_corpus(large, PAIRS, tmp_path / "large", storage=Storage(dtype="float16"))
    encode_corpus(encoder(), [*PAIRS, PAIRS[0]], tmp_path / "v", storage=SMALL)
    with pytest.raises(DrkitError, match=r"duplicate .*'d 0 é\\t%'"):
        build_index(tmp_path / "v", tmp_path / "i")
    shard = tmp_path / "v" / "00001.npy"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(DrkitError, match=r"00001\.npy"):
        build_index(tmp_path / "v", tmp_path / "i")
    shard.unlink()
    with pytest.raises(DrkitError, match=r"00001\.npy"):
        build_index(tmp_path / "v", tmp_path / "i")


def test_token_ids_and_queries(tmp_path):
    rows = [(name, np.array(tokenizer()(text, truncation=True, max_length=48)["input_ids"])) for name, text in PAIRS]
    tokens = encode_corpus(encoder(), rows, tmp_path / "t", storage=SMALL)
    np.testing.assert_allclose(tokens.shards[:], encoder().encode_passages([text for _, text in PAIRS]), atol=1e-6)
    queries = encode_corpus(encoder(), PAIRS, tmp_path / "q", storage=evolve(SMALL, role="queries"))
    with pytest.raises(DrkitError, match=r"/q .*queries.*passages.*`drkit encode --collection`"):
        build_index(queries, tmp_path / "index")
    np.testing.assert_allclose(queries.shards[:], encoder().encode_queries([t for _, t in PAIRS]), atol=1e-6)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_an_index_knows_its_encoder(tmp_path, kind):
    made = encode_corpus(encoder(), PAIRS, tmp_path / "v", storage=SMALL)
    index = build_index(made, tmp_path / "i", kind=kind)
    best = Retriever(encoder(), index).search(["remove suffix"], 1)[0]
    assert best.doc_ids[0] in ("d 0 é\t%", "d 7 é\t%", "d 14 é\t%")
    assert Retriever(encoder(passage_prompt="other", precision="bfloat16"), index)
    for other in (encoder(seed=1), encoder(pooling="mean"), encoder(similarity="dot")):
        with pytest.raises(DrkitError, match=r"another encoder \((weights|pooling|normalize) differ\)"):
            Retriever(other, index)
    about = json.loads((tmp_path / "i" / "index.json").read_text())
    assert about["encoder"]["weights"] == encoder().identity()["weights"]
    assert kind == "flat" or about["facts"]["recall@10"] == 1
    with pytest.raises(DrkitError, match=r"faiss .*kind 'tree': .*flat, hnsw, ivf-pq"):
        build_index(made, tmp_path / "j", kind="tree")


WORKER = """
import sys, time
from drkit.search import Storage, encode_corpus, text_encoder
from tests.search.test_encoding import PAIRS, SMALL, encoder
slow = text_encoder.TextEncoder._embed
text_encoder.TextEncoder._embed = lambda *a: (time.sleep(0.15), slow(*a))[1]
encode_corpus(encoder(), PAIRS, sys.argv[1], storage=SMALL)
"""


def test_a_killed_encode_goes_on(tmp_path):
    encode_corpus(encoder(), PAIRS, tmp_path / "whole", storage=SMALL)
    (tmp_path / "worker.py").write_text(WORKER)
    work = warm_process()
    work.start(tmp_path / "cut", script=tmp_path / "worker.py")
    deadline = time.time() + 60
    while len(list((tmp_path / "cut").glob("*.arrow"))) < 2 and time.time() < deadline:
        time.sleep(0.01)
    work.send_signal(signal.SIGKILL)
    assert work.wait()["code"] == -signal.SIGKILL
    done = sorted(p.name for p in (tmp_path / "cut").glob("*.arrow"))
    assert 2 <= len(done) < 6
    times = {name: (tmp_path / "cut" / name).stat().st_mtime_ns for name in done}
    encode_corpus(encoder(), PAIRS, tmp_path / "cut", storage=SMALL)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert times == {name: (tmp_path / "cut" / name).stat().st_mtime_ns for name in done}


MEASURED = """
import sys
from pathlib import Path
import numpy as np
from drkit.search import FlatIndex

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024

index = FlatIndex.load(sys.argv[1], memory=int(sys.argv[2]))
queries = np.load(sys.argv[3])
before = peak()
found = index.search(queries, 10)
print(peak() - before, found[0].doc_ids[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_corpus_of_many_times_the_budget_is_searched_within_it(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((500_000, 128), dtype=np.float32)  # 256 MB
    np.save(tmp_path / "q.npy", vectors[[5, 499_999]])
    FlatIndex.build(vectors, [str(i) for i in range(len(vectors))]).save(tmp_path / "i")
    (tmp_path / "measured.py").write_text(MEASURED)
    rise = {}
    for budget in (2**20, 2**30):
        done = warm_process().drkit(tmp_path / "i", budget, tmp_path / "q.npy", script=tmp_path / "measured.py")
        assert done["code"] == 0, done["err"]
        out = done["out"].split()
        assert out[1] == "5"
        rise[budget] = int(out[0])
    # a block of 64 MB, its scores, and what torch needs besides
    assert rise[2**20] < 200, rise
    assert rise[2**30] > 240, rise


@pytest.mark.parametrize("damage", [flip_byte, halve])
def test_vectors_that_were_damaged_are_neither_kept_nor_indexed(tmp_path, damage):
    folder, whole = tmp_path / "v", tmp_path / "whole"
    encode_corpus(encoder(), iter(PAIRS), folder, storage=SMALL)
    encode_corpus(encoder(), iter(PAIRS), whole, storage=SMALL)
    damage(folder / "00002.npy")
    with refused("changed", "encode the texts again", where="00002.npy"):
        build_index(folder, tmp_path / "index")
    with refused("changed", f"delete {folder / '00002.arrow'}", where="00002.npy"):
        encode_corpus(encoder(), iter(PAIRS), folder, storage=SMALL)
    (folder / "00002.arrow").unlink()
    encode_corpus(encoder(), iter(PAIRS), folder, storage=SMALL)
    assert files(folder) == files(whole)


@pytest.mark.parametrize("name", ["vectors.npy", "ids.arrow", "index.json"])
def test_an_index_with_a_changed_byte_is_refused_with_what_to_do(tmp_path, name):
    encode_corpus(encoder(), iter(PAIRS), tmp_path / "v", storage=SMALL)
    build_index(tmp_path / "v", tmp_path / "index")
    open_index(tmp_path / "index")
    flip_byte(tmp_path / "index" / name)
    with refused("`drkit index`", where=f"index/{name}"):
        open_index(tmp_path / "index")
