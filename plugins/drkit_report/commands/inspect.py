"""`drkit inspect`: show what a masker hides of a text, and which words a bottleneck predicts."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from drkit.core.registry import installed
from drkit_cli.names import LARGEST_SEED, LocalPath, PartName, count
from drkit_cli.options import settings_option
from drkit_cli.output import output_options, print_result

_FOLDER = LocalPath()


@click.group(short_help="Show what a masker hides, or what a vector holds.")
def inspect() -> None:
    r"""Show what a masker hides of a text, or which words a trained bottleneck predicts.

    \b
    drkit inspect mask "a text" --run runs/R
    drkit inspect words "a text" --run runs/R
    """


@inspect.command("mask", short_help="Show what each view hides of a text.")
@click.argument("text")
@click.option("--masker", type=PartName("masker"), help="The decoder's masker (default: the run's own).")
@click.option("--run", type=_FOLDER, required=True, help="A run with a tokenizer, whose settings are used.")
@settings_option("A setting: masker.sigma=0.5")
@click.option("--context", help="The decoder's text, for a masker with a second text.")
@click.option("--epoch", default=0, type=count(0), help="The epoch of the draw.")
@click.option("--step", type=count(0), help="The step of pre-training whose schedules count.  [default: the first]")
@click.option("--seed", type=count(0, LARGEST_SEED), help="A seed other than the run's.")
@output_options
def mask(
    text: str,
    masker: str | None,
    run: Path,
    settings: tuple[str, ...],
    context: str | None,
    epoch: int,
    step: int | None,
    seed: int | None,
) -> None:
    r"""Show what each view of RUN hides of TEXT, and how important every token is.

    \b
    drkit inspect mask "a text" --run runs/R
    drkit inspect mask "a text" --run runs/R --masker pmi --set masker.sigma=0.5
    drkit inspect mask "a text" --run runs/R --step 5
    """
    from drkit_cli.render import console
    from drkit_report.inspect.masks import inspect_mask
    from drkit_report.inspect.source import run_source
    from drkit_report.inspect.terminal import print_masks

    parts = installed()
    source = run_source(run, parts, masker=masker, settings=settings)
    seed = source.recipe.seed if seed is None else seed
    progress = 0.0 if step is None else source.progress(step)
    found = inspect_mask(text, source, parts.registry, seed=seed, epoch=epoch, context=context, progress=progress)
    print_result(attrs.asdict(found), lambda: print_masks(found, console()))


@inspect.command("words", short_help="Show which words a vector predicts.")
@click.argument("text")
@click.option("--run", type=_FOLDER, required=True, help="A run with a bag-of-words decoder.")
@click.option("--top", default=20, show_default=True, type=count(1, 1000), help="Words to list.")
@output_options
def words(text: str, run: Path, top: int) -> None:
    r"""Show which words RUN's decoder predicts from the vector of TEXT.

    \b
    drkit inspect words "a text" --run runs/R --top 10
    """
    from drkit_cli.render import console
    from drkit_report.inspect.terminal import print_words
    from drkit_report.inspect.words import inspect_words

    found = inspect_words(text, run, installed(), top=top)
    print_result(attrs.asdict(found), lambda: print_words(found, console()))
