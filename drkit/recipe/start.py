"""Where training starts: what an encoder folder, or an earlier run, declares of how its vectors are made.

A folder of sentence-transformers says its pooling, its prompts where it has some, and one length for all texts; drkit's
own says all (`drkit.json`), and so does the recipe beside a run's checkpoint. Read without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.encoders.folder import CONFIG, MODULES, declared_settings
from drkit.errors import DrkitError
from drkit.recipe.read import read_table
from drkit.recipe.schema import EncoderSettings

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
    if (folder / MODULES).is_file():
        settings, longest = declared_settings(folder)
        return Declared(folder, {key: settings[key] for key in KEPT if key in settings}, longest)
    recipe = folder.parent / RECIPE
    if (folder / CONFIG).is_file() and recipe.is_file():
        encoder = read_table(recipe).get("encoder", {})
        return Declared(folder, {key: encoder[key] for key in KEPT if key in encoder})
    return None


CHECKPOINT = "pretrained"


@frozen
class Origin:
    """Where training starts: settings of `[encoder]`, and whether the encoder is of drkit's own small scale."""

    encoder: Mapping[str, Any]
    small: bool = False


def origin(path_or_id: str) -> Origin:
    """What `--encoder` names: a folder or hub id as it is, or an earlier run's pre-training checkpoint.

    From a folder come the pooling, lengths and prompts that it declares (`drkit.recipe.start`); from a run the same,
    and its checkpoint (encoder, LM head, decoder, generator): where its encoder was made from scratch, the schedule
    stays that of the small scale.

    Raises DrkitError where the run has no finished pre-training.
    """
    run = Path(path_or_id).expanduser()
    if not (run / RECIPE).is_file():
        told = declared(run)
        return Origin({"pretrained": path_or_id, **(told.settings if told else {})})
    if not (run / CHECKPOINT / "config.json").is_file():
        raise DrkitError(
            f"the run {run} has no finished pre-training to go on from: finish it with `drkit run {run / RECIPE}`, or "
            f"give its encoder folder: --encoder {run / 'encoder'}"
        )
    table = read_table(run / RECIPE)
    encoder = table.get("encoder", {})
    kept = {key: encoder[key] for key in KEPT if key in encoder}
    return Origin({"pretrained": str(run / CHECKPOINT), **kept}, small=_made_from_scratch(encoder))


def _made_from_scratch(encoder: Mapping[str, Any]) -> bool:
    """Whether the run's encoder, or the one it went on from itself, was made by drkit."""
    earlier = encoder.get("pretrained")
    if earlier is None:
        return True
    before = Path(earlier).expanduser().parent / RECIPE
    return before.is_file() and _made_from_scratch(read_table(before).get("encoder", {}))
