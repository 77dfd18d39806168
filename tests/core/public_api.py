"""drkit's public API, read from the code: the names that packages export, and their signatures.

`python -m tests.core.public_api` writes docs/reference/api.md, a page per package in docs/reference/api/, and prints
the line for the changelog.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from drkit.core.registry import installed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
PACKAGES = {
    "drkit": "Compose, run and study",
    "drkit.plugin": "What plugins import",
    "drkit.testing": "The contract of each kind of part",
    "drkit.maskers": "Maskers",
    "drkit.decoders": "Decoders",
    "drkit.losses": "Losses",
    "drkit.batching": "Batches",
    "drkit.miners": "Sources and filters of negatives",
    "drkit.signals": "Signals",
    "drkit.encoders": "Encoders",
    "drkit.data": "Collections, texts and queries",
    "drkit.search": "Encoding, indexes and search",
    "drkit.evaluate": "Measures, tables and significance",
    "drkit.train": "Training",
    "drkit.recipe": "Recipes",
    "drkit.commands": "The functions behind the commands",
    "drkit_sentence_transformers": "drkit in sentence-transformers",
    "drkit_pydocs": "The default collection",
}
HEAD = """# The public API

Everything listed here is public. Import it from the package that lists it. A change that breaks its users comes with
a new version of the API; all other names may change at any time. This is version {version}. A plugin may declare
`DRKIT_API = {version}`; a drkit with another version then refuses it with a clear message.

Parts, recipes, pipelines and settings are public by name: `drkit list`, `drkit show`.
"""
PAPERS = """# Parts of single papers

The package of a paper's plugin holds the settings of its parts; the modules of the package hold the parts.
"""
EXAMPLE = re.compile(r"(?:(?<=\n\n)|^)(>>> .*?)(?=\n\n|\Z)", re.DOTALL)
LONGEST = 110


def exports(package: str) -> list[str]:
    """The public names of a package."""
    return list(import_module(package).__all__)


def papers() -> dict[str, list[str]]:
    """The parts of the papers' plugins and their settings, by module."""
    found: dict[str, set[str]] = {}
    for spec in installed().registry:
        for module, name in (spec.target.split(":"), (spec.config.__module__, spec.config.__name__)):
            if module.startswith("drkit_") and module.partition(".")[0] not in PACKAGES:
                found.setdefault(module, set()).add(name)
    return {module: sorted(names) for module, names in sorted(found.items())}


def public_names() -> list[tuple[str, str]]:
    """Every public name, with what it is imported from."""
    listed = {**{package: exports(package) for package in PACKAGES}, **papers()}
    return [(module, name) for module, names in listed.items() for name in names]


def pages() -> dict[str, str]:
    """The pages on the API, by path below docs/reference: an index, a page per package, and the papers' parts."""
    found = {"api.md": index()}
    for package, title in PACKAGES.items():
        entries = (entry(package, name) for name in exports(package))
        found[path_of(package)] = "\n\n".join([f"# {title}: `{package}`", *entries]) + "\n"
    sections = [PAPERS.rstrip()]
    for module, names in papers().items():
        sections += [f"## From `{module}`", *(entry(module, name, level=3) for name in names)]
    found["api/papers.md"] = "\n\n".join(sections) + "\n"
    return found


def path_of(package: str) -> str:
    """The path of a package's page below docs/reference."""
    return f"api/{package.removeprefix('drkit.')}.md"


def index() -> str:
    """The first page: what is public, and every package with its names."""
    from drkit.plugin import API_VERSION

    sections = [HEAD.format(version=API_VERSION).rstrip()]
    for package, title in PACKAGES.items():
        path = path_of(package)
        names = ", ".join(f"[{name}]({path}#{name.lower()})" for name in exports(package))
        sections.append(f"## [{title}: `{package}`]({path})\n\n{names}")
    sections.append("## [Parts of single papers](api/papers.md)\n\n" + ", ".join(f"`{module}`" for module in papers()))
    return "\n\n".join(sections) + "\n"


def write() -> None:
    """Write every page and remove those of packages that no longer exist."""
    wanted = pages()
    (FOLDER / "api").mkdir(exist_ok=True)
    for path, text in wanted.items():
        (FOLDER / path).write_text(text, encoding="utf-8")
    for file in (FOLDER / "api").glob("*.md"):
        if f"api/{file.name}" not in wanted:
            file.unlink()


def entry(module: str, name: str, *, level: int = 2) -> str:
    """A public name under a heading: signature, docstring, and those of its methods and properties."""
    value = getattr(import_module(module), name)
    found = [f"{'#' * level} {name}", code(declaration(name, value)), prose(value.__doc__ if callable(value) else "")]
    if inspect.isclass(value):
        for member, defined in vars(value).items():
            documented = getattr(defined, "fget", None) or getattr(defined, "__func__", defined)
            if not member.startswith("_") and inspect.isfunction(documented):
                called = f".{member}{parameters(documented)}" if documented is not getattr(defined, "fget", 0) else ""
                shown = called or f".{member}: {annotation(inspect.signature(documented).return_annotation)}"
                found += [code(shown), prose(documented.__doc__)]
    return "\n\n".join(filter(None, found))


def declaration(name: str, value: Any) -> str:
    """How a name is called; of a constant, its value."""
    if inspect.isclass(value) and issubclass(value, Enum):
        return f"class {name}: " + ", ".join(value.__members__)
    if inspect.isclass(value):
        is_protocol = Protocol in value.__bases__
        return f"class {name}{'' if is_protocol else parameters(value)}"
    return f"{name}{parameters(value)}" if callable(value) else f"{name} = {value!r}"


def parameters(value: Any) -> str:
    """Names, annotations and defaults of parameters, and what is returned; over several lines if they are long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    shown, kinds = [], [p.kind for p in found.parameters.values()]
    for number, (name, p) in enumerate(found.parameters.items()):
        if name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not {p.KEYWORD_ONLY, p.VAR_POSITIONAL} & set(kinds[:number]):
            shown.append("*")
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        typed = "" if p.annotation is p.empty else f": {annotation(p.annotation)}"
        shown.append(f"{stars}{name}{typed}{'' if p.default is p.empty else f' = {default(p.default)}'}")
    returned = found.empty if inspect.isclass(value) else found.return_annotation
    end = "" if returned is found.empty else f" -> {annotation(returned)}"
    line = f"({', '.join(shown)}){end}"
    return line if len(line) < LONGEST else "(\n    " + ",\n    ".join(shown) + f",\n){end}"


def annotation(given: Any) -> str:
    """An annotation as the code has it."""
    return given.strip("'\"") if isinstance(given, str) else inspect.formatannotation(given)


def default(value: Any) -> str:
    """A default as the code has it; `..` for an object that is made."""
    return repr(value) if isinstance(value, (str, int, float, tuple, type(None))) else ".."


def code(text: str) -> str:
    """A block of code."""
    return f"```python\n{text}\n```"


def prose(docstring: str | None) -> str:
    """A docstring as Markdown, with its examples as code."""
    text = inspect.cleandoc(docstring or "")
    pieces = EXAMPLE.split(text)
    return "".join(f"```pycon\n{p}\n```" if n % 2 else p.replace("<", "&lt;") for n, p in enumerate(pieces)).strip()


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
    write()
    print(f"- The public API is `{fingerprint()}`: ..")
