"""Curves of a report: what they show is what was logged and measured."""

import json

from drkit.commands.records import open_run
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit_report.charts import loss_panels, probe_panels
from drkit_report.comparison import curves_of_systems

PARTS = installed()
SETTINGS = (
    *("encoder.vocab_size=100", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=32", "pretrain.max_steps=6", "pretrain.logging_steps=2"),
    *("pretrain.per_device_train_batch_size=4",),
)


def test_loss_panels_show_every_term_and_every_training():
    log = [{"step": step, "loss": 3.0, "encoder_loss": 2.0 + step, "decoder_loss": 1.0, "lr": 1.0} for step in (5, 10)]
    probes = [{"step": 0, "encoder_loss": 9.0, "gain": 0.1}]
    trainings = {"pretrained": log, "a": [{"step": 1, "loss": 0.5}], "b": []}
    panels = loss_panels(trainings, {"pretrained": probes})
    encoder, decoder, tuned = panels
    assert [line.points for line in encoder.lines] == [[(5, 7.0), (10, 12.0)], [(0, 9.0)]]
    assert [line.points for line in decoder.lines] == [[(5, 1.0), (10, 1.0)]]
    assert [(line.label, line.points) for line in tuned.lines] == [("a", [(1, 0.5)]), ("b", [])]


def test_probe_panels_show_what_was_measured_and_no_more():
    accuracy, gain, spread, found = probe_panels(
        {"pretrained": [{"step": 0, "encoder_accuracy": 0.25}, {"step": 5, "gain": 0.5}]}
    )
    assert [line.points for line in accuracy.lines] == [[(0, 25.0)]]
    assert gain.lines[0].points == [(5, 0.5)]
    assert not any(line.points for line in (*spread.lines, *found.lines))


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
        "evaluation.start=true",
    )
    request = ComposeRequest(masker="uniform", decoder="enhanced", collection=f"beir:{beir}", settings=settings)
    recipe = compose(request, PARTS)
    execute(plan(recipe, PARTS.registry).stages, tmp_path / "run", recipe, registry=PARTS.registry, progress=Silent())
    (curve,) = curves_of_systems(open_run(tmp_path / "run", PARTS))
    assert "labelled queries" in curve.title
    sizes = {
        name: json.loads((tmp_path / "run" / name / "training.json").read_text())["examples"]
        for name in ("scratch-4-draw-1", "retriever-4-draw-2", "scratch-all", "retriever-all")
    }
    assert (
        sizes["scratch-4-draw-1"] == sizes["retriever-4-draw-2"] == 4 < sizes["scratch-all"] == sizes["retriever-all"]
    )
    lines = {line.label: [queries for queries, _ in line.points] for line in curve.drawing.lines}
    assert lines == {name: [0, 4, sizes["scratch-all"]] for name in ("without pre-training", "pre-trained")}
