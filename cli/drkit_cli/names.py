"""Names of registered parts as command-line values: checked, and completed in the shell."""

from __future__ import annotations

from typing import Any

import click


class PartName(click.ParamType):  # type: ignore[type-arg]
    """The name of a registered part of one kind: `[PACKAGE:]NAME`, or `[PACKAGE:]NAME:VALUE` if it takes a value."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the text unchanged. Raises as `Registry.split` does if it does not name a part."""
        from drkit.core.discovery import installed

        installed().registry.split(self.name, value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the registered names that start with the incomplete text."""
        from click.shell_completion import CompletionItem

        from drkit.core.discovery import installed

        registry = installed().registry
        summaries = {registry.name_of(spec): spec.summary for spec in registry.specs(self.name)}
        return [CompletionItem(name, help=text) for name, text in summaries.items() if name.startswith(incomplete)]


class _FileName(click.ParamType):  # type: ignore[type-arg]
    """The name of a TOML file that a plugin provides."""

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the name unchanged. Raises as `Installed.recipe` and `Installed.pipeline` do if it is unknown."""
        from drkit.core.discovery import installed

        getattr(installed(), self.name)(value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names that start with the incomplete text."""
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
