"""What everything else builds on: protocols, specs, and the registry that plugins fill. No torch at import."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
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
    """
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(module, name, value)
        return value

    vars(module).update(__all__=sorted(modules), __getattr__=load, __dir__=lambda: sorted({*modules, *vars(module)}))
