"""What everything else builds on: protocols, specs, and the registry that plugins fill. No torch at import."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> None:
    """Make the imports in a package's `if TYPE_CHECKING:` block its public names, each imported on first use (PEP 562).

    The block is the only list of exports: type checkers read it as usual, and this function parses it from the file to
    set `__all__`, `__getattr__` and `__dir__` of the package. Each name is written `X as X`, which marks a re-export
    (PEP 484), so that `mypy --strict` reports a misspelled import. A complete `__init__.py`:

        from typing import TYPE_CHECKING

        from drkit.core import lazy_exports

        if TYPE_CHECKING:
            from drkit.search.bm25 import Bm25Retriever as Bm25Retriever

        lazy_exports(__name__)

    A name that moved into a plugin is still found in its old package if the plugin declares it as an entry point in the
    group `drkit.names`: `"drkit.data.PydocsConfig" = "drkit_pydocs:PydocsConfig"`. So no package imports a plugin.
    """
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        value = getattr(import_module(modules[name]), name) if name in modules else _load_moved(package, name)
        setattr(module, name, value)
        return value

    vars(module).update(__all__=sorted(modules), __getattr__=load, __dir__=lambda: sorted({*modules, *vars(module)}))


def _load_moved(package: str, name: str) -> Any:
    """Return a name that moved from a package into a plugin. Raises AttributeError if no plugin has it."""
    found = () if name.startswith("_") else tuple(entry_points(group="drkit.names", name=f"{package}.{name}"))
    if not found:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return found[0].load()
