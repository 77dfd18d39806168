"""Names of registered parts as command-line values: checked, and completed in the shell."""

from __future__ import annotations

from typing import Any

import click


class PartName(click.ParamType):  # type: ignore[type-arg]
    """The name of a registered part of one kind, plugins' parts included; or `NAME:VALUE`, where the part takes one.

    Either may have its package before it, `PACKAGE:NAME`, as `Registry.split` reads it.
    """

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the text as it is; raises as `Registry.split` does where it names no part."""
        from drkit.core.discovery import installed

        installed().registry.split(self.name, value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Every registered name that starts so."""
        from click.shell_completion import CompletionItem

        from drkit.core.discovery import installed

        registry = installed().registry
        named = {registry.name_of(spec): spec.summary for spec in registry.specs(self.name)}
        return [CompletionItem(name, help=said) for name, said in named.items() if name.startswith(incomplete)]


class _FileName(click.ParamType):  # type: ignore[type-arg]
    """The name of a file of settings that a plugin brings."""

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the name; raises as `Installed.recipe` and `Installed.pipeline` do where it names no file."""
        from drkit.core.discovery import installed

        getattr(installed(), self.name)(value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Every name that starts so."""
        from click.shell_completion import CompletionItem

        from drkit.core.discovery import installed

        names = getattr(installed(), f"{self.name}s")
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class RecipeName(_FileName):
    """The name of a recipe."""

    name = "recipe"


class PipelineName(_FileName):
    """The name of a fine-tuning pipeline."""

    name = "pipeline"
