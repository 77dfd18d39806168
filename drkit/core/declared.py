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
from drkit.encoders.folder import declared_settings

RECIPE = "recipe.toml"
LENGTHS, PROMPTS = ("query_length", "passage_length"), ("query_prompt", "passage_prompt")
KEPT = ("pooling", *LENGTHS, *PROMPTS)


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
        settings, longest = declared_settings(folder)
        return Declared(folder, {key: settings[key] for key in KEPT if key in settings}, longest)
    recipe = folder.parent / RECIPE
    if (folder / "config.json").is_file() and recipe.is_file():
        encoder = read_table(recipe).get("encoder", {})
        return Declared(folder, {key: encoder[key] for key in KEPT if key in encoder})
    return None
