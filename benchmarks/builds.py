"""The default run of two builds, side by side: `python benchmarks/builds.py OLD NEW`, on idle cores.

OLD and NEW are checkouts (`git worktree add OLD COMMIT`). The runs alternate, in new folders of `--folder`, with the
cores and threads that this process has. Prints the seconds of both, stage by stage, and the ratio of the whole runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

COMPOSE = ("compose", "--masker", "pmi", "--decoder", "enhanced")


def run_once(checkout: Path, folder: Path, arguments: Sequence[str] = COMPOSE) -> dict[str, float]:
    """Make the run of a checkout in a new folder; returns the seconds of the whole and of each stage."""
    shutil.rmtree(folder, ignore_errors=True)
    folders = [checkout / name for name in ("", "cli", "plugins")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    program = "import sys; from drkit_cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *arguments, "--run-dir", str(folder)]
    began = time.perf_counter()
    subprocess.run(command, cwd=checkout, env=environment, check=True)
    whole = time.perf_counter() - began
    manifests = {path.parent.name: json.loads(path.read_text("utf-8")) for path in folder.glob("*/manifest.json")}
    return {"in all": whole, **{name: float(one["seconds"]) for name, one in manifests.items()}}


def table(old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]) -> list[str]:
    r"""Return a line for each stage: its median seconds in both builds; the last one has the ratio of the runs.

    >>> print(*table([{"in all": 100.0, "bm25": 20.0}], [{"in all": 50.0, "hybrid": 5.0}]), sep="\n")
    | stage | old, s | new, s |
    |---|---:|---:|
    | bm25 | 20.0 | |
    | hybrid | | 5.0 |
    | in all | 100.0 | 50.0 |
    the new run takes 0.50 of the old one
    """
    names = list(dict.fromkeys(name for one in (*old, *new) for name in one if name != "in all"))
    lines = ["| stage | old, s | new, s |", "|---|---:|---:|"]
    for name in (*names, "in all"):
        sides = ([one[name] for one in runs if name in one] for runs in (old, new))
        cells = [f" {median(values):.1f}" if values else "" for values in sides]
        lines.append(f"| {name} |{cells[0]} |{cells[1]} |")
    ratio = median(one["in all"] for one in new) / median(one["in all"] for one in old)
    return [*lines, f"the new run takes {ratio:.2f} of the old one"]


def main() -> None:
    """Time both builds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("builds"), help="folder of the runs, made anew")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for _ in range(given.repeats):
        for side, checkout in (("old", given.old), ("new", given.new)):
            found[side].append(run_once(checkout.resolve(), given.folder.resolve() / side))
    print(*table(found["old"], found["new"]), sep="\n")


if __name__ == "__main__":
    main()
