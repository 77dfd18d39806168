"""Columns of vectors: files of a teacher's embeddings, encoders as sources, and what becomes of them in a training."""

import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from drkit.core.registry import installed
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings
from drkit.data.column_sources import EncodedByConfig, FileConfig, VectorsConfig, source_name
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.plan import plan
from drkit.search import encode_corpus
from drkit.search.vector_files import open_vectors
from drkit.search.vectors import Storage
from drkit.testing import check_column
from drkit.testing.specs import ContractError
from drkit.train.biencoder import training_pairs
from drkit.train.columns import read_column
from drkit.train.vector_columns import VectorInfo, finder_of_ids, finder_of_texts, write_vector_column
from tests.plugins.packages import path_with, write_package
from tests.refusals import says
from tests.runs.conftest import TINY, drkit, write_lines
from tests.runs.test_columns import composed
from tests.warm import warm_process

IDS = [f"d{n}" for n in range(9)]
ROOT = Path(__file__).parents[2]


def vectors(rows=9, size=4, dtype=np.float32):
    return np.random.default_rng(rows).normal(size=(rows, size)).astype(dtype)


def listed(values, kind=None, fixed=False):
    kind = kind or pa.float32()
    rows = [row.tolist() for row in values]
    return pa.array(rows, pa.list_(kind, len(rows[0])) if fixed else pa.list_(kind))


class Words:
    """An encoder for `encode_corpus`: the lengths of words."""

    dimension, similarity = 4, "dot"

    def identity(self):
        return {"weights": "words"}

    def encode_passages(self, texts):
        return np.array([[len(text), text.count(" "), text.count("a"), 1] for text in texts], np.float32)

    encode_queries = encode_passages


def written(folder, kind, values=None, ids=IDS):
    """A file with vectors of ids."""
    values = vectors() if values is None else values
    if kind == "encode":
        encode_corpus(Words(), [(name, name) for name in ids], folder / "encoded", storage=Storage(shard_size=4))
        return folder / "encoded"
    path = folder / f"vectors.{kind.partition('-')[0]}"
    table = pa.table({"_id": ids, "embedding": listed(values, fixed="fixed" in kind)})
    if kind.startswith("parquet"):
        pq.write_table(table, path, row_group_size=4)
    elif kind == "feather":
        feather.write_feather(table, path)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    else:
        np.save(path, values)
        (folder / "vectors.ids.txt").write_text("\n".join(ids) + "\n")
    return path


def column(folder, source, items, ids=IDS, **info):
    """The column that the vectors of a source are written to, opened in another process."""
    found = np.array(items)
    known = {name: index for index, name in enumerate(ids)}
    find = finder_of_ids(lambda keys: np.array([known.get(key, -1) for key in keys]))
    counts = write_vector_column(source, find, found, folder, VectorInfo("a file", "passage", **info), total=len(ids))
    return pickle.loads(pickle.dumps(read_column(folder))), counts


@pytest.mark.parametrize("kind", ["parquet", "parquet-fixed", "feather", "arrow", "npy", "encode"])
def test_every_format_gives_the_vectors_of_the_items_by_id(tmp_path, kind):
    values, order = vectors(), np.array([3, 0, 8, 1, 7, 2, 6, 4, 5])
    ids = [IDS[n] for n in order]
    if kind == "encode":
        values = Words().encode_passages(IDS)
    path = written(tmp_path, kind, values[order], ids)
    source = open_vectors(path, of="passage")
    assert (source.by, source.dimension) == ("id", 4)
    made, counts = column(tmp_path, source, [1, 2, 5, 7])
    assert counts == {"vectors": 4, "missing": 0, "unread": 0}
    assert (made.per, made.dimension, len(made)) == ("passage", 4, 4)
    assert made.take(np.array([7, 1, 1])).tolist() == values[[7, 1, 1]].tolist()
    assert made.lacks(0, np.array([0, 1, 8])).tolist() == [True, False, True]


def test_float16_stays_on_disk_and_doubles_become_floats(tmp_path):
    for kind, stored in ((pa.float16(), np.float16), (pa.float64(), np.float32)):
        values = vectors(dtype=np.float16)
        table = pa.table({"doc_id": IDS, "note": ["x"] * 9, "vector": listed(values, kind)})
        pq.write_table(table, tmp_path / "v.parquet")
        made, _ = column(tmp_path, open_vectors(tmp_path / "v.parquet", of="passage"), range(9))
        assert np.load(tmp_path / "vectors.npy", mmap_mode="r").dtype == stored
        assert made.take(np.arange(9)).dtype == np.float32
        assert made.take(np.arange(9)).tolist() == values.astype(np.float32).tolist()


def test_rows_without_ids_are_those_of_the_collection(tmp_path):
    values = vectors()
    np.save(tmp_path / "v.npy", values)
    source = open_vectors(tmp_path / "v.npy", of="passage")
    made, _ = column(tmp_path, source, [0, 8])
    assert made.take(np.array([8])).tolist() == values[[8]].tolist()
    with pytest.raises(DrkitError, match=r"9 vectors without ids, .* 8 passages"):
        column(tmp_path, source, [0], ids=IDS[:8])
    with pytest.raises(DrkitError, match=r"v\.npy: has no ids; .*v\.ids\.txt"):
        open_vectors(tmp_path / "v.npy", of="passage", by="id")


def test_by_text_every_passage_with_the_text_has_the_vector(tmp_path):
    texts = ["a b", "c", "a b", "d"]
    pq.write_table(pa.table({"text": ["d", "e", "a b"], "v": listed(vectors(3))}), tmp_path / "v.parquet")
    source = open_vectors(tmp_path / "v.parquet", of="passage")
    assert source.by == "text"
    info, items = VectorInfo("v", "passage", "drop"), np.arange(4)
    counts = write_vector_column(source, finder_of_texts(texts), items, tmp_path, info, total=4)
    assert counts == {"vectors": 3, "missing": 1, "unread": 1}
    made = read_column(tmp_path)
    assert made.take(np.array([0, 2, 3])).tolist() == vectors(3)[[2, 2, 0]].tolist()
    assert made.drops_unknown


def bad(change):
    def table():
        rows = [row.tolist() for row in vectors()]
        ids = list(IDS)
        change(rows, ids)
        return pa.table({"id": ids, "vector": pa.array(rows, pa.list_(pa.float32()))})

    return table


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (bad(lambda rows, ids: rows[6].pop()), r"row 7 has a vector of 3 numbers, .* 4"),
        (bad(lambda rows, ids: rows[2].__setitem__(1, float("nan"))), r"'d2' \(row 3\) is not finite"),
        (bad(lambda rows, ids: rows[2].__setitem__(1, None)), r"'d2' \(row 3\) is not finite"),
        (bad(lambda rows, ids: rows.__setitem__(4, None)), r"row 5 has no 'vector'"),
        (bad(lambda rows, ids: ids.__setitem__(4, None)), r"row 5 has no 'id'"),
        (bad(lambda rows, ids: ids.__setitem__(8, "d1")), r"two vectors for passage 'd1', in rows 2 and 9"),
        (
            bad(lambda rows, ids: ids.__setitem__(slice(None), [f"x{n}" for n in ids])),
            r"none of the ids .*by = \"text\"",
        ),
        (
            lambda: pa.table({"id": IDS, "v": list(range(9))}),
            r"no column of lists of floats; columns: id .*v \(int64\)",
        ),
        (lambda: pa.table({"x": IDS, "v": listed(vectors())}), r"no column 'doc_id' or .* 'text' .*beside the vectors"),
        (lambda: pa.table({"id": IDS, "a": listed(vectors()), "b": listed(vectors())}), r"several columns of vectors"),
    ],
)
def test_vectors_that_do_not_fit_are_refused_with_their_row(tmp_path, table, said):
    pq.write_table(table(), tmp_path / "v.parquet")
    with pytest.raises(DrkitError, match=said):
        column(tmp_path, open_vectors(tmp_path / "v.parquet", of="passage"), range(9))


def test_files_that_hold_no_vectors_are_refused(tmp_path):
    (tmp_path / "x.parquet").write_text("no")
    (tmp_path / "x.arrow").write_text("no")
    np.save(tmp_path / "x.npy", np.arange(3))
    for name in ("x.parquet", "x.arrow", "x.npy", "x.tsv", "nowhere"):
        with pytest.raises(DrkitError, match=name):
            open_vectors(tmp_path / name, of="passage")
    table = pa.table({"id": pa.array([], pa.string()), "vector": pa.array([], pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "e.parquet")
    feather.write_feather(table, tmp_path / "e.feather")
    for name in ("e.parquet", "e.feather"):
        with pytest.raises(DrkitError, match=f"{name}: has no rows"):
            open_vectors(tmp_path / name, of="passage")
    with pytest.raises(DrkitError, match=r"vectors of passages, not of query .*--split train"):
        open_vectors(written(tmp_path, "encode"), of="query")
    path = written(tmp_path, "npy")
    (tmp_path / "vectors.ids.txt").write_text("a\nb\n")
    with pytest.raises(DrkitError, match=r"vectors\.ids\.txt: has 2 ids for 9 vectors"):
        column(tmp_path, open_vectors(path, of="passage"), range(9))


def test_a_recipe_with_vectors_reads_back_equal():
    recipe = composed(
        "finetune.columns.a=vectors:t.parquet",
        "finetune.columns.b={use='vectors', path='q.npy', of='query', unknown='drop'}",
        "finetune.columns.c=encoder:TEACHER",
        "finetune.columns.d={use='encoder:TEACHER', of='query'}",
        "finetune.columns.e={use='file:ages.tsv', unknown='drop'}",
    )
    assert recipe.finetune.columns == {
        "a": Choice("vectors", VectorsConfig("t.parquet")),
        "b": Choice("vectors", VectorsConfig("q.npy", of="query", unknown="drop")),
        "c": Choice("encoder", EncodedByConfig("TEACHER")),
        "d": Choice("encoder", EncodedByConfig("TEACHER", of="query")),
        "e": Choice("file", FileConfig("ages.tsv", unknown="drop")),
    }
    assert recipe_from_table(recipe_table(recipe), installed().registry) == recipe
    names = ["vectors:t.parquet", "vectors:q.npy", "encoder:TEACHER", "encoder:TEACHER", "file:ages.tsv"]
    assert [source_name(one) for one in recipe.finetune.columns.values()] == names


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["finetune.columns.query-vectors={use='vectors:q', of='query', default=0}"], "holds vectors, .*default.*drop"),
        (
            ["finetune.columns.query-vectors=vectors:q"],
            r"each query .*'query-vectors'.* each passage: set of = \"query\"",
        ),
        (["finetune.columns.query-vectors=file:q"], r"compares vectors, .*\(file:q\) holds numbers"),
        ([], "'query-vectors', which the round does not have"),
        (["finetune.loss.queries="], None),
        (["finetune.loss=margin-mse", "finetune.columns.teacher=vectors:t"], "'teacher', .*vectors:t holds vectors"),
        (["finetune.loss.passages=", "finetune.loss.queries="], "both empty"),
    ],
)
def test_the_recipe_refuses_columns_that_a_loss_cannot_read(settings, said):
    def checked():
        passages = "finetune.columns.passage-vectors=vectors:p"
        check(composed("finetune.loss=vector-cosine", passages, *settings), installed().registry)

    if said is None:
        checked()
        return
    with pytest.raises(ProblemsError, match=said):
        checked()


def teacher_file(beir, folder, name="passages.parquet", of="passage", size=6, without=(), dtype=np.float32):
    """Vectors of a collection's passages, or of all its queries, in a file."""
    rows = [json.loads(line) for line in (beir / f"{'corpus' if of == 'passage' else 'queries'}.jsonl").open()]
    ids = [row["_id"] for row in rows if row["_id"] not in without]
    values = np.random.default_rng(size).normal(size=(len(rows), size)).astype(dtype)
    values = values[[row["_id"] not in without for row in rows]]
    pq.write_table(pa.table({"id": ids, "vector": listed(values)}), folder / name)
    return {key: value.tolist() for key, value in zip(ids, values, strict=True)}


SIZES = [one for one in TINY if not any(word in one for word in ("packages", "pretrain.", "vocab_size"))]


def run(beir, folder, *settings, miner="random", kill_after=0, **environment):
    arguments = (
        *("compose", "--collection", f"beir:{beir}", "--set=pretrain=none", "--miner", miner, *SIZES),
        *("--set=finetune.baselines=[]", "--set=encoder.vocab_size=150", "--set=encoder.layers=1"),
        *("--set=evaluation.bm25=false", "--set=evaluation.start=false"),
        *(f"--set={one}" for one in settings),
        *("--run-dir", folder),
    )
    if kill_after:
        killing = ("retriever-1", str(kill_after), *map(str, arguments))
        return warm_process().drkit(*killing, folder=ROOT, module="tests.runs.killed_training")
    return drkit(*arguments, check=False, **environment)


READS_IDS = """
import os
import torch
from drkit.plugin import StepOutput

class Part(torch.nn.Module):
    calls = 0

    def __init__(self, config, context=None):
        super().__init__()
        self.ids, self.sizes = context.ids, dict(context.vector_sizes)
        if self.ids:
            assert self.ids["passage"].find(["d3", "nowhere"]).tolist() == [3, -1]
            assert self.ids["query"].ids_at([2]) == ["q2"]

    def forward(self, *, pairs):
        teacher, queries = pairs.column("teacher-vectors"), pairs.column("asked")
        assert (len(teacher), len(queries)) == (len(pairs.passages), len(pairs.queries))
        assert (teacher.shape[1], queries.shape[1]) == (self.sizes["teacher-vectors"], self.sizes["asked"])
        if self.ids:
            names = self.ids["query"].ids_at(pairs.query_ids.tolist())
            passages = self.ids["passage"].ids_at(pairs.passage_ids.tolist())
            assert [float(name[1:]) for name in passages] == teacher[:, 0].tolist()
            assert [float(name[1:]) for name in names] == queries[:, 0].tolist()
            Part.calls += 1
            if str(Part.calls) == os.environ.get("FAIL_AT"):
                raise KeyboardInterrupt
        scores = pairs.queries @ pairs.passages.T
        return StepOutput(loss=-scores.log_softmax(1).gather(1, pairs.positives[:, None]).mean())
"""
NUMBERS = """
class Numbers:
    def __init__(self, config, context=None):
        pass

    def values(self, queries):
        return ([float(query.query_id[1:]) if query.query_id[1:].isdigit() else 0.0, 1.0, 2.0] for query in queries)
"""


def test_a_strangers_loss_reads_vectors_and_ids_of_texts_in_every_batch(beir, tmp_path):
    (tmp_path / "reads_ids.py").write_text(READS_IDS + NUMBERS)
    parts = 'part("loss", "reads", "reads_ids:Part", receives=("pairs", "teacher-vectors", "asked")), '
    parts += 'part("column", "numbers", "reads_ids:Numbers", scope="query", provides=("vectors",))'
    write_package(tmp_path, "stranger", f"@hookimpl\ndef drkit_components():\n    return [{parts}]\n")
    table = pa.table({"id": [f"d{n}" for n in range(60)], "v": listed(np.array([[n, 1.0] for n in range(60)]))})
    pq.write_table(table, tmp_path / "t.parquet")
    columns = (f"finetune.columns.teacher-vectors=vectors:{tmp_path / 't.parquet'}", "finetune.columns.asked=numbers")
    settings = ("finetune.loss=reads", "finetune.gradient_cache_chunk=5", *columns)
    whole = run(beir, tmp_path / "whole", *settings, PYTHONPATH=path_with(tmp_path))
    assert whole.returncode == 0, whole.stderr
    assert run(beir, tmp_path / "cut", *settings, FAIL_AT="5", PYTHONPATH=path_with(tmp_path)).returncode
    done = run(beir, tmp_path / "cut", *settings, PYTHONPATH=path_with(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout + done.stderr
    weights = [load_file(tmp_path / name / "retriever-1/model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class Yields:
    """A column that yields what a function makes of the items."""

    def __init__(self, config, context=None):
        pass

    def values(self, items):
        return type(self).function(items)


@pytest.mark.parametrize(
    ("values", "scope", "said"),
    [
        (lambda items: [[1.0, 2.0] for _ in items], "pair", "query or a passage"),
        (lambda items: [1.0 for _ in items], "query", "expected a vector of finite numbers"),
        (lambda items: [[1.0, float("nan")] for _ in items], "query", "expected a vector of finite numbers"),
        (lambda items: [[1.0] * (1 + n) for n, _ in enumerate(items)], "passage", "one length"),
        (lambda items: (None for _ in items), "passage", "every value is None"),
    ],
)
def test_the_contract_of_columns_notices_what_is_no_vector(values, scope, said):
    def checked(function, scope):
        Yields.function = staticmethod(function)
        target = f"{__name__}:Yields"
        spec = ComponentSpec(Kind.COLUMN, "yields", target, NoSettings, "Yields", scope=scope, provides=("vectors",))
        check_column(spec)

    checked(lambda items: [np.array([len(item.text), 1.0]) for item in items], "query")
    checked(lambda items: [None if item.doc_id == "d0" else torch.ones(3) for item in items], "passage")
    with pytest.raises((ContractError, DrkitError), match=said):
        checked(values, scope)


def test_a_killed_training_with_a_projection_ends_with_the_same_weights(beir, tmp_path):
    teacher_file(beir, tmp_path)
    passages = f"finetune.columns.passage-vectors=vectors:{tmp_path / 'passages.parquet'}"
    settings = ("finetune.loss=vector-cosine", "finetune.loss.queries=", passages)
    assert run(beir, tmp_path / "whole", *settings).returncode == 0
    killed = run(beir, tmp_path / "cut", *settings, kill_after=4)
    assert killed["code"] == 9
    done = run(beir, tmp_path / "cut", *settings)
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout + done.stderr
    weights = [load_file(tmp_path / name / "retriever-1/model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_vectors_of_a_run_are_those_of_the_file(beir, tmp_path):
    passages = teacher_file(beir, tmp_path, dtype=np.float16)
    queries = teacher_file(beir, tmp_path, "queries.parquet", "query")
    columns = (
        f"finetune.columns.passage-vectors=vectors:{tmp_path / 'passages.parquet'}",
        f"finetune.columns.query-vectors={{use='vectors:{tmp_path / 'queries.parquet'}', of='query'}}",
    )
    done = run(beir, tmp_path / "run", "finetune.loss=vector-mse", *columns)
    assert done.returncode == 0, done.stderr
    assert "8 vectors of vectors:" in done.stdout + done.stderr, "queries of dev and test"
    made = read_column(tmp_path / "run/column-passage-vectors-retriever-1")
    assert made.take(np.array([3, 43])).tolist() == [passages["d3"], passages["d43"]]
    made = read_column(tmp_path / "run/column-query-vectors-retriever-1")
    assert (made.per, len(made), made.dimension) == ("query", 12, 6)
    assert made.take(np.array([3])).tolist() == [queries["q3"]]
    exported = sorted(path.name for path in (tmp_path / "run/encoder").rglob("*"))
    assert not any("projection" in name for name in exported)
    weights = load_file(tmp_path / "run/retriever-1/model.safetensors")
    assert not any("projection" in name for name in weights)


def test_a_missing_vector_is_an_error_or_leaves_its_pairs_out(beir, tmp_path):
    teacher_file(beir, tmp_path, without=("d3", "d23", "d4"))
    path = tmp_path / "passages.parquet"
    settings = ("finetune.loss=vector-cosine", "finetune.loss.queries=", "finetune.negatives=2")
    done = run(beir, tmp_path / "run", *settings, f"finetune.columns.passage-vectors=vectors:{path}")
    assert done.returncode
    assert says(done.stderr, "no value for", "passage 'd", 'unknown="drop"')
    dropping = f"finetune.columns.passage-vectors={{use='vectors:{path}', unknown='drop'}}"
    done = run(beir, tmp_path / "dropped", *settings, dropping)
    assert done.returncode == 0, done.stderr
    # d3 and d23 are all positives of q3, d4 is one of two of q4; all may be negatives of other queries
    assert "left out, without a value of passage-vectors: 1 training query" in done.stdout + done.stderr
    metrics = json.loads((tmp_path / "dropped/column-passage-vectors-retriever-1/manifest.json").read_text())["metrics"]
    assert metrics["missing"] == 3


def test_scores_that_are_missing_leave_their_pairs_out_of_all_columns(beir, tmp_path):
    rows = [{"query_id": f"q{n}", "doc_id": f"d{n + 20 * k}", "value": 1.0} for n in range(12) for k in range(2)]
    rows += [{"query_id": f"q{n}", "doc_id": f"d{d}", "value": 0.1} for n in range(1, 12) for d in range(60)]
    rows = list({(row["query_id"], row["doc_id"]): row for row in rows}.values())
    rows += [{"query_id": "q17", "doc_id": "d1", "value": 1.0}, {"query_id": "q1", "doc_id": "nowhere", "value": 1.0}]
    write_lines(tmp_path / "scores.jsonl", [row for row in rows if row["query_id"] != "q5"])
    source = f"use='file:{tmp_path / 'scores.jsonl'}'"
    done = run(beir, tmp_path / "run", "finetune.loss=margin-mse", f"finetune.columns.teacher={{{source}}}")
    assert done.returncode
    done = run(
        beir, tmp_path / "dropped", "finetune.loss=margin-mse", f"finetune.columns.teacher={{{source}, unknown='drop'}}"
    )
    assert done.returncode == 0, done.stderr
    assert "left out, without a value of teacher: 1 training query" in done.stdout + done.stderr


@pytest.mark.usefixtures("small_beir")
def test_the_plan_encodes_texts_once_for_all_columns_and_refuses_what_it_knows(tmp_path):
    def planned(*settings, miners=("random",)):
        recipe = composed("encoder.layers=1", *settings, miners=miners, collection=f"beir:{tmp_path / 'beir'}")
        check(recipe, installed().registry)
        return plan(recipe, installed().registry)

    both = (
        "finetune.columns.passage-vectors=encoder:T",
        "finetune.columns.query-vectors={use='encoder:T', of='query'}",
    )
    made = planned("finetune.loss=vector-relation", *both)
    stages = {one.name: one for one in made.stages}
    assert {"encoded-1", "encoded-2", "column-query-vectors-retriever-1"} <= {*stages}
    assert {stages[f"encoded-{n}"].settings.of for n in (1, 2)} == {"passage", "query"}
    with pytest.raises(DrkitError, match=r"no folder '/no/teacher'"):
        planned(both[1], "finetune.columns.passage-vectors=encoder:/no/teacher", "finetune.loss=vector-mse")
    passages = "finetune.columns.passage-vectors=vectors:nowhere.npy"
    with pytest.raises(DrkitError, match=r"no vectors at nowhere\.npy"):
        planned(passages, "finetune.loss=vector-mse", "finetune.loss.queries=")


@pytest.fixture
def small_beir(tmp_path, beir):
    (tmp_path / "beir").symlink_to(beir)


def test_an_encoder_as_source_is_what_drkit_encode_writes(beir, tmp_path):
    done = run(beir, tmp_path / "teacher", "finetune.loss=contrastive")
    assert done.returncode == 0, done.stderr
    both = (
        f"finetune.columns.passage-vectors=encoder:{tmp_path / 'teacher'}",
        f"finetune.columns.query-vectors={{use='encoder:{tmp_path / 'teacher/encoder'}', of='query'}}",
    )
    settings = ("finetune.loss=vector-relation", "finetune.loss.loss=contrastive", "encoder.hidden=16")
    done = run(beir, tmp_path / "run", *settings, *both)
    assert done.returncode == 0, done.stderr
    drkit("encode", "--encoder", tmp_path / "teacher", "--collection", f"beir:{beir}", "-o", tmp_path / "passages")
    source = open_vectors(tmp_path / "passages", of="passage")
    expected = np.concatenate([block.vectors for block in source.blocks()])
    made = read_column(tmp_path / "run/column-passage-vectors-retriever-1")
    assert made.take(np.array([3, 5])).tolist() == expected[[3, 5]].tolist()
    line = json.loads((tmp_path / "run/retriever-1/log.jsonl").read_text().splitlines()[-1])
    assert {"distance", "other", "accuracy"} <= {*line}


def test_refreshed_negatives_find_the_vectors_of_all_passages(beir, tmp_path):
    teacher_file(beir, tmp_path)
    settings = ("finetune.loss=vector-cosine", "finetune.loss.queries=", "finetune.rounds.0.miners.0.every=1")
    passages = f"finetune.columns.passage-vectors=vectors:{tmp_path / 'passages.parquet'}"
    done = run(beir, tmp_path / "run", *settings, passages, miner="refresh")
    assert done.returncode == 0, done.stderr
    assert len(read_column(tmp_path / "run/column-passage-vectors-retriever-1")) == 60


def test_pairs_that_a_column_does_not_know_are_left_out():
    class Column:
        def lacks(self, query, passages):
            return (passages % 2 == 1) | (query == 2)

    made = training_pairs(
        ["a", "b", "c", "d"],
        {"a": np.array([0, 1]), "b": np.array([3]), "c": np.array([2]), "d": np.array([4])},
        {"a": np.array([5, 6]), "d": np.array([7])},
    )
    kept = made.known_to(Column())
    assert kept.queries.tolist() == [0, 3]
    assert [own.tolist() for own in kept.positives] == [[0], [4]]
    assert [own.tolist() for own in kept.negatives] == [[6], []]
    assert kept.judged(0).tolist() == [0, 1], "a positive that was left out is no negative"
