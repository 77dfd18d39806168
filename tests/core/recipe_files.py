"""The built-in recipe files, complete: `python -m tests.core.recipe_files` adds settings that are new or missing.

A file keeps its comments: each belongs to the table or setting below it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drkit.core.registry import DRKIT, installed, package_of
from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_table

WIDTH = 120
PARTS = installed()
# What a pipeline replaces as a whole; of other tables it may set single settings.
FINE_TUNING = ("pseudo_queries", "finetune", "reranker")


def files(recipes: bool = True) -> dict[str, Path]:
    """Return the files of drkit's own recipes, or of its pipelines, by name and scale: `retromae`, `retromae-small`."""
    items = [
        item for item in (PARTS.recipes if recipes else PARTS.pipelines).items() if package_of(item.provider) == DRKIT
    ]
    small = {f"{item.name}-small": item.small for item in items if item.small}
    return {name: Path(str(file)) for name, file in ({item.name: item.file for item in items} | small).items()}


def complete(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with every setting, those that it leaves out at their defaults."""
    return recipe_table(recipe_from_table(table, PARTS.registry))


def complete_pipeline(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline with every setting of fine-tuning."""
    whole = complete({**parse_toml(PARTS.recipes.get("default").text(), "default"), **table})
    return {name: whole[name] if name in FINE_TUNING else table[name] for name in whole if name in table}


def completed(text: str, table: Mapping[str, Any]) -> str:
    """Return the text of a file with the settings of a table, and with its own comments."""
    return render(table, comments_of(text))


def comments_of(text: str) -> dict[str, list[str]]:
    """Return the comments of a TOML file by the path of the table or setting below; `""` for those at the top."""
    found: dict[str, list[str]] = {}
    table, seen, pending = "", dict[str, int](), list[str]()
    for line in text.splitlines():
        header = re.fullmatch(r"\[\[(.+)\]\]|\[(.+)\]", line)
        setting = re.match(r"(\w+) = ", line)
        if header:
            name = header[1] or header[2]
            if header[1]:
                seen[name] = seen.get(name, -1) + 1
            table = re.sub("|".join(map(re.escape, seen)) or "$^", lambda m: f"{m[0]}.{seen[m[0]]}", name)
        if line.startswith("#"):
            pending.append(line)
        elif pending and (header or setting):
            path = table if header else f"{table}.{setting[1]}".strip(".") if setting else ""
            found["" if text.startswith("\n".join(pending)) else path], pending = pending, []
    return found


def render(table: Mapping[str, Any], comments: Mapping[str, list[str]]) -> str:
    """Return a recipe as TOML, short lists and the parts of a list on one line."""
    body = "\n".join(_lines(table, "", "", comments)).strip()
    return "\n".join(comments.get("", ())) + f"\n\n{body}\n"


def _lines(table: Mapping[str, Any], name: str, path: str, comments: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a table's settings, then the tables in it; name: in a header, path: with the index of a list's table."""
    inner = {key: value for key, value in table.items() if _is_table(value) and key != "arguments"}
    for key, value in table.items():
        if key not in (*inner, "rounds"):
            yield from comments.get(f"{path}{key}", ())
            yield _setting(key, value)
    for key, value in inner.items():
        if not all(map(_is_table, value.values())):
            yield from ("", *comments.get(f"{path}{key}", ()), f"[{name}{key}]")
        yield from _lines(value, f"{name}{key}.", f"{path}{key}.", comments)
    for index, value in enumerate(table.get("rounds", ())):
        yield from ("", *comments.get(f"{path}rounds.{index}", ()), f"[[{name}rounds]]")
        yield from _lines(value, f"{name}rounds.", f"{path}rounds.{index}.", comments)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _setting(key: str, value: Any) -> str:
    """Return a setting on one line, or a list that is too long with an item on each."""
    key = _key(key)
    line = f"{key} = {_value(value)}"
    if len(line) <= WIDTH or not isinstance(value, list):
        return line
    return "\n".join((f"{key} = [", *(f"    {_value(item)}," for item in value), "]"))


def _key(key: str) -> str:
    """Return a key as TOML writes it: quoted if it has other signs than letters, digits, dashes and underscores."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }" if value else "{}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and 0 < value < 1e-3:
        digits, _, exponent = f"{value:e}".partition("e-")
        return f"{digits.rstrip('0').rstrip('.')}e-{int(exponent)}"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for path in files().values():
        old = path.read_text(encoding="utf-8")
        path.write_text(completed(old, complete(parse_toml(old, str(path)))), encoding="utf-8")
    for path in files(recipes=False).values():
        old = path.read_text(encoding="utf-8")
        path.write_text(completed(old, complete_pipeline(parse_toml(old, str(path)))), encoding="utf-8")
