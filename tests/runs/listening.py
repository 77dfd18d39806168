"""Runs a recipe, and writes what each of its stages opened: `python -m tests.runs.listening RECIPE RUN RECORD`.

The record has a list for each stage: files and folders that Python opened or listed (audit events) and that are not
scratch of its own, and variables of the environment that a line of drkit read, as `$NAME`.
"""

import json
import os
import sys
from pathlib import Path

import drkit
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.recipe.toml import read_recipe
from drkit.runs.execute import execute
from drkit.runs.plan import plan

CODE = Path(drkit.__file__).parent
EVENTS = ("open", "os.listdir", "os.scandir", "os.mkdir")
OPENED = {"": set()}
CURRENT = [""]
MADE = {Path(__file__)}  # which a traceback or a profile of the process reads


class Listening(Silent):
    """Notes which stage is being made."""

    def begin(self, stage, summary, reason=""):
        CURRENT.append(stage)
        OPENED[stage] = set()

    def end(self, stage, seconds):
        CURRENT.append("")


def hear(event, arguments):
    if event not in EVENTS or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return
    named, mode = Path(os.fsdecode(arguments[0])), arguments[1] if event == "open" else "r"
    path, is_written = Path.cwd() / named, event == "os.mkdir"
    if event == "open":
        is_written = bool(set(mode) & {"w", "x", "a"} if isinstance(mode, str) else arguments[2] & os.O_CREAT)
    if is_written:
        MADE.add(path)
    elif mode is not None or named.is_absolute():  # others are below an open folder, as rmtree opens what it removes
        inside = Path(sys.argv[2]) in path.parents
        if inside or not {path, *path.parents} & MADE:
            OPENED[CURRENT[-1]].add(str(path))


def listen_to_environment():
    """Note each variable that a line of drkit's own code reads."""
    kind, read = type(os.environ), type(os.environ).__getitem__

    def heard(self, name):
        frame = sys._getframe(1)
        while frame and frame.f_code.co_filename.endswith(("os.py", "_collections_abc.py", "<frozen os>")):
            frame = frame.f_back
        if frame and Path(frame.f_code.co_filename).is_relative_to(CODE):
            OPENED[CURRENT[-1]].add(f"${name}")
        return read(self, name)

    kind.__getitem__ = heard


if __name__ == "__main__":
    recipe_file, run, record = map(Path, sys.argv[1:])
    registry = installed().registry
    recipe = read_recipe(recipe_file, registry)
    stages = plan(recipe, registry).stages
    listen_to_environment()
    sys.addaudithook(hear)
    execute(stages, run, recipe, registry=registry, progress=Listening())
    CURRENT.append("")
    covered = {
        stage.name: {
            "inputs": [f"{run}/{one}" for one in stage.inputs.values()],
            "sources": list(stage.sources),
            "code": list(stage.code.files),
        }
        for stage in stages
    }
    found = {stage: {"opened": sorted(OPENED[stage]), **covered[stage]} for stage in covered if stage in OPENED}
    record.write_text(json.dumps(found))
