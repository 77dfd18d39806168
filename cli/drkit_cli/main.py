"""The command `drkit`: its subcommands, those of plugins, and the exit codes of errors.

No module that is imported from here imports torch at module level, so that `drkit --help` is fast. The commands of
plugins are imported when they are called or listed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from drkit import __version__
from drkit.core.process_state import no_silent_end
from drkit.core.processes import use_available_cores
from drkit.core.registry import NameTable, installed
from drkit.core.spec import Extension
from drkit.errors import FREE_MEMORY, DrkitError, did_you_mean, is_out_of_memory, is_panic, storage_failure
from drkit_cli.commands.compare import compare
from drkit_cli.commands.compose import compose
from drkit_cli.commands.encode import encode
from drkit_cli.commands.evaluate import evaluate
from drkit_cli.commands.export import export
from drkit_cli.commands.fuse import fuse
from drkit_cli.commands.improve import improve
from drkit_cli.commands.index import index
from drkit_cli.commands.init import init
from drkit_cli.commands.listing import list_parts
from drkit_cli.commands.mine import mine
from drkit_cli.commands.new_plugin import new_plugin
from drkit_cli.commands.plugins import plugins
from drkit_cli.commands.prune import prune
from drkit_cli.commands.queries import queries
from drkit_cli.commands.reproduce import reproduce
from drkit_cli.commands.rerank import rerank
from drkit_cli.commands.run import run
from drkit_cli.commands.search import search
from drkit_cli.commands.show import show
from drkit_cli.commands.status import status
from drkit_cli.commands.study import study
from drkit_cli.help import with_examples
from drkit_cli.hints import advice, command_instead
from drkit_cli.options import refuse_repeated
from drkit_cli.output import verbosity_options
from drkit_cli.terminal import echo, escape_streams

# Where a context keeps the arguments of the command line.
_ARGUMENTS = "drkit_cli.arguments"


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

        Raises UsageError for an argument or value that is empty, or is not text, and for an option that takes one value
        and is given twice.
        """
        for before, text in zip(["", *args], args, strict=False):
            if not text or (text.startswith("--") and text.endswith("=") and text.count("=") == 1):
                place = text or (f"after {before}" if before else "first argument")
                raise click.UsageError(f"an argument is empty ({place}): an unset variable of the shell? Leave it out")
            if "\0" in text or (not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text)):
                raise click.UsageError(f"an argument is not text: {text!r:.80} has a NUL, or bytes that are not UTF-8")
        ctx.meta[_ARGUMENTS] = args
        name, known = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            failed = (*_of_plugins().failed, *_of_plugins().clashes)
            not_loaded = f". Not loaded: {'; '.join(failed)}; see `drkit plugins`" if failed else ""
            line = command_instead(name, known)
            instead = f"; write `{line}`" if line else f"{did_you_mean(name, known)} see `drkit --help`"
            raise click.UsageError(f"no command {name!r}{instead}{not_loaded}")
        found = super().resolve_command(ctx, args)
        if found[1] is not None and not ctx.resilient_parsing:
            refuse_repeated(found[1], found[2], ctx)
        return found


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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="drkit")
@verbosity_options
def cli() -> None:
    r"""Compose maskers, decoders, losses and negative miners into dense retrievers.

    \b
    Compare methods      drkit compose --masker pmi --decoder enhanced
                         drkit study masker=uniform,pmi decoder=mlm,enhanced
    Improve an encoder   drkit improve ENCODER --texts FOLDER --labels FILE
    """


SECTIONS = {
    "Compare methods": (compose, study),
    "Improve an encoder": (improve,),
    "Recipes and runs": (init, reproduce, run, status),
    "Results": (search, evaluate, compare),
    "Files": (encode, index, mine, queries, rerank, fuse, export, prune),
    "Parts and plugins": (list_parts, show, plugins, new_plugin),
}
with_examples(cli)
for title, commands in SECTIONS.items():
    for command in commands:
        cli.add_command(with_examples(command))
        cli.sections.setdefault(title, []).append(str(command.name))


def main() -> None:
    """Run the command line. An error of the user or the disk exits with code 2 and no traceback, Ctrl-C with 130."""
    escape_streams()
    use_available_cores(os.environ)
    sys.exit(_status())


def _status() -> int:
    try:
        with no_silent_end():
            result = cli.main(prog_name="drkit", standalone_mode=False)
        sys.stdout.flush()
    except DrkitError as error:
        echo(f"error: {error}", err=True)
        return 2
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        return _print_click_error(error)
    except (click.Abort, KeyboardInterrupt) as interrupt:
        if isinstance(interrupt.__cause__, EOFError):  # click reports the end of any file as Ctrl-D
            raise interrupt.__cause__ from None
        echo("interrupted", err=True)
        return 130
    except BaseException as error:
        if is_out_of_memory(error):
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            echo(f"error: not enough memory ({reason}); {FREE_MEMORY}", err=True)
            return 2
        if is_panic(error):
            echo(f"error: a library failed: {error}; check the model's files, above all tokenizer.json", err=True)
            return 2
        failure = storage_failure(error) if isinstance(error, Exception) else None
        if failure is None:
            raise
        echo(f"error: {failure[0]}; {failure[1]} and repeat the command", err=True)
        return 2
    return result if isinstance(result, int) else 0


def _print_click_error(error: click.ClickException) -> int:
    """Print what is wrong with the arguments, and what to type instead; return the exit code."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":  # of new releases of click
        echo(context.get_help())
        return 0
    said = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    instead = advice(error, context.meta.get(_ARGUMENTS, []) if context else [])
    see = f" (see `{context.command_path} --help`)" if context else ""
    echo(f"error: {said.removesuffix('.')}{instead}{see}", err=True)
    return 2


if __name__ == "__main__":
    main()
