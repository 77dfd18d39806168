"""`drkit status`: the state of each stage of a run, and why a stage would be rebuilt."""

from __future__ import annotations

from pathlib import Path

import click

from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe
from drkit_cli.names import LocalPath
from drkit_cli.output import output_options, print_result


@click.command(short_help="Show which stages of a run are kept, and why.")
@click.argument("run", metavar="RUN", type=LocalPath())
@click.option("--verify", is_flag=True, help="Compare the content of every file with its hash, not only its size.")
@output_options
def status(run: Path, verify: bool) -> int:
    r"""Show for each stage of RUN whether it is kept, to do, resumed, or made again, and why.

    Nothing is changed. With --verify, the exit code is 1 if a finished stage has to be made again.

    \b
    drkit status runs/R
    drkit status runs/R --verify      # also detect files with changed content
    """
    from drkit.runs.plan import plan
    from drkit.runs.survey import State, survey
    from drkit_cli.render import console, describe_truncations, stage_states, status_table

    if not (run / RECIPE).is_file():
        raise DrkitError(f"{run} is not a run (no {RECIPE}); give the folder of one, as `drkit compose` makes it")
    registry = installed().registry
    made = plan(read_recipe(run / RECIPE, registry), registry)
    found = list(survey(made.stages, run, verify=verify))
    truncated = describe_truncations(run, [finding.stage.name for finding in found if finding.manifest])

    def draw() -> None:
        console().print(status_table(found))
        for line in truncated:
            console().print(line, soft_wrap=True)

    print_result({"run": run, "stages": stage_states(found), "truncated": truncated}, draw)
    return int(verify and any(finding.state is State.AGAIN for finding in found))
