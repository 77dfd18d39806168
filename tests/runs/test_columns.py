"""Columns of fine-tuning: files of values per query, passage or pair, on their way into the batches of a loss."""

import json
import pickle
import random
import re
from itertools import count, product
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drkit.core.registry import installed
from drkit.core.spec import Choice, ComponentSpec, Kind, NoSettings
from drkit.data.column_sources import FILE, FileConfig, source_name
from drkit.data.corpus import open_collection
from drkit.data.pairs import text_id
from drkit.data.store import TokenStore, tokenise
from drkit.data.values import read_values
from drkit.errors import DrkitError, ProblemsError
from drkit.miners.chain import read_negatives
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.paths import setting_paths
from drkit.recipe.toml import plain, recipe_from_table, recipe_table
from drkit.runs.plan import plan
from drkit.runs.stages import columns
from drkit.runs.stages.columns import COLUMN
from drkit.testing import check_column
from drkit.testing.specs import ContractError
from drkit.train.biencoder import PairCollator, training_pairs
from drkit.train.columns import ColumnInfo, read_column, write_values
from tests.encoders.toys import tiny
from tests.plugins.packages import installed_with, path_with, write_package
from tests.refusals import says
from tests.rerank.toys import mined, query_tokens, stored
from tests.runs.conftest import TINY, drkit, write_lines

ROW = {"query_id": "q file 0", "doc_id": "d file ü"}


@pytest.fixture
def collection(tmp_path):
    return open_collection(stored(tmp_path / "collection"))


@pytest.fixture
def column(collection, tmp_path):
    """Write rows into a file, read it into a column, and open that."""

    numbers = count()

    def made(rows, name="age", default=None, suffix=".jsonl"):
        folder = tmp_path / f"column-{next(numbers)}"
        folder.mkdir()
        path = folder / f"rows{suffix}"
        lines = rows if isinstance(rows, str) else "".join(f"{json.dumps(row)}\n" for row in rows)
        path.write_text(lines, encoding="utf-8")
        queries = {query.query_id: index for index, query in enumerate(collection.queries("train"))}
        info = ColumnInfo(f"file:{path}", default=default)
        write_values(read_values(path, name), queries, collection.corpus, folder, info)
        return pickle.loads(pickle.dumps(read_column(folder)))

    return made


def test_a_value_per_query_passage_or_pair(column):
    both = np.array([1, 0])  # of the passages list and file
    ages = column([{"query_id": "q list 0", "age": 3}, {"query_id": "q file 0", "age": 5}])
    assert (ages.per, ages.lookup(0, both).tolist(), ages.lookup(1, both).tolist()) == ("query", [5, 5], [3, 3])
    assert ages.lacks(2, both).tolist() == [True, True]
    dates = column([{"doc_id": "d list ü", "value": 0.5}, {"doc_id": "d file ü", "value": 2}], "date", default=7)
    assert (dates.per, dates.lookup(9, np.array([1, 0, 2])).tolist()) == ("passage", [0.5, 2.0, 7.0])
    assert not dates.lacks(9, np.array([1, 0, 2])).any()
    marks = column([{**ROW, "doc_id": "d list ü", "mark": True}, {**ROW, "mark": False}], "mark")
    assert (marks.per, marks.lookup(0, both).tolist()) == ("pair", [True, False])
    assert marks.lacks(1, both).tolist() == [True, True]


@pytest.mark.parametrize(
    ("values", "default", "kind"),
    [
        ([1, 2], None, np.int64),
        ([1, 2], 0.0, np.int64),
        ([1, 2], 0.5, np.float32),
        ([1, 2.5], None, np.float32),
        ([True, False], None, np.bool_),
        ([True, False], 1.0, np.bool_),
    ],
)
def test_numbers_keep_their_type_as_far_as_the_default_has_it(column, values, default, kind):
    rows = [{"query_id": f"q {topic} 0", "age": value} for topic, value in zip(("file", "list"), values, strict=True)]
    found = column(rows, default=default).lookup(1, np.array([0]))
    assert (found.dtype, found.tolist()) == (kind, [values[1]])
    assert column(rows, default=default).lookup(3, np.array([0])).dtype == kind


def test_a_table_and_what_distill_writes(column):
    table = "query_id\tdoc_id\tage\nq file 0\td file ü\t-3\nq file 0\td list ü\t1e2\n"
    assert column(table, suffix=".tsv").lookup(0, np.array([0, 1])).tolist() == [-3, 100]
    assert column(table.partition("\n")[2], suffix=".tsv").lookup(0, np.array([0, 1])).tolist() == [-3, 100]
    line = {"query_id": "q list 0", "positive_ids": ["d list ü"], "positive_scores": [4.0]}
    line |= {"negative_ids": ["d file ü", "d path ü"], "negative_scores": [1.0, -2.0]}
    scores = column([line], "teacher")
    assert (scores.per, scores.lookup(1, np.array([0, 1, 11])).tolist()) == ("pair", [1, 4, -2])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has no values"),
        ([{**ROW, "age": float("nan")}], r"jsonl:1: 'age' .*number, got nan"),
        ([{**ROW, "age": "old"}], r"jsonl:1: 'age' .*number, got 'old'"),
        ([{**ROW, "age": None}], r"jsonl:1: .*'age', 'value', 'score'"),
        ([{**ROW, "year": 3}], r"jsonl:1: .*'age', 'value', 'score'; columns: query_id, doc_id, year"),
        ([{"age": 3}], r"jsonl:1: expected query_id, doc_id or both"),
        ([{**ROW, "query_id": 1.5, "age": 3}], r"jsonl:1: 'query_id' .*string .*integer"),
        ([{**ROW, "age": 3}, {**ROW, "doc_id": "d", "age": 3}], r"jsonl:2: passage 'd'"),
        ([{"query_id": "t file 北", "age": 3}], r"jsonl:1: query 't file 北'"),
        (
            [{**ROW, "age": 3}, {**ROW, "doc_id": "d list ü", "age": 4}, {**ROW, "age": 5}],
            r":1 and .*:3 ",
        ),
        ([{**ROW, "age": 3}, {"query_id": "q list 0", "age": 3}], r"jsonl:2 .* query, .*:1 .* pair"),
        ([{**ROW, "age": 3}, {**ROW, "doc_id": "d list ü", "age": True}], "bools .*numbers"),
        (
            [{"query_id": "q list 0", "positive_ids": ["d list ü"], "positive_scores": [4.0, 1.0]}],
            r"jsonl:1: 'positive_ids' and 'positive_scores'",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_their_line(column, rows, said):
    with pytest.raises(DrkitError, match=said):
        column(rows)


@pytest.mark.parametrize("cell", ["", "nan", "1_000", "x"])
def test_cells_that_are_no_numbers_are_refused(column, cell):
    with pytest.raises(DrkitError, match=r"rows\.tsv:2: 'age' .*number"):
        column(f"doc_id\tage\nd file ü\t{cell}\n", suffix=".tsv")


def test_a_batch_has_the_values_of_its_own_queries_passages_and_pairs(collection, column, tmp_path):
    queries, passages = list(collection.queries("train")), list(collection.corpus)
    tokenise(((p.doc_id, p.content) for p in passages), tiny("bert")[1], tmp_path / "tokens", max_length=16)
    ids = [query.query_id for query in queries]
    negatives = read_negatives(mined(tmp_path / "collection", tmp_path / "negatives"))
    pairs = training_pairs(ids, collection.positive_indices("train"), negatives)
    number = {doc.doc_id: index for index, doc in enumerate(passages)}
    both = [{"query_id": q, "doc_id": d, "value": 100 * ids.index(q) + number[d]} for q, d in product(ids, number)]
    columns = {
        "pair": column(both),
        "query": column([{"query_id": q, "value": ids.index(q) / 2} for q in ids]),
        "passage": column([{"doc_id": d, "value": number[d] + 0.5} for d in number]),
    }
    stores = [TokenStore.open(query_tokens(tmp_path / "collection", tmp_path / "queries"))]
    stores += [TokenStore.open(tmp_path / "tokens")]
    collate = PairCollator(pairs, *stores, negatives=3, seed=2, columns=columns)
    batch = collate([(0, row) for row in (4, 0, 9)])
    drawn, groups, rows = batch["passage_indices"], batch["groups"], torch.from_numpy(pairs.queries[[4, 0, 9]])
    assert batch["column.query"].tolist() == (rows / 2).tolist()
    assert batch["passage_column.passage"].tolist() == (drawn + 0.5).tolist()
    expected = torch.where(groups < 0, -1, 100 * rows[:, None] + drawn[groups])
    assert (groups < 0).any(), "one has fewer negatives"
    assert batch["column.pair"].tolist() == expected.tolist()


def composed(*settings, miners=("random",), collection="pydocs", registry=None):
    request = ComposeRequest(collection=str(collection), miners=miners, settings=("pretrain=none", *settings))
    return compose(request, registry or installed())


def test_a_recipe_with_columns_reads_back_equal():
    recipe = composed("finetune.columns.age=file:ages.tsv", "finetune.columns.date={use='file:d.tsv', default=1}")
    assert recipe.finetune.columns == {
        "age": Choice(FILE, FileConfig("ages.tsv")),
        "date": Choice(FILE, FileConfig("d.tsv"), default=1.0),
    }
    assert recipe_from_table(recipe_table(recipe), installed().registry) == recipe
    assert (
        composed("finetune.columns.age=file:a", "finetune.columns.age.default=2").finetune.columns["age"].default == 2
    )
    with pytest.raises(ProblemsError, match=r"'columns' has 'Age x'; use lower-case letters"):
        composed("finetune.columns={'Age x'='given'}")


def test_the_rounds_teacher_is_the_source_of_its_column_and_keeps_the_default():
    recipe = composed("finetune.columns.teacher={use='given', default=-1}", "finetune.rounds.0.teacher=file:x.jsonl")
    assert recipe.finetune.columns_for(recipe.finetune.rounds[0]) == {
        "teacher": Choice(FILE, FileConfig("x.jsonl"), default=-1.0)
    }


def test_a_loss_without_its_column_is_refused_with_the_remedy():
    with pytest.raises(ProblemsError) as refused:
        check(composed("finetune.loss=margin-mse", "finetune.columns.age=given"), installed().registry)
    assert says(str(refused.value), "margin-mse", "'teacher'", "(columns: age)")
    assert "--set finetune.columns.teacher=file:PATH" in str(refused.value)


def planned(tmp_path, *settings, miners=("random",), rows=()):
    """The plan of one round on a BEIR collection, whose column `teacher` has these rows."""
    write_lines(tmp_path / "scores.jsonl", rows)
    recipe = composed("encoder.layers=1", *settings, miners=miners, collection=f"beir:{tmp_path / 'beir'}")
    check(recipe, installed().registry)
    return plan(recipe, installed().registry)


@pytest.fixture
def small_beir(tmp_path, beir):
    (tmp_path / "beir").symlink_to(beir)


@pytest.mark.usefixtures("small_beir")
def test_the_plan_makes_a_column_that_a_loss_reads_and_notes_others(tmp_path):
    source = f"finetune.columns.teacher={{use='file:{tmp_path / 'scores.jsonl'}', default=0}}"
    rows = [{"query_id": f"q{n}", "doc_id": "d0", "score": 1} for n in range(2)]
    made = planned(tmp_path, source, "finetune.loss=margin-mse", rows=rows)
    (stage,) = (one for one in made.stages if one.spec is COLUMN)
    assert (stage.name, source_name(stage.settings.source)) == (
        "teacher-retriever-1",
        f"file:{tmp_path / 'scores.jsonl'}",
    )
    assert not any("column" in note for note in made.notes)
    again = planned(tmp_path, source, "finetune.loss=margin-mse", rows=rows[:1])
    (again,) = (one for one in again.stages if one.spec is COLUMN)
    assert again.sources != stage.sources, "size and time of the file"
    unread = planned(tmp_path, source)
    assert not any(one.spec is COLUMN for one in unread.stages)
    assert any(says(note, "loss", "'teacher'") for note in unread.notes)
    with pytest.raises(DrkitError, match=r"'teacher' .*: .*nowhere\.jsonl .*\.jsonl, \.json"):
        planned(tmp_path, "finetune.columns.teacher=file:nowhere.jsonl", "finetune.loss=margin-mse")


SCORED = ("finetune.loss=margin-mse", "finetune.num_train_epochs=5", "finetune.max_steps=-1", "finetune.negatives=2")


@pytest.fixture
def rows_of_pairs(tmp_path):
    """Plan a round on rows of pairs, whose negatives are given, with scores of some pairs by query and passage text."""
    rows = [
        {"query": f"q {n}", "pos": f"p {n}", "neg": [f"n {n}", f"m {n}", f"o {n}"][: 2 + (n == 0)]} for n in range(8)
    ]
    write_lines(tmp_path / "rows.jsonl", rows)
    pairs = [(row["query"], text) for row in rows for text in (row["pos"], *row["neg"])]

    def made(*settings, without=(), miners=("given",)):
        ids = [(text_id(query), text_id(text)) for query, text in pairs if text not in without]
        write_lines(tmp_path / "scores.jsonl", [{"query_id": q, "doc_id": d, "score": 1} for q, d in ids])
        shares = ("collection.dev_share=0", "collection.test_share=0", "evaluation.split=train", "encoder.layers=1")
        source = f"finetune.rounds.0.teacher=file:{tmp_path / 'scores.jsonl'}"
        collection = f"pairs:{tmp_path / 'rows.jsonl'}"
        recipe = composed(*shares, *SCORED, source, *settings, miners=miners, collection=collection)
        check(recipe, installed().registry)
        return plan(recipe, installed().registry)

    return made


def test_the_plan_refuses_a_given_pair_that_will_be_drawn_and_has_no_score(rows_of_pairs, monkeypatch):
    assert rows_of_pairs()
    for text, query in (("p 3", "q 3"), ("n 5", "q 5")):
        with pytest.raises(DrkitError, match=r"'teacher' .* 1 of the 22 ") as refused:
            rows_of_pairs(without=[text])
        assert says(str(refused.value), f"query {text_id(query)!r}", f"passage {text_id(text)!r}", "default=0.0")
    assert rows_of_pairs(without=["n 0"]), "two of its three negatives are drawn, perhaps not this one"
    assert rows_of_pairs(without=["n 5"], miners=("random",)), "mined ones are known later"
    with pytest.raises(DrkitError, match=r"'teacher' .* 1 of the 8 "):
        rows_of_pairs(without=["p 3"], miners=("random",))
    default = "finetune.columns.teacher={use='given', default=0}"
    assert rows_of_pairs(default, without=["p 3"])
    monkeypatch.setattr(columns, "_READ_IN_PLAN", 0)
    assert rows_of_pairs(without=["p 3"]), "a long file is read before the training"
    with pytest.raises(DrkitError, match=r"'teacher' .*'refresh' .*teacher=.*default=0\.0"):
        rows_of_pairs(miners=("refresh",))


PLUGINS = Path(__file__).parents[2] / "docs" / "guide" / "plugins.md"
COMPUTED = """
class Lengths:
    def __init__(self, config, context=None):
        pass

    def values(self, queries):
        return [len(query.text) for query in queries]

class Ages(Lengths):
    def values(self, passages):
        ages = (int(passage.doc_id[1:]) for passage in passages)
        return (None if age % 2 else age for age in ages)
"""


def computed_run(tmp_path, beir, loss, columns, *settings):
    """Run a round of fine-tuning whose columns are computed by a package in `tmp_path`."""
    sizes = [one for one in TINY if "packages" not in one and "pretrain." not in one]
    arguments = ("compose", "--collection", f"beir:{beir}", "--set=pretrain=none", "--miner", "random", *sizes)
    arguments += (f"--set=finetune.loss={loss}", "--set=finetune.baselines=[]", *settings)
    arguments += ("--set=evaluation.bm25=false", "--set=evaluation.start=false", "--set=encoder.layers=1")
    arguments += tuple(f"--set=finetune.columns.{name}={source}" for name, source in columns.items())
    return drkit(*arguments, "--run-dir", tmp_path / "run", check=False, PYTHONPATH=path_with(tmp_path))


def test_the_column_of_the_guide_from_compose_to_the_end_of_a_run(beir, tmp_path):
    code, table = re.search(
        r"## A column of your own.*?```python\n(.*?)```\n```toml\n(.*?)```", PLUGINS.read_text(), re.DOTALL
    ).groups()
    assert (code + table).count("\n") < 40
    write_package(tmp_path, "overlap", code, head="")
    source = re.search("teacher = (.*)", table)[1]
    done = computed_run(tmp_path, beir, "margin-mse", {"teacher": source})
    assert done.returncode == 0, done.stderr
    made, queries = read_column(tmp_path / "run" / "teacher-retriever-1"), range(12)
    assert (made.per, len(made)) == ("pair", 12)
    for query in queries:
        passages, values = made.row(query)
        shared = [1 + (passage % 20 == query) for passage in passages.tolist()]  # "about" and the topic, of four words
        assert values.tolist() == [10.0 * count / 4 for count in shared]
    manifest = json.loads((tmp_path / "run" / "teacher-retriever-1" / "manifest.json").read_text())
    assert (manifest["settings"]["source.use"], manifest["settings"]["source.scale"]) == ("overlap", 10.0)


def test_parts_compute_values_of_the_queries_and_passages_that_a_round_draws(beir, tmp_path):
    (tmp_path / "sources.py").write_text(COMPUTED)
    (tmp_path / "stranger_loss.py").write_text(STRANGER)
    parts = 'part("loss", "weighted", "stranger_loss:Part", receives=("pairs", "weight", "age"), scope="batch"), '
    parts += 'part("column", "lengths", "sources:Lengths", scope="query"), '
    parts += 'part("column", "ages", "sources:Ages", scope="passage")'
    write_package(tmp_path, "stranger", f"@hookimpl\ndef drkit_components():\n    return [{parts}]\n")
    columns = {"weight": "lengths", "age": "ages"}
    done = computed_run(tmp_path, beir, "weighted", columns, "--no-trial")
    assert done.returncode != 0
    assert says(done.stderr, "column 'age' (ages)")
    assert "--set finetune.columns.age.default=0.0" in done.stderr
    done = computed_run(tmp_path, beir, "weighted", {**columns, "age": "{use='ages', default=-1}"}, "--redo")
    assert done.returncode == 0, done.stderr
    weights, ages = (read_column(tmp_path / "run" / f"column-{name}-retriever-1") for name in columns)
    assert (weights.per, ages.per, len(ages)) == ("query", "passage", 1)
    assert [weights.lookup(n, np.array([5])).item() for n in range(12)] == [20 + (n > 9) for n in range(12)]
    found, values = ages.row(-1)
    assert values.tolist() == found.tolist()
    assert len(found) > 10
    assert (found % 2 == 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, "x", [1]])
def test_what_is_no_number_is_refused_with_its_query_and_passage(value):
    with pytest.raises(ContractError, match=r"'yields' .* query 'q0' and passage 'd0'"):
        check_values(lambda items: [value for _ in items])


class Yields:
    """A column that yields what a function makes of the items."""

    def __init__(self, config, context=None):
        pass

    def values(self, items):
        return type(self).function(items)


def check_values(function, scope="pair"):
    Yields.function = staticmethod(function)
    check_column(ComponentSpec(Kind.COLUMN, "yields", f"{__name__}:Yields", NoSettings, "Yields values", scope=scope))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (lambda items: [1.0 for _ in items][:-1], "fewer values"),
        (lambda items: [1.0 for _ in items] + [2.0], "more values"),
        (lambda items: (None for _ in items), "every value .*None"),
        (lambda items: [True, *(1 for _ in items)][:15], "bools .*numbers"),
        (lambda items: (random.random() for _ in items), "second call"),
        (lambda items: [len(item.text) for item in items], "raises AttributeError"),
    ],
)
def test_the_contract_of_columns_notices_what_breaks_it(values, said):
    check_values(lambda items: (np.float32(len(query.text)) for query, _ in items))
    check_values(lambda items: [torch.tensor(one.doc_id == "d0") for one in items], "passage")
    with pytest.raises(ContractError, match=said):
        check_values(values)


def test_a_recipe_with_a_part_reads_back_equal_and_lists_its_settings(tmp_path, monkeypatch):
    source = """
@frozen
class Config:
    scale: float = setting(1.0, None, "the scale")
    scope: str = setting("pair", None, "not the property")

@hookimpl
def drkit_components():
    return [part("column", "measured", config=Config, scope="passage"), part("column", "sources", scope="query")]
"""
    write_package(tmp_path, "stranger", source)
    monkeypatch.syspath_prepend(tmp_path)
    parts = installed_with(tmp_path)
    teacher = "finetune.columns.teacher={use='measured', default=2, scale=3}"
    recipe = composed(teacher, "finetune.columns.age=sources", "finetune.loss=margin-mse", registry=parts)
    column = recipe.finetune.columns["teacher"]
    assert (column.use, column.config.scale, column.default) == ("measured", 3.0, 2.0)
    assert recipe.finetune.columns["age"].use == "sources"
    assert recipe_from_table(recipe_table(recipe), parts.registry) == recipe
    paths = {one.path: one.value for one in setting_paths(recipe, parts.registry)}
    named = {path: value for path, value in paths.items() if path.startswith("finetune.columns.teacher")}
    assert named == {
        "finetune.columns.teacher.use": "measured",
        "finetune.columns.teacher.scale": 3.0,
        "finetune.columns.teacher.scope": "pair",
        "finetune.columns.teacher.default": 2.0,
    }
    with pytest.raises(ProblemsError, match=r"'scales'; .*'scale'.*@ finetune\.columns\.teacher"):
        composed("finetune.columns.teacher={use='measured', scales=3}", registry=parts)
    recipe = composed("finetune.rounds.0.teacher=measured", "finetune.loss=margin-mse", registry=parts)
    check(recipe, parts.registry)
    assert recipe.finetune.rounds[0].teacher == Choice("measured", column.config.__class__())
    recipe = composed("finetune.rounds.0.teacher={use='measured', scale=3}", registry=parts)
    assert recipe_table(recipe)["finetune"]["rounds"][0]["teacher"] == plain(attrs.evolve(column, default=None))
    refreshing = ("finetune.columns.teacher=measured", "finetune.loss=margin-mse", "encoder.layers=1")
    recipe = composed(*refreshing, miners=("refresh",), registry=parts)
    with pytest.raises(DrkitError, match=r"'teacher' .*'refresh' .* --set finetune.columns.teacher.default=0.0"):
        plan(recipe, parts.registry)


STRANGER = """
import os
from drkit.plugin import StepOutput

class Part:
    calls = 0

    def __init__(self, config, context=None):
        pass

    def __call__(self, *, pairs):
        scores = pairs.queries @ pairs.passages.T - pairs.column("age")
        Part.calls += 1
        if str(Part.calls) == os.environ.get("FAIL_AT"):
            raise KeyboardInterrupt
        chosen = scores.log_softmax(1).gather(1, pairs.positives[:, None])[:, 0]
        metrics = {"age": pairs.column("age").float().mean()}
        return StepOutput(loss=-(pairs.column("weight") * chosen).mean(), metrics=metrics)
"""


def test_a_strangers_loss_has_columns_of_its_own_through_a_run_that_was_interrupted(beir, tmp_path):
    (tmp_path / "stranger_loss.py").write_text(STRANGER)
    part = 'part("loss", "weighted", "stranger_loss:Part", receives=("pairs", "weight", "age"), scope="batch")'
    write_package(tmp_path, "stranger", f"@hookimpl\ndef drkit_components():\n    return [{part}]\n")
    write_lines(tmp_path / "weights.jsonl", [{"query_id": f"q{n}", "weight": 1 + n / 4} for n in range(12)])
    (tmp_path / "ages.tsv").write_text("".join(["doc_id\tvalue\n", *(f"d{n}\t{n}\n" for n in range(0, 60, 2))]))

    def run(folder, *settings, **environment):
        sizes = [one for one in TINY if "packages" not in one and "pretrain." not in one]
        columns = [f"--set=finetune.columns.weight=file:{tmp_path / 'weights.jsonl'}"]
        columns += [f"--set=finetune.columns.age={{use='file:{tmp_path / 'ages.tsv'}', default=30}}"]
        arguments = (
            *("compose", "--collection", f"beir:{beir}", "--set=pretrain=none", "--set=finetune.loss=weighted"),
            *("--set=finetune.gradient_cache_chunk=5", "--set=finetune.baselines=[]", "--miner", "random"),
            *sizes,
            *columns,
            *settings,
            *("--run-dir", tmp_path / folder),
        )
        return drkit(*arguments, check=False, PYTHONPATH=path_with(tmp_path), **environment)

    whole = run("whole")
    assert whole.returncode == 0, whole.stderr
    assert run("cut", FAIL_AT="7").returncode != 0
    done = run("cut")
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout + done.stderr
    weights = [load_file(tmp_path / name / "retriever-1/model.safetensors") for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    lines = [json.loads(line) for line in (tmp_path / "whole/retriever-1/log.jsonl").read_text().splitlines()]
    assert all(0 <= line["age"] < 60 and line["age"] != 30 for line in lines), "some of the file, some of the default"
