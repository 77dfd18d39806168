"""The engine of stages: skip what stands, finish by one rename, lose nothing when cut off."""

import errno
import json
import multiprocessing
import os
import signal
import time
from inspect import signature
from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from drkit.core.files import CHECKPOINTS, file_hash, replacing, write_text
from drkit.core.plugin_code import PluginCode
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.spec import resolve
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import read_recipe
from drkit.runs.execute import UNFINISHED, execute, publish
from drkit.runs.manifest import PACKAGES, read_manifest, write_manifest
from drkit.runs.plan import plan
from drkit.runs.stage import Stage, StageOutput, StageSpec
from drkit.runs.stages import declared_stages
from drkit.runs.survey import State, survey
from drkit.train.resuming import complete_checkpoint

PARTS = installed()
RECIPE = compose(ComposeRequest(), PARTS)
CALLS = []
# What the next calls of `write_version` write.
VERSIONS = []


@frozen
class Toy:
    """Settings of the toy stages; note: changes no result."""

    value: int = 0
    note: str = field(default="", metadata={"observes": True})


@frozen
class Failing:
    """Settings of the stage that fails: how."""

    error: Exception


def write(stage):
    """A stage: copies its inputs' texts and adds its own setting; its log tells how often it was called."""
    CALLS.append(stage.name)
    texts = [(path / "out.txt" if path.is_dir() else path).read_text() for path in stage.inputs.values()]
    (stage.folder / "out.txt").write_text("+".join([*texts, str(stage.settings.value)]))
    (stage.folder / "log.jsonl").write_text(stage.settings.note)
    return {"inputs": len(texts)}


def fail(stage):
    (stage.folder / "half.txt").write_text("half")
    raise stage.settings.error


def count_up(stage):
    """A resumable stage that is killed after each of its three steps."""
    path = stage.folder / "steps.txt"
    done = int(path.read_text()) if path.exists() else 0
    path.write_text(str(done + 1))
    checkpoint = stage.folder / "checkpoints" / f"checkpoint-{done + 1}"
    checkpoint.mkdir(parents=True)
    complete_checkpoint(checkpoint)
    if done + 1 < 3:
        raise KeyboardInterrupt
    return {"steps": done + 1}


def linger(stage):
    (stage.folder / "half.txt").write_text("half")
    time.sleep(60)
    return {}


WRITE = StageSpec("write", 1, Toy, f"{__name__}:write", inputs={"from/*": "what is copied"}, records=("log.jsonl",))
FAIL = StageSpec("fail", 1, Failing, f"{__name__}:fail", inputs={"from/*": "what it does not get to"})
COUNT_UP = StageSpec("count-up", 1, Toy, f"{__name__}:count_up", resumable=True)


def killed_while_writing(stage):
    """A resumable stage that is killed within an atomic write, as the kernel kills: nothing is cleaned up."""
    if (stage.folder / "begun").exists():
        write_text(stage.folder / "out.txt", "whole")
        return {}
    (stage.folder / "begun").touch()
    (stage.folder / ".tmp9bQw2j").touch()  # as safetensors leaves it
    with replacing(stage.folder / "out.txt") as temporary:
        temporary.write_text("half")
        os._exit(1)


KILLED = StageSpec("killed", 1, Toy, f"{__name__}:killed_while_writing", resumable=True)
LINGER = StageSpec("linger", 1, Toy, f"{__name__}:linger")


def of(*parts):
    """Inputs: each part under its stage's name."""
    return {f"from/{part.stage}": part for part in parts}


def chain(a=1, b=2, c=3):
    return (
        Stage("a", WRITE, Toy(a), "first"),
        Stage("b", WRITE, Toy(b), "second", of(StageOutput("a"))),
        Stage("c", WRITE, Toy(c), "third", of(StageOutput("a"), StageOutput("b"))),
    )


class Begun(Silent):
    """Keeps why each stage was begun."""

    def __init__(self):
        self.reasons = {}

    def begin(self, stage, summary, reason=""):
        self.reasons[stage] = reason


def go(stages, run, recipe=RECIPE, progress=None, **options):
    CALLS.clear()
    return execute(stages, run, recipe, registry=PARTS.registry, progress=progress or Silent(), **options)


# How `survey` begins: a stage runs again for a reason, or goes on from a step.
AGAIN, RESUMED = "again because ", "resumed from step "


def reasons(stages, run):
    """What changed for the stages that were begun, by name; those that were kept are missing."""
    progress = Begun()
    go(stages, run, progress=progress)
    return {name: reason.removeprefix(AGAIN) for name, reason in progress.reasons.items()}


def found(stages, run, **options):
    """What `survey` says of every stage."""
    return {one.stage.name: one.summary.removeprefix(AGAIN) for one in survey(stages, run, **options)}


@pytest.mark.parametrize("spec", declared_stages(), ids=lambda spec: spec.name)
def test_the_function_of_a_stage_takes_the_settings_that_it_declares(spec):
    (given,) = signature(resolve(spec.run)).parameters.values()
    assert given.annotation == f"StageRun[{spec.settings.__name__}]"


def test_a_run_then_nothing_to_do(tmp_path):
    done = go(chain(), tmp_path / "run")
    assert (tmp_path / "run/c/out.txt").read_text() == "1+1+2+3"
    assert CALLS == ["a", "b", "c"]
    assert done["c"].inputs == {"from/a": done["a"].content(), "from/b": done["b"].content()}
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


def pruned(stage):
    """Remove the output of a finished stage as `drkit prune` does."""
    manifest = read_manifest(stage)
    write_manifest(evolve(manifest, pruned=("out.txt",)), stage)
    (stage / "out.txt").unlink()
    return manifest.content()


def line(c=3):
    """Three stages, each of which reads the one before."""
    a, b = (chain()[0], chain()[1])
    return (a, b, Stage("c", WRITE, Toy(c), "third", of(StageOutput("b"))))


def test_a_pruned_stage_stays_finished_until_a_stage_reads_its_files(tmp_path):
    run = tmp_path / "run"
    go(line(), run)
    contents = {name: pruned(run / name) for name in "ab"}
    assert found(line(), run)["b"] == "pruned, 1 file removed by `drkit prune`"
    assert [one.is_finished for one in survey(line(), run, verify=True)] == [True, True, True]
    assert reasons(line(), run) == {}
    d = Stage("d", WRITE, Toy(4), "reads c alone", of(StageOutput("c")))
    assert reasons((*line(), d), run) == {"d": ""}, "nothing that was pruned is read"
    why = {
        "a": "its files were pruned, and b reads them",
        "b": "its files were pruned, and c reads them",
        "c": "value: 3 -> 30",
    }
    surveyed = found((*line(c=30), d), run)
    assert {name: surveyed[name] for name in why} == why
    begun = reasons((*line(c=30), d), run)
    assert {name: begun[name] for name in why} == why
    assert CALLS == ["a", "b", "c", "d"]
    assert (run / "c/out.txt").read_text() == "1+2+30"
    assert {name: read_manifest(run / name).content() for name in "ab"} == contents
    assert reasons((*line(c=30), d), run) == {}


def write_version(stage):
    """A stage that comes out different each time."""
    (stage.folder / "out.txt").write_text(VERSIONS.pop(0))
    return {}


def test_a_pruned_stage_that_comes_out_different_is_said_and_what_follows_runs_again(tmp_path):
    VERSIONS[:] = ["old", "new"]
    drifting = Stage("a", StageSpec("drifting", 1, Toy, f"{__name__}:write_version"), Toy(), "first")
    run = tmp_path / "run"
    go((drifting, *line()[1:]), run)
    pruned(run / "a")
    (run / "b/out.txt").unlink()
    with pytest.raises(DrkitError, match=r"^a .*`drkit status .*`drkit run"):
        go((drifting, *line()[1:]), run)
    assert reasons((drifting, *line()[1:]), run) == {"b": "a changed", "c": "b changed"}
    assert (run / "c/out.txt").read_text() == "new+2+3"


def test_a_failed_stage_leaves_no_folder_and_keeps_the_others(tmp_path):
    broken = Stage("b", FAIL, Failing(RuntimeError("bug")), "fails", of(StageOutput("a")))
    with pytest.raises(RuntimeError, match="bug"):
        go((chain()[0], broken), tmp_path / "run")
    assert not (tmp_path / "run/b").exists()
    go(chain(), tmp_path / "run")
    assert CALLS == ["b", "c"]
    assert not list((tmp_path / "run").rglob("half.txt"))


def test_a_full_disk_is_told_in_words(tmp_path):
    full = Stage("a", FAIL, Failing(OSError(errno.ENOSPC, "No space left on device")), "fails")
    with pytest.raises(DrkitError, match=r"full .* stage a;.*`drkit run"):
        go((full,), tmp_path / "run")


def test_a_resumable_stage_goes_on(tmp_path):
    stage = Stage("a", COUNT_UP, Toy(), "counts")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go((stage,), tmp_path / "run")
    assert go((stage,), tmp_path / "run")["a"].metrics == {"steps": 3}
    changed = evolve(stage, settings=Toy(1))
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
    assert set(done["a"].files) == {"out.txt", "log.jsonl"}
    assert sorted(p.name for p in (tmp_path / "run/a").iterdir()) == ["log.jsonl", "manifest.json", "out.txt"]


def test_another_recipe_is_refused_and_redone_when_asked(tmp_path):
    go(chain(), tmp_path / "run")
    other = compose(ComposeRequest(settings=("seed=7",)), PARTS)
    with pytest.raises(DrkitError, match=r"seed: 42 -> 7[\s\S]*--redo"):
        go(chain(), tmp_path / "run", other)
    go(chain(), tmp_path / "run", other, redo=True)
    assert "seed = 7" in (tmp_path / "run/recipe.toml").read_text()


def test_a_recipe_edited_in_place_is_another_recipe(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)
    (run / "recipe.toml").write_text((run / "recipe.toml").read_text().replace("seed = 42", "seed = 7"))
    edited = read_recipe(run / "recipe.toml", PARTS.registry)
    with pytest.raises(DrkitError, match=r"seed: 42 -> 7[\s\S]*--redo"):
        go(chain(), run, edited)
    go(chain(), run, edited, redo=True)
    go(chain(), run, edited)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DrkitError, match=r"no recipe\.toml\).*--run-dir"):
        go(chain(), tmp_path)


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(DrkitError, match="cannot write"):
        go(chain(), tmp_path / "run")


def _linger(run):
    execute((Stage("a", LINGER, Toy(), "waits"),), run, RECIPE, registry=PARTS.registry, progress=Silent())


def test_a_kill_leaves_nothing_half_done_and_frees_the_run(tmp_path):
    run = Path(tmp_path / "run")
    worker = multiprocessing.get_context("spawn").Process(target=_linger, args=(run,))
    worker.start()
    half = run / UNFINISHED / "a" / "half.txt"
    deadline = time.monotonic() + 30
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(DrkitError, match=r"another process .*/run;.*--run-dir"):
        go(chain(), run)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert read_manifest(run / "a") is None
    go(chain(), run)
    assert (run / "c/out.txt").read_text() == "1+1+2+3"
    assert not list(run.rglob("half.txt"))


def _killed(run):
    execute((Stage("killed", KILLED, Toy(), "writes"),), run, RECIPE, registry=PARTS.registry, progress=Silent())


def test_a_kill_within_an_atomic_write_leaves_no_temporary_file_in_the_finished_stage(tmp_path):
    stages = (Stage("killed", KILLED, Toy(), "writes"),)
    run = multiprocessing.get_context("spawn").Process(target=_killed, args=(tmp_path / "run",))
    run.start()
    run.join()
    assert run.exitcode == 1
    assert list((tmp_path / "run" / UNFINISHED / "killed").glob(".out.txt.*.tmp"))
    go(stages, tmp_path / "run")
    manifest = read_manifest(tmp_path / "run" / "killed")
    assert manifest is not None
    assert set(manifest.files) == {"begun", "out.txt"}
    assert not list((tmp_path / "run" / "killed").rglob(".*tmp*"))


def test_equal_stages_of_another_run_are_taken_over_and_others_made(tmp_path):
    go(chain(), tmp_path / "one")
    CALLS.clear()
    go(chain(b=7), tmp_path / "two", reuse=[tmp_path / "nowhere", tmp_path / "one"])
    assert CALLS == ["b", "c"]
    assert (tmp_path / "two/a/out.txt").samefile(tmp_path / "one/a/out.txt")
    assert (tmp_path / "two/c/out.txt").read_text() == "1+1+7+3"
    go(chain(a=9), tmp_path / "two", redo=True)
    assert (tmp_path / "one/a/out.txt").read_text() == "1", "the other run's files are its own"


# ------------------------------------------------------------------------------------------- why a stage is made again
def test_a_run_of_an_older_layout_is_refused_in_one_line(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)
    before = json.loads((run / "a/manifest.json").read_text())
    old = {key: before[key] for key in ("stage", "fingerprint", "settings", "inputs", "files", "metrics", "versions")}
    (run / "a/manifest.json").write_text(json.dumps({**old, "content": "abc"}))
    for attempt in (lambda: go(chain(), run), lambda: list(survey(chain(), run)), lambda: read_manifest(run / "a")):
        with pytest.raises(DrkitError, match=r"another version .*--run-dir.*--encoder") as error:
            attempt()
        assert "\n" not in str(error.value)
    assert CALLS == []
    assert (run / "c/out.txt").read_text() == "1+1+2+3", "nothing is touched"


@pytest.mark.parametrize(
    ("harm", "said"), [("truncated", "out.txt has 0 bytes, expected 3"), ("deleted", "out.txt is missing")]
)
def test_a_damaged_file_is_named_and_its_stage_made_again(tmp_path, harm, said):
    run = tmp_path / "run"
    go(chain(), run)
    if harm == "truncated":
        (run / "b/out.txt").write_text("")
    else:
        (run / "b/out.txt").unlink()
    expected = {"a": "kept", "b": said, "c": "b may change"}
    assert found(chain(), run) == expected
    assert reasons(chain(), run) == {"b": said}
    assert (run / "b/out.txt").read_text() == "1+2"


def test_a_changed_file_of_the_same_size_is_found_by_its_hash(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)
    (run / "b/out.txt").write_text("9+9")
    assert found(chain(), run) == {"a": "kept", "b": "kept", "c": "kept"}
    verified = found(chain(), run, verify=True)
    assert verified == {"a": "kept", "b": "out.txt was changed", "c": "b may change"}


def test_a_damaged_input_of_the_same_size_is_made_again_before_a_stage_reads_it(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)
    (run / "b/out.txt").write_text("9+9")
    progress = Begun()
    go(chain(c=4), run, redo=True, progress=progress)
    assert CALLS == ["b", "c"], "a, which c reads too, is intact"
    assert progress.reasons["b"] == f"{AGAIN}out.txt was changed, and c reads it"
    assert (run / "b/out.txt").read_text() == "1+2"
    assert (run / "c/out.txt").read_text() == "1+1+2+4"


def test_a_damaged_input_of_a_damaged_input_is_made_again_first(tmp_path):
    run = tmp_path / "run"
    go(line(), run)
    (run / "a/out.txt").write_text("9")
    (run / "b/out.txt").write_text("9+9")
    go(line(c=4), run, redo=True)
    assert CALLS == ["a", "b", "c"]
    assert (run / "c/out.txt").read_text() == "1+2+4"


def test_a_damaged_input_that_comes_out_different_is_said_before_it_is_read(tmp_path):
    run = tmp_path / "run"
    drifting = Stage("a", StageSpec("drifting", 1, Toy, f"{__name__}:write_version"), Toy(), "first")
    VERSIONS[:] = ["old", "new"]
    go((drifting, chain()[1]), run)
    (run / "a/out.txt").write_text("odl")
    with pytest.raises(DrkitError, match=r"a was made again because out\.txt was changed.* not the same as before"):
        go((drifting, chain(b=3)[1]), run, redo=True)
    assert CALLS == []
    assert (run / "b/out.txt").read_text() == "old+2"


def test_each_input_is_hashed_once_in_a_run_and_not_at_all_by_stages_that_are_kept(tmp_path, monkeypatch):
    run, hashed = tmp_path / "run", []
    monkeypatch.setattr("drkit.core.files.file_hash", lambda path: hashed.append(path.parent.name) or file_hash(path))
    go(chain(), run)
    hashed.clear()
    go(chain(), run)
    assert hashed == []
    go((*chain()[:2], evolve(chain()[2], name="d"), chain(c=4)[2]), run, redo=True)
    assert CALLS == ["d", "c"]
    assert {name: hashed.count(name) for name in ("a", "b")} == {"a": 2, "b": 2}, "out.txt and log.jsonl, each once"


def test_a_stage_of_another_run_with_changed_content_is_not_taken_over(tmp_path):
    go(chain(), tmp_path / "one")
    (tmp_path / "one/a/out.txt").write_text("9")
    notes = Noted()
    go(chain(), tmp_path / "two", reuse=[tmp_path / "one"], progress=notes)
    assert CALLS == ["a"], "b and c of the other run were made from what a was"
    assert notes.lines == [f"{tmp_path / 'one/a'} is not reused: out.txt was changed"]
    assert (tmp_path / "two/c/out.txt").read_text() == "1+1+2+3"


class Noted(Silent):
    """Keeps the notes of a run."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


def test_what_a_kill_left_before_the_rename_is_compared_before_it_is_published(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)
    (run / UNFINISHED).mkdir()
    (run / "b").rename(run / UNFINISHED / "b")
    (run / UNFINISHED / "b/out.txt").write_text("9+9")
    go(chain(), run)
    assert CALLS == ["b"]
    assert (run / "b/out.txt").read_text() == "1+2"


def test_another_version_of_a_stage_makes_it_again_and_a_moved_function_does_not(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)

    elsewhere = tuple(evolve(stage, spec=evolve(WRITE, run="another.index:write")) for stage in chain())
    assert reasons(elsewhere, run) == {}
    a, b, c = chain()
    newer = (a, evolve(b, spec=evolve(WRITE, version=2)), c)
    said = "stage: write version 1 -> write version 2"
    assert found(newer, run) == {"a": "kept", "b": said, "c": "b may change"}
    assert reasons(newer, run) == {"b": said}
    assert read_manifest(run / "b").stage_version == 2
    assert reasons(newer, run) == {}


def test_a_changed_setting_is_named_and_an_observing_one_changes_nothing(tmp_path):
    run = tmp_path / "run"
    go(chain(), run)
    a, b, c = chain()
    assert reasons((a, evolve(b, settings=Toy(2, note="other words")), c), run) == {}
    found = reasons(chain(b=20), run)
    assert found == {"b": "value: 2 -> 20", "c": "b changed"}


def test_an_observed_input_of_other_content_keeps_the_stage(tmp_path):
    def stages(watched):
        return (
            Stage("a", WRITE, Toy(watched), "first"),
            Stage("b", WRITE, Toy(2), "second", {"from/a": StageOutput("a", "out.txt", observed=True)}),
        )

    run = tmp_path / "run"
    go(stages(1), run)
    done = go(stages(9), run)
    assert CALLS == ["a"]
    assert (run / "b/out.txt").read_text() == "1+2", "as it was made"
    assert done["b"].inputs == done["b"].origins == {}
    unobserved = (stages(9)[0], evolve(stages(9)[1], inputs={"from/a": StageOutput("a", "out.txt")}))
    assert reasons(unobserved, run) == {"b": "from/a: not set -> a/out.txt"}


def test_other_records_repeat_nothing_that_reads_the_folder_and_what_reads_them(tmp_path):
    def stages(note):
        return (
            Stage("a", WRITE, Toy(1, note), "first"),
            Stage("b", WRITE, Toy(2), "reads the folder", of(StageOutput("a"))),
            Stage("c", WRITE, Toy(3), "reads the log", of(StageOutput("a", "log.jsonl"))),
        )

    run = tmp_path / "run"
    go(stages("one"), run)
    assert (run / "c/out.txt").read_text() == "one+3"
    (run / "a/out.txt").unlink()  # what makes it again, with another log
    found = reasons(stages("two"), run)
    assert found == {"a": "out.txt is missing", "c": "a/log.jsonl changed"}
    assert (run / "c/out.txt").read_text() == "two+3"


def write_two(stage):
    CALLS.append(stage.name)
    for name in ("one", "two"):
        (stage.folder / name).mkdir()
        (stage.folder / name / "out.txt").write_text(f"{name}{stage.settings.value if name == 'two' else ''}")
    return {}


def test_an_input_is_the_part_that_was_declared_and_no_more(tmp_path):
    spec = StageSpec("two", 1, Toy, f"{__name__}:write_two")

    def stages(value):
        readers = [Stage(name, WRITE, Toy(), "reads", of(StageOutput("both", name))) for name in ("one", "two")]
        return (Stage("both", spec, Toy(value), "writes"), *readers)

    run = tmp_path / "run"
    go(stages(1), run)
    assert reasons(stages(2), run) == {
        "both": "value: 1 -> 2",
        "two": "both/two changed",
    }
    with pytest.raises(DrkitError, match=r"'two' .*three; .*one/out\.txt, two/out\.txt"):
        go((stages(2)[0], Stage("x", WRITE, Toy(), "reads", of(StageOutput("both", "three")))), run)


def test_a_stage_takes_its_own_settings_and_declared_inputs_alone():
    with pytest.raises(TypeError, match="a: expected Toy, got Failing"):
        Stage("a", WRITE, Failing(RuntimeError()), "wrong settings")
    with pytest.raises(TypeError, match=r"a: count-up .*'from/b'"):
        Stage("a", COUNT_UP, Toy(), "wrong input", of(StageOutput("b")))


def test_survey_of_a_half_finished_run(tmp_path):
    """Kept, resumed from a step, to do, again because a setting changed: nothing is changed by asking."""
    run = tmp_path / "run"
    first, last = Stage("a", WRITE, Toy(1), "first"), Stage("z", WRITE, Toy(3), "last", of(StageOutput("n")))
    counting = Stage("n", COUNT_UP, Toy(), "counts")
    stages = (first, counting, last)
    assert found(stages, run) == {"a": "to do", "n": "to do", "z": "to do"}
    assert not run.exists()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go(stages, run)
    assert found(stages, run) == {"a": "kept", "n": f"{RESUMED}2", "z": "to do"}
    one, two, three = survey(stages, run)
    assert (one.state, two.state, three.state) == (State.KEPT, State.RESUMED, State.TO_DO)
    assert (one.manifest, two.step, three.manifest) == (read_manifest(run / "a"), 2, None)
    changed = (evolve(first, settings=Toy(7)), counting, last)
    assert found(changed, run) == {"a": "value: 1 -> 7", "n": f"{RESUMED}2", "z": "to do"}
    other = (first, evolve(counting, settings=Toy(5)), last)
    assert found(other, run)["n"] == "to do", "what was begun was begun for other settings"
    assert read_manifest(run / "a") is not None
    before = sorted(path for path in run.rglob("*"))
    list(survey(stages, run, verify=True))
    assert sorted(path for path in run.rglob("*")) == before


def test_a_resumed_stage_says_from_which_step(tmp_path):
    run, progress = tmp_path / "run", Begun()
    stage = Stage("n", COUNT_UP, Toy(), "counts")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go((stage,), run)
    go((stage,), run, progress=progress)
    assert progress.reasons == {"n": f"{RESUMED}2"}
    assert found((stage,), run) == {"n": "kept"}
    assert not (run / "n/checkpoints").exists()


def test_checkpoints_that_cannot_be_removed_do_not_enter_the_finished_stage(tmp_path, monkeypatch):
    attempt, final = tmp_path / "attempt", tmp_path / "stage"
    (attempt / CHECKPOINTS).mkdir(parents=True)
    (attempt / CHECKPOINTS / "rng_state.pth").touch()

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(OSError, match="Input/output"):
            publish(attempt, final)
    publish(attempt, final)
    assert not list(final.iterdir())


STEPS = Stage("n", COUNT_UP, Toy(), "counts")


def by(masker, *stages, version="1.0"):
    """The stages, made by a plugin's file with this content."""
    return tuple(evolve(stage, code=PluginCode({"ideas/masker.py": masker}, {"ideas": version})) for stage in stages)


def test_a_stage_is_made_again_when_its_plugin_changes_and_the_next_ones_only_if_the_result_differs(tmp_path):
    run, stages = tmp_path / "run", chain()
    go((*by("old", stages[0]), *stages[1:]), run)
    assert reasons((*by("new", stages[0]), *stages[1:]), run) == {"a": "ideas/masker.py changed"}
    assert reasons((*by("new", stages[0], version="1.1"), *stages[1:]), run) == {"a": "ideas: 1.0 -> 1.1"}
    assert reasons(stages, run) == {"a": "ideas/masker.py is gone; ideas: 1.1 -> not set"}


def test_an_interrupted_stage_begins_again_when_its_plugin_changes_unless_it_is_kept(tmp_path):
    old, new = by("old", STEPS), by("new", STEPS)
    for kept, steps in (((), "1"), (["n"], "2")):
        run = tmp_path / f"run-{len(kept)}"
        counted = run / UNFINISHED / "n" / "steps.txt"
        with pytest.raises(KeyboardInterrupt):
            go(old, run)
        with pytest.raises(KeyboardInterrupt):
            go(new, run, keep_stale=kept)
        assert counted.read_text() == steps
    go(new, run)
    assert read_manifest(run / "n").stale == ("ideas/masker.py changed",)
    assert found(new, run) == {"n": "kept, although ideas/masker.py changed"}
    assert not list(run.rglob(".stale.json"))


def test_a_stage_kept_although_its_plugin_changed_stays_so_and_no_other_run_takes_it(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    old, new = by("old", *chain()), by("new", *chain())
    go(old, run)
    go(new, run, keep_stale=["a", "b", "c"])
    assert CALLS == []
    assert found(new, run) == dict.fromkeys("abc", "kept, although ideas/masker.py changed")
    assert go(new, run)
    assert CALLS == []
    go(new, other, reuse=[run])
    assert CALLS == ["a", "b", "c"]
    assert reasons(by("newer", *chain()), run) == dict.fromkeys("abc", "ideas/masker.py changed")


def test_keeping_a_stage_that_does_not_exist_is_refused(tmp_path):
    go(chain(), tmp_path)
    with pytest.raises(DrkitError, match="--keep-stale: no stage named 'd'"):
        go(chain(), tmp_path, keep_stale=["d"])


def test_another_version_of_a_library_that_decides_the_result_makes_a_stage_again(tmp_path, monkeypatch):
    stage = Stage("a", evolve(WRITE, libraries=("nltk",)), Toy(), "reads")
    go((stage,), tmp_path)
    made = read_manifest(tmp_path / "a")
    assert made.packages == {"nltk": made.versions["nltk"]}
    assert found((stage,), tmp_path) == {"a": "kept"}
    monkeypatch.setattr("drkit.runs.stage.versions", lambda: {"nltk": "9.9"})
    assert found((stage,), tmp_path) == {"a": f"nltk: {made.versions['nltk']} -> 9.9"}


def test_versions_of_all_libraries_that_decide_a_result_are_recorded():
    assert {name for spec in declared_stages() for name in spec.libraries} <= {*PACKAGES}


def test_a_manifest_has_the_same_checksum_whenever_and_wherever_it_is_written(tmp_path):
    for name in ("one", "two"):
        go(chain(), tmp_path / name)
    one, two = (json.loads((tmp_path / name / "c/manifest.json").read_text()) for name in ("one", "two"))
    assert one["checksum"] == two["checksum"]
    manifest = read_manifest(tmp_path / "one/c")
    elsewhere = evolve(manifest, seconds=99.0, finished="later", memory={"host": 1}, machine={"cores": "1"})
    write_manifest(elsewhere, tmp_path / "one/c")
    assert json.loads((tmp_path / "one/c/manifest.json").read_text())["checksum"] == one["checksum"]
    assert read_manifest(tmp_path / "one/c") == elsewhere


@pytest.mark.parametrize("change", [("inputs", '"inputs": 2', '"inputs": 3'), ("files", '"bytes": 7', '"bytes": 8')])
def test_a_changed_manifest_is_damaged(tmp_path, change):
    _, before, after = change
    run = tmp_path / "run"
    go(chain(), run)
    file = run / "c/manifest.json"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after, 1))
    assert read_manifest(run / "c") is None
    assert found(chain(), run)["c"] == "its manifest.json is damaged"
    go(chain(), run)
    assert CALLS == ["c"]


def test_what_makes_terms_and_sentences_is_in_the_identity_of_stages():
    terms, ends = {"PyStemmer", "bm25s", "unicode"}, {"nltk", "regex"}
    made = {}
    for request in (
        ComposeRequest(miners=("bm25",)),
        ComposeRequest(miners=("random",)),
        ComposeRequest(paper="cotmae"),
    ):
        recipe = compose(request, installed())
        made[request] = {stage.name: stage.packages.keys() for stage in plan(recipe, installed().registry).stages}
    by_words, by_chance, documents = made.values()
    assert terms <= by_words["bm25"]
    assert terms <= by_words["negatives-retriever-1"]
    assert not terms & (by_chance["negatives-retriever-1"] | by_words["tokens"])
    assert ends <= documents["spans"]


def test_other_stems_make_the_stages_of_bm25_again(tmp_path, monkeypatch):
    stage = Stage("a", evolve(WRITE, extras=("bm25",)), Toy(), "indexes")
    go((stage,), tmp_path)
    here = read_manifest(tmp_path / "a").versions
    monkeypatch.setattr("drkit.runs.manifest.versions", lambda: {**here, "PyStemmer": "2.2.0"})
    assert found((stage,), tmp_path) == {"a": f"PyStemmer: {here['PyStemmer']} -> 2.2.0"}
