"""Count the functions and files that a chosen masker passes, from `main()` to its first calls in trial and training.

    python -m tests.cli.floors              # of `drkit compose --paper retromae --masker pmi --quick`
    python -m tests.cli.floors --list       # with their names, in the order of the first pass

A function counts if it hands the choice on, or is above such a function on the stack: it returns a value that is or
holds the choice (a request, a recipe, the settings of a stage), or it calls the masker. Until the recipe is made the
choice is a name or a table with `use`; from then on it is the `Choice`, or the part that is built from it. What only
looks at the choice (checks, summaries, fingerprints, records) does not count unless it is above a function that hands
it on. Only functions of drkit and its command line count, each once; a comprehension or lambda belongs to its function.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import attrs

import drkit
import drkit_cli
from drkit.core.spec import Choice
from drkit_cli.main import main

MASKER, PART = "pmi", "PmiMasker"
ROOTS = tuple(f"{Path(package.__file__).parent}{os.sep}" for package in (drkit, drkit_cli) if package.__file__)
# Tables, requests and stages in one another.
_DEEPEST = 7
_INNER = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>")


class Arrived(BaseException):
    """The masker is called in a training."""


class Walk:
    """The functions that the choice has passed; a profile function.

    passed: their names, by file and line. trial: how many there were before the masker's first call, in the trial.
    """

    def __init__(self) -> None:
        self.passed: dict[tuple[str, int], str] = {}
        self.trial: tuple[int, int] | None = None
        self.arrived = self._is_typed = False

    @property
    def counts(self) -> tuple[int, int]:
        """The number of functions and of files so far."""
        return len(self.passed), len({file for file, _ in self.passed})

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Look at a call or return. Raises Arrived at the masker's first call in a training."""
        code = frame.f_code
        if event == "call" and code.co_name == "__call__" and type(frame.f_locals.get("self")).__name__ == PART:
            names = self._pass(frame.f_back)
            self.trial = self.trial or self.counts
            if "execute" in names:
                self.arrived = True
                raise Arrived
        elif event == "return" and code.co_filename.startswith(ROOTS) and self._holds(value, _DEEPEST):
            self._pass(frame)

    def _pass(self, frame: FrameType | None) -> set[str]:
        """Add a function and all above it; returns their names."""
        names = set()
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(ROOTS) and code.co_name not in _INNER:
                names.add(code.co_name)
                self.passed.setdefault((code.co_filename, code.co_firstlineno), _title(code))
            frame = frame.f_back
        return names

    def _holds(self, value: Any, depth: int) -> bool:
        """Return whether a value is the choice or holds it."""
        if isinstance(value, Choice):
            self._is_typed |= value.use == MASKER
            return value.use == MASKER
        if isinstance(value, str):
            return value == MASKER and not self._is_typed
        if type(value).__name__ == PART:
            return True
        if not depth:
            return False
        if isinstance(value, Mapping):
            return any(self._holds(one, depth - 1) for one in value.values())
        if isinstance(value, (list, tuple)):
            return any(self._holds(one, depth - 1) for one in value if not isinstance(one, str))  # not of known names
        if attrs.has(type(value)) and type(value).__module__.startswith(("drkit.recipe", "drkit.runs", "drkit.train")):
            return any(self._holds(getattr(value, a.name, None), depth - 1) for a in attrs.fields(type(value)))
        return False


def _title(code: CodeType) -> str:
    root = next(Path(root).parent for root in ROOTS if code.co_filename.startswith(root))
    return f"{Path(code.co_filename).relative_to(root)}:{getattr(code, 'co_qualname', code.co_name)}"


def walk(folder: Path) -> Walk:
    """Run the command in an empty folder until the masker is called, and return what the choice has passed."""
    texts = folder / "texts.jsonl"
    rows = (json.dumps({"id": str(n), "text": f"the text {n} of a small collection " * 4}) for n in range(300))
    texts.write_text("\n".join(rows), encoding="utf-8")
    command = ["compose", "--paper", "retromae", "--masker", MASKER, "--quick", "--collection", f"jsonl:{texts}"]
    command += ["--run-dir", str(folder / "run"), "--set", "finetune=none"]
    found, said = Walk(), io.StringIO()
    sys.argv = ["drkit", *command]
    sys.setprofile(found)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except (Arrived, SystemExit):
        pass
    finally:
        sys.setprofile(None)
    if not found.arrived:
        raise SystemExit(f"the masker was not called in a training:\n{said.getvalue()}")
    return found


if __name__ == "__main__":
    is_listed = "--list" in sys.argv
    with tempfile.TemporaryDirectory() as name:
        found = walk(Path(name))
    for line in found.passed.values() if is_listed else ():
        print(line)
    for call, (functions, files) in {"trial": found.trial or (0, 0), "training": found.counts}.items():
        print(f"{functions} functions in {files} files before the masker's first call in the {call}")
