"""`drkit push`: upload a run's encoder with its model card."""

from __future__ import annotations

from pathlib import Path

import click

from drkit_cli.names import LocalPath
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command()
@click.argument("run", type=LocalPath())
@click.argument("repository")
@click.option("--public", is_flag=True, help="A new repository is visible to everyone; the default is private.")
@output_options
def push(run: Path, repository: str, public: bool) -> None:
    r"""Upload an encoder and its model card.

    The encoder of RUN goes to the Hugging Face hub, as REPOSITORY (USER/NAME). Nothing else is sent. `drkit export RUN
    -o encoder/` writes the same folder, to look at it before.

    \b
    drkit push runs/R me/my-retriever
    """
    from drkit.commands import push_encoder
    from drkit.core.registry import installed

    address = push_encoder(run, repository, installed(), private=not public)
    print_result({"repository": repository, "commit": address}, lambda: echo(f"uploaded  {address}"))
