"""Write a plugin package that works: declarations, a part or command per kind, a recipe, and tests that it passes."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from drkit.core.files import replacing_folder, write_text
from drkit.errors import DrkitError, UnknownNameError

# What a new plugin can have, in the order of the package; a filter is a miner that receives candidates.
SUMMARIES = {
    "masker": "Hides a share of the tokens",
    "decoder": "Predicts each token from the vector and its position",
    "loss": "Pushes the vectors of a batch apart",
    "miner": "Passages that stand near a positive in the collection",
    "filter": "Drops candidates of a few words",
    "signal": "Tokens that begin with a capital",
    "pooling": "The mean of what several learned queries attend to",
    "column": "The share of a query's words that a passage has",
    "queries": "What is said about the title of a passage",
    "batches": "Queries whose ids begin alike",
    "stage": "The longest passages of the collection",
    "collection": "Questions and their answers from a text file",
    "command": "Prints the queries with the fewest passages",
    "architecture": "ERNIE; built like BERT",
}
# What is not a part. An architecture has the name of its model type.
NOT_PARTS = {"command": "", "architecture": "ernie"}
IN_RECIPES = ("masker", "decoder", "loss", "miner", "filter", "pooling")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MARK = "pyproject.toml"
# A call of one of attrs.validators.
_VALIDATOR = re.compile(r"\b(and_|ge|gt|le|lt)\(")


def write_plugin(name: str, kinds: Sequence[str], folder: Path) -> tuple[Path, ...]:
    """Write the package `name` with a part of each kind to `folder`; returns the files, relative to it.

    kinds: keys of `SUMMARIES`, each at most once. A single part has the name of the plugin; of several, each has its
    kind appended. An architecture has the name of its model type.

    Raises DrkitError for a name that is not kebab-case or cannot be imported, unknown or repeated kinds, no kinds, or a
    folder that exists.
    """
    check_plugin(name, kinds, folder)
    contents = _contents(name, [kind for kind in SUMMARIES if kind in kinds])
    with replacing_folder(folder) as temporary:
        for path, text in contents.items():
            (temporary / path).parent.mkdir(exist_ok=True)
            write_text(temporary / path, text)
    return tuple(map(Path, contents))


def check_plugin(name: str, kinds: Sequence[str], folder: Path) -> None:
    """Raise DrkitError as `write_plugin` does."""
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise DrkitError(f"invalid plugin name {name!r}; use lower-case words joined by hyphens, as in my-masker")
    if package in sys.stdlib_module_names or package.split("_")[0] == "drkit" or keyword.iskeyword(package):
        raise DrkitError(f"a plugin cannot have the name {name!r}, which Python or drkit uses; choose another one")
    if unknown := [kind for kind in kinds if kind not in SUMMARIES]:
        raise UnknownNameError("kind", unknown[0], SUMMARIES)
    if not kinds or len(set(kinds)) < len(kinds):
        raise DrkitError(f"give one or several kinds, each once: {', '.join(SUMMARIES)}")
    if folder.exists():
        raise DrkitError(f"{folder} exists; choose another name or folder, or remove it")


def _contents(name: str, kinds: Sequence[str]) -> dict[str, str]:
    """Return the text of every file, by its path."""
    package = name.replace("-", "_")
    names = {kind: NOT_PARTS.get(kind) or (name if len(kinds) == 1 else f"{name}-{kind}") for kind in kinds}
    has_recipe = any(kind in IN_RECIPES for kind in kinds)
    values: dict[str, Any] = {
        "name": name,
        "package": package,
        "summary": ", ".join(f"{'an' if kind[0] == 'a' else 'a'} {kind}" for kind in kinds).capitalize(),
        "all": names,
        "parts": {kind: part for kind, part in names.items() if kind not in NOT_PARTS},
        "kinds": {kind: "miner" if kind == "filter" else kind for kind in kinds},
        "summaries": SUMMARIES,
        "recipe": has_recipe,
        "checks": sorted(f"check_{kind}" for kind in (*kinds, *(["recipe"] if has_recipe else []))),
        "year": date.today().year,
    }
    here = files("drkit.commands") / "plugin"
    templates = {
        _MARK: "pyproject.toml",
        "README.md": "README.md",
        "LICENSE": "LICENSE",
        f"{package}/__init__.py": "package/__init__.py",
        f"{package}/py.typed": "package/py.typed",
        **{f"{package}/{kind}.py": f"package/{kind}.py" for kind in kinds},
        **({f"{package}/recipe{scale}.toml": "package/recipe.toml" for scale in ("", "-small")} if has_recipe else {}),
        "tests/test_parts.py": "test_parts.py",
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)

    def render(template: str, **more: Any) -> str:
        text = (here / f"{template}.jinja").read_text(encoding="utf-8")
        return environment.from_string(text).render(values, **more)

    # The declarations import what they call.
    validators = sorted(set(_VALIDATOR.findall(render("package/__init__.py", validators=()))))
    return {
        path: render(template, validators=validators, small=path.endswith("-small.toml"))
        for path, template in templates.items()
    }
