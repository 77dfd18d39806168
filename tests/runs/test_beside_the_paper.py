"""A run that reproduces a row shows the paper's values beside its own: `drkit evaluate`, its JSON, and the report."""

from __future__ import annotations

import json
import shutil

import pytest

from drkit.core.registry import installed
from drkit.recipe import published
from drkit_cli.main import _status
from drkit_report.page import ReportOptions, report_page
from tests.runs.conftest import drkit

ROW = "simlm: tables 2, 4 and 6; tables 7 and 13, first column and row; table 8, 30/50; table 10, MS-MARCO"


@pytest.fixture(scope="module")
def run(tiny_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced") / "run"
    shutil.copytree(tiny_run[0], folder)
    recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
    (folder / "recipe.toml").write_text(f"reproduces = {json.dumps(ROW)}\n{recipe}", encoding="utf-8")
    return folder


def test_values_of_the_paper_stand_beside_those_of_the_run(run, monkeypatch, capsys):
    monkeypatch.setattr(published, "place_of", lambda _recipe: ("msmarco-passage", "dev"))
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
    monkeypatch.setattr(published, "place_of", lambda _recipe: ("msmarco-passage", "dev"))
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
