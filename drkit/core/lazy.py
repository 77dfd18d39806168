"""Names of a package that are imported on first use (PEP 562), so that listing parts never imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


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
