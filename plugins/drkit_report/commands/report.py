"""`drkit report`: one self-contained HTML page about one or several runs."""

from __future__ import annotations

from pathlib import Path

import click

from drkit.core.files import write_text
from drkit.core.registry import installed
from drkit_cli.names import LocalPath, count
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command()
@click.argument("runs", metavar="RUN [RUN ..]", nargs=-1, required=True, type=LocalPath())
@click.option(
    "-o", "--output", type=LocalPath(dir_okay=False), help="File to write (default for one run: RUN/report.html)."
)
@click.option("--baseline", metavar="SYSTEM", help="System that the others are tested against (default: BM25).")
@click.option(
    "--system",
    metavar="SYSTEM",
    help="System of each run that is compared, for several runs (default: the last one in which they differ).",
)
@click.option(
    "--queries", default=200, show_default=True, type=count(0), help="Number of queries to show with their passages."
)
@output_options
def report(runs: tuple[Path, ...], output: Path | None, baseline: str | None, system: str | None, queries: int) -> None:
    r"""Write an HTML page about one or several runs.

    The page shows what was composed, the systems with intervals and tests, queries that win and lose, curves of the
    trainings, what the masker hides, and how to repeat the run. It needs no other file and makes no request.

    \b
    drkit report runs/R
    drkit report runs/R runs/R2 -o report.html --baseline R2
    drkit report runs/R runs/R2 -o report.html --system retriever-1
    """
    from drkit_report.page import ReportOptions, report_page

    if output is None and len(runs) > 1:
        raise click.UsageError("several runs need a file to write to: -o report.html")
    path = output or runs[0] / "report.html"
    write_text(path, report_page(runs, installed(), ReportOptions(baseline, queries, system)))
    print_result({"report": path}, lambda: echo(f"report  {path}"))
