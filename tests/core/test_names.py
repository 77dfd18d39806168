"""A public name exists once: whoever reads it in a module, a message or a diff knows which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import drkit
import drkit_cli

# A command has the name of the function that does its work, on the command line and in Python.
COMMANDS = (Path("drkit_cli/commands"), Path("drkit/experiments.py"))


def public_names(module: Path) -> Iterator[str]:
    """Yield the names that a module defines at its top, but private ones, type variables and hooks of plugins."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign) and not is_type_variable(node.value):
            targets = [one for target in node.targets for one in getattr(target, "elts", [target])]
            names = [one.id for one in targets if isinstance(one, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = []
        yield from (name for name in names if not name.startswith(("_", "drkit_")))


def is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("TypeVar", "ParamSpec")


def test_a_public_name_is_defined_in_one_module():
    defined = defaultdict(list)
    for package in (drkit, drkit_cli):
        root = Path(package.__file__).parent
        for module in sorted(root.rglob("*.py")):
            path = module.relative_to(root.parent)
            if not any(path.is_relative_to(one) for one in COMMANDS):
                for name in public_names(module):
                    defined[name].append(str(path))
    assert len(defined) > 1000
    assert {name: paths for name, paths in defined.items() if len({*paths}) > 1} == {}
