"""Names of registered parts as command-line values: checked, and completed in the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from drkit.core.files import local_path
from drkit.core.settings import MOST

LARGEST_SEED = 2**31 - 1


def count(least: int) -> click.IntRange:
    """Return the type of a number of things, from `least` on."""
    return click.IntRange(least, MOST)


class LocalPath(click.Path):
    """A path, as `drkit.core.files.local_path` allows it. dir_okay, file_okay: as click's."""

    def __init__(self, *, dir_okay: bool = True, file_okay: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, file_okay=file_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises DrkitError as `local_path` does."""
        return super().convert(local_path(value), param, ctx)


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


class PartName(click.ParamType):  # type: ignore[type-arg]
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
        from click.shell_completion import CompletionItem

        from drkit.core.registry import installed

        registry = installed().registry
        summaries = {registry.name_of(spec): spec.summary for spec in registry.specs(self.name)}
        return [CompletionItem(name, help=text) for name, text in summaries.items() if name.startswith(incomplete)]


class _FileName(click.ParamType):  # type: ignore[type-arg]
    """The name of a TOML file that a plugin provides."""

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the name unchanged. Raises as `Installed.recipe` and `Installed.pipeline` do if it is unknown."""
        from drkit.core.registry import installed

        getattr(installed(), self.name)(value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names that start with the incomplete text."""
        from click.shell_completion import CompletionItem

        from drkit.core.registry import installed

        names = getattr(installed(), f"{self.name}s")
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class RecipeName(_FileName):
    """The name of a recipe."""

    name = "recipe"


class PipelineName(_FileName):
    """The name of a fine-tuning pipeline."""

    name = "pipeline"


class NameOfKind(click.ParamType):  # type: ignore[type-arg]
    """The name of a part, recipe or pipeline; the argument KIND before it says of which kind."""

    name = "name"

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of the kind that start with the incomplete text."""
        kind = ctx.params.get("kind")
        files = {"recipe": RecipeName(), "pipeline": PipelineName()}
        return (files.get(kind) or PartName(kind)).shell_complete(ctx, _param, incomplete) if kind else []
