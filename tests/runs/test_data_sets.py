"""Several labelled data sets in one run: their ids never mix, and each is what a run of its own would have searched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import drkit
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import MiningRequest
from drkit.data.corpus import StoredCorpus, open_collection
from drkit.data.store import TokenStore
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate import Scores, balanced, evaluate, tune_bm25, tune_weight
from drkit.miners.chain import mine, read_negatives
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import parse_toml, read_recipe, recipe_from_table, recipe_toml, write_recipe
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.search import Bm25Retriever, open_index, read_run
from drkit_cli.main import cli
from tests.runs.conftest import write_lines
from tests.runs.test_prune import TINY

PARTS = installed()
ROOT = Path(__file__).parents[2]
NAMES = ("one", "two")
FAST = (*TINY, "pretrain=none", "encoder.layers=1", "evaluation.measures=['RR@10', 'nDCG@10']")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Forty passages with ids and queries' ids of the fixture `beir`, but other texts; two test queries."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "qrels").mkdir()
    passages = [{"_id": f"d{i}", "text": f"river{i % 10} flows past topic{i} and stone{i}"} for i in range(40)]
    splits = {"train": range(4), "dev": range(4, 6), "test": range(8, 10)}
    queries = [{"_id": f"q{t}", "text": f"where flows river{t}"} for topics in splits.values() for t in topics]
    write_lines(folder / "corpus.jsonl", passages)
    write_lines(folder / "queries.jsonl", queries)
    for split, topics in splits.items():
        rows = [f"q{t}\td{t + 10 * n}\t1" for t in topics for n in range(2)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def recipe_of(folders, *settings, **choices):
    sets = {name: f"beir:{folder}" for name, folder in zip(NAMES, folders, strict=True)}
    chosen = {"collections": sets, "pipeline": "two-stage", **choices}
    recipe = compose(ComposeRequest(**chosen, settings=(*FAST, *settings)), PARTS)
    check(recipe, PARTS.registry)
    return recipe


def go(recipe, run, progress=None):
    stages = plan(recipe, PARTS.registry).stages
    execute(stages, run, recipe, registry=PARTS.registry, progress=progress or Silent(), redo=True)
    return run


PROMPTS = ('collections.two.query_prompt="ask: "', 'collections.two.passage_prompt="text: "')


@pytest.fixture(scope="module")
def folders(beir, other):
    return beir, other


@pytest.fixture(scope="module")
def finished(folders, tmp_path_factory):
    recipe = recipe_of(folders, *PROMPTS, "collections.one.weight=0.5")
    return go(recipe, tmp_path_factory.mktemp("runs") / "sets")


def set_of(identifier):
    return identifier.partition("/")[0]


def alone(folder, path):
    """The data set as a collection of its own."""
    from drkit.core.spec import Kind
    from drkit.data.specs import BeirConfig
    from drkit.data.writing import write_collection

    write_collection(PARTS.registry.build(Kind.COLLECTION, "beir", BeirConfig(path=str(folder))), path)
    return open_collection(path)


def test_ids_that_collide_never_mix(finished):
    collection = open_collection(finished / "collection")
    assert list(collection.corpus.ids()) == [f"one/d{i}" for i in range(60)] + [f"two/d{i}" for i in range(40)]
    assert {query.query_id for query in collection.queries("test")} == {
        *(f"one/q{t}" for t in range(16, 20)),
        *(f"two/q{t}" for t in range(8, 10)),
    }
    mined = [read_negatives(finished / f"negatives-retriever-{n}") for n in (1, 2)]
    for query, rows in ((query, rows) for found in mined for query, rows in found.items()):
        assert len(rows)
        assert {set_of(doc_id) for doc_id in collection.corpus.ids_at(rows)} == {set_of(query)}
    for path in (finished / "runs").glob("*.arrow"):
        for query, hits in read_run(path):
            assert {set_of(doc_id) for doc_id, _ in hits} == {set_of(query)}, path


@pytest.mark.parametrize("number", [0, 1])
def test_mining_and_bm25_are_those_of_the_data_set_alone(finished, folders, number, tmp_path):
    name, own = NAMES[number], alone(folders[number], tmp_path)
    passages, words = list(own.corpus), json.loads((finished / "bm25" / "manifest.json").read_text())["metrics"]
    settings = {"k1": words["k1"], "b": words["b"], "split_queries": words["split_queries"]}
    retriever = Bm25Retriever(**settings).index(passages)
    found = dict(read_run(finished / "runs" / "bm25.arrow"))
    for query in own.queries("test"):
        (hits,) = retriever.search([query.text], 20)
        expected = [(f"{name}/{doc_id}", score) for doc_id, score in hits.pairs()]
        assert sorted(found[f"{name}/{query.query_id}"]) == sorted(expected)
    recipe = read_recipe(finished / "recipe.toml", PARTS.registry)
    chain = recipe.finetune.rounds[0].miners
    positives = own.positives("train")
    requests = [MiningRequest(q.query_id, q.text, frozenset(positives[q.query_id])) for q in own.queries("train")]
    names = [one.use for one in chain]
    depth = [f"{one.use}.depth={one.config.depth}" for one in chain if hasattr(one.config, "depth")]
    mined, corpus = read_negatives(finished / "negatives-retriever-1"), StoredCorpus(finished / "collection/passages")
    for one in mine(own.corpus, requests, names, settings=depth):
        ids = [doc_id.removeprefix(f"{name}/") for doc_id in corpus.ids_at(mined[f"{name}/{one.query_id}"])]
        assert ids == list(one.doc_ids)


def test_dense_rankings_are_exact_within_the_data_set(finished):
    index, run = open_index(finished / "index-retriever-1"), drkit.load(finished)
    queries = {q.query_id: q.text for q in open_collection(finished / "collection").queries("test")}
    from drkit.commands import open_system

    searcher = open_system(finished, "retriever-1")
    for query, hits in read_run(finished / "runs" / "retriever-1.arrow"):
        name = set_of(query)
        reader = searcher.sets[name].encoder
        assert reader.card.query_prompt == ("ask: " if name == "two" else "")
        vector = reader.encode_queries([queries[query]])[0].astype(np.float64)
        ids = index.doc_ids.take(np.arange(len(index)))
        scores = {d: float(v @ vector) for d, v in zip(ids, index.vectors.astype(np.float64), strict=True)}
        own = sorted((d for d in scores if set_of(d) == name), key=lambda d: -scores[d])[: len(hits)]
        np.testing.assert_allclose([scores[d] for d, _ in hits], [scores[d] for d in own], atol=1e-6)
    assert run.data_sets == NAMES
    found = run.search("where flows river3", system="retriever-1", data_set="two")
    assert {set_of(hit.id) for hit in found} == {"two"}
    with pytest.raises(DrkitError, match=r"name one: one, two"):
        run.search("where flows river3", system="retriever-1")


def test_a_table_for_each_data_set_and_their_average(finished):
    results = json.loads((finished / "evaluation" / "results.json").read_text())
    collection = open_collection(finished / "collection")
    judgements = list(collection.judgements("test"))
    assert list(results["data_sets"]) == list(NAMES)
    for number, row in enumerate(results["rows"]):
        each = [results["data_sets"][name][number] for name in NAMES]
        assert [one["queries"] for one in each] == [4, 2]
        for measure, value in row["values"].items():
            assert value == pytest.approx(np.mean([one["values"][measure] for one in each]))
    bm25 = read_run(finished / "runs" / "bm25.arrow")
    for name in NAMES:
        own = [one for one in judgements if set_of(one.query_id) == name]
        means = evaluate(bm25, own, ["RR@10", "nDCG@10"]).means()
        assert results["data_sets"][name][0]["values"] == pytest.approx(means)
    run = drkit.load(finished)
    assert run.table()[0]["RR@10"] == pytest.approx(results["rows"][0]["values"]["RR@10"])
    assert run.table("two")[0]["RR@10"] == pytest.approx(results["data_sets"]["two"][0]["values"]["RR@10"])
    text = (finished / "evaluation" / "table.md").read_text()
    assert text.index("**one** (4 queries)") < text.index("**two** (2 queries)") < text.index("**Average** of 2 data")


def test_prompts_are_those_of_the_data_set(finished):
    passages, queries = (TokenStore.open(finished / name) for name in ("tokens", "query-tokens"))
    from drkit.train.checkpoints import load_tokenizer

    tokenizer = load_tokenizer(str(finished / "vocabulary"))
    prompt = {name: tokenizer(name, add_special_tokens=False)["input_ids"] for name in ("ask:", "text:")}
    begins = [passages.tokens(row)[1 : 1 + len(prompt["text:"])].tolist() == prompt["text:"] for row in range(100)]
    assert begins == [False] * 60 + [True] * 40
    begins = [queries.tokens(row)[1 : 1 + len(prompt["ask:"])].tolist() == prompt["ask:"] for row in range(16)]
    assert begins == [False] * 12 + [True] * 4
    saved = json.loads((finished / "encoder" / "config_sentence_transformers.json").read_text())
    exported = json.loads((finished / "choice" / "choice.json").read_text())["chosen"]
    if exported.startswith("retriever"):
        assert saved["prompts"] == {"query": "", "document": "", "two-query": "ask: ", "two-document": "text: "}


class Interrupts(Silent):
    def __init__(self, unit, done):
        self.unit, self.done = unit, done

    def advance(self, done, total, unit, **_):
        if unit == self.unit and done >= self.done:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [("steps", 2), ("queries of two", 1)])
def test_an_interrupted_run_ends_with_the_same_files(finished, folders, tmp_path, at):
    recipe, run = read_recipe(finished / "recipe.toml", PARTS.registry), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        go(recipe, run, Interrupts(*at))
    go(recipe, run)
    for name in ("evaluation/results.json", "negatives-retriever-2/negatives.arrow", "retriever-2/model.safetensors"):
        assert (run / name).read_bytes() == (finished / name).read_bytes(), name


def test_an_engine_ends_with_the_same_files(finished, tmp_path):
    from drkit.core.engine import open_engine

    recipe, run = read_recipe(finished / "recipe.toml", PARTS.registry), tmp_path / "run"
    with open_engine("processes:2", device="cpu") as engine:
        stages = plan(recipe, PARTS.registry).stages
        execute(stages, run, recipe, registry=PARTS.registry, progress=Silent(), engine=engine)
    for name in ("negatives-retriever-2/negatives.arrow", "evaluation/results.json"):
        assert (run / name).read_bytes() == (finished / name).read_bytes(), name


def test_choices_weigh_data_sets_alike():
    values = {"a/1": 1.0, "a/2": 0.0, "a/3": 0.0, "b/1": 1.0}
    scores = balanced(Scores({"RR@10": values, "NumRel": values}), ("a", "b"))
    assert scores.mean("RR@10") == pytest.approx((1 / 3 + 1) / 2)
    assert scores.mean("NumRel") == 2.0
    assert balanced(Scores({"RR@10": values}), ()).per_query["RR@10"] is values


def test_a_recipe_is_read_and_written(folders, tmp_path):
    recipe = recipe_of(folders, *PROMPTS, "collections.two.miners=[{use='random'}]")
    write_recipe(recipe, tmp_path / "r.toml")
    assert read_recipe(tmp_path / "r.toml", PARTS.registry) == recipe
    table = parse_toml(recipe_toml(recipe), "recipe")
    assert "collection" not in table
    assert table["collections"]["two"]["miners"] == [{"use": "random", "depth": 200}]
    short = {**table, "collections": {"one": f"beir:{folders[0]}"}}
    assert recipe_from_table(short, PARTS.registry).collections["one"].collection.config.path == str(folders[0])
    with pytest.raises(ProblemsError, match="either one"):
        recipe_from_table({**table, "collection": "pydocs"}, PARTS.registry)


def test_the_recipe_of_the_guide_composes(folders):
    page = (ROOT / "docs" / "guide" / "collections.md").read_text(encoding="utf-8")
    text = page.partition("## Several labelled data sets")[2].partition("```toml\n")[2].partition("```")[0]
    for name, folder in zip(("cacm", "cran"), folders, strict=True):
        text = re.sub(rf'"data/{name}[a-z]*"', f'"{folder}"', text)
    table = parse_toml(recipe_toml(recipe_of(folders)), "recipe")
    recipe = recipe_from_table({**table, **parse_toml(text, "guide")}, PARTS.registry)
    check(recipe, PARTS.registry)
    assert recipe.data_set_weights == {"cacm": 1.0, "cran": 2.0}
    stages = {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}
    assert stages["query-tokens"].settings.prompts == {"cacm": "Find the abstract: "}
    assert stages["negatives-retriever-1"].settings.chain_of("cran")[0].config.depth == 50
    line = page.partition("## Several labelled data sets")[2].partition("```sh\n")[2].partition("\n")[0]
    assert line.startswith("drkit compose --collection cacm=")


def test_each_data_set_is_mined_by_its_own_chain(folders, tmp_path):
    recipe = recipe_of(folders, "collections.two.miners=[{use='random', depth=3}]", pipeline="dpr")
    stages = {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}
    negatives = next(stage for name, stage in stages.items() if name.startswith("negatives"))
    assert [one.use for one in negatives.settings.chain_of("two")] == ["random"]
    assert negatives.summary.endswith("two: random")


def trained_on(run, epochs=1):
    """The data sets of each batch that a training of the run reads."""
    from drkit.runs.making.batches import part_batches
    from drkit.runs.making.finetune import judged_pairs
    from drkit.train.batches import Schedule
    from drkit.train.biencoder import schedule_lengths

    recipe = read_recipe(run / "recipe.toml", PARTS.registry)
    (stage,) = (one for one in plan(recipe, PARTS.registry).stages if one.name == "retriever-1")
    collection, settings = open_collection(run / "collection"), stage.settings
    pairs = judged_pairs({}, collection, "x")
    source = part_batches(settings.batches, PARTS.registry, pairs, collection, {}, seed=settings.seed)
    schedule = Schedule.of(settings.training, schedule_lengths(pairs), seed=settings.seed, compares=True, source=source)
    ids = [query.query_id for query in collection.queries("train")]
    return [[set_of(ids[pairs.queries[row]]) for _, row in batch] for batch in schedule], settings


def test_batches_are_of_one_data_set_each_by_their_weights(finished, folders):
    batches, settings = trained_on(finished)
    assert {len({*batch}) for batch in batches} == {1}
    assert settings.batches.use == "one-data-set"
    assert settings.batches.config.weights == {"one": 0.5, "two": 1.0}
    notes = plan(recipe_of(folders), PARTS.registry).notes
    assert any("each batch has queries of one data set (one, two)" in note for note in notes)
    mixed = recipe_of(folders, batches="random")
    assert mixed.finetune.batches.use == "random"
    assert read_recipe_text(mixed) == mixed


def read_recipe_text(recipe):
    return recipe_from_table(parse_toml(recipe_toml(recipe), "recipe"), PARTS.registry)


def test_weights_of_mixed_batches_say_how_often_a_query_is_drawn(folders, tmp_path):
    recipe = recipe_of(folders, "collections.two.weight=0.5", batches="random", pipeline="dpr")
    run = go(recipe, tmp_path / "run")
    training = json.loads((run / "retriever-1" / "training.json").read_text())
    assert training["steps"] == 4
    whole = {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}
    assert whole["retriever-1"].settings.weights == {"one": 1.0, "two": 0.5}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("evaluation.index=hnsw",), "--set evaluation.index=flat"),
        (("finetune.validation.every=2",), "--set finetune.validation.every=0"),
        (("collections.two.weight=0",), "weight"),
        (("collections.Two={use='pydocs'}",), "small letters"),
        (("collections.three={use='jsonl', path='x'}",), "has no queries and judgements"),
        (("collections.three={use='beir'}",), "write `--set collections.three.path=VALUE`"),
        (("collections.two.wieght=1",), "wieght"),
        (("finetune.batches=by-length", "collections.two.weight=2"), "--batches one-data-set"),
    ],
)
def test_what_cannot_work_is_refused(folders, settings, said):
    with pytest.raises(ProblemsError, match=re.escape(said)):
        recipe_of(folders, *settings)


def test_the_command_line_names_each_data_set(folders, finished, tmp_path):
    runner, (one, two) = CliRunner(), folders
    unnamed = runner.invoke(cli, ["compose", "--collection", str(one), "--collection", str(two), "--dry-run"])
    assert unnamed.exit_code
    assert f"--collection NAME={one}" in str(unnamed.exception)
    twice = ["--collection", f"a={one}", "--collection", f"a={two}"]
    assert "two data sets are named 'a'" in str(runner.invoke(cli, ["compose", *twice, "--dry-run"]).exception)
    named = ["--collection", f"a={one}", "--collection", f"b=beir:{two}", "--set", "collections.b.weight=3"]
    output = tmp_path / "r.toml"
    done = runner.invoke(cli, ["compose", *named, "--dry-run", "--set=pretrain=none", "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert read_recipe(output, PARTS.registry).data_set_weights == {"a": 1.0, "b": 3.0}
    found = runner.invoke(cli, ["search", str(finished), "river3", "--system", "bm25", "--data-set", "two", "--json"])
    assert {set_of(hit["doc_id"]) for hit in json.loads(found.output)["hits"]} == {"two"}
    for options, said in (("--system=bm25", "name one: one, two"), ("--data-set=tow", "did you mean 'two'")):
        assert said in str(runner.invoke(cli, ["search", str(finished), "river3", options]).exception)


def test_the_report_says_what_each_data_set_reaches(finished, tmp_path):
    page = tmp_path / "report.html"
    done = CliRunner().invoke(cli, ["report", str(finished), "-o", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text(encoding="utf-8")
    assert "averages of 2 data sets" in text
    assert "two (2 queries): RR@10 BM25" in text


def test_the_dev_choices_are_of_every_data_set(finished):
    collection = open_collection(finished / "collection")
    dev = list(collection.judgements("dev"))
    names = {name: [p for p in collection.corpus if set_of(p.doc_id) == name] for name in NAMES}
    _, facts = tune_bm25(names, [(1.2, 0.75), (0.9, 0.4)], (collection.queries("dev"), dev), "RR@10")
    for (k1, b), mean in zip([(1.2, 0.75), (0.9, 0.4)], facts["means"].values(), strict=True):
        each = []
        for name, passages in names.items():
            own = [query for query in collection.queries("dev") if set_of(query.query_id) == name]
            made = Bm25Retriever(k1=k1, b=b).index(passages)
            ranked = made.rankings([q.query_id for q in own], [q.text for q in own], 10)
            each.append(evaluate(ranked, [j for j in dev if set_of(j.query_id) == name], ["RR@10"]).mean("RR@10"))
        assert mean == pytest.approx(np.mean(each))
    rows = [(query, [(doc, 1.0)]) for query, doc in {j.query_id: j.doc_id for j in dev}.items()]
    tuned = tune_weight(rows, rows, dev, "RR@10", data_sets=NAMES)
    assert tuned.means[0.5] == pytest.approx(1.0)


def test_a_data_set_that_cannot_be_read_is_named(folders, tmp_path):
    one, missing = folders[0], tmp_path / "no"
    given = ["--collection", f"one=beir:{one}", "--collection", f"two=beir:{missing}"]
    said = str(CliRunner().invoke(cli, ["compose", *given, "--dry-run"]).exception)
    assert said.startswith("data set 'two': collection beir: ")
    assert said.endswith("@ collections.two")
    assert "toy batch" not in said
