"""The engine of stages: skip what stands, finish by one rename, lose nothing when cut off."""

import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from attrs import evolve

from drkit.core.discovery import installed
from drkit.core.layers import Wanted, compose
from drkit.errors import DrkitError
from drkit.runs.execute import execute
from drkit.runs.folders import UNFINISHED
from drkit.runs.manifest import read_manifest
from drkit.runs.progress import Silent
from drkit.runs.stage import Stage

PARTS = installed()
RECIPE = compose(Wanted(), PARTS)
HERE = "tests.runs.test_execute"
CALLS = []


def write(stage):
    """A stage: copies its inputs' texts and adds its own setting."""
    CALLS.append(stage.stage.name)
    texts = [(path / "out.txt").read_text() for path in stage.inputs.values()]
    (stage.folder / "out.txt").write_text("+".join([*texts, str(stage.stage.settings["value"])]))
    return {"inputs": len(texts)}


def fail(stage):
    (stage.folder / "half.txt").write_text("half")
    raise stage.stage.settings["error"]


def count_up(stage):
    """A resumable stage that is killed after each of its three steps."""
    path = stage.folder / "steps.txt"
    done = int(path.read_text()) if path.exists() else 0
    path.write_text(str(done + 1))
    if done + 1 < 3:
        raise KeyboardInterrupt
    return {"steps": done + 1}


def linger(stage):
    (stage.folder / "half.txt").write_text("half")
    time.sleep(60)
    return {}


def chain(a=1, b=2, c=3):
    return (
        Stage("a", f"{HERE}:write", "first", settings={"value": a}),
        Stage("b", f"{HERE}:write", "second", needs=("a",), settings={"value": b}),
        Stage("c", f"{HERE}:write", "third", needs=("a", "b"), settings={"value": c}),
    )


def go(stages, run, recipe=RECIPE, **options):
    CALLS.clear()
    return execute(stages, run, recipe, registry=PARTS.registry, progress=Silent(), **options)


def test_a_run_then_nothing_to_do(tmp_path):
    done = go(chain(), tmp_path / "run")
    assert (tmp_path / "run/c/out.txt").read_text() == "1+1+2+3"
    assert CALLS == ["a", "b", "c"]
    assert done["c"].inputs == {"a": done["a"].content, "b": done["b"].content}
    assert go(chain(), tmp_path / "run") == done
    assert CALLS == []
    assert not (tmp_path / "run" / UNFINISHED).exists()


def test_a_changed_stage_takes_along_what_reads_it_and_no_more(tmp_path):
    go(chain(), tmp_path / "run")
    go(chain(b=20), tmp_path / "run")
    assert CALLS == ["b", "c"]
    assert (tmp_path / "run/c/out.txt").read_text() == "1+1+20+3"


def test_the_same_content_made_again_changes_nothing_behind_it(tmp_path):
    go(chain(), tmp_path / "run")
    (tmp_path / "run/a/out.txt").unlink()
    go(chain(), tmp_path / "run")
    assert CALLS == ["a"]


@pytest.mark.parametrize("harm", ["truncate", "manifest", "no manifest"])
def test_a_damaged_stage_is_made_again(tmp_path, harm):
    go(chain(), tmp_path / "run")
    if harm == "truncate":
        (tmp_path / "run/b/out.txt").write_text("")
    elif harm == "manifest":
        (tmp_path / "run/b/manifest.json").write_text("{")
    else:
        (tmp_path / "run/b/manifest.json").unlink()
    go(chain(), tmp_path / "run")
    assert CALLS == ["b"]


def test_a_failed_stage_leaves_no_folder_and_keeps_the_others(tmp_path):
    broken = Stage("b", f"{HERE}:fail", "fails", needs=("a",), settings={"error": RuntimeError("bug")})
    with pytest.raises(RuntimeError, match="bug"):
        go((chain()[0], broken), tmp_path / "run")
    assert not (tmp_path / "run/b").exists()
    go(chain(), tmp_path / "run")
    assert CALLS == ["b", "c"]
    assert not list((tmp_path / "run").rglob("half.txt"))


def test_a_full_disk_is_told_in_words(tmp_path):
    full = Stage("a", f"{HERE}:fail", "fails", settings={"error": OSError(errno.ENOSPC, "No space left on device")})
    with pytest.raises(DrkitError, match=r"disk is full .* in stage a.*drkit run"):
        go((full,), tmp_path / "run")


def test_a_resumable_stage_goes_on(tmp_path):
    stage = Stage("a", f"{HERE}:count_up", "counts", resumable=True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go((stage,), tmp_path / "run")
    assert go((stage,), tmp_path / "run")["a"].metrics == {"steps": 3}
    changed = evolve(stage, settings={"other": 1})
    with pytest.raises(KeyboardInterrupt):
        go((changed,), tmp_path / "run")
    assert (tmp_path / "run/a/steps.txt").read_text() == "3", "what stood is kept until the new one is whole"


@pytest.mark.parametrize("moment", ["rmtree", "rename"])
def test_a_kill_before_the_rename_loses_nothing(tmp_path, monkeypatch, moment):
    """The stage's manifest is written: whatever comes between it and the rename, the work is not done again."""

    def cut_off(*_arguments, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if moment == "rename":
            patched.setattr(Path, "rename", cut_off)
        else:
            patched.setattr("drkit.runs.execute.publish", cut_off)
        with pytest.raises(KeyboardInterrupt):
            go(chain(), tmp_path / "run")
    assert CALLS == ["a"]
    done = go(chain(), tmp_path / "run")
    assert CALLS == ["b", "c"]
    assert set(done["a"].files) == {"out.txt"}
    assert sorted(p.name for p in (tmp_path / "run/a").iterdir()) == ["manifest.json", "out.txt"]


def test_another_recipe_is_refused_and_redone_when_asked(tmp_path):
    go(chain(), tmp_path / "run")
    other = compose(Wanted(settings=("seed=7",)), PARTS)
    with pytest.raises(DrkitError, match=r"seed: 42 -> 7[\s\S]*--redo"):
        go(chain(), tmp_path / "run", other)
    go(chain(), tmp_path / "run", other, redo=True)
    assert "seed = 7" in (tmp_path / "run/recipe.toml").read_text()


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DrkitError, match="not empty and holds no run"):
        go(chain(), tmp_path)


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(DrkitError, match="cannot write"):
        go(chain(), tmp_path / "run")


def _linger(run):
    execute((Stage("a", f"{HERE}:linger", "waits"),), run, RECIPE, registry=PARTS.registry, progress=Silent())


def test_a_kill_leaves_nothing_half_done_and_frees_the_run(tmp_path):
    run = Path(tmp_path / "run")
    worker = multiprocessing.get_context("spawn").Process(target=_linger, args=(run,))
    worker.start()
    half = run / UNFINISHED / "a" / "half.txt"
    deadline = time.monotonic() + 30
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(DrkitError, match="another process is working"):
        go(chain(), run)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert read_manifest(run / "a") is None
    go(chain(), run)
    assert (run / "c/out.txt").read_text() == "1+1+2+3"
    assert not list(run.rglob("half.txt"))


def test_equal_stages_of_another_run_are_taken_over_and_others_made(tmp_path):
    go(chain(), tmp_path / "one")
    CALLS.clear()
    go(chain(b=7), tmp_path / "two", reuse=[tmp_path / "nowhere", tmp_path / "one"])
    assert CALLS == ["b", "c"]
    assert (tmp_path / "two/a/out.txt").samefile(tmp_path / "one/a/out.txt")
    assert (tmp_path / "two/c/out.txt").read_text() == "1+1+7+3"
    go(chain(a=9), tmp_path / "two", redo=True)
    assert (tmp_path / "one/a/out.txt").read_text() == "1", "the other run's files are its own"
