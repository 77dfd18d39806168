"""The command `drkit`: its subcommands, and the exit codes of errors.

No module that is imported from here imports torch at module level, so that `drkit --help` is fast.
"""

from __future__ import annotations

import os
import sys

import click

from drkit import __version__
from drkit.core.files import storage_failure
from drkit.core.processes import use_available_cores
from drkit.errors import DrkitError, is_panic
from drkit_cli.commands.compare import compare
from drkit_cli.commands.compose import compose
from drkit_cli.commands.encode import encode
from drkit_cli.commands.evaluate import evaluate
from drkit_cli.commands.export import export
from drkit_cli.commands.fuse import fuse
from drkit_cli.commands.index import index
from drkit_cli.commands.init import init
from drkit_cli.commands.listing import list_parts
from drkit_cli.commands.mine import mine
from drkit_cli.commands.new_plugin import new_plugin
from drkit_cli.commands.plugins import plugins
from drkit_cli.commands.prune import prune
from drkit_cli.commands.queries import queries
from drkit_cli.commands.rerank import rerank
from drkit_cli.commands.run import run
from drkit_cli.commands.search import search
from drkit_cli.commands.show import show
from drkit_cli.commands.status import status
from drkit_cli.commands.sweep import sweep
from drkit_cli.output import verbosity_options
from drkit_cli.plugin_commands import Commands, with_examples
from drkit_cli.terminal import echo, escape_streams


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="drkit")
@verbosity_options
def cli() -> None:
    """Compose maskers, decoders, losses and negative miners into dense retrievers.

    Start with:  drkit compose --masker pmi --decoder enhanced

    For your own texts:  drkit init FOLDER_OR_FILE
    """


SECTIONS = {
    "Start": (init, compose, run, sweep, status),
    "Results": (search, evaluate, compare),
    "Files": (encode, index, mine, queries, rerank, fuse, export, prune),
    "Parts and plugins": (list_parts, show, plugins, new_plugin),
}
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
        result = cli.main(prog_name="drkit", standalone_mode=False)
        sys.stdout.flush()
    except DrkitError as error:
        echo(f"error: {error}", err=True)
        return 2
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        advice = f" (see `{context.command_path} --help`)" if context else ""
        echo(f"error: {error.format_message().removesuffix('.')}{advice}", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt) as interrupt:
        if isinstance(interrupt.__cause__, EOFError):  # click reports the end of any file as Ctrl-D
            raise interrupt.__cause__ from None
        echo("interrupted", err=True)
        return 130
    except BaseException as error:
        if is_panic(error):
            echo(f"error: a library failed: {error}; check the model's files, above all tokenizer.json", err=True)
            return 2
        failure = storage_failure(error) if isinstance(error, Exception) else None
        if failure is None:
            raise
        echo(f"error: {failure[0]}; {failure[1]} and repeat the command", err=True)
        return 2
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
