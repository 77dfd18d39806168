"""Help texts: options under headings, and examples that keep their lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings; groups: the names of parameters by heading."""

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group; those of no group end the last one."""
        left = {str(param.name): record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        groups = {title: [left.pop(name) for name in names if name in left] for title, names in self.groups.items()}
        groups[[*groups][-1]] += left.values()
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def with_examples(command: click.Command) -> click.Command:
    r"""Keep the line breaks of examples: click needs the character that `\b` means, a raw docstring has two."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        with_examples(inner)
    return command
