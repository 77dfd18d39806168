"""What an encoder folder says of how its vectors are made: pooling, lengths, prompts. Read without torch.

A folder of sentence-transformers says its pooling, its prompts where it has some, and one length for all texts; drkit's
own says all (`drkit.json`), and so does the recipe beside a run's checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.read import read_table
from drkit.core.recipe import EncoderSettings
from drkit.errors import DrkitError

RECIPE = "recipe.toml"
LENGTHS, PROMPTS = ("query_length", "passage_length"), ("query_prompt", "passage_prompt")
KEPT = ("pooling", *LENGTHS, *PROMPTS)
POOLINGS = ("cls", "mean")
_FLAGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


@frozen
class Declared:
    """Settings of `[encoder]` that a folder declares, and the most tokens it reads (None: it does not say)."""

    where: Path
    settings: Mapping[str, Any]
    longest: int | None = None

    def clashes(self, chosen: EncoderSettings) -> list[str]:
        """What a recipe chooses otherwise, one line each; shorter texts are no clash."""
        found = [name for name in self.settings if self._differs(name, getattr(chosen, name))]
        lines = [
            f"{self.where} was trained with {name} = {self.settings[name]!r}, "
            f"the recipe says {getattr(chosen, name)!r}: "
            f"--set encoder.{name}={_toml(self.settings[name])} keeps it, --set encoder.declared=ignore trains it anew "
            f"@ encoder.{name}"
            for name in found
        ]
        beyond = [n for n in LENGTHS if self.longest and n not in found and getattr(chosen, n) > self.longest]
        return lines + [
            f"{self.where} reads {self.longest} tokens at most, the recipe says {name} = {getattr(chosen, name)}: "
            f"--set encoder.{name}={self.longest} keeps to it, --set encoder.declared=ignore does not @ encoder.{name}"
            for name in beyond
        ]

    def _differs(self, name: str, value: Any) -> bool:
        return bool(value > self.settings[name]) if name in LENGTHS else bool(value != self.settings[name])


def _toml(value: Any) -> str:
    return (
        f"'{json.dumps(value, ensure_ascii=False)}'" if isinstance(value, str) and not value.isalnum() else str(value)
    )


def declared(folder: Path) -> Declared | None:
    """What a folder declares, or the recipe of the run whose checkpoint it is; None where neither does.

    Raises DrkitError where a file of it is no valid JSON.
    """
    if (folder / "modules.json").is_file():
        return _of_folder(folder)
    recipe = folder.parent / RECIPE
    if (folder / "config.json").is_file() and recipe.is_file():
        encoder = read_table(recipe).get("encoder", {})
        return Declared(folder, {key: encoder[key] for key in KEPT if key in encoder})
    return None


def _of_folder(folder: Path) -> Declared:
    own = _json(folder / "drkit.json")
    about = _json(folder / "config_sentence_transformers.json")
    prompts = about.get("prompts") or {}
    given = {
        "pooling": _pooling(folder),
        "query_prompt": prompts.get("query") or None,
        "passage_prompt": next((prompts[key] for key in ("document", "passage", "corpus") if prompts.get(key)), None),
        **{key: own.get(key) for key in KEPT if key in own},
    }
    longest = _json(folder / "sentence_bert_config.json").get("max_seq_length")
    return Declared(folder, {key: value for key, value in given.items() if value is not None}, longest)


def pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """What the settings of sentence-transformers' Pooling module ask for, new style or old, by drkit's names.

    >>> pooling_modes({"pooling_mode_mean_tokens": True}), pooling_modes({"pooling_mode": "cls"})
    (['mean'], ['cls'])
    """
    flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    named = config.get("pooling_mode") or [_FLAGS.get(flag, flag) for flag in flags]
    return [named] if isinstance(named, str) else list(named)


def _pooling(folder: Path) -> str | None:
    """The pooling of a folder of sentence-transformers, where it is one that drkit has."""
    modules = _json(folder / "modules.json")
    paths = [module["path"] for module in modules if str(module.get("type", "")).endswith("Pooling")]
    modes = pooling_modes(_json(folder / paths[0] / "config.json")) if paths else []
    return str(modes[0]) if len(modes) == 1 and modes[0] in POOLINGS else None


def _json(path: Path) -> Any:
    """The JSON in a file; an empty table where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DrkitError(f"{path} cannot be read as JSON ({error}); is this an encoder folder?") from None
