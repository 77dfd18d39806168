"""The page about stages of your own, followed: killed in the LLM, resumed, edited, and what is then stale."""

import json
import re
import signal
from pathlib import Path

import pytest

from drkit.core.registry import installed
from drkit.runs.manifest import read_manifest
from drkit.testing import check_queries, check_stage
from tests.plugins.packages import forget, path_with, write_package
from tests.runs.conftest import drkit

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "your-own-stage.md"
FILES = dict(re.findall(r"`(lab[\w.]*)`:\n```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
# Counts the calls of the LLM; the process is killed at one of them.
COUNTED = """
import os
import pathlib
import signal

def count():
    path = pathlib.Path(os.environ["CALLS"])
    calls = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(calls))
    if calls == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)

"""
SETTINGS = (
    *("encoder.vocab_size=300", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32", "encoder.layers=1"),
    *("encoder.passage_length=40", "finetune.max_steps=3", "finetune.batch_size=4", "finetune.baselines=[]"),
    *("pretrain=none", "evaluation.start=false", "pseudo_queries.passages=60", "collection.limit=60"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page's plugin is installed."""
    site = tmp_path_factory.mktemp("site")
    write_package(site, "lab", FILES["lab.py"], head="")
    (site / "lab.toml").write_text(FILES["lab.toml"])
    code = FILES["lab_llm.py"]
    assert code.count("    return 8.0 *") == 1
    (site / "lab_llm.py").write_text(COUNTED + code.replace("    return 8.0 *", "    count()\n    return 8.0 *"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", path_with(site))
        patch.setenv("CALLS", str(site / "calls"))
        patch.setenv("KILL_AT", "0")
        installed.cache_clear()
        yield site
        forget(site)
    installed.cache_clear()


def test_the_plugin_has_fewer_than_80_lines():
    assert {*FILES} == {"lab.py", "lab_llm.py", "lab.toml"}
    assert sum(bool(line.strip()) for text in FILES.values() for line in text.splitlines()) < 80


def test_its_parts_keep_their_contracts(site):
    check_queries("ask")
    assert {*check_stage("judge")} == {"scores.jsonl", "run.trec"}


def composed(run, *further, kill_at=0):
    options = ("compose", "--pipeline", "lab", "--collection", "pydocs", "--run-dir", run, "--no-trial")
    return drkit(*options, *(f"--set={one}" for one in (*SETTINGS, *further)), check=False, KILL_AT=str(kill_at))


def test_the_page_is_killed_resumed_and_edited(site, tmp_path):
    run, calls = tmp_path / "run", site / "calls"
    killed = composed(run, kill_at=150)
    assert killed.returncode == -signal.SIGKILL
    assert not (run / "judge").exists()
    assert (run / "asked" / "model.safetensors").is_file()
    assert "resumed" in drkit("status", run).stdout
    calls.unlink()
    done = composed(run)
    assert done.returncode == 0, done.stderr
    pairs = read_manifest(run / "judge").metrics["pairs"]
    assert pairs - 150 <= int(calls.read_text()) <= pairs - 150 + 16 * 6
    whole = composed(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    for stage in ("pseudo-queries", "judge", "negatives-taught", "teacher-taught"):
        assert read_manifest(run / stage).content() == read_manifest(tmp_path / "whole" / stage).content()
    assert (run / "taught/model.safetensors").read_bytes() == (tmp_path / "whole/taught/model.safetensors").read_bytes()
    scores = [json.loads(line) for line in (run / "judge" / "scores.jsonl").read_text().splitlines()]
    assert len(scores) == pairs
    (site / "lab_llm.py").write_text((site / "lab_llm.py").read_text() + "\n# edited\n")
    status = json.loads(drkit("status", run, "--json").stdout)
    reasons = {one["stage"]: json.dumps(one) for one in status["stages"]}
    for stage in ("pseudo-queries", "judge"):
        assert "lab_llm.py changed" in reasons[stage]
    assert "lab_llm.py" not in reasons["asked"]
