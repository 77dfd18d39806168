"""`drkit inspect`: show what a masker hides of a text, and which words a bottleneck predicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from drkit_cli.names import LARGEST_SEED, CollectionName, LocalPath, PartName, count
from drkit_cli.options import settings_option
from drkit_cli.output import output_options, print_note, print_result, show_progress

if TYPE_CHECKING:
    from drkit.core.registry import Installed
    from drkit_report.inspect.source import TextSource

_FILE = LocalPath(dir_okay=False)
_FOLDER = LocalPath()


@click.group(short_help="Show what a masker hides, or what a vector holds.")
def inspect() -> None:
    r"""Show what a masker hides of a text, or which words a trained bottleneck predicts.

    \b
    drkit inspect mask "a text" --masker pmi
    drkit inspect words "a text" --run runs/R
    """


@inspect.command("mask", short_help="Show what each view hides of a text.")
@click.argument("text")
@click.option("--masker", type=PartName("masker"), help="The decoder's masker (default: the run's own).")
@click.option("--run", type=_FOLDER, help="Use the tokenizer, statistics and settings of a run.")
@click.option(
    "--collection",
    metavar="NAME[:VALUE]",
    type=CollectionName(),
    help="Use those of a collection: pydocs, beir:FOLDER ...",
)
@settings_option("A setting: masker.sigma=0.5")
@click.option("--context", help="The decoder's text, for a masker with a second text.")
@click.option(
    "--rows", default=0, type=click.IntRange(0, 512), help="Also show this many rows of a visibility pattern."
)
@click.option("--epoch", default=0, type=count(0), help="The epoch of the draw.")
@click.option("--seed", type=click.IntRange(0, LARGEST_SEED), help="A seed other than the run's.")
@click.option("--html", type=_FILE, help="Also write an HTML page to this file.")
@output_options
def mask(
    text: str,
    masker: str | None,
    run: Path | None,
    collection: str | None,
    settings: tuple[str, ...],
    context: str | None,
    rows: int,
    epoch: int,
    seed: int | None,
    html: Path | None,
) -> None:
    r"""Show what each view hides of TEXT, and how important every token is.

    Without --run, the vocabulary and n-gram counts of a collection are computed (pydocs: half a minute, once).

    \b
    drkit inspect mask "a text" --masker pmi --run runs/R
    drkit inspect mask "a text" --masker pmi --collection beir:FOLDER --set masker.sigma=0.5
    """
    import attrs

    from drkit.core.registry import installed
    from drkit.errors import DrkitError
    from drkit_cli.render import console
    from drkit_report.inspect.masks import Draw, inspect_mask
    from drkit_report.inspect.terminal import print_masks

    if not text.strip():
        raise DrkitError("the text is empty; give one or two sentences")
    if run and collection:
        raise click.UsageError("give --run or --collection, not both")
    parts = installed()
    source = _source(parts, run, collection, masker, settings)
    draw = Draw(seed=source.recipe.seed if seed is None else seed, epoch=epoch, rows=rows)
    found = inspect_mask(text, source, parts.registry, draw, context=context)
    print_result(attrs.asdict(found), lambda: print_masks(found, console()))
    if html:
        from drkit_report.inspect.html import mask_page

        _write(html, mask_page(found))


@inspect.command("words", short_help="Show which words a vector predicts.")
@click.argument("text")
@click.option("--run", type=_FOLDER, required=True, help="A run with a bag-of-words decoder.")
@click.option("--top", default=20, show_default=True, type=click.IntRange(1, 1000), help="Words to list.")
@click.option("--html", type=_FILE, help="Also write an HTML page to this file.")
@output_options
def words(text: str, run: Path, top: int, html: Path | None) -> None:
    r"""Show which words RUN's decoder predicts from the vector of TEXT.

    \b
    drkit inspect words "a text" --run runs/R --top 10
    """
    import attrs

    from drkit.core.registry import installed
    from drkit.errors import DrkitError
    from drkit_cli.render import console
    from drkit_report.inspect.terminal import print_words
    from drkit_report.inspect.words import inspect_words

    if not text.strip():
        raise DrkitError("the text is empty; give one or two sentences")
    found = inspect_words(text, run, installed(), top=top)
    print_result(attrs.asdict(found), lambda: print_words(found, console()))
    if html:
        from drkit_report.inspect.html import words_page

        _write(html, words_page(found))


def _source(
    parts: Installed, run: Path | None, collection: str | None, masker: str | None, settings: tuple[str, ...]
) -> TextSource:
    from drkit.core.progress import Silent
    from drkit.recipe.compose import ComposeRequest
    from drkit_report.inspect.source import collection_source, run_source

    if run:
        return run_source(run, parts, masker=masker, settings=settings)
    pending = collection_source(ComposeRequest(masker=masker, collection=collection, settings=settings), parts)
    if pending.is_finished:
        return pending.finish(parts, Silent())
    print_note(f"computing the vocabulary and n-gram counts of the collection, once, in {pending.folder}")
    with show_progress(len(pending.stages)) as progress:
        return pending.finish(parts, progress)


def _write(path: Path, page: str) -> None:
    from drkit.core.files import write_text

    write_text(path, page)
    print_note(f"the page is {path}")
