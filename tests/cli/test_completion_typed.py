"""Completion as people use it: shells in a terminal of their own, keys typed, the line that results."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# How each shell starts without the files of its user, and what loads the completion.
SHELLS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), 'eval "$(drkit completion bash)"'),
    "zsh": (("zsh", "-f", "-i"), 'bindkey -e; autoload -Uz compinit; compinit -u -D; eval "$(drkit completion zsh)"'),
    "fish": (("fish", "--no-config", "-i"), "drkit completion fish | source"),
}
# What is typed before the tab key, and what stands in the line when `x` is typed after it.
TYPED = {
    "drkit doc": "drkit doctor x",
    "drkit show masker pm": "drkit show masker pmi x",
    "drkit compose --decoder enh": "drkit compose --decoder enhanced x",
    "drkit compose --paper retromae-b": "drkit compose --paper retromae-basic x",
    "drkit compose --collection bei": "drkit compose --collection beir:x",
    "drkit compose --collection beir:my-t": "drkit compose --collection beir:my-texts/x",
    "drkit compose --set pretrain.masker.enc": "drkit compose --set pretrain.masker.encoder_ratio=x",
    "drkit compose --set pretrain.masker.use=un": "drkit compose --set pretrain.masker.use=uniform x",
    "drkit compose --set=evaluation.mea": "drkit compose --set=evaluation.measures=x",
}
TAB, HOME_KEY, END_KEY, ENTER = "\t", "\x01", "\x05", "\r"


class Terminal:
    """A shell in a terminal and a folder; `run` types keys and waits for what they make the shell write."""

    def __init__(self, command, environment, folder):
        self.answer = folder / "answer.txt"
        self.keys, side = pty.openpty()
        # `setsid --ctty` makes it the shell's terminal, as a window does.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=side, stdout=side, stderr=side, env=environment, cwd=folder
        )
        os.close(side)

    def run(self, keys):
        """Type keys that end a command; return the line that it prints, which goes to a file."""
        self.answer.unlink(missing_ok=True)
        os.write(self.keys, f"{keys} >answer.txt{ENTER}".encode())
        shown, until = b"", time.monotonic() + 120
        while time.monotonic() < until:
            if select.select([self.keys], [], [], 0.1)[0]:
                shown += os.read(self.keys, 65536)
            if self.answer.exists() and (written := self.answer.read_text()).endswith("\n"):
                return written.rstrip("\n")
        raise AssertionError(f"no answer to {keys!r}: {shown[-2000:]!r}")

    def close(self):
        """End the shell."""
        self.process.kill()
        self.process.wait()
        os.close(self.keys)


@pytest.fixture(scope="module", params=SHELLS)
def terminal(request, tmp_path_factory):
    """A shell with completion for `drkit`, in a folder with a folder `my-texts`."""
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    if not shutil.which("setsid"):
        pytest.skip("setsid (util-linux) is not installed")
    folder = tmp_path_factory.mktemp("home")
    (folder / "my-texts").mkdir()
    program = folder / "drkit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m drkit_cli.main "$@"\n')
    program.chmod(0o755)
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "cli", ROOT / "plugins")))
    environment = {
        **{"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths, "HOME": str(folder)},
        **{"TERM": "xterm", "LANG": "C.UTF-8", "COLUMNS": "200", "LINES": "50"},
    }
    command, setup = SHELLS[request.param]
    opened = Terminal(command, environment, folder)
    opened.run(f"{setup}{ENTER}echo ready")
    yield opened
    opened.close()


@pytest.mark.parametrize("line", TYPED)
def test_what_stands_in_the_line_after_the_tab_key(terminal, line):
    # The line is not run: `echo` before it prints it.
    assert terminal.run(f"{line}{TAB}x{HOME_KEY}echo {END_KEY}") == TYPED[line]
