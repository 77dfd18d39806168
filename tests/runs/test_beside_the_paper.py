"""A run that reproduces a row shows the paper's values beside its own: `drkit evaluate`, its JSON, and the report."""

from __future__ import annotations

import json
import shutil

import attrs
import pytest

from drkit.core.registry import installed
from drkit.recipe import published
from drkit.runs.manifest import load_manifest, write_manifest
from drkit_cli.main import _status
from drkit_report.page import ReportOptions, report_page
from tests.runs.conftest import drkit
from tests.runs.test_beir import write_data_set
from tests.runs.test_probes import Topics

ROW = (
    "simlm: tables 2, 4 and 6; table 5, ELECTRA; tables 7 and 13, first column and row; table 8, 30/50; "
    "table 10, MS-MARCO"
)


@pytest.fixture(scope="module")
def run(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced") / "run"
    shutil.copytree(tiny_run[0], folder)
    recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
    (folder / "recipe.toml").write_text(f"reproduces = {json.dumps(ROW)}\n{recipe}", encoding="utf-8")
    return folder


def test_values_of_the_paper_stand_beside_those_of_the_run(run, monkeypatch, capsys):
    monkeypatch.setattr(published, "place_of", lambda *_: ("msmarco-passage", "dev"))
    monkeypatch.setattr("sys.argv", ["drkit", "evaluate", str(run), "--json"])
    assert _status() == 0
    shown = json.loads(capsys.readouterr().out)
    means = {row["system"]: row["values"] for row in shown["rows"]}
    found = {(one["system"], one["measure"]): one for one in shown["paper"]}
    assert found["bm25", "RR@10"]["paper"] == 0.185
    assert found["retriever-1", "RR@10"]["paper"] == 0.38
    for (system, measure), one in found.items():
        assert one["here"] == means[system][measure]
        assert one["difference"] == pytest.approx(one["here"] - one["paper"])
    monkeypatch.setattr("sys.argv", ["drkit", "evaluate", str(run)])
    assert _status() == 0
    assert "beside the paper" in capsys.readouterr().out
    page = report_page([run], installed(), ReportOptions())
    assert "Beside the paper" in page
    assert f"{found['bm25', 'RR@10']['difference']:+.3f}" in page


def test_elsewhere_the_paper_says_nothing(run, tiny_run):
    """The texts are not MS MARCO; and a run that reproduces no row has no paper."""
    for folder in (run, tiny_run[0]):
        assert "paper" not in json.loads(drkit("evaluate", folder, "--json").stdout)
        assert "Beside the paper" not in report_page([folder], installed(), ReportOptions())


def test_a_row_that_is_not_known_any_more_takes_nothing_away(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(published, "place_of", lambda *_: ("msmarco-passage", "dev"))
    renamed = shutil.copytree(run, tmp_path / "run")
    text = (renamed / "recipe.toml").read_text(encoding="utf-8").replace(ROW, "simlm: table 99")
    (renamed / "recipe.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["drkit", "evaluate", str(renamed), "--json"])
    assert _status() == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["rows"]
    assert "nothing beside the paper" in shown.err
    assert "table 99" in shown.err
    assert "Beside the paper" not in report_page([renamed], installed(), ReportOptions())


def test_a_folder_of_beir_is_the_papers_by_its_name_and_both_sizes(run, tmp_path, monkeypatch, capsys):
    beir = tmp_path / "beir"
    for name in ("scifact", "nfcorpus", "mine"):
        write_data_set(beir / name)
    made = shutil.copytree(run, tmp_path / "run")
    text = (made / "recipe.toml").read_text(encoding="utf-8").replace(ROW, "retromae: table 1, RetroMAE")
    (made / "recipe.toml").write_text(text, encoding="utf-8")
    exported = load_manifest(made / "encoder")  # as if dev queries had chosen the retriever
    write_manifest(attrs.evolve(exported, metrics={**exported.metrics, "from": "retriever-1"}), made / "encoder")
    given = ["--encoder", str(made), "--beir", str(beir), "-o", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr("sys.argv", ["drkit", "evaluate", *given])
    assert _status() == 0
    assert "paper" not in json.loads(capsys.readouterr().out), "sizes are others"
    asked = {one.query_id for one in Topics().judgements("test")}
    size = (1 + sum(1 for _ in Topics().passages()), len(asked))
    monkeypatch.setitem(published.BEIR_SIZES, "scifact", size)
    monkeypatch.setitem(published.BEIR_SIZES, "nfcorpus", (size[0], size[1] + 1))
    assert _status() == 0
    shown = json.loads(capsys.readouterr().out)
    (found,) = shown["paper"]
    assert (found["system"], found["measure"], found["paper"], found["table"]) == (
        "scifact",
        "nDCG@10",
        0.653,
        "table 1",
    )
    assert found["here"] == shown["data_sets"]["scifact"]["nDCG@10"]
    monkeypatch.setattr("sys.argv", ["drkit", "evaluate", *given[:-1]])
    assert _status() == 0
    assert "beside the paper" in capsys.readouterr().out
