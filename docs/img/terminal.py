"""Draw what drkit prints in a terminal, as `terminal-plan.svg` and `terminal-table.svg`.

python docs/img/terminal.py [RUN]

The plan is that of the default run; the table is the one that RUN, a finished run, ends with. Without RUN, the table
stays as it is.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

FOLDER = Path(__file__).resolve().parent
WIDTH = 110
# rich names a font by its address; a picture of ours asks for nothing, and shows a font that the reader has.
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
# Each command, how many of its first lines are shown, and how many of its last ones.
SHOWN = {
    "plan": (("compose", "--masker", "pmi", "--decoder", "enhanced", "--dry-run", "-q"), 30, 0),
    "table": (("run",), 17, 0),
}


def printed(arguments: tuple[str, ...]) -> str:
    """Return what a command prints to a terminal, with its colours."""
    terminal = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "drkit_cli.main", *arguments]
    done = subprocess.run(command, env=terminal, capture_output=True, text=True, check=True)
    return done.stdout


def picture(command: str, text: str, first: int, last: int) -> str:
    """Return the picture of a terminal with the first and the last lines of a text."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    shown = text.rstrip().splitlines()
    left_out = [".."] if len(shown) > first + last else []
    for line in [*shown[:first], *left_out, *shown[max(first, len(shown) - last) :]]:
        screen.print(Text.from_ansi(line), no_wrap=True, crop=True)
    return FONT_FACE.sub("", screen.export_svg(title=command, theme=DEFAULT_TERMINAL_THEME, unique_id="drkit"))


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", help="the folder of a finished run")
    given = parser.parse_args()
    for name, (arguments, first, last) in SHOWN.items():
        if name == "table" and not given.run:
            continue
        text = printed((*arguments, given.run) if name == "table" else arguments)
        command = " ".join(("drkit", *arguments, *([f"runs/{Path(given.run).name}"] if name == "table" else [])))
        (FOLDER / f"terminal-{name}.svg").write_text(picture(command, text, first, last), encoding="utf-8")


if __name__ == "__main__":
    main()
