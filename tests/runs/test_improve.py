"""`drkit improve`: cross-validated retrievers, the choice by gains, what is exported, and a repeated command."""

import json
import math
from hashlib import sha256

import numpy as np
import pytest
from attrs import evolve

from drkit.commands import best_system, open_system, search_systems
from drkit.commands.improve import fit, learning_from, resumed
from drkit.core.registry import installed
from drkit.core.types import CollectionSize, Judgement, Passage, Query
from drkit.data.corpus import collection_of, open_collection
from drkit.data.folds import assign_folds
from drkit.data.sample import PassageSample
from drkit.errors import ProblemsError
from drkit.evaluate import Scores
from drkit.evaluate.gains import compare_with_encoder, decide, gain_lines
from drkit.evaluate.names import without_bm25
from drkit.evaluate.significance import detectable_gain
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import read_recipe, write_recipe
from drkit.runs.budget import fit_budget, hold_out, is_held_out, wanted_steps
from drkit.runs.costs import Rates
from drkit.runs.manifest import read_manifest
from drkit.runs.plan import plan
from drkit.runs.work import encoder_size
from drkit.search import read_run
from drkit.train.checkpoints import load_encoder
from drkit.train.speed import Speed
from tests.refusals import refused
from tests.runs.conftest import drkit, write_lines

PARTS = installed()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Ninety passages on thirty topics, and a labelled query on each; two have the same words."""
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "qrels").mkdir()
    words = [f"topic{i % 30} of the kind{i % 7} and word{i} in a row" for i in range(90)]
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{i}", "text": text} for i, text in enumerate(words)])
    texts = [f"what is topic{i} of kind{i % 7}" for i in range(29)]
    write_lines(folder / "queries.jsonl", [{"_id": f"q{i}", "text": text} for i, text in enumerate([*texts, texts[0]])])
    rows = [f"q{i}\td{i % 29 + 30 * n}\t1" for i in range(30) for n in range(2)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


SMALL = (
    *("--set=finetune.max_steps=3", "--set=finetune.per_device_train_batch_size=8", "--set=evaluation.depth=50"),
    *("--set=evaluation.folds=3", "--set=finetune.passage_length=16", "--minutes=1"),
)


@pytest.fixture(scope="module")
def improved(tiny_run, labelled, tmp_path_factory):
    """The encoder, the run that improves it, and what was printed."""
    encoder, run = tiny_run[0] / "encoder", tmp_path_factory.mktemp("improved") / "run"
    done = drkit("improve", encoder, "--texts", f"beir:{labelled}", *SMALL, "--run-dir", run, "-o", run.parent / "out")
    return encoder, run, done


def test_the_table_has_both_encoders_with_and_without_bm25_and_a_verdict(improved):
    _, run, done = improved
    results = json.loads((run / "evaluation" / "results.json").read_text())
    trained = ["tuned", "tuned+bm25", "made-queries", "made-queries+bm25"]
    assert [row["system"] for row in results["rows"]] == ["bm25", "as-it-is", "as-it-is+bm25", *trained]
    assert {row["queries"] for row in results["rows"]} == {30}
    sentence = results["gains"]["sentence"]
    assert sentence.startswith(("use ", "keep your checkpoint: no gain shown"))
    assert "30 labelled queries, 3-fold cross-validation" in sentence
    assert sentence in done.stdout.replace("\n", " ")
    assert sentence in (run / "evaluation" / "table.md").read_text()
    assert (run.parent / "out" / "modules.json").is_file()


def test_each_query_is_ranked_by_the_fold_that_has_not_learned_from_it(improved):
    """As in a loop over the folds that ranks with each of their encoders."""
    from drkit.encoders import EncoderCard
    from drkit.runs.making.retriever import load_retriever

    _, run, _ = improved
    recipe = read_recipe(run / "recipe.toml", PARTS.registry)
    stages = {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}
    reading: EncoderCard = stages["tuned"].settings.reading
    queries = list(open_collection(run / "collection").queries("test"))
    folds = assign_folds(queries, 3)
    assert folds["q0"] == folds["q29"]
    found = dict(read_run(run / "runs" / "tuned.arrow"))
    for fold in range(3):
        name = f"tuned-fold-{fold + 1}"
        retriever = load_retriever(run / name, run / f"index-{name}", reading)
        asked = [query for query in queries if folds[query.query_id] == fold]
        assert asked
        for query, hits in zip(asked, retriever.search([query.text for query in asked], 50), strict=True):
            assert [doc for doc, _ in found[query.query_id]] == list(hits.doc_ids)


def test_a_fold_learns_as_a_run_without_its_queries_does(improved, labelled, tmp_path):
    """The naive loop: a collection that lacks the queries of the fold, and no cross-validation."""
    _, run, _ = improved
    folds = assign_folds(list(open_collection(run / "collection").queries("test")), 3)
    lines = (labelled / "qrels" / "test.tsv").read_text().splitlines()
    left = tmp_path / "left"
    (left / "qrels").mkdir(parents=True)
    (left / "corpus.jsonl").write_text((labelled / "corpus.jsonl").read_text())
    (left / "queries.jsonl").write_text((labelled / "queries.jsonl").read_text())
    kept = [line for line in lines[1:] if folds[line.split("\t")[0]] != 1]
    (left / "qrels" / "train.tsv").write_text("\n".join([lines[0], *kept]) + "\n")
    naive = evolve(
        recipe := read_recipe(run / "recipe.toml", PARTS.registry),
        name="naive",
        collection=evolve(recipe.collection, config=evolve(recipe.collection.config, path=str(left))),
        evaluation=evolve(recipe.evaluation, folds=None, split="train", export="last"),
    )
    write_recipe(naive, tmp_path / "naive.toml")
    drkit("run", tmp_path / "naive.toml", "--run-dir", tmp_path / "naive", "--no-trial")
    one, other = (
        load_encoder(folder, pooling="mean") for folder in (run / "tuned-fold-2", tmp_path / "naive" / "tuned")
    )
    theirs = dict(other.named_parameters())
    for name, weights in one.named_parameters():
        np.testing.assert_allclose(weights.detach(), theirs[name].detach(), atol=1e-6, err_msg=name)
    whole = dict(load_encoder(run / "tuned", pooling="mean").named_parameters())
    assert any((weights != whole[name]).any() for name, weights in one.named_parameters())


def test_what_is_exported_is_what_the_choice_says(improved):
    _, run, _ = improved
    choice = json.loads((run / "choice" / "choice.json").read_text())
    assert read_manifest(run / "encoder").metrics["from"] == choice["exported"]
    assert choice["exported"] == {"bm25": "as-it-is"}.get(choice["recommended"], without_bm25(choice["recommended"]))


def test_a_repeated_command_resumes_the_run(improved, labelled):
    encoder, run, _ = improved
    before = sha256((run / "recipe.toml").read_bytes()).digest()
    line = ("improve", encoder, "--texts", f"beir:{labelled}", "--minutes=3", "--run-dir", run)
    planned = drkit(*line, "--dry-run")
    assert "nothing to do" in planned.stdout
    assert "goes on with the numbers in its recipe" in " ".join((planned.stdout + planned.stderr).split())
    drkit(*line)
    assert sha256((run / "recipe.toml").read_bytes()).digest() == before


def test_a_run_of_other_texts_is_not_resumed(improved, beir):
    encoder, run, _ = improved
    done = drkit("improve", encoder, "--texts", f"beir:{beir}", "--run-dir", run, check=False)
    assert done.returncode == 2
    assert "another collection" in done.stderr
    assert "--run-dir" in done.stderr


def test_an_output_that_exists_is_not_overwritten(improved, labelled):
    encoder, run, _ = improved
    done = drkit("improve", encoder, "--texts", f"beir:{labelled}", "-o", run, check=False)
    assert done.returncode == 2
    assert "is not overwritten" in done.stderr


SYSTEMS = ["bm25", "as-it-is", "as-it-is+bm25", "made-queries", "made-queries+bm25"]


def test_few_labels_measure_what_learns_from_made_queries(tiny_run, beir, tmp_path):
    """Twelve training queries and four test queries."""
    encoder, run = tiny_run[0] / "encoder", tmp_path / "run"
    few = ("--set=finetune.max_steps=3", "--set=finetune.per_device_train_batch_size=8", "--minutes=1")
    done = drkit("improve", encoder, "--texts", f"beir:{beir}", "--run-dir", run, *few)
    assert "too few to learn from (at least 20)" in " ".join(done.stderr.split())
    results = json.loads((run / "evaluation" / "results.json").read_text())
    assert [row["system"] for row in results["rows"]] == SYSTEMS
    assert {row["queries"] for row in results["rows"]} == {12}
    choice = json.loads((run / "choice" / "choice.json").read_text())
    assert "12 labelled queries" in choice["sentence"]
    assert read_manifest(run / "encoder").metrics["from"] == choice["exported"]
    recipe = read_recipe(run / "recipe.toml", PARTS.registry)
    assert [one.pairs for one in recipe.finetune.rounds] == ["pseudo"]


def test_the_user_may_leave_the_training_out(tiny_run, beir, tmp_path):
    encoder, run = tiny_run[0] / "encoder", tmp_path / "run"
    drkit("improve", encoder, "--texts", f"beir:{beir}", "--run-dir", run, "--set=finetune=none")
    results = json.loads((run / "evaluation" / "results.json").read_text())
    assert [row["system"] for row in results["rows"]] == SYSTEMS[:3]


@pytest.fixture(scope="module")
def unlabelled(tiny_run, labelled, tmp_path_factory):
    """The encoder, its texts without any label, the run, and what was printed."""
    run = tmp_path_factory.mktemp("unlabelled") / "run"
    encoder, texts = tiny_run[0] / "encoder", labelled / "corpus.jsonl"
    small = [one for one in SMALL if "folds" not in one]
    done = drkit("improve", encoder, "--texts", texts, *small, "--run-dir", run, "-o", run.parent / "out")
    return encoder, texts, run, done


def test_without_labels_made_queries_train_and_measure(unlabelled):
    encoder, _, run, done = unlabelled
    results = json.loads((run / "evaluation" / "results.json").read_text())
    assert [row["system"] for row in results["rows"]] == SYSTEMS
    assert results["split"] == "pseudo"
    verdict = json.loads((run / "choice" / "choice.json").read_text())
    assert (verdict["recommended"], verdict["exported"]) == ("as-it-is", "as-it-is")
    sentence = verdict["sentence"]
    assert sentence.startswith("keep your checkpoint: without labels, no gain can be shown")
    assert "by its own words, not by a user's questions" in sentence
    assert "50 labelled queries would show a gain of about" in sentence
    printed = " ".join((done.stdout + done.stderr).split())
    assert sentence in printed
    assert f"drkit export {run / 'made-queries'} -o FOLDER" in printed
    theirs = dict(load_encoder(encoder, pooling="mean").named_parameters())
    for name, weights in load_encoder(run.parent / "out", pooling="mean").named_parameters():
        assert (weights == theirs[name]).all(), name


def test_made_queries_of_texts_that_train_never_measure(unlabelled):
    *_, run, _ = unlabelled
    folders = {"train": run / "pseudo-queries" / "train", "pseudo": run / "pseudo-queries" / "pseudo"}
    made = collection_of({"passages": run / "collection" / "passages", **folders})
    learned, measured = ({one.doc_id for one in made.judgements(split)} for split in ("train", "pseudo"))
    assert len(measured) == 90 // 5 == len(list(made.queries("pseudo")))
    assert learned
    assert not learned & measured
    assert read_manifest(run / "made-queries").origins["train"] == "pseudo-queries/train"


def test_the_encoder_of_made_queries_can_be_exported_and_searched(unlabelled, tmp_path):
    *_, run, _ = unlabelled
    drkit("export", run / "made-queries", "-o", tmp_path / "tuned")
    one = dict(load_encoder(tmp_path / "tuned", pooling="mean").named_parameters())
    other = dict(load_encoder(run / "encoder", pooling="mean").named_parameters())
    assert any((one[name] != other[name]).any() for name in one)
    assert "made-queries" in search_systems(run)
    assert "d3" in drkit("search", run, "--system", "made-queries", "topic3 of the kind3", "-k", "90").stdout
    assert best_system(run) == "as-it-is"
    drkit("report", run, "-o", tmp_path / "report.html")


def test_a_run_without_labels_is_resumed(unlabelled):
    encoder, texts, run, _ = unlabelled
    planned = drkit("improve", encoder, "--texts", texts, "--run-dir", run, "--dry-run")
    assert "nothing to do" in planned.stdout


def test_labels_go_first_and_made_queries_where_the_minutes_reach_for_both(tiny_run, labelled, monkeypatch):
    speed = Speed("float32", 1e-4, 3e-4)
    monkeypatch.setattr("drkit.commands.improve.measure_speed", lambda *_args, **_how: speed)
    encoder, collection = str(tiny_run[0] / "encoder"), f"beir:{labelled}"
    some, plenty = (fit(encoder, collection, PARTS, minutes=minutes) for minutes in (0.5, 500))
    assert [one.name for one in some.recipe.finetune.rounds] == ["tuned"]
    assert some.recipe.pseudo_queries is None
    assert any("no row of training on queries made from the texts" in note for note in some.notes)
    assert [one.name for one in plenty.recipe.finetune.rounds] == ["tuned", "made-queries"]
    assert not any("no row" in note for note in plenty.notes)
    check(plenty.recipe, PARTS.registry)
    stages = {stage.name: stage for stage in plan(plenty.recipe, PARTS.registry).stages}
    assert "made-queries-fold-1" not in stages  # it has seen none of the labels
    assert stages["made-queries"].settings.training.learning_rate == 2e-5
    assert stages["choice"].settings.trained == ("tuned", "made-queries")


def test_texts_too_short_for_queries_train_on_labels_alone(tiny_run, many, tmp_path):
    encoder, (collection, labels) = str(tiny_run[0] / "encoder"), many
    found = fit(encoder, collection, PARTS, settings=labels, minutes=500)
    assert [one.name for one in found.recipe.finetune.rounds] == ["tuned"]
    assert any("beside that on labels: these are too short" in note for note in found.notes)
    (tmp_path / "few.csv").write_text("query,id\nwhat is topic1,d1\n")
    found = fit(encoder, collection, PARTS, settings=(f"collection.labels=['{tmp_path / 'few.csv'}']",))
    assert found.recipe.finetune is None
    assert any("only evaluated" in note for note in found.notes)


def test_made_queries_are_evaluated_only_where_some_are_held_out(tiny_run, labelled):
    recipe = composed(labelled, tiny_run[0] / "encoder", "evaluation.split=pseudo", "pseudo_queries.held_out=9")
    check(recipe, PARTS.registry)
    with refused("pseudo_queries.held_out", error=ProblemsError):
        check(composed(labelled, tiny_run[0] / "encoder", "evaluation.split=pseudo"), PARTS.registry)


def test_texts_without_a_query_to_make_and_a_folder_that_is_no_encoder_are_refused(tiny_run, labelled, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    for encoder, texts, said in (
        (tiny_run[0] / "encoder", tmp_path / "texts.jsonl", "no queries can be made from these texts"),
        (labelled, f"beir:{labelled}", "config.json"),
        (tmp_path / "missing", f"beir:{labelled}", "missing"),
    ):
        done = drkit("improve", encoder, "--texts", texts, "--run-dir", tmp_path / "run", check=False)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def scores(*values):
    return Scores({"nDCG@10": {f"q{i}": value for i, value in enumerate(values)}})


def spread(mean, seed):
    """Fifty values around a mean."""
    return scores(*(mean + 0.05 * np.random.default_rng(seed).standard_normal(50)))


def verdict(**means):
    systems = {
        name.replace("_", "+").replace("9", "-"): spread(mean, i) for i, (name, mean) in enumerate(means.items())
    }
    trained = [name for name in ("tuned", "made") if name in systems]
    return decide(systems, "nDCG@10", trained=trained, how="50 labelled queries")


def test_the_sentence_has_two_forms():
    gained = verdict(**{"as9it9is": 0.4, "bm25": 0.3, "tuned": 0.5, "tuned_bm25": 0.6})
    (gain,) = (one for one in gained.gains if one.system == "tuned+bm25")
    assert gained.sentence == (
        f"use tuned + BM25: {gain.difference:+.3f} nDCG@10 ({gain.low:.3f} to {gain.high:.3f}) over your checkpoint, "
        f"50 labelled queries"
    )
    assert 0 < gain.low < gain.difference < gain.high
    kept = verdict(**{"as9it9is": 0.4, "bm25": 0.3, "tuned": 0.4, "tuned_bm25": 0.4})
    assert kept.sentence == "keep your checkpoint: no gain shown (nDCG@10, 50 labelled queries)"
    assert (kept.recommended, kept.exported) == ("as-it-is", "as-it-is")
    assert gain_lines(kept.facts())[-1] == kept.sentence


HYBRID = {"as9it9is": 0.4, "bm25": 0.3, "as9it9is_bm25": 0.5}


@pytest.mark.parametrize(
    ("means", "recommended", "exported"),
    [
        # The best system needs a tuned encoder that is worse alone.
        ({**HYBRID, "tuned": 0.35, "tuned_bm25": 0.6}, "as-it-is+bm25", "as-it-is"),
        ({"as9it9is": 0.4, "bm25": 0.6, "tuned": 0.45}, "bm25", "as-it-is"),
        ({"as9it9is": 0.4, "bm25": 0.3, "tuned": 0.5}, "tuned", "tuned"),
        ({"as9it9is": 0.4, "bm25": 0.3, "tuned": 0.2}, "as-it-is", "as-it-is"),
        # Made queries, where labels show that they help.
        ({**HYBRID, "tuned": 0.45, "made": 0.6}, "made", "made"),
        ({**HYBRID, "tuned": 0.45, "made": 0.39, "made_bm25": 0.6}, "as-it-is+bm25", "as-it-is"),
        # No more than one standard error over a system that needs no training.
        ({**HYBRID, "tuned": 0.45, "tuned_bm25": 0.5}, "as-it-is+bm25", "as-it-is"),
    ],
)
def test_nothing_is_exported_that_the_numbers_call_worse(means, recommended, exported):
    found = verdict(**means)
    assert (found.recommended, found.exported) == (recommended, exported)


def test_made_queries_decide_nothing_whatever_they_show():
    means = {"as-it-is": 0.4, "bm25": 0.9, "made": 0.8, "made+bm25": 0.9}
    systems = {name: spread(mean, i) for i, (name, mean) in enumerate(means.items())}
    found = decide(systems, "nDCG@10", trained=["made"], how="50 queries", is_made=True)
    assert (found.recommended, found.exported) == ("as-it-is", "as-it-is")
    assert found.shown[50] > found.shown[200] > 0


def test_the_gain_that_labels_would_show_is_shown_in_four_of_five_trials():
    """By simulation: intervals of tests whose differences have a mean of that gain."""
    from scipy.stats import ttest_1samp

    rng = np.random.default_rng(0)
    seen = rng.normal(0.1, 0.25, 400)
    values, against = ({str(i): one for i, one in enumerate(some)} for some in (seen, np.zeros(400)))
    gain, level = detectable_gain(values, against, 50, level=0.99), 0.99
    trials = rng.normal(gain, seen.std(ddof=1), (4000, 50))
    shown = np.mean(ttest_1samp(trials, 0, axis=1).confidence_interval(level).low > 0)
    assert abs(shown - 0.8) < 0.02


def test_intervals_hold_together():
    """Bonferroni: of four systems, each at 98.75 %; the interval of scipy at that level."""
    from scipy.stats import ttest_rel

    systems = {name: spread(0.4, i) for i, name in enumerate(["as-it-is", "a", "b", "c", "d"])}
    gains = compare_with_encoder(systems, "nDCG@10")
    assert [gain.system for gain in gains] == ["a", "b", "c", "d"]
    one, own = (list(systems[name].per_query["nDCG@10"].values()) for name in ("a", "as-it-is"))
    expected = ttest_rel(one, own).confidence_interval(1 - 0.05 / 4)
    assert math.isclose(gains[0].low, expected.low)
    assert math.isclose(gains[0].high, expected.high)


def test_a_sample_has_all_judged_passages_and_a_random_rest():
    class Some:
        name = "some"

        def passages(self):
            return iter([Passage(f"d{i}", f"text {i}") for i in range(50)])

        def splits(self):
            return ("test",)

        def queries(self, _split):
            return iter([Query("q", "text")])

        def judgements(self, _split):
            return iter([Judgement("q", "d49", 1), Judgement("q", "d3", 0)])

        def describe(self):
            return {}

    ids = [one.doc_id for one in PassageSample(Some(), 10, seed=1).passages()]
    assert len(ids) == 10
    assert {"d3", "d49"} <= {*ids}
    assert ids == sorted(ids, key=lambda one: int(one[1:]))
    assert ids == [one.doc_id for one in PassageSample(Some(), 10, seed=1).passages()]
    assert ids != [one.doc_id for one in PassageSample(Some(), 10, seed=2).passages()]
    assert [one.doc_id for one in PassageSample(Some(), 1, seed=1).passages()] == ["d3", "d49"]


def composed(labelled, encoder, *settings):
    return compose(
        ComposeRequest(paper="improve", encoder=str(encoder), collection=f"beir:{labelled}", settings=settings), PARTS
    )


def slow(recipe):
    """Rates of 4000 tokens a second that are read, and 400 that are learned from."""
    size = encoder_size(recipe.encoder)
    return Rates().calibrated(size, read=1 / 4000, learned=1 / 400, length=60, learned_length=60)


def test_less_time_gives_up_folds_then_steps_then_passages(tiny_run, labelled):
    recipe = composed(labelled, tiny_run[0] / "encoder", "evaluation.folds=5")
    size = CollectionSize(20_000, {"test": 200}, (60,) * 10, (8,) * 10)

    def fitted(minutes):
        given = {"minutes": minutes, "labels": 200, "judged": 400, "memory": None}
        found = fit_budget(recipe, PARTS.registry, size, slow(recipe), **given)
        made = found.recipe
        assert wanted_steps(200, 32) == 50
        assert made.finetune.max_steps <= 200
        return made.evaluation.folds, made.finetune.max_steps, made.evaluation.passages, found

    plenty, some, little = fitted(1000), fitted(20), fitted(4)
    assert plenty[:3] == (5, 200, None)
    assert plenty[3].notes == ()
    assert some[0] <= plenty[0]
    assert little[2] is not None
    assert any("random rest" in note and "--minutes" in note for note in little[3].notes)
    for minutes, (*_, found) in ((1000, plenty), (20, some)):
        assert found.seconds <= 60 * minutes


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The settings of 400 labelled articles."""
    folder = tmp_path_factory.mktemp("many")
    write_lines(folder / "a.jsonl", [{"id": f"d{i}", "text": f"topic{i} of the kind{i % 7}"} for i in range(400)])
    rows = "".join(f"what is topic{i},d{i}\n" for i in range(400))
    (folder / "labels.csv").write_text(f"query,id\n{rows}")
    return f"labelled:{folder / 'a.jsonl'}", (f"collection.labels=['{folder / 'labels.csv'}']",)


def test_many_labels_are_held_out_before_passages_are_left_out(tiny_run, many):
    encoder, (collection, labels) = str(tiny_run[0] / "encoder"), many
    own = (*labels, "evaluation.split=train", "evaluation.folds=5")
    recipe = compose(ComposeRequest(paper="improve", encoder=encoder, collection=collection, settings=own), PARTS)
    size = CollectionSize(20_000, {"train": 400}, (60,) * 10, (8,) * 10)

    def given_up(minutes):
        given = {"minutes": minutes, "labels": 400, "judged": 400, "memory": None}
        found = fit_budget(recipe, PARTS.registry, size, slow(recipe), **given)
        assert found.recipe.evaluation.passages or found.seconds <= 60 * minutes
        assert is_held_out(found.recipe) is any("ranks the others" in note for note in found.notes)
        if is_held_out(found.recipe):
            assert found.recipe.evaluation.folds is None
            check(found.recipe, PARTS.registry)
        return is_held_out(found.recipe), found.recipe.evaluation.passages is not None

    seen = [given_up(minutes) for minutes in (1000, 64, 32, 24, 16, 12, 8, 6, 4, 2, 1)]
    assert seen[0] == (False, False)
    assert (True, False) in seen
    assert seen[-1][1]
    assert [sampled for _, sampled in seen] == sorted(sampled for _, sampled in seen)


def test_held_out_labels_are_not_learned_from_and_a_repeated_command_resumes(tiny_run, many, labelled, tmp_path):
    encoder, (collection, labels) = tiny_run[0] / "encoder", many
    recipe = compose(
        ComposeRequest(
            paper="improve",
            encoder=str(encoder),
            collection=collection,
            settings=(*labels, "finetune.max_steps=2", "evaluation.depth=20", "finetune.passage_length=16"),
        ),
        PARTS,
    )
    write_recipe(hold_out(learning_from(recipe, ["judged"])), tmp_path / "held.toml")
    drkit("run", tmp_path / "held.toml", "--run-dir", tmp_path / "run", "--no-trial")
    stored = open_collection(tmp_path / "run" / "collection")
    learned, ranked = ({query.text for query in stored.queries(split)} for split in ("train", "test"))
    assert not learned & ranked
    assert 90 < len(ranked) < 150
    assert len(learned | ranked) == 400
    gains = read_manifest(tmp_path / "run" / "evaluation").metrics["gains"]
    assert f"{len(ranked)} labelled queries, the split test" in gains["sentence"]
    texts, file = collection.removeprefix("labelled:"), labels[0].split("'")[1]
    again = drkit("improve", encoder, "--texts", texts, "--labels", file, "--run-dir", tmp_path / "run")
    assert gains["sentence"] in again.stdout.replace("\n", " ")
    with refused("another collection"):
        resumed(tmp_path / "run", str(encoder), f"beir:{labelled}", (), PARTS)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("finetune.rounds.0.draws=2",), "draws"),
        (("finetune.keep_steps=[2]",), "keep_steps"),
        (("finetune.baselines=['labels-only']",), "baselines"),
        (("evaluation.start=false",), "evaluation.start"),
    ],
)
def test_what_cross_validation_cannot_compare_is_refused(settings, said, tiny_run, labelled):
    recipe = composed(labelled, tiny_run[0] / "encoder", "evaluation.folds=3", *settings)
    with refused(said):
        check(recipe, PARTS.registry)


def test_the_run_is_searched_with_what_it_recommends(improved, tmp_path):
    _, run, _ = improved
    gains = read_manifest(run / "evaluation").metrics["gains"]
    assert best_system(run) == gains["recommended"]
    systems = search_systems(run)
    assert {"bm25", "as-it-is", "as-it-is+bm25"} <= systems.keys()
    assert systems["as-it-is+bm25"].description == "hybrid: BM25 + as it is"
    ranked = dict(read_run(run / "hybrids" / "as-it-is+bm25.arrow"))
    queries = list(open_collection(run / "collection").queries("test"))[:4]
    found = open_system(run, "as-it-is+bm25", device="cpu").search([query.text for query in queries], 5)
    for query, hits in zip(queries, found, strict=True):
        np.testing.assert_allclose(hits.scores, [score for _, score in ranked[query.query_id]][:5], atol=1e-5)
    drkit("report", run, "-o", tmp_path / "page.html")
    sentence = gains["sentence"]
    assert f"{sentence[0].upper()}{sentence[1:]}." in (tmp_path / "page.html").read_text()
