"""`drkit distill`: score mined negatives with a teacher, as training data."""

from __future__ import annotations

from pathlib import Path

import click

from drkit_cli.names import LocalPath
from drkit_cli.options import (
    collection_option,
    cross_encoder_option,
    device_option,
    engine_option,
    precision_option,
    settings_option,
    token_budget_option,
)
from drkit_cli.output import output_options, print_next, print_result, show_progress
from drkit_cli.terminal import echo


@click.command(short_help="Score mined negatives with a teacher.")
@cross_encoder_option("--teacher")
@click.option("--negatives", required=True, type=LocalPath(), help="A file that `drkit mine` wrote.")
@collection_option
@settings_option()
@token_budget_option
@precision_option
@device_option
@engine_option
@click.option("-o", "--output", required=True, type=LocalPath(dir_okay=False), help="The file: NAME.jsonl.")
@output_options
def distill(
    teacher: str,
    negatives: Path,
    collection: str,
    settings: tuple[str, ...],
    token_budget: int,
    precision: str,
    device: str,
    engine: str,
    output: Path,
) -> None:
    r"""Score the positives and negatives of every query with a teacher, as data for distillation.

    Writes one line per query: texts, ids and scores of its positives and negatives. Nothing is trained.

    \b
    drkit mine --miner bm25 --collection beir:FOLDER -o negatives.jsonl
    drkit distill --teacher runs/R --negatives negatives.jsonl --collection beir:FOLDER -o scored.jsonl
    """
    from drkit.commands import NamedCollection, open_reranker
    from drkit.commands import distill as distill_file
    from drkit.core.engine import Loaded, open_engine

    passages = NamedCollection(collection, settings)
    scorer = Loaded(open_reranker, teacher, device, token_budget=token_budget, precision=precision)
    with open_engine(engine, device) as opened, show_progress(1) as progress:
        progress.begin("distill", f"scores of {negatives} by {teacher}")
        done = distill_file(
            negatives,
            scorer,
            passages,
            output,
            on_progress=lambda lines: progress.advance(lines, None, "queries"),
            engine=opened,
        )
    training, agreement = _training(teacher, collection, settings), done.agreement.summary()

    def draw() -> None:
        echo(f"scores   {output}: {done.queries:,} queries, {done.pairs:,} pairs")
        echo(f"teacher  {agreement}")

    print_result(
        {"file": output, "queries": done.queries, "pairs": done.pairs, "teacher": agreement, "training": training}, draw
    )
    print_next(f"use      {training}")
    print_next(f"         trains with this teacher's scores; --collection pairs:{output} reads the texts alone")


def _training(teacher: str, collection: str, settings: tuple[str, ...]) -> str:
    """Return the command that trains a retriever on the scores of this teacher."""
    from shlex import join

    from drkit.recipe.schema import RERANKER
    from drkit.recipe.start import RECIPE

    own = Path(teacher) / RERANKER if (Path(teacher) / RECIPE).is_file() else teacher
    source = "NAME:VALUE" if (Path(collection) / RECIPE).is_file() else collection
    chosen = (*settings, f"finetune.rounds.1.teacher={own}", "finetune.rounds.1.loss=kl-distillation")
    return join(
        ("drkit", "compose", "--pipeline", "two-stage", "--collection", source, *(f"--set={one}" for one in chosen))
    )
