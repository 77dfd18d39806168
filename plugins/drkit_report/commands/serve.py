"""`drkit serve`: a page on this machine to search runs and judge passages."""

from __future__ import annotations

from pathlib import Path

import click

from drkit.core.registry import installed
from drkit.errors import DrkitError, check_extras
from drkit_cli.names import LocalPath, count
from drkit_cli.output import verbosity_options
from drkit_cli.terminal import echo

_HOST = "127.0.0.1"


@click.command()
@click.argument("run", metavar="RUN", type=LocalPath())
@click.argument("other", metavar="[RUN]", required=False, type=LocalPath())
@click.option("--port", default=8000, show_default=True, type=count(1, 65_535), help="Port on 127.0.0.1.")
@click.option(
    "--qrels",
    default="judgements.qrels",
    show_default=True,
    type=LocalPath(dir_okay=False),
    help="File that judgements made on the page are kept in.",
)
@verbosity_options
def serve(run: Path, other: Path | None, port: int, qrels: Path) -> None:
    r"""Serve a page to search runs and judge passages.

    The best system of RUN answers, beside that of a second run; the page switches to any other. It is served on this
    machine only, at 127.0.0.1. Judged passages are marked, and a judgement made on the page is kept in a qrels file.
    Stop with Ctrl-C.

    \b
    drkit serve runs/R
    drkit serve runs/R runs/R2 --port 8080 --qrels mine.qrels
    """
    from drkit.commands import open_run

    check_extras("drkit serve", ("bm25", "serve"))
    import uvicorn

    from drkit_report.search import SearchedRuns
    from drkit_report.web import search_app

    parts = installed()
    records = [open_run(folder, parts) for folder in (run, other) if folder is not None]
    app = search_app(SearchedRuns.load(records, qrels), " and ".join(record.name for record in records))
    echo(f"serving http://{_HOST}:{port}/ (stop with Ctrl-C)")
    try:
        uvicorn.run(app, host=_HOST, port=port, log_level="critical", server_header=False)
    except SystemExit:  # uvicorn's answer to an error of the socket
        raise DrkitError(
            f"cannot listen on {_HOST}:{port}: the port is in use or not allowed; choose another one with --port"
        ) from None
    echo("stopped")
