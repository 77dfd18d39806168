"""Where training starts: the encoder with the settings that come with it, and the collection, by a path.

A sentence-transformers folder declares its pooling, its prompts and one length for all texts. A folder that drkit wrote
(`drkit.json`), and the recipe beside a run's checkpoint, declare every setting. Nothing here imports torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import MANIFEST, local_path
from drkit.core.registry import Installed
from drkit.core.spec import Choice, Kind
from drkit.data.column_advice import column_choices
from drkit.data.rows import FORMATS as ENDINGS
from drkit.data.rows import file_kind
from drkit.encoders.card import LENGTHS, TAKEN_OVER, EncoderCard, declared_settings
from drkit.encoders.declarations import CONFIG, MODULES, UnsupportedEncoderError, prompt_notes
from drkit.errors import DrkitError, did_you_mean
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.schema import DATA_SETS
from drkit.recipe.toml import (
    assign,
    changed_settings,
    part_from_table,
    plain,
    pooling_as_part,
    read_table,
    toml_value,
)

_LOGGER = logging.getLogger("drkit")
# Formats of files, tried in this order; the last ones read any texts.
_FORMATS = ("beir", "trec", "tevatron", "dpr", "pairs", "hf", "jsonl", "documents")
# Those that read any files with their endings, and leave out the others of a folder.
_LOOSE = ("jsonl", "documents")
# What the formats that read any file with their endings read it as.
_OF_FILES = {"jsonl": "texts", "pairs": "pairs of a query and a text"}
# Names in a folder by which it may have the layout of a format.
_HINTS = {
    "beir": ("corpus.jsonl*", "queries.jsonl*", "qrels"),
    "trec": ("collection.tsv*", "topics*", "*qrels*.t*"),
    "hf": ("dataset_info.json", "state.json", "*.arrow", "data"),
    "pairs": ("train.*",),
}
# In a run: its recipe, and the stage of its pre-training.
RECIPE, _CHECKPOINT = "recipe.toml", "pretrained"


@frozen
class StartingPoint:
    """Settings of `[encoder]` to start training from.

    small: whether drkit made the encoder from scratch, at its own small size. embeds: whether it is an encoder of
    sentences, which has vectors to search by without any training.
    """

    encoder: Mapping[str, Any]
    small: bool = False
    embeds: bool = False


def starting_point(path_or_id: str) -> StartingPoint:
    """Return the starting point that `--encoder` names: an encoder folder, a hub id, or an earlier run.

    A folder contributes the pooling, lengths and prompts that it declares. A run contributes the same and its
    pre-training checkpoint (encoder, LM head, decoders, replacer); if its encoder was made from scratch, the schedule
    stays that of the small scale. Raises DrkitError for a run whose pre-training is not finished.
    """
    run = local_path(path_or_id)
    if not (run / RECIPE).is_file():
        declared = declared_settings_of(run)
        for note in prompt_notes(run):
            _LOGGER.warning(note)
        settings = {"pretrained": path_or_id, **(declared.with_lengths if declared else {})}
        return StartingPoint(settings, embeds=(run / MODULES).is_file())
    if not (run / _CHECKPOINT / CONFIG).is_file():
        raise DrkitError(
            f"the run {run} has not finished its pre-training: finish it with `drkit run {run / RECIPE}`, or "
            f"start from its encoder folder: --encoder {run / 'encoder'}"
        )
    encoder = read_table(run / RECIPE).get("encoder", {})
    settings = {"pretrained": str(run / _CHECKPOINT), **_declarable(encoder)}
    return StartingPoint(settings, small=_was_made_from_scratch(encoder))


@frozen
class DeclaredSettings:
    """Settings of `[encoder]` that a folder declares, and the maximum tokens it reads (None: not declared).

    unsupported: what the folder declares besides them, which training does not continue; empty if nothing.
    """

    folder: Path
    settings: Mapping[str, Any]
    max_tokens: int | None = None
    unsupported: str = ""

    @property
    def with_lengths(self) -> dict[str, Any]:
        """The settings, with the maximum tokens as the lengths that are not declared themselves."""
        lengths = dict.fromkeys(LENGTHS, self.max_tokens) if self.max_tokens else {}
        return {**lengths, **self.settings}

    def clashes(self, chosen: EncoderSettings) -> list[str]:
        """Return a line for each setting of a recipe that contradicts the folder; shorter texts are allowed."""
        clashing = [name for name in self.settings if self._differs(name, getattr(chosen, name))]
        lines = [
            f"{self.folder} was trained with {name} = {self.settings[name]!r}, "
            f"the recipe says {_written(getattr(chosen, name))!r}: "
            f"--set encoder.{name}={_toml(self.settings[name])} keeps it, "
            f"--set encoder.declared=ignore trains with the new value @ encoder.{name}"
            for name in clashing
        ]
        too_long = [
            n for n in LENGTHS if self.max_tokens and n not in clashing and getattr(chosen, n) > self.max_tokens
        ]
        if self.unsupported:
            lines.append(
                f"{self.unsupported}; --set encoder.declared=ignore starts from its transformer alone @ "
                f"encoder.pretrained"
            )
        return lines + [
            f"{self.folder} reads at most {self.max_tokens} tokens, the recipe says {name} = {getattr(chosen, name)}: "
            f"--set encoder.{name}={self.max_tokens} respects the limit, --set encoder.declared=ignore ignores it "
            f"@ encoder.{name}"
            for name in too_long
        ]

    def _differs(self, name: str, value: Any) -> bool:
        if isinstance(value, Choice):
            return not _is_chosen(value, self.settings[name])
        return bool(value > self.settings[name]) if name in LENGTHS else bool(value != self.settings[name])


def _is_chosen(choice: Choice, declared: str | Mapping[str, Any]) -> bool:
    """Return whether a choice is that of a table or name; settings that the table lacks have their defaults."""
    table = {"use": declared} if isinstance(declared, str) else declared
    default = type(choice.config)()
    settings = {name: table.get(name, value) for name, value in plain(default).items()}
    return table["use"] == choice.use and settings == plain(choice.config)


def _written(value: Any) -> Any:
    """Return a setting as a recipe writes it; of a part with settings, those that are not the defaults."""
    if not isinstance(value, Choice):
        return value
    settings = changed_settings(value.config)
    return {"use": value.use, **settings} if settings else value.use


def declared_settings_of(folder: Path) -> DeclaredSettings | None:
    """Return what an encoder folder declares, or the recipe of the run that made the checkpoint; None without either.

    Raises DrkitError if one of its files is not valid JSON, or if its vectors are truncated.
    """
    if (folder / MODULES).is_file():
        settings, max_tokens = declared_settings(folder)
        if dimension := settings.get("truncate_dim"):
            raise DrkitError(
                f"{folder} keeps only the first {dimension} numbers of its vectors (truncate_dim), and training needs "
                f"whole ones: start from the encoder that it was exported from, and export the result with --dimension "
                f"{dimension}"
            )
        return DeclaredSettings(folder, _declarable(settings), max_tokens, _unsupported(folder))
    recipe = folder.parent / RECIPE
    if (folder / CONFIG).is_file() and is_stage_of_run(folder):
        return DeclaredSettings(folder, _declarable(read_table(recipe).get("encoder", {})))
    return None


def is_stage_of_run(folder: Path) -> bool:
    """Return whether a folder is a stage of a run, and not any folder beside a recipe."""
    return (folder / MANIFEST).is_file() and (folder.parent / RECIPE).is_file()


def _unsupported(folder: Path) -> str:
    """Return what an encoder folder declares that drkit does not compute, or an empty string."""
    try:
        EncoderCard.read(folder)
    except UnsupportedEncoderError as error:
        return str(error)
    return ""


def _declarable(settings: Mapping[str, Any]) -> dict[str, Any]:
    table = pooling_as_part(settings)
    return {name: table[name] for name in TAKEN_OVER if name in table}


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"'{toml_value(value)}'"
    return (
        f"'{json.dumps(value, ensure_ascii=False)}'" if isinstance(value, str) and not value.isalnum() else str(value)
    )


def _was_made_from_scratch(encoder: Mapping[str, Any]) -> bool:
    """Return whether drkit made the run's encoder, or that of the earlier run it started from."""
    earlier = encoder.get("pretrained")
    if earlier is None:
        return True
    recipe = local_path(earlier).parent / RECIPE
    return is_stage_of_run(local_path(earlier)) and _was_made_from_scratch(read_table(recipe).get("encoder", {}))


def find_collection(text: str, parts: Installed, settings: Sequence[str] = ()) -> str:
    """Return the name of a collection, as `--collection` takes it, for such a name or for a path of unknown format.

    settings: `collection.NAME=VALUE` ..; a format that does not have one of them is none. A word with a colon that is
    neither is returned as it is. Raises DrkitError for a path that does not exist, that is a run or an encoder, or that
    no format can read.
    """
    known = [name for name in parts.registry.names(Kind.COLLECTION) if name != DATA_SETS]
    path = local_path(text)
    if text.partition(":")[0] in known:
        return text
    if not path.exists():
        if ":" in text or any(repr(text) in line for line in parts.registry.clashes):
            return text
        raise DrkitError(
            f"no such file or folder: {text}{did_you_mean(text, known)} give a path, or NAME:VALUE with one of: "
            f"{', '.join(known)} (see `drkit list collection`)"
        )
    _refuse_other_folders(text, path, parts)
    problems, readable = {}, []
    for name in (name for name in _FORMATS if name in known):
        if problem := _unreadable(name, text, parts, settings):
            problems[name] = problem
        else:
            readable.append(name)
        if readable and readable[0] not in _LOOSE:
            break
    if len(readable) > 1:
        choices = " or ".join(f"{name}:{text}" for name in readable)
        raise DrkitError(f"{text} has files of several formats, of which a collection has one; choose {choices}")
    if readable:
        return f"{readable[0]}:{text}"
    raise (_unreadable_folder if path.is_dir() else _unreadable_file)(text, path, problems)


def _refuse_other_folders(text: str, path: Path, parts: Installed) -> None:
    """Raise DrkitError for the folder of a run or an encoder, whose documentation would be read as texts."""
    if (path / RECIPE).is_file():
        raise DrkitError(f"{text} is a run, not texts; give {_collection_of(path, parts)}")
    if (path / CONFIG).is_file() or (path / MODULES).is_file():
        raise DrkitError(f"{text} is an encoder, not texts: --encoder {text}")


def _collection_of(run: Path, parts: Installed) -> str:
    """Return what to write for the collection of a run."""
    table = read_table(run / RECIPE).get("collection", {})
    name = table.get("use", "") if isinstance(table, Mapping) else ""
    shorthand = (
        parts.registry.get(Kind.COLLECTION, name).shorthand if name in parts.registry.names("collection") else ""
    )
    value = table.get(shorthand) if shorthand else None
    return f"the collection that it was made from: --collection {name}:{value}" if value else "a path of texts"


def _unreadable_file(text: str, path: Path, problems: Mapping[str, str]) -> DrkitError:
    """Return the error for a file that no format reads: the problems of those that read its ending.

    problems: by format.
    """
    kind = file_kind(path)
    if kind not in ENDINGS:
        return DrkitError(
            f"{text} ends in {kind or 'nothing'}, which no format reads; give a file that ends in "
            f"{', '.join(ENDINGS)}, a folder of them, or a folder of .md or .txt files"
        )
    found = {name: problems[name] for name in _OF_FILES if name in problems}
    others = f"other formats are chosen as NAME:{text} (see `drkit list collection`)"
    problem = next(iter(found.values())) if len({*found.values()}) == 1 else ""
    lines = [f"  - as {_OF_FILES[name]}: {problem}" for name, problem in found.items()]
    are_unknown = all("columns:" in one and "labelled:TEXTS" not in one for one in found.values())
    choices = [f"  - if it has {line}" for line in column_choices(path)] if are_unknown else []
    first = f"{problem}; {others}" if problem else f"cannot read {text} as a collection; {others}"
    return DrkitError("\n".join([first, *(() if problem else lines), *choices]))


def _unreadable_folder(text: str, path: Path, problems: Mapping[str, str]) -> DrkitError:
    """Return the error for a folder that no format reads: the problems of those that its files hint at.

    problems: by format.
    """
    if not any(one.is_file() for one in path.rglob("*")):
        return DrkitError(
            f"{text} has no files; give a folder of .md or .txt files, of {', '.join(ENDINGS)} files, or in a layout "
            f"of `drkit list collection`"
        )
    names = [name for name, hints in _HINTS.items() if any(next(path.glob(hint), None) for hint in hints)]
    found = {name: problems[name] for name in (*names, *_LOOSE) if name in problems}
    lines = [f"  - {name}: {problem}" for name, problem in found.items()]
    return DrkitError("\n".join([f"cannot read {text} as a collection; see `drkit list collection`", *lines]))


def _unreadable(name: str, text: str, parts: Installed, settings: Sequence[str]) -> str:
    """Return why a format does not read a path with the settings of the collection; empty if it does."""
    spec = parts.registry.get(Kind.COLLECTION, name)
    table: dict[str, Any] = {"collection": {"use": name, spec.shorthand: text}}
    try:
        for setting in settings:
            if setting.partition("=")[0].strip().startswith("collection."):
                assign(table, setting)
        config = part_from_table(Kind.COLLECTION, table["collection"], parts.registry).config
        source = parts.registry.build(Kind.COLLECTION, name, config)
        return "" if next(iter(source.passages()), None) is not None else f"{text} has no passages"
    except DrkitError as error:
        lines = str(error).splitlines()
        return (lines[0] if len(lines) == 1 else " ".join(lines)).removeprefix(f"collection {name}: ")
