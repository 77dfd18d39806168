"""The report: what it shows is what was logged; without probes or queries there is one too."""

import json

import pytest

from drkit.charts import Line, Panel, draw
from drkit.core.files import read_log
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.report import Figure, Heading, Table, Text, loss_panels, markdown, probe_panels
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from tests.warm import warm_process

PARTS = installed()
PNG = b"\x89PNG\r\n\x1a\n"
SETTINGS = (
    *("encoder.vocab_size=100", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=32", "pretrain.max_steps=6", "pretrain.logging_steps=2"),
    *("pretrain.per_device_train_batch_size=4",),
)


@pytest.fixture(autouse=True)
def pictures(monkeypatch):
    """Draw the pictures that runs of other tests leave empty."""
    monkeypatch.setattr("drkit.runs.steps.report.draw", draw)


def test_loss_panels_show_every_term_and_every_training():
    log = [{"step": step, "loss": 3.0, "encoder_loss": 2.0 + step, "decoder_loss": 1.0, "lr": 1.0} for step in (5, 10)]
    probes = [{"step": 0, "encoder_loss": 9.0, "gain": 0.1}]
    panels = loss_panels({"pretrained": log, "a": [{"step": 1, "loss": 0.5}], "b": []}, probes)
    encoder, decoder, tuned = panels
    assert [line.points for line in encoder.lines] == [[(5, 7.0), (10, 12.0)], [(0, 9.0)]]
    assert [line.points for line in decoder.lines] == [[(5, 1.0), (10, 1.0)], []]
    assert [(line.label, line.points) for line in tuned.lines] == [("a", [(1, 0.5)]), ("b", [])]


def test_probe_panels_show_what_was_measured_and_no_more():
    accuracy, gain, spread, found = probe_panels([{"step": 0, "encoder_accuracy": 0.25}, {"step": 5, "gain": 0.5}])
    assert [line.points for line in accuracy.lines] == [[(0, 25.0)]]
    assert gain.lines[0].points == [(5, 0.5)]
    assert not any(line.points for line in (*spread.lines, *found.lines))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_same_curves_give_the_same_file(tmp_path, count):
    lines = [Line("one", [(0, 1.0), (10, 1.0)]), Line("two", [(0, 1.0), (10, 1.001)]), Line("none", [])]
    panels = [Panel(f"Panel {index}", "nats", lines, floor=index % 2 == 0) for index in range(count)]
    one, two = (draw([*panels, Panel("empty", "", [])], tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert one == two
    assert one.startswith(PNG)
    width, height = int.from_bytes(one[16:20], "big"), int.from_bytes(one[20:24], "big")
    columns = {1: 1.5, 3: 3, 5: 2}[count]  # a single one is wider
    assert width / columns == pytest.approx(495, abs=2)
    assert height / -(-count // columns) == pytest.approx(330, abs=2), "a panel without a point takes no room"


def test_a_document_is_markdown(tmp_path):
    blocks = [
        Heading("A <b> run", 1),
        Text("x < y & z"),
        Table(["s", "v"], [["a", "1"]]),
        Figure(tmp_path / "f.png", "c"),
    ]
    assert markdown(blocks) == "# A &lt;b> run\n\nx < y & z\n\n| s | v |\n|---|---:|\n| a | 1 |\n\n![c](f.png)\n"


@pytest.mark.parametrize("every", [0, 3])
def test_a_run_of_texts_alone_ends_with_a_report(tmp_path, every):
    rows = [
        json.dumps({"text": f"{a} is a word about {b}s and {a}s"})
        for a in ["lion", "tiger", "bear", "wolf"]
        for b in ["owl", "carp", "pike", "trout", "hare", "crow", "deer", "fox"]
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    settings = (*SETTINGS, "finetune=none", f"pretrain.probe.every={every}")
    wanted = ComposeRequest(
        masker="uniform", decoder="mlm", collection=f"jsonl:{tmp_path / 'texts.jsonl'}", settings=settings
    )
    recipe = compose(wanted, PARTS)
    stages = plan(recipe, PARTS.registry).stages
    assert stages[-1].name == "report"
    run = tmp_path / "run"
    execute(stages, run, recipe, registry=PARTS.registry, progress=Silent())
    text = (run / "report" / "report.md").read_text()
    assert recipe.name in text
    assert "| pretrained | 6 |" in text
    assert (run / "report/losses.png").read_bytes().startswith(PNG)
    assert "Results" not in text
    assert text.count("![") == (2 if every else 1)
    if every:
        for record in read_log(run / "pretrained/probes.jsonl"):
            assert f"| {record['step']} |" in text
            assert f"{record['gain']:.3f}" in text
        assert "RR@10" not in text, "the collection has no queries"
    else:
        assert "Is pre-training working?" not in text


def test_matplotlib_is_imported_when_something_is_drawn(tmp_path):
    """By no module of drkit that the report needs: all are imported anew."""
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "for name in [*sys.modules]:\n"
        "    if name.partition('.')[0] in ('drkit', 'matplotlib'):\n"
        "        del sys.modules[name]\n"
        "import drkit.runs.steps.report\n"
        "print('matplotlib' in sys.modules)"
    )
    done = warm_process().drkit(script=tmp_path / "script.py")
    assert done["out"].strip() == "False", done["err"]


def test_a_learning_curve_starts_before_fine_tuning(beir, tmp_path):
    start = {"scratch": ", start='initial'", "retriever": ""}
    some = [f"{{name='{kind}-4'{start[kind]}, queries=4, draws=2}}" for kind in start]
    everything = [f"{{name='{kind}-all'{start[kind]}}}" for kind in start]
    settings = (
        *SETTINGS,
        f"finetune.rounds=[{', '.join([*some, *everything])}]",
        "finetune.max_steps=2",
        "finetune.per_device_train_batch_size=4",
        "evaluation.pretrained=true",
    )
    request = ComposeRequest(masker="uniform", decoder="enhanced", collection=f"beir:{beir}", settings=settings)
    recipe = compose(request, PARTS)
    execute(plan(recipe, PARTS.registry).stages, tmp_path / "run", recipe, registry=PARTS.registry, progress=Silent())
    report = (tmp_path / "run" / "report" / "report.md").read_text()
    assert "## Learning curve" in report
    assert (tmp_path / "run" / "report" / "learning-curve.png").read_bytes().startswith(PNG)
    sizes = {
        name: json.loads((tmp_path / "run" / name / "training.json").read_text())["examples"]
        for name in ("scratch-4-draw-1", "retriever-4-draw-2", "scratch-all", "retriever-all")
    }
    assert (
        sizes["scratch-4-draw-1"] == sizes["retriever-4-draw-2"] == 4 < sizes["scratch-all"] == sizes["retriever-all"]
    )
