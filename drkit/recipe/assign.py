"""The option `--set PATH=VALUE`: change one setting of a recipe's table by its dotted path."""

from __future__ import annotations

from typing import Any

from drkit.errors import DrkitError
from drkit.recipe.read import parse_toml

Table = dict[str, Any]


def assign(table: Table, assignment: str) -> None:
    """Apply `dotted.path=VALUE` in place; VALUE is TOML, or a bare word for a string. Lists are indexed from 0.

    Raises DrkitError if the text is not an assignment, or the path leads through a single value or past a list's end.
    """
    path, equals, text = assignment.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise DrkitError(f"--set expects PATH=VALUE, as in pretrain.learning_rate=1e-4; got {assignment!r}")
    node: Any = table
    for depth, key in enumerate(keys[:-1]):
        node = _step(node, key, ".".join(keys[: depth + 1]))
    _put(node, keys[-1], _value(text.strip()), path)


def _step(node: Any, key: str, path: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, key, path)]
    if isinstance(node.get(key, {}), str):
        node[key] = {"use": node[key]}
    inner = node.setdefault(key, {})
    if not isinstance(inner, (dict, list)):
        raise DrkitError(f"--set {path}: {path} is a single value ({inner!r}), not a table of settings")
    return inner


def _put(node: Any, key: str, value: Any, path: str) -> None:
    if isinstance(node, list):
        node[_index(node, key, path)] = value
    elif key == "use" and node.get("use") != value:
        node.clear()
        node["use"] = value
    else:
        node[key] = value


def _index(items: list[Any], key: str, path: str) -> int:
    if not key.isdigit() or int(key) >= len(items):
        raise DrkitError(f"--set {path}: {key!r} is not an index of a list of {len(items)}; use 0 to {len(items) - 1}")
    return int(key)


def _value(text: str) -> Any:
    try:
        return parse_toml(f"value = {text}", "value")["value"]
    except DrkitError:
        return text
