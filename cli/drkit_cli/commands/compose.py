"""`drkit compose`: choose the parts, and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from drkit.core.files import local_path
from drkit.core.registry import installed
from drkit.encoders.declarations import CONFIG, MODULES
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, has_numbers_of_paper, ratio_notes, with_mixed_precision
from drkit.recipe.compose import compose as compose_recipe
from drkit.recipe.schema import NONE, Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import write_recipe
from drkit_cli.help import GroupedCommand
from drkit_cli.names import InstalledName, LocalPath, LossOnSide, PartName, PathOrId, chosen_by
from drkit_cli.options import open_collection_option, run_options, settings_option
from drkit_cli.output import output_options, print_note


class NamesWithOptions(GroupedCommand):
    """A command that says which option is missing before a name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError for names without an option."""
        ctx.allow_extra_args = True
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            said = [_with_its_option(text) for text in left]
            raise click.UsageError("; ".join(said), ctx)
        return left


GROUPS = {
    "Parts": ("masker", "encoder_masker", "context", "decoder", "pretrain_loss", "loss", "miners", "batches"),
    "Recipe": ("paper", "pipeline", "encoder", "scale", "quick", "settings", "name"),
    "Data": ("collection", "columns"),
    "Run": ("dry_run", "run_dir", "reuse", "redo", "keep_stale", "trial", "engine"),
    "Output": ("output", "json", "quiet", "verbose"),
}


def _with_its_option(text: str) -> str:
    """Return what to write instead of an argument without an option before it."""
    if chosen := chosen_by(text):
        return chosen
    name, equals, value = text.partition("=")
    options = {one.removeprefix("--") for param in compose.params for one in param.opts}
    if equals and name in options:
        return f"{text!r} has no option before it: --{name} {value}"
    if equals:
        return f"{text!r} has no option before it: --set {text}"
    path = local_path(text)
    if path.suffix == ".toml" or (path / RECIPE).is_file():
        return f"{text!r} is a recipe or run: `drkit run {text}`"
    if (path / MODULES).is_file() or (path / CONFIG).is_file():
        return f"{text!r} is an encoder: --encoder {text}"
    return f"{text!r} is a path: --collection {text}" if path.exists() else f"{text!r} has no option before it"


@click.command(cls=NamesWithOptions, groups=GROUPS, short_help="Compose parts into a recipe, and run it.")
@click.option("--masker", type=PartName("masker"), help="How tokens are hidden from the decoder.")
@click.option("--encoder-masker", type=PartName("masker"), help="How tokens are hidden from the encoder.")
@click.option("--context", type=PartName("context"), help="The text that the decoder rebuilds: self, span, query ...")
@click.option(
    "--decoder",
    type=PartName("decoder", NONE),
    multiple=True,
    help="How the text is rebuilt from the bottleneck. Repeat to add decoders; `none` for none.",
)
@click.option(
    "--pretrain-loss",
    metavar="NAME[@SIDE][=WEIGHT]",
    type=LossOnSide("loss"),
    multiple=True,
    help="Add a loss to pre-training, on the encoder or a decoder, or change its weight: mlm@encoder=0.5; repeatable.",
)
@click.option("--loss", type=PartName("loss"), help="Loss of fine-tuning.")
@click.option(
    "--miner",
    "miners",
    type=PartName("miner"),
    multiple=True,
    help="Source of hard negatives for a single round, then filters: --miner bm25 --miner margin.",
)
@click.option(
    "--batches",
    type=PartName("batches"),
    help="Which queries make up a batch of fine-tuning: random, by-length, one-data-set, clusters, documents.",
)
@click.option(
    "--pipeline", type=InstalledName("pipeline"), help="How to fine-tune: two-stage, three-stage, ance, dpr ..."
)
@click.option(
    "--paper", type=InstalledName("recipe"), help="Start from a paper's recipe; any slot can still be replaced."
)
@open_collection_option
@click.option(
    "--encoder", metavar="PATH_OR_ID", type=PathOrId(), help="Start from an existing encoder: a folder or hub id."
)
@settings_option("A setting: pretrain.learning_rate=1e-4")
@click.option(
    "--scale",
    type=click.Choice(["paper", "small", "quick"]),
    help="paper: the paper's hyperparameters (default with --encoder). small: minutes on a CPU (default without). "
    "quick: a smoke test.",
)
@click.option("--quick", is_flag=True, help="Run every stage on little data: short for --scale quick.")
@click.option("--name", help="Name of the recipe and of its run folder.")
@click.option("-o", "--output", type=LocalPath(), help="Also write the complete recipe to this file.")
@click.option("--run-dir", type=LocalPath(), help="Folder of the run (default: runs/NAME).")
@run_options
@output_options
def compose(
    output: Path | None,
    dry_run: bool,
    run_dir: Path | None,
    redo: bool,
    reuse: tuple[Path, ...],
    keep_stale: tuple[str, ...],
    quick: bool,
    scale: str | None,
    trial: bool | None,
    engine: str,
    **choices: Any,
) -> None:
    r"""Compose parts into a recipe and run it, from texts to an evaluated, searchable encoder.

    \b
    drkit compose --masker pmi --decoder enhanced
    drkit compose --paper retromae --collection FOLDER --encoder bert-base-uncased
    drkit compose --decoder mlm --decoder bow --pretrain-loss bow-reconstruction
    drkit compose --set finetune.learning_rate=2e-5 --set finetune.max_steps=300
    """
    from drkit.recipe.lengths import fit_lengths
    from drkit.runs.attribution import build_collection
    from drkit.runs.budget import fit_memory
    from drkit.runs.costs import has_gpu, machine_memory
    from drkit_cli.running import run_recipe

    if quick and scale not in (None, "quick"):
        raise click.UsageError(f"--quick is short for --scale quick; it cannot be combined with --scale {scale}")
    if output and (output.suffix != ".toml" or output.is_dir()):
        raise click.UsageError(f"-o writes the recipe, as in -o {output}.toml; --run-dir {output} is the run's folder")
    parts, request = installed(), ComposeRequest(scale="quick" if quick else scale, **choices)
    recipe = compose_recipe(request, parts)
    check(recipe, parts.registry)  # before it is planned
    try:
        collection = build_collection(recipe, parts.registry)
    except DrkitError:  # the data may be on another machine, where the recipe is to run
        _write(recipe, output)
        raise
    recipe, notes = fit_lengths(recipe, collection, request, parts.registry)
    if not has_gpu():
        recipe, fitted = fit_memory(recipe, parts.registry, machine_memory(), collection)
        notes = (*notes, *(f"{path}: {why}" for path, why in fitted.items()))
    elif has_numbers_of_paper(request):
        recipe, changed = with_mixed_precision(recipe, request.settings)
        why = "mixed precision on this machine's GPU, as the papers train; =false is float32"
        notes = (*notes, *([f"{' and '.join(changed)}: {why}"] if changed else []))
    given, format_ = request.collection or "", recipe.collection.use
    if ":" not in given and given not in ("", format_):
        notes = (f"{given} is read as {format_}:{given}; --collection NAME:{given} chooses another format", *notes)
    notes = (*notes, *ratio_notes(request, recipe, parts.registry))
    if request.encoder and not local_path(request.encoder).exists():
        notes = (*notes, f"no folder {request.encoder} here: it is looked up on the Hugging Face hub")
    _write(recipe, output)
    run_recipe(
        recipe,
        parts.registry,
        run_dir=run_dir,
        dry_run=dry_run,
        redo=redo,
        reuse=reuse,
        keep_stale=keep_stale,
        trial=trial,
        notes=notes,
        engine=engine,
        collection=collection,
    )


def _write(recipe: Recipe, output: Path | None) -> None:
    if output:
        write_recipe(recipe, output)
        print_note(f"the recipe is {output}")
