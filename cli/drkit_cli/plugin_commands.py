"""The commands of `drkit`: its own, and those of plugins, which are imported when they are called or listed."""

from __future__ import annotations

from typing import Any

import click

from drkit.core.registry import NameTable, installed
from drkit.core.spec import Extension
from drkit.errors import DrkitError, did_you_mean

# What to call instead of a command that other tools have.
_ELSEWHERE = {
    **dict.fromkeys(
        ("train", "pretrain", "finetune", "fit"), "training is part of a run: `drkit compose`, `drkit run`"
    ),
    "help": "`drkit --help`, `drkit COMMAND --help`",
}


class Commands(click.Group):
    """The group of all commands, which refuses arguments that no command can use.

    A command of drkit's own comes before one of a plugin with the same name. sections: the names of drkit's own
    commands, by the heading of help that they stand under.
    """

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.sections: dict[str, list[str]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, those of plugins last."""
        own = {name for names in self.sections.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in own]
        for title, names in {**self.sections, "Commands of plugins": others}.items():
            found = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            if found:
                with formatter.section(title):
                    formatter.write_dl([(name, command.get_short_help_str(formatter.width)) for name, command in found])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *_of_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or None."""
        own = super().get_command(ctx, cmd_name)
        table = _of_plugins()
        return own if own is not None or cmd_name not in table else _command(table.get(cmd_name))

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
        name, known = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            failed = (*_of_plugins().failed, *_of_plugins().clashes)
            not_loaded = f". Not loaded: {'; '.join(failed)}; see `drkit plugins`" if failed else ""
            instead = (
                f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else f"{did_you_mean(name, known)} see `drkit --help`"
            )
            raise click.UsageError(f"no command {name!r}{instead}{not_loaded}")
        return super().resolve_command(ctx, args)


def with_examples(command: click.Command) -> click.Command:
    r"""Keep the line breaks of examples: click needs the character that `\b` means, a raw docstring has two."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        with_examples(inner)
    return command


def _of_plugins() -> NameTable[Extension]:
    return installed().extensions["command"]


def _command(declared: Extension) -> click.Command:
    """Return the command of a plugin; one that is broken says so when it is called, and leaves the others alone."""
    try:
        found = declared.load()
    except Exception as error:  # third-party code may fail in any way
        problem = str(error) if isinstance(error, DrkitError) else f"{type(error).__name__}: {error}"
        return _broken(declared, f"cannot be loaded: {problem}")
    if not isinstance(found, click.Command):
        return _broken(declared, f"is not a click command: {declared.target} is of class {type(found).__name__}")
    return with_examples(found)


def _broken(declared: Extension, problem: str) -> click.Command:
    def fail(**_: Any) -> None:
        raise DrkitError(f"the command {declared.name!r} of {declared.provider} {problem}; see `drkit plugins`")

    arguments = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)
    lenient = {"ignore_unknown_options": True, "help_option_names": []}
    return click.Command(declared.name, lenient, fail, [arguments], short_help=f"(broken) {declared.summary}")
