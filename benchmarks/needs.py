"""Memory and disk of finished runs: as their plans count them, and as they were.

    python benchmarks/needs.py RUN..

Memory is the peak resident memory of the process (VmHWM, from the manifests of its stages), without worker processes;
disk is that of the run's files, linked ones once. Both are counted for the size of the collection that a plan knows
before a run. Prints a row for each run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from drkit.core.registry import installed
from drkit.recipe.toml import read_recipe
from drkit.runs.attribution import build_collection
from drkit.runs.costs import Rates, estimate_cost, estimated_size, planned_sizes
from drkit.runs.manifest import load_manifest
from drkit.runs.plan import plan


def row(run: Path) -> str:
    """Return a run's name, and its counted and measured memory and disk."""
    registry = installed().registry
    recipe = read_recipe(run / "recipe.toml", registry)
    size = estimated_size(recipe, build_collection(recipe, registry))
    if size is None:
        raise SystemExit(f"{run}: the size of its collection is not known")
    stages = plan(recipe, registry).stages
    counted = estimate_cost(stages, planned_sizes(recipe, size), Rates())
    manifests = [manifest for stage in stages if (manifest := load_manifest(run / stage.name))]
    memory = max(manifest.memory.get("host", 0) for manifest in manifests)
    files = {path.stat().st_ino: path.stat().st_size for path in run.rglob("*") if path.is_file()}
    pairs = ((counted.memory / 1e9, memory / 1e9), (counted.disk / 1e6, sum(files.values()) / 1e6))
    cells = (f"{one:.3g}, {other:.3g} {unit}" for (one, other), unit in zip(pairs, ("GB", "MB"), strict=True))
    return f"| {run.name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the rows of the runs that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    for run in parser.parse_args().runs:
        print(row(run))


if __name__ == "__main__":
    main()
