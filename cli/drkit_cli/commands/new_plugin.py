"""`drkit new-plugin`: write a plugin package that works."""

from __future__ import annotations

from pathlib import Path

import click

from drkit_cli.names import LocalPath
from drkit_cli.output import is_quiet, output_options, print_result
from drkit_cli.terminal import echo


@click.command("new-plugin", short_help="Write a plugin package that works.")
@click.argument("name", metavar="NAME")
@click.option(
    "--kind", "kinds", metavar="KIND", multiple=True, required=True, help="masker, decoder, loss, .. (repeatable)."
)
@click.option("-o", "--output", metavar="FOLDER", type=LocalPath(), help="Where to write it (default: NAME).")
@output_options
def new_plugin(name: str, kinds: tuple[str, ...], output: Path | None) -> None:
    r"""Write a plugin package NAME: it installs, composes, and passes its own tests; only the logic is left to write.

    Each KIND adds a working part with settings: masker, decoder, loss, miner (a source of negatives), filter (of
    negatives), signal, pooling, column, queries, batches, stage, collection; or a command of drkit. A masker uses the
    signal if there is one.

    \b
    drkit new-plugin my-masker --kind masker
    drkit new-plugin my-paper --kind signal --kind masker --kind decoder
    """
    from drkit.commands import write_plugin

    folder = output or Path(name)
    files = write_plugin(name, kinds, folder)
    paths = [str(folder / file) for file in files]
    print_result({"folder": folder, "files": paths}, lambda: echo("\n".join(paths)))
    if not is_quiet():
        echo(f"next:  cd {folder} && pip install -e '.[test]' && pytest", err=True)
