"""`drkit.compose`, `drkit.run` and `drkit.sweep`: what the commands do, from Python."""

import json
import math
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace

import pytest

import drkit
from drkit import experiments
from drkit.core.progress import Silent
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate import Scores, paired_t_test
from drkit.experiments import Cell, Sweep
from drkit.recipe.toml import write_recipe
from tests.refusals import says, unknown

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
        assert ("p" in row) == (row["system"] != "bm25")


def test_a_sweep_shares_stages_and_tests_each_cell_against_the_first(beir, tmp_path):
    stages = Stages()
    choices = {"pipeline": "dpr", "paper": "retromae", "collection": beir, **TINY, "pretrain.max_steps": [1, 3]}
    swept = drkit.sweep(seeds=(1, 2), folder=tmp_path, progress=lambda _: nullcontext(stages), **choices)
    assert [cell.choices for cell in swept.cells] == [{"pretrain.max_steps": steps} for steps in (1, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"sweep-{steps}-{seed}" for steps in (1, 3) for seed in (1, 2)
    }
    assert stages.begun.count("collection") == 1, "what does not depend on the axis is made once"
    assert stages.begun.count("pretrained") == 4
    rows = swept.table()
    assert len(rows) == 4
    for row in rows:
        cell = swept.cells[row["pretrain.max_steps"] == 3]
        means = [one.scores[row["system"]].mean(row["measure"]) for one in cell.runs]
        assert row["mean"] == pytest.approx(sum(means) / 2)
        assert row["deviation"] == pytest.approx(abs(means[0] - means[1]) / math.sqrt(2))
    tested = [row for row in rows if "p" in row]
    assert [row["pretrain.max_steps"] for row in tested] == [3, 3]
    one, other = (cell.scores.per_query["RR@10"] for cell in swept.cells)
    expected = paired_t_test(other, one).p
    assert tested[0]["p"] == pytest.approx(expected, nan_ok=True)
    drawn = swept.draw(tmp_path / "sweep.png")
    assert drawn.read_bytes()[:4] == b"\x89PNG"
    with unknown("measure", "nDCG@10", "RR@10", "R@5"):
        swept.draw(tmp_path / "other.png", "nDCG@10")


def test_a_heat_map_has_the_first_axis_in_rows_and_the_others_in_columns(tmp_path, monkeypatch):
    def cell(value, **choices):
        scores = Scores({"RR@10": {"q1": value}})
        run = SimpleNamespace(compared="it", scores={"it": scores}, recipe=SimpleNamespace(seed=7))
        return Cell(choices, (run,))

    drawn = []
    monkeypatch.setattr(experiments, "draw_heat_map", lambda chart, path: drawn.append(chart) or path)
    two = [cell(0.1 * n, masker=m, decoder=d) for n, (m, d) in enumerate(product("up", "em"))]
    assert Sweep(tuple(two)).draw(tmp_path / "two.png") == tmp_path / "two.png"
    Sweep(tuple(two[:2])).draw(tmp_path / "one.png", "RR@10")
    Sweep((cell(0.5, masker="u"), cell(0.6, masker="p"))).draw(tmp_path / "seeds.png")
    first, _, seeds = drawn
    assert (first.title, first.y, first.x, first.rows, first.columns) == (
        "RR@10", "masker", "decoder", ["u", "p"], ["e", "m"],
    )  # fmt: skip
    assert first.values == [[0.0, 0.1], [0.2, pytest.approx(0.3)]]
    assert (seeds.x, seeds.rows, seeds.columns, seeds.values) == ("seed", ["u", "p"], ["7"], [[0.5], [0.6]])


def test_what_cannot_be_is_refused_before_a_run(beir, tmp_path):
    with pytest.raises(ProblemsError, match=r"'max_stebs'.*'max_steps'.*@ pretrain"):
        drkit.compose(collection=beir, **{"pretrain.max_stebs": 1})
    with pytest.raises(DrkitError, match=r"masker=\['uniform', 'pmi'\].*seed"):
        drkit.sweep(masker="pmi", folder=tmp_path)
    with pytest.raises(DrkitError, match=r"'pmii'.*'pmi'"):
        drkit.sweep(masker=["uniform", "pmii"], collection=beir, folder=tmp_path)
    axis = {"masker": ["uniform", "pmi"], "folder": tmp_path / "runs"}
    for wrong, said in (
        ({"seed": 3}, r"`seeds` \(--seeds 1,2,3\).*'seed'"),
        ({"seeds": (1, 1)}, "two runs .*same name"),
        ({"masker": ["pmi", "pmi"]}, "two runs .*same name"),
        (
            {"collection": f"jsonl:{beir.partition(':')[2]}/corpus.jsonl", "pipeline": None},
            "uniform-42: .*'test'",
        ),
    ):
        with pytest.raises(DrkitError, match=said):
            drkit.sweep(**{"paper": "retromae", "pipeline": "dpr", "collection": beir, **TINY, **axis, **wrong})
    recipe = drkit.compose(paper="retromae", pipeline="dpr", collection=beir, **TINY)
    with pytest.raises(DrkitError, match=r"--reuse .*: .*recipe\.toml"):
        drkit.run(recipe, tmp_path / "run", reuse=[tmp_path])
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_table_of_the_same_runs(beir, tmp_path, run_drkit):
    settings = [f"{path}={json.dumps(value)}" for path, value in {**TINY, "evaluation.measures": ["RR@10"]}.items()]
    options = [argument for text in settings for argument in ("--set", text)]
    chosen = ("--paper", "retromae", "--pipeline", "dpr", "--collection", beir, "--runs", tmp_path, *options)
    code, out, err = run_drkit("sweep", "masker=uniform,pmi", "--seeds", "1,2", *chosen)
    assert code == 0, err
    header, first, second = (line.split() for line in out.strip().splitlines())
    assert header == ["masker", "system", "RR@10"]
    assert (first[0], second[0]) == ("uniform", "pmi")
    assert first[3] == second[3] == "\u00b1"
    code, out, err = run_drkit("sweep", "masker=uniform,pmi", "--seeds", "1,2", *chosen, "--json", "-q")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [f"{row['mean']:.3f}" for row in rows] == [first[2], second[2]]
    for wrong, said in (("masker", "'masker'"), ("masker=", "'masker='")):
        code, _, err = run_drkit("sweep", wrong)
        assert code == 2
        assert said in err
    code, _, err = run_drkit("sweep", "masker=pmi", "--seeds", "one")
    assert code == 2
    assert says(err, "--seeds", "one")
