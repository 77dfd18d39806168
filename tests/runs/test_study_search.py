"""`drkit study --search`: the rungs of successive halving, the space, and a search from end to end."""

import json
import shlex
import shutil
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import read_recipe
from drkit.studies import search
from drkit.studies.execution import Finished, make_runs
from drkit.studies.rungs import Timing, divide, plan_rungs, survivors
from drkit.studies.search import RungRecord, SearchRecord, measured_timing, plan_search, read_search, run_search
from drkit.studies.search_page import winner_line, write_search
from drkit.studies.space import draw, open_space, with_fewer_steps
from tests.refusals import says
from tests.runs.test_experiments import TINY

SECONDS = st.floats(0.1, 1e3)
TIMINGS = st.builds(Timing, st.floats(0, 1e3), SECONDS, st.floats(1e-3, 10))


@given(available=st.integers(2, 400), seconds=st.floats(1, 1e6), timing=TIMINGS, least=st.integers(1, 200))
def test_rungs_fit_the_time_and_train_ever_fewer_for_ever_longer(available, seconds, timing, least):
    fits = timing.shared + timing.seconds(2, least) <= seconds * (1 - 1e-9)
    if not fits:
        with pytest.raises(DrkitError, match="hours are too few"):
            plan_rungs(available, seconds * (1 - 1e-6), timing, least)
        return
    rungs = plan_rungs(available, seconds, timing, least)
    assert 2 <= rungs[0].compositions <= available
    assert rungs[0].steps >= least
    assert timing.shared + sum(rung.seconds for rung in rungs) <= seconds * (1 + 1e-9)
    assert rungs[-1].compositions in (2, 3)
    for one, following in pairwise(rungs):
        assert following.compositions == survivors(one.compositions) < one.compositions
        assert following.steps > one.steps
    if rungs[0].compositions < available:  # no more compositions would fit
        assert divide(rungs[0].compositions + 1, seconds - timing.shared, timing)[0].steps < least


@given(compositions=st.integers(2, 400), seconds=st.floats(0, 1e6), timing=TIMINGS)
def test_every_rung_has_an_equal_share_up_to_a_step(compositions, seconds, timing):
    rungs = divide(compositions, seconds, timing)
    share = seconds / len(rungs)
    for rung in rungs:
        if rung.steps:
            assert rung.seconds <= share * (1 + 1e-9)
            assert rung.seconds + rung.compositions * timing.per_step >= share * (1 - 1e-9)


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Thirty-six passages, with queries of train, dev and test."""
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    names, deeds = (
        ("ada", "grace", "alan", "barbara", "kurt", "emmy"),
        ("proved", "wrote", "drew", "built", "saw", "sang"),
    )
    texts = [f"{name} {deed} a thing of {name}" for name in names for deed in deeds]
    for kind in ("corpus", "queries"):
        rows = [json.dumps({"_id": f"{kind[0]}{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{kind}.jsonl").write_text("\n".join(rows))
    for number, split in enumerate(("train", "dev", "test")):
        judged = "".join(f"q{n}\tc{n}\t1\n" for n in range(len(texts)) if n % 3 == number)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


SETTINGS = {**TINY, "pretrain.max_steps": 32, "finetune.max_steps": 4, "pretrain.probe.every": 8}
CHOICES = {"paper": "retromae", "pipeline": "dpr", **SETTINGS}
AXES = {"masker": ["uniform", "pmi"], "decoder": ["mlm", "enhanced"], "miners": ["random", "given"]}


@pytest.fixture
def timing(monkeypatch):
    """Time as if every machine were equally fast, and a rung took 10 s."""
    told = Timing(shared=0.0, per_run=1.0, per_step=0.5)
    monkeypatch.setattr(SearchRecord, "spent", property(lambda record: 10.0 * len(record.finished)))
    monkeypatch.setattr(search, "_estimated", lambda *_: (told, 1e6, 1e9))
    monkeypatch.setattr(search, "measured_timing", lambda *_: told)
    return told


# In which eight compositions have two rungs.
HOURS = 100 / 3600


class Interrupted(Silent):
    """Presses Ctrl-C after a number of runs."""

    def __init__(self, runs):
        self.left = runs

    def note(self, text):
        if ": run " in text:
            self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def searched(folder, beir, hours=HOURS, progress=None, **axes):
    space = open_space(folder=folder, seed=1, collection=f"beir:{beir}", **CHOICES, **(axes or AXES))
    return space, run_search(plan_search(space, hours), hours, progress=progress or Silent())


def test_a_search_keeps_the_best_by_dev_queries_and_goes_on_after_a_kill(beir, tmp_path, timing, run_drkit):
    folder = tmp_path / "runs" / "found"
    with pytest.raises(KeyboardInterrupt):
        searched(folder, beir, progress=Interrupted(3))
    begun = read_search(folder)
    assert len(begun.rungs[0].seconds) == 2, "the third was interrupted before it was written down"
    finished = list(folder.glob("rung-1/*/retriever-1/manifest.json"))
    before = {path: path.stat().st_mtime_ns for path in finished}
    space, record = searched(folder, beir)
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    assert record.rungs[0].cells == begun.rungs[0].cells
    assert record.rungs[0].seconds.items() >= begun.rungs[0].seconds.items()

    first, last = record.rungs
    # `given` composes, and then the collection turns out to give no negatives: a failure, not the end.
    assert len(first.cells) == 8
    assert set(first.failures) == {name for name in names(space, first) if name.endswith("given")}
    assert first.steps == 10, "50 s, 8 compositions: 6.25 s each, of which 1 s is for whatever steps"
    assert last.steps == 58, "90 s, 3 compositions"
    for number, rung in enumerate(record.rungs, start=1):
        for name, score in rung.scores.items():
            run = folder / f"rung-{number}" / name
            values = json.loads((run / "evaluation" / "scores.json").read_text())["retriever-1"]["RR@10"]
            assert set(values) == {f"q{n}" for n in range(36) if n % 3 == 1}, "the dev queries"
            assert score == pytest.approx(sum(values.values()) / len(values))
            probes = (run / "pretrained" / "probes.jsonl").read_text().splitlines()
            assert rung.probes[name] == json.loads(probes[-1])["RR@10"]
            manifests = [json.loads(path.read_text()) for path in run.glob("*/manifest.json")]
            settings = read_recipe(run / "recipe.toml", installed().registry)
            assert settings.pretrain.max_steps == rung.steps
            assert not [one for one in manifests if any("test" in origin for origin in one["origins"].values())]
    order = sorted(first.scores.values(), reverse=True)
    kept = [first.scores[name] for name in names(space, last)]
    assert sorted(kept, reverse=True) == order[: len(kept)]
    assert len(kept) == 3
    assert record.winner == max(last.scores, key=last.scores.get)
    rows = {(row["rung"], row["predictor"], row["predicted"]): row for row in record.correlations()}
    common = [*last.scores]
    expected = kendalltau([first.scores[n] for n in common], [last.scores[n] for n in common]).statistic
    found = rows[1, "scores", 2]["tau"]
    assert found is None if expected != expected else found == pytest.approx(expected, abs=1e-3)
    assert rows[1, "probe", 1]["compositions"] == 4

    page = write_search(record, space).read_text()
    line = winner_line(record, space)
    assert line in page
    assert "no test query was read" in page
    code, out, err = run_drkit(*shlex.split(line)[1:], "--dry-run", "--json")
    assert code == 0, err
    main = json.loads(out)["recipe"]["pretrain"]["decoders"]["main"]
    best = dict(zip(names(space, last), last.cells, strict=True))[record.winner]
    assert (main["masker"]["use"], main["decoder"]["use"]) == (best["masker"], best["decoder"])
    # What has ended is printed again, and nothing is made.
    files = {path: path.stat().st_mtime_ns for path in folder.glob("rung-*/*/*/manifest.json")}
    settings = [f"--set={path}={json.dumps(value)}" for path, value in SETTINGS.items()]
    typed = ("masker=uniform,pmi", "decoder=mlm,enhanced", "miners=random,given", "--seeds", 1)
    chosen = ("--paper", "retromae", "--pipeline", "dpr", "--collection", f"beir:{beir}", *settings)
    where = ("--runs", folder.parent, "--name", folder.name)
    code, out, err = run_drkit("study", *typed, *chosen, *where, "--search", HOURS, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["winner"] == record.winner
    assert [rung["scores"] for rung in document["rungs"]] == [first.scores, last.scores]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("rung-*/*/*/manifest.json")} == files
    code, _, err = run_drkit("study", "masker=uniform,pmi", "--seeds", 1, *chosen, *where, "--search", HOURS)
    assert code == 2
    assert says(err, "search of other choices", "--name")


def names(space, rung):
    return [space.cell_of(levels).name for levels in rung.cells]


def test_where_time_is_not_estimated_a_first_run_is_timed(beir, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "_estimated", lambda *_: (None, 0.0, 0.0))
    folder = tmp_path / "timed"
    space = open_space(folder=folder, seed=1, collection=f"beir:{beir}", **CHOICES, masker=["uniform", "pmi"])
    plan = plan_search(space, 0.02)
    assert plan.rungs == ()
    record = run_search(plan, 0.02, progress=Silent())
    assert (folder / "rung-0" / "uniform" / "evaluation").is_dir()
    (rung,) = record.rungs
    assert len(rung.scores) == 2
    assert 0 < record.trial < record.spent
    assert record.end == "the last rung is finished"

    runs = [space.run(space.cell_of(levels), rung.steps, 1) for levels in rung.cells]
    timing, manifests = measured_timing(runs, rung.seconds, rung.steps, 1), {}
    for path in folder.glob("rung-1/*/*/manifest.json"):
        one = json.loads(path.read_text())
        manifests[one["fingerprint"]] = (path.parent.name, one["seconds"])
    trained = sum(seconds for name, seconds in manifests.values() if name in ("pretrained", "retriever-1"))
    assert timing.per_step * 2 * rung.steps == pytest.approx(trained)
    whole = timing.shared + 2 * timing.per_run + 2 * rung.steps * timing.per_step
    assert whole == pytest.approx(sum(rung.seconds.values()))


def test_the_hours_count_the_seconds_of_runs_side_by_side():
    rungs = [RungRecord(1, ({"a": "1"}, {"a": "2"}, {"a": "3"}), 1.0, seconds={"1": 4.0, "2": 8.0, "3": 6.0})]
    rungs += [RungRecord(2, ({"a": "1"},), 1.0, seconds={"1": 5.0})]
    for slots, spent in ((1, 25.0), (2, 16.0), (8, 13.0)):
        record = SearchRecord("", 1.0, "RR@10", 3, 3, {}, slots, trial=2.0, rungs=tuple(rungs))
        assert record.spent == spent


@pytest.fixture
def default_space(beir, tmp_path):
    return open_space(folder=tmp_path / "search", seed=1, collection=f"beir:{beir}", **CHOICES)


def test_the_default_space_has_every_part_that_can_be_composed(default_space):
    axes, left_out = default_space.axes, default_space.left_out
    assert {"uniform", "pmi", "generator"} <= {*axes["masker"]}
    assert {"mlm", "enhanced", "replaced-token-detection"} <= {*axes["decoder"]}, "the last one with `generator` alone"
    assert {*axes["context"]} == {"self", "span", "next-span", "query", "mixed"}
    assert {"none", "bow-reconstruction", "span-contrastive"} <= {*axes["pretrain_loss"]}
    assert {"contrastive", "pairwise"} <= {*axes["loss"]}
    assert {"none", "bm25", "random"} <= {*axes["miners"]}
    assert len(axes["pretrain.learning_rate"]) == 2
    assert "run file" in left_out["miners run-file"]
    assert "teacher" in left_out["loss margin-mse"]
    assert not [name for name in left_out if "margin" in name and "miner" in name], "a filter is not a source"
    recipe = default_space.run(default_space.cell(0), 32, 0).recipe
    assert recipe.pretrain.decoders["main"].decoder.use == axes["decoder"][0] == "enhanced"


def test_compositions_are_drawn_by_the_seed_and_what_does_not_fit_is_counted(beir, tmp_path):
    axes = {"masker": ["uniform", "pmi", "generator"], "decoder": ["mlm", "replaced-token-detection"]}
    space = open_space(folder=tmp_path / "search", seed=1, collection=f"beir:{beir}", **CHOICES, **axes)
    drawn = draw(space, 100)
    assert drawn == draw(space, 100)
    assert drawn.tried == space.combinations == 6
    fitting = {tuple(cell.levels.values()) for cell in drawn.cells}
    assert fitting == {
        *((masker, "mlm") for masker in axes["masker"]),
        ("generator", "replaced-token-detection"),
    }
    assert tuple(drawn.cells[0].levels.values()) == ("uniform", "mlm"), "the baseline is always among them"
    assert sum(drawn.left_out.values()) == 2
    assert all("replaced-token-detection" in problem for problem in drawn.left_out)
    assert len(draw(space, 2).cells) == 2
    unread = open_space(
        **{"folder": tmp_path / "search", "seed": 1, "collection": f"beir:{beir}", **CHOICES},
        **{"masker": ["uniform", "pmi"], "decoder": ["mlm", "bow"], "pretrain.learning_rate": [1e-3, 1e-4]},
    )
    drawn = draw(unread, 100)
    assert len(drawn.cells) == 6, "a bag of words reads no masked text: one masker is enough"
    assert sum("trains the same" in problem and number for problem, number in drawn.left_out.items()) == 2
    alike = {"pretrain.learning_rate": [1e-3, 2e-3], "encoder.query_prompt": ["a:b", "a-b"]}
    with pytest.raises(DrkitError, match="same name"):
        draw(open_space(folder=tmp_path / "search", seed=1, collection=f"beir:{beir}", **CHOICES, **alike), 4)


def test_trainings_are_shortened_in_proportion(beir, tmp_path):
    recipe = compose(
        ComposeRequest(pipeline="three-stage", settings=("pretrain.max_steps=1000", "pretrain.warmup_steps=100")),
        installed(),
    )
    short = with_fewer_steps(recipe, 10)
    assert short.pretrain.max_steps == 10
    assert short.pretrain.warmup_steps == 1.0
    for one, other in ((short.finetune, recipe.finetune), (short.reranker, recipe.reranker)):
        assert one.max_steps in (other.max_steps, max(1, round(other.max_steps / 100)))
        assert one.num_train_epochs == other.num_train_epochs / 100
    with pytest.raises(DrkitError, match=r"counts in steps.*--set pretrain\.max_steps=1000"):
        with_fewer_steps(evolve(recipe, pretrain=evolve(recipe.pretrain, max_steps=-1)), 10)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"masker": ["uniform"]}, "'masker' needs at least 2 values"),
        ({"masker": ["uniform", "pmii"]}, "'pmii'.*'pmi'"),
        ({"masker": ["uniform", "pmi"], "evaluation.split": "test"}, "'evaluation.split' cannot be chosen: .*dev"),
        ({"pretrain.max_steps": [1, 2]}, "'pretrain.max_steps' cannot be an axis: a search decides on the steps"),
        ({"masker": ["uniform", "pmi"], "pretrain.max_steps": -1}, "counts in steps"),
        ({"masker": ["uniform", "pmi"], "evaluation.passages": [5, 9], "name": "x"}, "'name' cannot be chosen"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(beir, tmp_path, wrong, said):
    with pytest.raises(DrkitError, match=said):
        open_space(**{"folder": tmp_path / "search", "seed": 1, "collection": f"beir:{beir}", **CHOICES, **wrong})
    assert not list(tmp_path.iterdir())


def test_a_search_needs_dev_queries_hours_and_two_compositions(beir, tmp_path, timing, run_drkit):
    without = tmp_path / "beir"
    shutil.copytree(beir, without)
    (without / "qrels" / "dev.tsv").unlink()
    settings = [f"--set={path}={json.dumps(value)}" for path, value in SETTINGS.items()]
    chosen = ("--paper", "retromae", "--pipeline", "dpr", *settings, "--runs", tmp_path / "runs")
    both = ("masker=uniform,pmi", "decoder=mlm,enhanced", "--collection", f"beir:{beir}", *chosen)
    for arguments, said in (
        (
            ("masker=uniform,pmi", "--collection", f"beir:{without}", "--search", 1, *chosen),
            ("dev queries", "train, test"),
        ),
        ((*both, "--search", -1), ("--search", "-1", "0.001")),
        ((*both, "--search", "nan"), ("--search", "nan")),
        ((*both, "--search", 0.001), ("0.001 hours are too few", "Give more hours")),
        ((*both, "--search", 1, "--seeds", "1,2"), ("--search", "one seed")),
        ((*both, "--search", 1, "--labels", 5), ("--search", "finetune.rounds.0.queries")),
    ):
        code, _, err = run_drkit("study", *arguments)
        assert code == 2, err
        assert says(err, *said)
    axes = {"masker": ["uniform", "pmi"], "decoder": ["replaced-token-detection", "autoencoder:3"]}
    with pytest.raises(ProblemsError, match="search cannot be made"):
        plan_search(open_space(folder=tmp_path, seed=1, collection=f"beir:{beir}", **CHOICES, **axes), 1.0)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_prints_the_rungs_and_makes_nothing(beir, tmp_path, timing, run_drkit):
    settings = [f"--set={path}={json.dumps(value)}" for path, value in SETTINGS.items()]
    chosen = ("--paper", "retromae", "--pipeline", "dpr", "--collection", f"beir:{beir}", *settings)
    typed = ("study", "masker=uniform,pmi", "decoder=mlm,enhanced", "--search", 0.012, "--runs", tmp_path, *chosen)
    code, out, err = run_drkit(*typed, "--dry-run", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert [(rung["compositions"], rung["steps"]) for rung in plan["rungs"]] == [(4, 8), (2, 19)]
    assert len(plan["compositions"]) == 4
    assert plan["cost"]["seconds"] <= 0.012 * 3600
    code, out, err = run_drkit(*typed, "--dry-run")
    assert code == 0, err
    assert says(out, "4 combinations", "compositions", "minutes")
    assert not list(tmp_path.iterdir())


class LeavesOut:
    """An engine that fails at the first task, and so yields no result for it, as several processes do."""

    slots = threads = 2

    def run(self, tasks):
        for task in [*tasks][1:]:
            yield Finished(task.arguments[1], 7.0, (), "" if "pmi" in task.name else "why")


def test_a_result_belongs_to_its_run_where_another_one_failed(beir, tmp_path):
    space = open_space(folder=tmp_path / "search", seed=1, collection=f"beir:{beir}", **CHOICES, **AXES)
    runs = [space.run(cell, 8, 1) for cell in draw(space, 6).cells]
    found = []
    make_runs(runs, LeavesOut(), Silent(), on_done=lambda run, done: found.append((run.folder.name, done.failure)))
    assert found == [(run.folder.name, "" if "pmi" in run.folder.name else "why") for run in runs[1:]]
    assert {failure for _, failure in found} == {"", "why"}
