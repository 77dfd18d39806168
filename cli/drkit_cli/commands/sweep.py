"""`drkit sweep`: run every combination of some choices over seeds, and compare them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

from drkit.recipe.toml import parse_value
from drkit_cli.names import InstalledName, LocalPath, PathOrId
from drkit_cli.options import open_collection_option, settings_option
from drkit_cli.output import output_options, print_result, show_progress

# A comma outside brackets, which belong to a value.
_COMMA = re.compile(r",(?![^\[{]*[\]}])")


@click.command(short_help="Run combinations of choices over seeds, and compare them.")
@click.argument("axes", nargs=-1, required=True, metavar="CHOICE=VALUE,VALUE..")
@click.option("--seeds", default="42", show_default=True, metavar="N,N..", help="Every combination runs with each.")
@click.option("--paper", type=InstalledName("recipe"), help="The recipe that all combinations start from.")
@click.option("--pipeline", type=InstalledName("pipeline"), help="How to fine-tune.")
@open_collection_option
@click.option("--encoder", metavar="PATH_OR_ID", type=PathOrId(), help="Start from an existing encoder.")
@settings_option("A setting of all combinations: pretrain.learning_rate=1e-4")
@click.option("--scale", type=click.Choice(["paper", "small", "quick"]), help="As for `drkit compose`.")
@click.option("--name", default="sweep", show_default=True, help="What the names of the runs begin with.")
@click.option(
    "--runs", type=LocalPath(file_okay=False), default="runs", show_default=True, help="Folder of the runs' folders."
)
@click.option("--plot", metavar="FILE.png", type=LocalPath(dir_okay=False), help="Draw the means as a heat map.")
@output_options
def sweep(
    axes: tuple[str, ...],
    seeds: str,
    settings: tuple[str, ...],
    name: str,
    runs: Path,
    plot: Path | None,
    **choices: str | None,
) -> None:
    r"""Run every combination of the given choices, once per seed.

    A choice is one of `drkit compose` (masker, decoder, loss ..) or a setting. The first combination is the baseline
    that the others are tested against. Equal stages are shared, and a repeated command keeps what is finished.

    \b
    drkit sweep masker=uniform,pmi decoder=mlm,enhanced --seeds 1,2,3
    drkit sweep pretrain.max_steps=500,1000 --paper retromae --plot steps.png
    """
    from drkit.experiments import sweep as run_sweep

    if not all(number.strip().isdecimal() for number in seeds.split(",")):
        raise click.UsageError(f"--seeds {seeds!r}: expected whole numbers, as in 1,2,3")
    chosen: dict[str, Any] = {key: value for key, value in choices.items() if value is not None}
    for setting in settings:
        path, _, value = setting.partition("=")
        found = parse_value(value)
        chosen[path.strip()] = tuple(found) if isinstance(found, list) else found
    for axis in axes:
        path, equals, values = axis.partition("=")
        if not equals or not values:
            raise click.UsageError(f"{axis!r} is not an axis; expected CHOICE=VALUE,VALUE, as in masker=uniform,pmi")
        chosen[path.strip()] = [parse_value(value.strip()) for value in _COMMA.split(values)]
    numbers = [int(number) for number in seeds.split(",")]
    swept = run_sweep(seeds=numbers, folder=runs, name=name, progress=show_progress, **chosen)
    rows = swept.table()
    if plot:
        swept.draw(plot)
    print_result({"rows": rows}, lambda: _print(rows, [axis.partition("=")[0].strip() for axis in axes]))


def _print(rows: list[dict[str, Any]], axes: list[str]) -> None:
    from drkit.evaluate.systems import format_value
    from drkit_cli.render import console, table

    measures = list(dict.fromkeys(row["measure"] for row in rows))
    lines = []
    for start in range(0, len(rows), len(measures)):
        first, *_ = cells = rows[start : start + len(measures)]
        values = (
            format_value(row["mean"], row.get("p"), row.get("corrected", math.nan), deviation=row["deviation"])
            for row in cells
        )
        lines.append([*(str(first[axis]) for axis in axes), first["system"], *values])
    console().print(table("", (*axes, "system", *measures), lines))
