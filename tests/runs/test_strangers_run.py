"""A run folder of a stranger: links and hostile files end in one message, and nothing outside of it changes.

DRKIT_FAULTS_SEED draws other contents and commands.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.refusals import says

SEED = os.environ.get("DRKIT_FAULTS_SEED", "0")
# What a damaged or hostile file contains; each file gets some of them.
CONTENTS = {
    "deep": b"[" * 100_000,
    "object": b"{}",
    "list": b"[]",
    "null": b"null",
    "text": b'"x"',
    "number": b"1e999",
    "nested": b'{"a": {"a": [1, null, {}]}}',
    "binary": bytes(range(256)),
    "empty": b"",
}
# The parts of the run are tried elsewhere.
RUN = ("run", "R", "--no-trial")
COMMANDS = (
    ("status", "R"),
    ("export", "R", "-o", "exported"),
    ("search", "R", "what is topic1 about"),
    ("search", "R", "what is topic1 about", "--system", "hybrid"),
    ("report", "R", "-o", "page.html"),
    ("run", "R", "--dry-run"),
    ("evaluate", "R"),
    ("prune", "R", "--dry-run"),
)


def state(folder):
    """The hash of every file and link below a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            str(path.readlink()) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def place(tiny_run, tmp_path, monkeypatch):
    """A folder with a copy of a finished run, and a victim beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.copytree(tiny_run[0], "R")
    for name in ("evaluation", "checkpoints", "retriever-1"):
        (tmp_path / "victim" / name).mkdir(parents=True)
        (tmp_path / "victim" / name / "paper.csv").write_text("years of work")
    (tmp_path / "victim" / "manifest.json").write_text("{}")
    return tmp_path


def names(run):
    """Everything in a run that drkit manages, and that a stranger could replace by a link."""
    stages = sorted(path.name for path in run.iterdir() if path.is_dir())
    manifests = [f"{stage}/manifest.json" for stage in stages]
    return [
        *stages,
        *manifests,
        ".unfinished",
        ".unfinished/evaluation",
        ".unfinished/retriever-1/checkpoints",
        ".lock",
    ]


def test_links_in_place_of_what_drkit_manages_lead_nowhere(place, run_drkit):
    """Each is refused in a line by `drkit run`, and the other commands leave what it points to alone, too."""
    run, victim = place / "R", state(place / "victim")
    for name in names(run):
        path, kept = run / name, place / "kept"
        if path.exists():
            path.rename(kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        target = place / "victim" / "evaluation" / "paper.csv" if "." in path.name[1:] else place / "victim"
        path.symlink_to(target)
        for command in (RUN, random.Random(f"{SEED} {name}").choice(COMMANDS)):
            code, out, err = run_drkit(*command)
            assert code in (0, 2), (name, command)
            assert "Traceback" not in out + err
            assert command != RUN or "symbolic link" in err, name
        path.unlink()
        if kept.exists():
            kept.rename(path)
        shutil.rmtree(run / ".unfinished", ignore_errors=True)
    assert state(place / "victim") == victim
    assert run_drkit("run", "R")[0] == 0


def some_files(run):
    """Files of a run that are read as JSON or TOML, up to two of each name."""
    named = {}
    for path in sorted(run.rglob("*")):
        if path.suffix in (".json", ".jsonl", ".toml") and path.is_file():
            named.setdefault(path.name, []).append(path)
    draw = random.Random(SEED)
    return [path for paths in named.values() for path in draw.sample(paths, min(len(paths), 2))]


def test_hostile_files_end_in_one_message(place, run_drkit):
    run, victim = place / "R", state(place / "victim")
    for path in some_files(run):
        draw, whole = random.Random(f"{SEED} {path.relative_to(run)}"), path.read_bytes()
        for content in draw.sample(sorted(CONTENTS), 1):
            path.write_bytes(CONTENTS[content])
            for command in draw.sample(COMMANDS, 1):
                code, out, err = run_drkit(*command)
                assert code in (0, 1, 2), (path, content, command)
                assert "Traceback" not in out + err, (path, content, command)
                shutil.rmtree("exported", ignore_errors=True)
        path.write_bytes(whole)
    assert state(place / "victim") == victim


def test_manifests_lead_nowhere(place, run_drkit):
    """Names outside the stage make it unfinished, and a circle of exported encoders is one message."""
    run, victim = place / "R", state(place / "victim")
    encoder = (run / "encoder" / "manifest.json").read_text()
    for name in ("../../victim/evaluation/paper.csv", str(place / "victim" / "evaluation" / "paper.csv"), ".."):
        (run / "encoder" / "manifest.json").write_text(encoder.replace('"modules.json"', f'"{name}"'))
        for command in (("prune", "R"), ("status", "R"), ("export", "R", "-o", "exported")):
            code, out, err = run_drkit(*command)
            assert code in (0, 2)
            assert "Traceback" not in out + err
            shutil.rmtree("exported", ignore_errors=True)
    for origin in ("encoder", "../R/encoder", "..", "evaluation"):
        made = encoder.replace('"from": "', f'"from": "{origin}", "was": "')
        assert made != encoder
        (run / "encoder" / "manifest.json").write_text(made)
        code, out, err = run_drkit("export", "R", "-o", "exported")
        assert code in (0, 2)
        assert "Traceback" not in out + err
        shutil.rmtree("exported", ignore_errors=True)
    assert state(place / "victim") == victim


def test_an_unfinished_export_inside_a_run_does_not_stop_it(place, run_drkit):
    (place / "R" / ".exported.123.tmp").mkdir()
    (place / "R" / ".exported.123.tmp" / "config.json").write_text("{}")
    code, _, err = run_drkit("run", "R")
    assert code == 0, err
    assert (place / "R" / ".exported.123.tmp" / "config.json").exists()


def test_a_folder_with_files_is_no_run_and_stays_as_it_was(place, run_drkit):
    before = state(place / "victim")
    code, _, err = run_drkit("compose", "--quick", "--run-dir", "victim")
    assert code == 2
    assert says(err, "recipe.toml", "--run-dir")
    assert state(place / "victim") == before


OUTPUTS = {
    "export": ("export", "R", "-o"),
    "index": ("index", "vectors", "-o"),
    "encode": ("encode", "--encoder", "R", "--collection", "R", "-o"),
    "new-plugin": ("new-plugin", "my-masker", "--kind", "masker", "-o"),
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_every_folder_that_is_written_keeps_what_was_there(command, place, run_drkit):
    if command == "index":
        assert run_drkit("encode", "--encoder", "R", "--collection", "R", "-o", "vectors")[0] == 0
    for foreign in (".git/HEAD", ".env", "NOTES.txt", "manifest.json"):
        folder = place / f"out-{Path(foreign).name}"
        (folder / foreign).parent.mkdir(parents=True)
        (folder / foreign).write_text("mine")
        before = state(folder)
        code, out, err = run_drkit(*OUTPUTS[command], folder)
        assert "Traceback" not in out + err
        assert {name: value for name, value in state(folder).items() if name in before} == before
        assert code == 2 or command == "encode", "vectors are put beside hidden files, and replace nothing"
    for name in (".", "/"):
        code, out, err = run_drkit(*OUTPUTS[command], name)
        assert code == 2
        assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "command",
    [
        ("search", "R", "--split", "test"),
        ("mine", "--collection", "R", "--miner", "bm25"),
        ("rerank", "R/runs/bm25.arrow", "--model", "R", "--collection", "R"),
        ("fuse", "R/runs/bm25.arrow", "R/runs/retriever-1.arrow"),
        ("compose", "--dry-run"),
        ("report", "R"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_in_place_of_a_file_to_write_is_one_message(command, place, run_drkit):
    before = state(place)
    for name in (".", "/", "R"):
        code, out, err = run_drkit(*command, "-o", name)
        assert code == 2, name
        assert "Traceback" not in out + err
        assert "director" in err or "folder" in err
    assert state(place) == before
