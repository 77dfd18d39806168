"""Completion in the shell: what is offered, how fast, and that nothing it meets is printed as an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from drkit_cli.main import cli

ROOT = Path(__file__).parents[2]


def complete(line):
    """Return the types and values that a line completes to."""
    *words, last = line.split(" ")
    found = BashComplete(cli, {}, "drkit", "_DRKIT_COMPLETE").get_completions(words[1:], last)
    return [(item.type, item.value) for item in found]


def values(line):
    return [value for _, value in complete(line)]


def test_commands_and_options():
    assert {"compose", "list", "show"} <= {*values("drkit ")}
    assert {*values("drkit comp")} == {"compare", "compose"}
    assert "--masker" in values("drkit compose --m")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("drkit compose --masker p", "pmi"),
        ("drkit compose --paper ret", "retromae"),
        ("drkit compose --pipeline two", "two-stage"),
        ("drkit mine --miner ", "bm25"),
        ("drkit show decoder enh", "enhanced"),
        ("drkit show recipe cd", "cdmae"),
        ("drkit show recipe cdmae --diff ret", "retromae"),
        ("drkit show pipeline ", "dpr"),
        ("drkit compose --collection py", "pydocs"),
    ],
)
def test_names(line, found):
    assert ("plain", found) in complete(line)


def test_folders_and_files_are_left_to_the_shell():
    assert complete("drkit run ru") == [("file", "ru")]
    assert complete("drkit compose --encoder ru") == [("dir", "ru")]
    assert complete("drkit compose --collection runs") == [("dir", "runs")]


@pytest.mark.parametrize("line", ["drkit nosuch ", "drkit compose --nosuch ", "drkit compose --set '' -"])
def test_odd_lines_print_no_error(line, capfd):
    complete(line)
    assert capfd.readouterr() == ("", "")


PROBE = """
import sys
from drkit_cli import main
try:
    main.main()
finally:
    print("HEAVY", sorted({"torch", "transformers", "pyarrow", "datasets"} & set(sys.modules)), file=sys.stderr)
"""


def test_completion_imports_no_torch():
    for line in ("drkit compose --paper ", "drkit compose --masker ", "drkit mine --miner "):
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_DRKIT_COMPLETE": "bash_complete"}
        command = [sys.executable, "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **asked}, check=False)
        assert "HEAVY []" in done.stderr
        assert done.returncode == 0
        assert done.stdout.strip()


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
def test_the_script_of_click_completes_in_bash(tmp_path):
    program = tmp_path / "drkit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m drkit_cli.main "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(_DRKIT_COMPLETE=bash_source drkit)"
    COMP_WORDS=(drkit show masker p) COMP_CWORD=3
    _drkit_completion drkit
    printf '%s|' "${COMPREPLY[@]}"
    """
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "cli", ROOT / "plugins")))
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stdout == "pmi|", done.stderr
