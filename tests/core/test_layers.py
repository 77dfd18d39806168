"""Imports run one way: a folder of drkit imports from those before it, type checkers' imports included."""

import ast
from pathlib import Path

import pytest

import drkit

ROOT = Path(drkit.__file__).parent
# Each folder or module may import from itself and from those on earlier lines.
LAYERS = (
    ("errors",),
    ("core",),
    ("batching",),
    ("data",),
    ("encoders",),
    ("recipe",),
    ("signals",),
    ("maskers",),
    ("decoders",),
    ("losses",),
    ("search",),
    ("evaluate",),
    ("miners",),
    ("plugin",),
    ("builtin", "testing"),
    ("train",),
    ("charts",),
    ("runs",),
    ("commands",),
    ("experiments", "finished_run"),
    ("studies",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Within runs: what a stage is, the stages, the plan that puts them in order, the code that makes them, and what carries
# it out.
RUNS = (
    ("work", "manifest", "code"),
    ("stage",),
    ("stages",),
    ("survey",),
    ("plan", "costs"),
    ("making",),
    ("stale",),
    ("execute",),
    ("attribution",),
    ("trial",),
    ("prepare",),
)
RUNS_LEVEL = {name: level for level, names in enumerate(RUNS) for name in names}


def imported(path):
    """The modules of drkit that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("drkit."))
        elif isinstance(node, ast.ImportFrom) and node.module == "drkit":
            yield from (f"drkit.{alias.name}" for alias in node.names if alias.name != "__version__")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("drkit."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            packages = (ROOT.parent / Path(*(node.module or "").split("."))).is_dir()
            yield from names if packages else [str(node.module)]


def modules():
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("folder", sorted(LEVEL))
def test_a_folder_imports_only_from_those_before_it(folder):
    for path in (p for p in modules() if p.parts[0].removesuffix(".py") == folder):
        for name in imported(ROOT / path):
            other = name.split(".")[1]
            assert LEVEL[other] < LEVEL[folder] or other == folder, f"{path} imports {name}"


def test_every_folder_has_its_place_in_the_order():
    assert {path.parts[0].removesuffix(".py") for path in modules()} == set(LEVEL)


@pytest.mark.parametrize("part", sorted(RUNS_LEVEL))
def test_the_parts_of_a_run_import_one_way(part):
    for path in (p for p in modules() if p.parts[0] == "runs" and p.parts[1].removesuffix(".py") == part):
        for name in imported(ROOT / path):
            if name.startswith("drkit.runs."):
                other = name.split(".")[2]
                within = other == part in ("stages", "making")
                assert within or RUNS_LEVEL[other] < RUNS_LEVEL[part], f"{path} imports {name}"
