"""Names of registered parts as command-line values: checked, and completed in the shell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from drkit.core.files import input_path, local_path
from drkit.core.settings import MOST
from drkit_cli.completion import OPEN

if TYPE_CHECKING:
    from drkit.recipe.paths import SettingPath

    _ParamType = click.ParamType[str]
else:  # only new releases of click take a type here
    _ParamType = click.ParamType

LARGEST_SEED = 2**31 - 1


def count(least: int) -> click.IntRange:
    """Return the type of a number of things, from `least` on."""
    return click.IntRange(least, MOST)


class Between(click.FloatRange):
    """A number within bounds. NaN, which is outside no bounds, is refused too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class LocalPath(click.Path):
    """A path, as `drkit.core.files.local_path` allows it. dir_okay, file_okay: as click's."""

    def __init__(self, *, dir_okay: bool = True, file_okay: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, file_okay=file_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises DrkitError as `local_path` does."""
        return super().convert(local_path(value), param, ctx)


class InputPath(LocalPath):
    """A file to read; `-` is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises DrkitError as `local_path` does."""
        return super().convert(input_path(value), param, ctx)


class Commands(click.Group):
    """A group of commands that refuses arguments which no command can use."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command and its arguments.

        Raises UsageError for an argument or value that is empty, or is not text.
        """
        for before, text in zip(["", *args], args, strict=False):
            if not text or (text.startswith("--") and text.endswith("=") and text.count("=") == 1):
                place = text or (f"after {before}" if before else "first argument")
                raise click.UsageError(f"an argument is empty ({place}): an unset variable of the shell? Leave it out")
            if "\0" in text or (not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text)):
                raise click.UsageError(f"an argument is not text: {text!r:.80} has a NUL, or bytes that are not UTF-8")
        return super().resolve_command(ctx, args)


def part_items(kind: str, incomplete: str) -> list[CompletionItem[str]]:
    """Return the completions of `[PACKAGE:]NAME[:VALUE]`; of a VALUE only if it is a path or an id of ir_datasets."""
    from drkit.core.registry import installed

    registry = installed().registry
    name, colon, value = incomplete.partition(":")
    found = {registry.name_of(spec): spec for spec in registry.specs(kind)}
    if colon and name in found and found[name].shorthand:
        values = _dataset_ids(value) if found[name].shorthand == "dataset" else _paths(value)
        return [CompletionItem(f"{name}:{text}", type=OPEN if text.endswith("/") else "plain") for text in values]
    return [
        CompletionItem(name + ":", type=OPEN, help=spec.summary)
        if spec.shorthand and kind == "collection"
        else CompletionItem(name, help=spec.summary)
        for name, spec in found.items()
        if name.startswith(incomplete)
    ]


def _paths(start: str) -> Iterator[str]:
    """Yield the files and folders that start with a text, folders with a slash at the end."""
    folder, _, name = start.rpartition("/")
    parent = local_path(folder or ("/" if start.startswith("/") else "."))
    for path in sorted(parent.iterdir()):
        if path.name.startswith(name) and (name or not path.name.startswith(".")):
            yield f"{start[: len(start) - len(name)]}{path.name}{'/' if path.is_dir() else ''}"


def _dataset_ids(start: str) -> Iterator[str]:
    import ir_datasets

    return (name for name in ir_datasets.registry if name.startswith(start))


class PartName(_ParamType):
    """The name of a registered part of one kind: `[PACKAGE:]NAME`, or `[PACKAGE:]NAME:VALUE` if it takes a value."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the text unchanged. Raises as `Registry.split` does if it does not name a part."""
        from drkit.core.registry import installed

        installed().registry.split(self.name, value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the registered names that start with the incomplete text."""
        return part_items(self.name, incomplete)


class _FileName(_ParamType):
    """The name of a TOML file that a plugin provides."""

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the name unchanged. Raises as `Installed.recipe` and `Installed.pipeline` do if it is unknown."""
        from drkit.core.registry import installed

        getattr(installed(), self.name)(value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names that start with the incomplete text."""
        from drkit.core.registry import installed

        names = getattr(installed(), f"{self.name}s")
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class RecipeName(_FileName):
    """The name of a recipe."""

    name = "recipe"


class PipelineName(_FileName):
    """The name of a fine-tuning pipeline."""

    name = "pipeline"


class NameOfKind(_ParamType):
    """The name of a part, recipe or pipeline; the argument KIND before it names the kind."""

    name = "name"

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of the kind that start with the incomplete text."""
        # Before an option without its value, click leaves arguments unparsed.
        kind = ctx.params.get("kind") or next(iter(ctx.args), "")
        files = {"recipe": RecipeName(), "pipeline": PipelineName()}
        return (files.get(kind) or PartName(kind)).shell_complete(ctx, _param, incomplete) if kind else []


class CollectionName(_ParamType):
    """A collection: `NAME`, `NAME:VALUE`, or the folder of a run. What it means is checked where it is opened."""

    name = "collection"

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the collections that start with the incomplete text, the paths after `NAME:`, or folders."""
        return part_items("collection", incomplete) or [CompletionItem(incomplete, type="dir")]


class PathOrId(_ParamType):
    """The folder of a model or run, or a hub id; folders are completed."""

    name = "path"

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Let the shell complete folders."""
        return [CompletionItem(incomplete, type="dir")]


class Assignment(_ParamType):
    """A setting `PATH=VALUE`; paths are those of the recipe, or of the parts, that the command line chooses."""

    name = "setting"

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the next names of the path, or the values of a setting that allows only some."""
        path, equals, _ = incomplete.partition("=")
        found = list(chosen_settings(ctx.params))
        if equals:
            values = dict.fromkeys(f"{path}={value}" for one in found if one.path == path for value in one.choices)
            return [CompletionItem(value) for value in values if value.startswith(incomplete)]
        return list(_next_names(found, incomplete))


def _next_names(found: Iterable[SettingPath], incomplete: str) -> Iterator[CompletionItem[str]]:
    """Yield a completion up to the next dot of each path, or the whole path and an equals sign."""
    seen = set()
    for one in found:
        if one.path.startswith(incomplete):
            name, dot, _ = one.path[len(incomplete) :].partition(".")
            value = incomplete + name + (dot or "=")
            if value not in seen:
                yield CompletionItem(value, type=OPEN, help="" if dot else one.meaning)
            seen.add(value)


def chosen_settings(given: dict[str, Any]) -> Iterator[SettingPath]:
    """Yield the settings that `--set` takes on a command line; given: its options as far as they are typed.

    Of `compose` (and every command with `--pipeline`) those of the recipe; of others those of the collection, of the
    masker, and of each miner by its name.
    """
    from drkit.core.registry import installed
    from drkit.recipe.compose import ComposeRequest, compose
    from drkit.recipe.paths import setting_paths

    parts = installed()
    names = ("paper", "masker", "decoder", "loss", "miners", "pipeline", "collection", "encoder", "scale", "settings")
    request = {name: given[name] for name in names if given.get(name)}
    if "pipeline" in given:
        yield from setting_paths(compose(ComposeRequest(**request), parts), parts.registry)
        return
    chosen = [("collection", given.get("collection") or "pydocs", "collection")]
    chosen += [("masker", given["masker"], "masker")] if given.get("masker") else []
    chosen += [("miner", text, "") for text in given.get("miners") or ()]
    for kind, text, path in chosen:
        spec, _ = parts.registry.split(kind, text)
        yield from setting_paths(spec.config(), parts.registry, path or spec.name)
