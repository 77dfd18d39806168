"""Names of a package that are imported on first use (PEP 562), so that `import drkit.search` does not import torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> None:
    """Make the imports in a package's `if TYPE_CHECKING:` block its public names, each imported on first use.

    The block is the only place that names them: type checkers read it as it stands, and this function reads it from
    the file to set the package's `__all__`, `__getattr__` and `__dir__`. Each name is written `X as X`, which marks a
    re-export (PEP 484), so that a misspelled import is an error under `mypy --strict`. A whole `__init__.py`:

        from typing import TYPE_CHECKING

        from drkit.core.lazy import lazy_exports

        if TYPE_CHECKING:
            from drkit.search.bm25 import Bm25Retriever as Bm25Retriever

        lazy_exports(__name__)
    """
    module = sys.modules[package]
    homes = _type_checking_imports(Path(str(module.__file__)).read_text(encoding="utf-8"))

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    vars(module).update(__all__=sorted(homes), __getattr__=load, __dir__=lambda: sorted({*homes, *vars(module)}))


def _type_checking_imports(source: str) -> dict[str, str]:
    """The module of each name that is imported under `if TYPE_CHECKING:`."""
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def attach(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package whose public names live in the submodules `names` maps them to.

    Beside it, the package imports the same names under `TYPE_CHECKING`, so that type checkers see them.
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{names[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_, lambda: sorted({*names, *vars(sys.modules[package])})
