"""The notebooks in docs/examples/notebooks, run cell by cell without Jupyter.

`python -m tests.python.notebooks [NAME ..]` runs them and writes what their cells print into the files;
`--replace sentence-transformers/all-MiniLM-L6-v2 FOLDER` takes a model from a folder.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.cli.following import install, run_warm
from tests.cli.test_strangers_data import beside
from tests.warm import MEASURES

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
INSTALL = "pip install -e ./"
WRITE = re.compile(r"%%writefile (\S+)\n(.*)", re.DOTALL)


def read(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


class Runner:
    """Runs cells of code one after the other in one namespace, with `folder` as the working folder."""

    def __init__(self, folder, **environment):
        self.folder, self.environment = folder, {**environment}
        self.names = {"__name__": "__main__", "_shell": self.shell}

    def shell(self, command):
        """Run a line that begins with `!`: drkit, pytest, or an installation of a package written before."""
        if command.startswith(INSTALL):
            found = install(self.folder / command.removeprefix(INSTALL), self.folder / "site")
            self.environment["PYTHONPATH"] = beside(found)
            return
        print(run_warm(command, self.folder, **self.environment), end="")

    def run(self, source):
        """Run a cell; return its outputs as a notebook has them."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if written := WRITE.match(source):
                (self.folder / written[1]).write_text(written[2] + "\n", encoding="utf-8")
            else:
                code = re.sub(r"^!(.+)$", lambda line: f"_shell({line[1]!r})", source, flags=re.MULTILINE)
                exec(compile(code, "cell", "exec"), self.names)
        return outputs(printed.getvalue())


def outputs(text):
    """Return printed text, and the figures that a cell has drawn."""
    found = []
    if text:
        found.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    plots = sys.modules.get("matplotlib.pyplot")
    for number in plots.get_fignums() if plots else ():
        drawn = io.BytesIO()
        plots.figure(number).savefig(drawn, format="png", dpi=72, bbox_inches="tight")
        image = {"image/png": base64.b64encode(drawn.getvalue()).decode()}
        found.append({"output_type": "display_data", "metadata": {}, "data": image})
        plots.close(number)
    return found


def execute(name, folder, replaced=(), **environment):
    """Run a notebook in a folder; return it with its outputs.

    replaced: pairs of a text and what it becomes. environment: variables of its commands.
    """
    notebook, runner = read(name), Runner(folder, **environment)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        for old, new in replaced:
            source = source.replace(old, new)
        cell["outputs"], cell["execution_count"] = runner.run(source), count
    return notebook


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--replace", nargs=2, action="append", default=[], metavar=("TEXT", "LOCAL"))
    given = parser.parse_args()
    os.environ["MPLBACKEND"] = "agg"
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            notebook = execute(name, Path(folder), given.replace, **{MEASURES: "1"})
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        for own, local in [("..", folder), *given.replace]:
            text = text.replace(local, own)
        (FOLDER / f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
