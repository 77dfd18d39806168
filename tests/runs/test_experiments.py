"""`drkit.compose`, `drkit.run` and `drkit.study`: what the commands do, from Python."""

import json
import shutil
from itertools import product

import numpy as np
import pytest

import drkit
from drkit.core.progress import Silent
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate.effects import estimate_mean
from drkit.recipe.toml import write_recipe
from drkit.studies.costs import describe_sharing
from drkit.studies.design import design_study
from tests.refusals import says

TINY = {
    **{"encoder.vocab_size": 100, "encoder.layers": 1, "encoder.hidden": 16, "encoder.heads": 2},
    **{"encoder.intermediate": 32, "encoder.passage_length": 16, "encoder.query_length": 16},
    **{"encoder.init_embeddings": "random", "pretrain.max_steps": 2, "pretrain.probe.every": 0},
    **{"finetune.max_steps": 2, "finetune.per_device_train_batch_size": 4, "evaluation.depth": 20},
    **{"evaluation.start": False, "evaluation.measures": ("RR@10", "R@5")},
}


class Stages(Silent):
    """The names of stages that were begun."""

    def __init__(self):
        self.begun = []

    def begin(self, stage, summary, reason=""):
        self.begun.append(stage)


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beir")
    (folder / "qrels").mkdir()
    texts = [f"{name} {deed}" for name in ("ada", "grace", "alan", "barbara") for deed in ("proved", "wrote", "drew")]
    for kind in ("corpus", "queries"):
        rows = [json.dumps({"_id": f"{kind[0]}{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{kind}.jsonl").write_text("\n".join(rows))
    for split in ("train", "test"):
        judged = "".join(f"q{n}\tc{n}\t1\n" for n in range(len(texts)) if (n % 2 == 0) == (split == "test"))
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return f"beir:{folder}"


def test_a_recipe_is_that_of_the_command(beir, tmp_path, run_drkit):
    recipe = drkit.compose(paper="retromae", pipeline="dpr", collection=beir, seed=3, **TINY)
    settings = [f"{path}={json.dumps(value)}" for path, value in TINY.items()]
    options = [argument for text in (*settings, "seed=3") for argument in ("--set", text)]
    chosen = ("--paper", "retromae", "--pipeline", "dpr", "--collection", beir)
    code, _, err = run_drkit("compose", *chosen, *options, "--dry-run", "-o", tmp_path / "theirs.toml")
    assert code == 0, err
    write_recipe(recipe, tmp_path / "ours.toml")
    assert (tmp_path / "ours.toml").read_text() == (tmp_path / "theirs.toml").read_text()


def test_a_run_is_finished_kept_and_read(beir, tmp_path):
    recipe = drkit.compose(paper="retromae", pipeline="dpr", collection=beir, **TINY)
    first, again = Stages(), Stages()
    record = drkit.run(recipe, tmp_path / "run", progress=first)
    assert "retriever-1" in first.begun
    assert drkit.run(tmp_path / "run", progress=again).manifests.keys() == record.manifests.keys()
    assert again.begun == []
    table = record.table()
    assert {row["measure"] for row in table} == {"RR@10", "R@5"}
    for row in table:
        assert row["mean"] == record.scores[row["system"]].mean(row["measure"])
        assert row["low"] <= row["mean"] <= row["high"]
        assert ("p" in row) == (row["system"] != record.results.baseline)


def test_what_cannot_be_is_refused_before_a_run(beir, tmp_path):
    with pytest.raises(ProblemsError, match=r"'max_stebs'.*'max_steps'.*@ pretrain"):
        drkit.compose(collection=beir, **{"pretrain.max_stebs": 1})
    recipe = drkit.compose(paper="retromae", pipeline="dpr", collection=beir, **TINY)
    with pytest.raises(DrkitError, match=r"--reuse .*: .*recipe\.toml"):
        drkit.run(recipe, tmp_path / "run", reuse=[tmp_path])
    assert not list(tmp_path.iterdir())


# The choices of every study here.
CHOICES = {"paper": "retromae", "pipeline": "dpr", **TINY}
PARTS = {"masker": ["uniform", "pmi"], "decoder": ["mlm", "enhanced"]}


@pytest.fixture(scope="module")
def made(beir, tmp_path_factory):
    """A study of two axes and two seeds."""
    folder = tmp_path_factory.mktemp("studies") / "parts"
    return drkit.study(folder=folder, seeds=(1, 2), collection=beir, **CHOICES, **PARTS)


def values_of(folder, system):
    return json.loads((folder / "evaluation" / "scores.json").read_text())[system]["RR@10"]


def test_effects_are_those_recomputed_from_the_scores_of_the_runs(made):
    folder = made.design.folder
    rows = made.effects()
    for labels, system in (("before", "pretrained"), ("after", "retriever-1")):
        found = {
            (masker, decoder): [values_of(folder / f"{masker}-{decoder}-{seed}", system) for seed in (1, 2)]
            for masker, decoder in product(PARTS["masker"], PARTS["decoder"])
        }
        queries = sorted(found["pmi", "mlm"][0])
        assert len(queries) == 6

        def mean(masker, decoder, found=found, queries=queries):
            return sum(one[query] for one in found[masker, decoder] for query in queries) / (2 * len(queries))

        with_mlm, with_enhanced = (mean("pmi", one) - mean("uniform", one) for one in PARTS["decoder"])
        expected = {
            "pmi instead of uniform": (with_mlm + with_enhanced) / 2,
            "enhanced instead of mlm": sum(mean(one, "enhanced") - mean(one, "mlm") for one in PARTS["masker"]) / 2,
            "pmi with enhanced, beyond pmi with mlm": with_enhanced - with_mlm,
        }
        own = {row["effect"]: row["mean"] for row in rows if row["labels"] == labels}
        assert own == {name: pytest.approx(value) for name, value in expected.items()}
        for row in made.table():
            if row["labels"] == labels:
                assert row["mean"] == pytest.approx(mean(row["masker"], row["decoder"]))
                values = [[one[query] for query in queries] for one in found[row["masker"], row["decoder"]]]
                interval = estimate_mean(np.array(values, np.float64))
                assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high), nan_ok=True)
    assert {row["seeds"] for row in rows} == {2}
    assert {row["measure"] for row in rows} == {"RR@10"}


def test_a_study_makes_equal_stages_once_and_keeps_what_is_finished(made, beir):
    folder = made.design.folder
    runs = [run.folder for run in made.design.runs]
    assert len(runs) == 8

    def states(stage):
        return {(run / stage / "manifest.json").stat().st_mtime_ns for run in runs}

    assert len(states("collection")) == len(states("bm25")) == 1, "what no axis and no seed changes"
    assert len(states("initial")) == 2, "once for each seed"
    assert len(states("pretrained")) == 8
    sharing = describe_sharing(made.design)
    assert sharing.finished == sharing.different < sharing.planned
    assert sharing.shared["collection"] == 1
    assert sharing.shared["initial"] == 2
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/manifest.json")}
    lost = runs[3] / "evaluation"
    shutil.rmtree(lost)
    again = drkit.study(folder=folder, seeds=(1, 2), collection=beir, **CHOICES, **PARTS)
    assert again.effects() == made.effects()
    changed = {path.parent for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {lost}


def test_the_page_of_a_study_has_its_effects_and_a_picture(made):
    folder = made.design.folder
    page = (folder / "study.md").read_text()
    assert "## Before labels" in page
    assert "## After labels" in page
    for row in made.effects():
        assert f"| {row['effect']} | {row['mean'] + 0.0:+.3f} |" in page
    assert "both seeds and queries" in page
    assert "](study.png)" in page
    assert (folder / "study.png").read_bytes()[:4] == b"\x89PNG"
    assert len(json.loads((folder / "study.json").read_text())["effects"]) == 6


def test_labels_share_pre_training_and_processes_change_no_result(beir, tmp_path):
    chosen = {**CHOICES, "collection": beir, "masker": ["uniform", "pmi"]}
    one, two = (drkit.study(folder=tmp_path / str(n), seeds=(1,), labels=(2, 0), processes=n, **chosen) for n in (1, 2))
    assert one.effects() == two.effects()
    assert [table.key for table in one.tables] == ["before", "2", "all"]
    for study in (one, two):
        made = [run.folder / "pretrained" / "manifest.json" for run in study.design.runs]
        assert len({path.stat().st_mtime_ns for path in made}) == 2
        few = json.loads((study.design.folder / "pmi-2-labels-1" / "retriever-1" / "manifest.json").read_text())
        assert few["settings"]["queries"] == 2
    assert "over queries alone" in (tmp_path / "1" / "study.md").read_text()


def test_a_dry_run_makes_nothing_and_names_what_is_shared(beir, tmp_path, run_drkit):
    settings = [f"--set={path}={json.dumps(value)}" for path, value in TINY.items()]
    axes = ("masker=uniform,pmi", "decoder=mlm,enhanced", "--seeds", "1,2", "--labels", "2,all")
    chosen = ("--paper", "retromae", "--pipeline", "dpr", "--collection", beir, "--runs", tmp_path / "runs", *settings)
    code, out, err = run_drkit("study", *axes, *chosen, "--dry-run", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert (len(plan["cells"]), len(plan["runs"])) == (4, 16)
    assert plan["shared"]["collection"] == 1
    assert plan["shared"]["pretrained"] == 8
    assert plan["stages"]["finished"] == 0
    assert plan["cost"]["seconds"] is None
    assert {"collection", "pretrained", "retriever-1"} <= {*plan["cost"]["unknown"]}
    assert plan["cost"]["disk"] > 0
    code, out, err = run_drkit("study", *axes, *chosen, "--dry-run")
    assert code == 0, err
    assert "pmi-enhanced" in out
    assert "pretrained (8)" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"masker": "pmi"}, "no axis.*masker=uniform,pmi"),
        ({"masker": ["pmi"]}, "'masker' needs at least 2 values"),
        ({"masker": ["pmi", "pmi"]}, "'masker' has a value twice"),
        ({"masker": ["uniform", "pmii"]}, "'pmii'.*'pmi'.* @ masker"),
        ({"mask": ["uniform", "pmi"]}, "'mask'.*'masker'"),
        ({"pretrain.max_stebs": [1, 2]}, "'max_stebs'.*'max_steps'"),
        ({"seed": [1, 2]}, "'seed' cannot be chosen: .*--seeds"),
        ({"seeds": (1, 1)}, "`seeds` must be .*each once"),
        ({"labels": (2, 2)}, "`labels` must be .*each once"),
        ({"evaluation.split": ["dev", "test"]}, "'evaluation.split' cannot be an axis: .*same queries"),
        ({"collection.limit": [1, 2]}, "'collection.limit' cannot be an axis: .*same queries"),
        ({"finetune": None, "labels": (2,)}, "--labels needs fine-tuning on judged queries"),
    ],
)
def test_a_study_that_cannot_be_is_refused_with_what_would_fit(beir, tmp_path, wrong, said):
    axis = {"masker": ["uniform", "pmi"]} if "masker" not in wrong else {}
    with pytest.raises(ProblemsError, match=said):
        design_study(**{"collection": beir, "folder": tmp_path / "study", **CHOICES, **axis, **wrong})
    assert not list(tmp_path.iterdir())


def test_all_problems_of_a_study_are_reported_at_once(beir, tmp_path):
    wrong = {"masker": ["uniform", "pmii"], "decoder": ["mlm", "enhancd"], "seed": [1, 2]}
    with pytest.raises(ProblemsError) as found:
        design_study(collection=beir, folder=tmp_path / "study", **CHOICES, **wrong)
    assert len(found.value.problems) == 3


def test_the_command_prints_effects_and_refuses_bad_axes(made, beir, run_drkit):
    settings = [f"--set={path}={json.dumps(value)}" for path, value in TINY.items()]
    chosen = ("--paper", "retromae", "--pipeline", "dpr", "--collection", beir, *settings)
    where = ("--runs", made.design.folder.parent, "--name", made.design.folder.name)
    axes = ("masker=uniform,pmi", "decoder=mlm,enhanced", "--seeds", "1,2")
    code, out, err = run_drkit("study", *axes, *chosen, *where)
    assert code == 0, err
    assert "pmi with enhanced, beyond pmi with mlm" in out
    assert "study.md" in out
    code, out, err = run_drkit("study", *axes, *chosen, *where, "--json", "-q")
    assert code == 0, err
    document = json.loads(out)
    assert document["effects"] == made.effects()
    assert len(document["cells"]) == 8
    for wrong, said in (("masker", "'masker'"), ("masker=", "'masker='")):
        code, _, err = run_drkit("study", wrong)
        assert code == 2
        assert said in err
    code, _, err = run_drkit("study", "masker=uniform,pmi", "--seeds", "one")
    assert code == 2
    assert says(err, "--seeds", "one")
    code, _, err = run_drkit("sweep", "masker=uniform,pmi")
    assert code == 2
    assert "drkit study" in err
