"""`drkit reproduce`: compose a row of a paper's tables, with what belongs to it."""

from __future__ import annotations

import shlex

import click

from drkit.core.registry import installed
from drkit_cli.commands.compose import compose
from drkit_cli.names import InstalledName
from drkit_cli.options import refuse_repeated
from drkit_cli.output import output_options, print_note, print_result


@click.command(
    short_help="Compose a row of a paper's tables.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("paper", type=InstalledName("recipe"))
@click.argument("row", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF COMPOSE]")
@output_options
@click.pass_context
def reproduce(context: click.Context, paper: str, row: str | None, options: tuple[str, ...]) -> None:
    r"""Compose ROW of the tables of PAPER, with the data, mixed precision and measures that belong to it.

    Without ROW, the rows are listed; a part of a name is enough. Further options are those of `drkit compose`, and
    replace the row's own. `drkit evaluate RUN` shows the paper's values beside the run's.

    \b
    drkit reproduce simlm
    drkit reproduce simlm "table 5, BERT" --dry-run
    drkit reproduce retromae "table 2" --set pretrain.max_steps=1000 --dry-run
    drkit reproduce cdmae "table 5, MS" -o cdmae.toml --dry-run
    """
    from drkit.recipe.published import arguments_of, published_beside
    from drkit_cli.render import console, table

    if row and row.startswith("-"):
        raise click.UsageError(f"name the row before the options: drkit reproduce {paper} ROW {row}")
    known = published_beside(installed().recipes.get(paper))
    if row is None:
        rows = [(one.name, one.options) for one in known.rows]
        document = {"paper": known.title, "rows": [{"name": name, "options": made} for name, made in rows]}
        print_result(document, lambda: console().print(table(f"rows of {paper}", ("row", "options"), rows)))
        return
    refuse_repeated(compose, options, context.parent)
    is_elsewhere = any(one.partition("=")[0] == "--collection" for one in options)
    arguments = [*arguments_of(known, known.row(row), paper, is_elsewhere=is_elsewhere), *options]
    print_note(f"drkit compose {shlex.join(arguments)}")
    if known.differs:
        print_note(known.differs)
    with compose.make_context("compose", arguments, parent=context.parent) as made:
        compose.invoke(made)
