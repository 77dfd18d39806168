"""`drkit study --search`: the rungs of successive halving, the space, and a search from end to end."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.toml import read_recipe
from drkit.studies import search
from drkit.studies.rungs import Timing, divide, plan_rungs, survivors
from drkit.studies.search import plan_search, read_search, run_search
from drkit.studies.search_page import winner_line, write_search
from drkit.studies.space import open_space
from tests.refusals import says
from tests.runs.test_experiments import TINY

SECONDS = st.floats(0.1, 1e3)
TIMINGS = st.builds(Timing, st.floats(0, 1e3), SECONDS, st.floats(1e-3, 10))


@given(available=st.integers(2, 400), seconds=st.floats(1, 1e6), timing=TIMINGS, least=st.integers(1, 200))
def test_rungs_fit_the_time_and_train_ever_fewer_for_ever_longer(available, seconds, timing, least):
    fits = timing.shared + timing.seconds(2, least) <= seconds * (1 - 1e-9)
    try:
        rungs = plan_rungs(available, seconds, timing, least)
    except DrkitError as error:
        assert not fits
        assert says(str(error), "hours are too few")
        return
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
    """Time as if every machine were equally fast."""
    told = Timing(shared=0.0, per_run=1.0, per_step=0.5)
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
    assert last.steps > first.steps
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
    code, out, err = run_drkit(*line.split()[1:], "--dry-run", "--json")
    assert code == 0, err
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
