"""Names of registered parts as command-line values: checked, and completed in the shell."""

from __future__ import annotations

from typing import Any

import click


class PartName(click.ParamType):  # type: ignore[type-arg]
    """The name of a registered part of one kind, plugins' parts included."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """The name, if anybody registered it; UnknownNameError with a suggestion otherwise."""
        from drkit.core.discovery import installed

        return installed().registry.get(self.name, value).name

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Every registered name that starts so."""
        from click.shell_completion import CompletionItem

        from drkit.core.discovery import installed

        specs = installed().registry.specs(self.name)
        return [CompletionItem(s.name, help=s.summary) for s in specs if s.name.startswith(incomplete)]


class RecipeName(click.ParamType):  # type: ignore[type-arg]
    """The name of a recipe that a plugin brings."""

    name = "recipe"

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """The name, if there is such a recipe; UnknownNameError with a suggestion otherwise."""
        from drkit.core.discovery import installed

        installed().recipe(value)
        return value

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Every recipe that starts so."""
        from click.shell_completion import CompletionItem

        from drkit.core.discovery import installed

        return [CompletionItem(name) for name in sorted(installed().recipes) if name.startswith(incomplete)]
