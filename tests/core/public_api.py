"""drkit's public API, read from the code: the names that packages export, and their signatures.

`python -m tests.core.public_api` writes docs/reference/api.md and prints the line for the changelog.
"""

from __future__ import annotations

import hashlib
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from drkit.core.registry import installed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "api.md"
PACKAGES = {
    "drkit": "Compose, run and sweep",
    "drkit.plugin": "What plugins import",
    "drkit.testing": "The contract of each kind of part",
    "drkit.maskers": "Maskers",
    "drkit.decoders": "Decoders",
    "drkit.losses": "Losses",
    "drkit.miners": "Sources and filters of negatives",
    "drkit.signals": "Signals",
    "drkit.encoders": "Encoders",
    "drkit.data": "Collections, texts and queries",
    "drkit.search": "Encoding, indexes and search",
    "drkit.evaluate": "Measures, tables and significance",
    "drkit.train": "Training",
    "drkit.recipe": "Recipes",
    "drkit.commands": "The functions behind the commands",
}
HEAD = """# The public API

Everything on this page is public: it is imported from the package that lists it, and a change that breaks its
users comes with a new version of the API. All other names may change at any time. This is version {version}; a plugin
may declare `DRKIT_API = {version}`, and a drkit of another version then says so instead of failing somewhere else.

Parts, recipes, pipelines and settings are public by name: `drkit list`, `drkit show`.
"""
PAPERS = """## Parts of single papers
A paper's plugin has the settings of its parts in the package, and the parts in modules of it.
"""
OPTIONS = """    options:
      members: [{members}]
      show_root_heading: false
      show_root_toc_entry: false
"""


def exports(package: str) -> list[str]:
    """The public names of a package."""
    return list(import_module(package).__all__)


def papers() -> dict[str, list[str]]:
    """The parts of the papers' plugins and their settings, by module."""
    found: dict[str, set[str]] = {}
    for spec in installed().registry:
        for module, name in (spec.target.split(":"), (spec.config.__module__, spec.config.__name__)):
            if module.startswith("drkit_"):
                found.setdefault(module, set()).add(name)
    return {module: sorted(names) for module, names in sorted(found.items())}


def public_names() -> list[tuple[str, str]]:
    """Every public name, with what it is imported from."""
    listed = {**{package: exports(package) for package in PACKAGES}, **papers()}
    return [(module, name) for module, names in listed.items() for name in names]


def page() -> str:
    """The page on the API, for mkdocstrings."""
    from drkit.plugin import API_VERSION

    sections = [HEAD.format(version=API_VERSION)]
    for package, title in PACKAGES.items():
        members = ", ".join(exports(package))
        sections.append(f"## {title}: `{package}`\n::: {package}\n{OPTIONS.format(members=members)}")
    sections.append(PAPERS)
    for module, names in papers().items():
        sections.append(f"### `{module}`\n::: {module}\n{OPTIONS.format(members=', '.join(names))}")
    return "\n".join(sections)


def fingerprint() -> str:
    """Eight digits that change with any public name or signature."""
    lines = [line for module, name in public_names() for line in described(module, name)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def described(package: str, name: str) -> list[str]:
    """A line for a public name, and one for each public method of a class."""
    value = getattr(import_module(package), name)
    lines = [f"{package}.{name}{signature(value)}"]
    if inspect.isclass(value):
        members = {n: m for n, m in vars(value).items() if not n.startswith("_")}
        lines += [f"{package}.{name}.{n}{signature(members[n])}" for n in sorted(members)]
    return lines


def signature(value: Any) -> str:
    """The names, kinds and defaults (there or not) of parameters; nothing for what cannot be called."""
    value = getattr(value, "__func__", value)
    if not callable(value):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    return "(" + ", ".join(f"{p.kind.name} {p.name}{'=' * (p.default is not p.empty)}" for p in parameters) + ")"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"- The public API is `{fingerprint()}`: ..")
