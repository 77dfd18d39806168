"""`drkit completion`: print the script that makes a shell complete drkit's commands and values."""

from __future__ import annotations

import click

from drkit_cli.completion import SHELLS, completion_script
from drkit_cli.output import verbosity_options
from drkit_cli.terminal import echo


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@verbosity_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    r"""Print the script that makes SHELL complete commands, options, parts, recipes, collections and settings.

    The first lines of the script say how to install it.

    \b
    drkit completion bash
    drkit completion fish > ~/.config/fish/completions/drkit.fish
    """
    echo(completion_script(context.find_root().command, shell), nl=False)
