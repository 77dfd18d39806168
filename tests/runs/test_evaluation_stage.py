"""The stage that makes the table: what it says of draws, and of queries that nothing can answer."""

from types import SimpleNamespace

import pytest
from attrs import evolve

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import Judgement, Passage, Query
from drkit.data import write_collection
from drkit.errors import DrkitError
from drkit.evaluate.systems import VERDICT_CAPTION, results_warning
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.making.evaluation import evaluate_systems
from drkit.runs.plan import plan
from drkit.runs.stages.evaluation import EVALUATION, EvaluationSettings
from drkit.search import write_run
from drkit_cli.render import print_results
from tests.refusals import says
from tests.rerank.toys import stage_run

# Bytes of a run, and those that pruning frees.
SPACE = (3_000_000, 1_000_000)


class Judged:
    """Three test queries: one has a relevant passage, one has none, one is not judged at all."""

    name = "judged"

    def passages(self):
        return iter([Passage("a b", "an apple a day"), Passage("c", "bananas are berries")])

    def splits(self):
        return ("test",)

    def queries(self, split):
        return iter([Query("q1", "apple"), Query("q 2", "cherry"), Query("q3", "date")])

    def judgements(self, split):
        return iter([Judgement("q1", "a b", 2), Judgement("q 2", "c", 0), Judgement("q 2", "a b", -1)])

    def describe(self):
        return {}


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def evaluated(tmp_path):
    collection, runs = tmp_path / "collection", tmp_path / "runs"
    for folder in (collection, runs):
        folder.mkdir()
    write_collection(Judged(), collection)
    for name, scores in {"bm25": (2, 1), "low-1": (1, 2), "low-2": (2, 1)}.items():
        rows = [("q1", list(zip(["a b", "c"], scores, strict=True)))]
        write_run(runs / f"{name}.arrow", rows, tag=name)
    settings = EvaluationSettings(
        data_sets=(),
        systems=("bm25", "low"),
        draws={"low": ("low-1", "low-2")},
        baseline="bm25",
        last="low-1",
        is_smoke=False,
        reranked="",
        composed="",
        replaced={},
        measures=("RR@10",),
        split="test",
        exclude_self=False,
    )
    inputs = {"judged": collection / "test", "runs": runs}
    stage = stage_run(EVALUATION, tmp_path / "evaluation", inputs, settings, Notes())
    return stage, evaluate_systems(stage)


def test_queries_without_a_relevant_passage_are_counted_and_told(evaluated):
    stage, metrics = evaluated
    assert metrics["queries"] == 2
    assert [row["values"]["RR@10"] for row in metrics["rows"]] == [0.5, 0.375]
    (note,) = stage.progress.notes
    assert says(note, "1 of 2 judged queries", "0")


def test_what_the_table_says_in_words_is_tested(evaluated, tmp_path, capsys):
    _, metrics = evaluated
    assert metrics["against"] == {"bm25": {"RR@10": pytest.approx(0.5)}}
    for against, said in (
        (metrics["against"], "low and BM25: RR@10 0.375 against 0.500 (p = 0.500)"),
        ({"bm25": {"RR@10": 1e-9}}, "BM25 beats low: RR@10 0.500 against 0.375 (p < 0.001)"),
    ):
        done = SimpleNamespace(stage="evaluation", settings={}, metrics={**metrics, "against": against})
        print_results(tmp_path, {"evaluation": done}, SPACE)
        printed = " ".join(capsys.readouterr().out.split())
        assert says(printed, VERDICT_CAPTION, said)


@pytest.mark.parametrize(
    ("hits", "said"),
    [
        (
            [("a b", 2), ("c", 1)],
            ("reranker and low", "RR@10 0.500 against 0.375 (p = 0.500)"),
        ),
        (
            [("c", 1)],
            ("reranker and low", "RR@10 0.000 against 0.375 (p = 0.500)", "--set evaluation.rerank=false"),
        ),
    ],
)
def test_a_reranker_is_compared_with_the_retriever_whose_hits_it_ranks(evaluated, tmp_path, capsys, hits, said):
    stage, _ = evaluated
    write_run(stage.inputs["runs"] / "reranker.arrow", [("q1", hits)], tag="reranker")
    settings = evolve(stage.settings, systems=("bm25", "low", "reranker"), reranked="low")
    metrics = evaluate_systems(stage_run(EVALUATION, tmp_path / "again", stage.inputs, settings, Notes()))
    print_results(tmp_path, {"evaluation": SimpleNamespace(stage="evaluation", settings={}, metrics=metrics)}, SPACE)
    assert says(capsys.readouterr().out, *said)


def test_the_verdict_is_on_the_retriever_that_is_exported_not_on_the_last(evaluated, tmp_path, capsys):
    stage, _ = evaluated
    write_run(stage.inputs["runs"] / "worse.arrow", [("q1", [("c", 2), ("a b", 1)])], tag="worse")
    (tmp_path / "chosen.txt").write_text("low-2")
    settings = evolve(stage.settings, systems=("bm25", "low", "worse"), last="worse")
    inputs = {**stage.inputs, "choice": tmp_path / "chosen.txt"}
    metrics = evaluate_systems(stage_run(EVALUATION, tmp_path / "again", inputs, settings, Notes()))
    assert (metrics["compared"], {*metrics["against"]}) == ("low", {"bm25", "worse"})
    print_results(tmp_path, {"evaluation": SimpleNamespace(stage="evaluation", settings={}, metrics=metrics)}, SPACE)
    printed = " ".join(capsys.readouterr().out.split())
    assert "low and BM25: RR@10 0.375 against 0.500" in printed
    assert "worse and" not in printed
    (tmp_path / "chosen.txt").write_text("initial")  # the run gained nothing, which the verdict on the last one says
    again = evaluate_systems(stage_run(EVALUATION, tmp_path / "third", inputs, settings, Notes()))
    assert again["compared"] == "worse"


@pytest.mark.parametrize(("is_smoke", "said"), [(True, "smoke run"), (False, "2 queries")])
def test_numbers_that_mean_little_say_so_beside_the_table_and_in_the_results(
    evaluated, tmp_path, capsys, is_smoke, said
):
    stage, _ = evaluated
    settings = evolve(stage.settings, is_smoke=is_smoke)
    again = stage_run(EVALUATION, tmp_path / "again", stage.inputs, settings, Notes())
    metrics = evaluate_systems(again)
    assert says(metrics["warning"], "Warning: ", said)
    assert (again.folder / "table.md").read_text().count(metrics["warning"]) == 1
    print_results(tmp_path, {"evaluation": SimpleNamespace(stage="evaluation", settings={}, metrics=metrics)}, SPACE)
    assert " ".join(capsys.readouterr().out.split()).count(metrics["warning"]) == 1
    assert results_warning(50, is_smoke=False) == ""


@pytest.mark.parametrize(("chosen", "is_smoke"), [(ComposeRequest(), False), (ComposeRequest(scale="quick"), True)])
def test_a_quick_recipe_is_a_smoke_run_and_the_default_is_not(chosen, is_smoke):
    assert compose(chosen, installed()).is_smoke is is_smoke


def test_the_end_of_a_run_says_how_large_it_is_and_what_pruning_leaves(evaluated, tmp_path, capsys):
    _, metrics = evaluated
    print_results(tmp_path, {"evaluation": SimpleNamespace(stage="evaluation", settings={}, metrics=metrics)}, SPACE)
    assert f"run      {tmp_path}, 3.0 MB; drkit prune {tmp_path} leaves 2.0 MB" in capsys.readouterr().out


def test_rows_that_are_means_of_draws_say_so_in_the_file_and_on_the_screen(evaluated, tmp_path, capsys):
    stage, metrics = evaluated
    assert "low (2)." in (stage.folder / "table.md").read_text()
    done = SimpleNamespace(stage="evaluation", settings={}, metrics=metrics)
    print_results(tmp_path, {"evaluation": done}, SPACE)
    assert "low (2)." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), None),
        (("evaluation.depth=50", "evaluation.measures=['RR@10', 'P@50', 'AP']"), None),
        (
            ("evaluation.depth=50", "evaluation.measures=['RR@10', 'R@100', 'P@51']"),
            ("50", "R@100, P@51", "--set evaluation.depth=100"),
        ),
    ],
)
def test_the_plan_tells_measures_that_need_more_hits(settings, said):
    parts = installed()
    notes = plan(compose(ComposeRequest(settings=settings), parts), parts.registry).notes
    found = [note for note in notes if "evaluation.depth" in note]
    assert len(found) == (said is not None)
    assert all(says(note, *said) for note in found)


@pytest.mark.parametrize(
    ("settings", "baseline"),
    [
        ((), "labels-only"),
        (("finetune.baselines=[]", "evaluation.start=true"), "initial"),
        (("finetune.baselines=[]",), "bm25"),
        (("finetune.baselines=[]", "evaluation.bm25=false"), "retriever-1"),
        (("evaluation.baseline=bm25",), "bm25"),
        (("evaluation.baseline=hybrid",), "hybrid"),
    ],
)
def test_every_system_is_tested_against_one_named_baseline(settings, baseline):
    parts = installed()
    stages = plan(compose(ComposeRequest(settings=settings), parts), parts.registry).stages
    assert next(stage for stage in stages if stage.name == "evaluation").settings.baseline == baseline


def test_a_baseline_has_a_learning_rate_of_its_own_which_changes_nothing_else():
    parts = installed()
    named = {"masker": "pmi", "decoder": "enhanced"}
    rates = 'pretrain.baseline_learning_rates={"decoder=mlm" = 1e-5}'
    plain, other = (
        {one.name: one for one in plan(compose(ComposeRequest(**named, settings=more), parts), parts.registry).stages}
        for more in ((), (rates,))
    )
    found = {name: stage.settings.pretrain.learning_rate for name, stage in other.items() if "pretrained" in name}
    assert found == {"pretrained": 0.003, "pretrained-masker=uniform": 0.003, "pretrained-decoder=mlm": 1e-5}
    blank = {name: dict.fromkeys(stage.inputs, "") for name, stage in other.items()}
    changed = {
        name for name, stage in other.items() if stage.identity(blank[name]) != plain[name].identity(blank[name])
    }
    assert changed == {"pretrained-decoder=mlm"}
    for wrong in ('{"decoder" = 1e-5}', '{"decoder=mlm" = 0.0}', '{"miner=bm25" = 1e-5}'):
        with pytest.raises(DrkitError, match="baseline_learning_rates"):
            compose(ComposeRequest(settings=(f"pretrain.baseline_learning_rates={wrong}",)), parts)


def test_a_baseline_that_the_run_does_not_rank_is_refused_with_those_it_ranks():
    parts = installed()
    recipe = compose(ComposeRequest(settings=("evaluation.baseline=label-only",)), parts)
    with pytest.raises(DrkitError) as refused:
        plan(recipe, parts.registry)
    assert says(
        str(refused.value), "'label-only'", "did you mean 'labels-only'?", "bm25, labels-only", "evaluation.baseline"
    )


def test_the_table_names_its_baseline_in_the_file_on_the_screen_and_in_the_results(evaluated, tmp_path, capsys):
    stage, metrics = evaluated
    settings = evolve(stage.settings, baseline="low")
    again = stage_run(EVALUATION, tmp_path / "again", stage.inputs, settings, Notes())
    other = evaluate_systems(again)
    assert [row["tests"] != {} for row in metrics["rows"]] == [False, True]
    assert [row["tests"] != {} for row in other["rows"]] == [True, False]
    assert "t-test against low;" in (again.folder / "table.md").read_text()
    print_results(tmp_path, {"evaluation": SimpleNamespace(stage="evaluation", settings={}, metrics=metrics)}, SPACE)
    assert "t-test against BM25;" in " ".join(capsys.readouterr().out.split())
