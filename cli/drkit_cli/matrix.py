"""The matrix of `drkit list --matrix`, drawn: decoders down, maskers across, reasons below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from drkit_cli.render import table

if TYPE_CHECKING:
    from rich.console import Console

    from drkit.recipe.matrix import LossPlacement, Matrix

WIDTH = 78  # of the pairs' table, so that an 80-column terminal breaks no row
FITS = "yes"


def print_matrix(made: Matrix, screen: Console) -> None:
    """The pairs, the reasons of those that do not go together, what stages make, and where losses stand."""
    reasons = made.reasons()
    numbers = {problem: number for number, problem in enumerate(reasons, start=1)}
    cells = {
        (pair.decoder, pair.masker): " ".join(["no", *(str(numbers[p]) for p in pair.problems)])
        if pair.problems
        else FITS
        for pair in made.pairs
    }
    screen.print(Text("masker (across) and decoder (down)", style="bold"))
    for maskers in _columns(made):
        screen.print(_pairs(made.decoders, maskers, cells))
        screen.print()
    if numbers:
        said = Table.grid(padding=(0, 2))
        for problem, number in numbers.items():
            said.add_row(Text(f"no {number}"), Text(problem))
        screen.print(said)
        screen.print()
    rows = [(part, ", ".join(names)) for part, names in made.made.items()]
    screen.print(Text("made from the texts by a stage of the run", style="bold"))
    screen.print(table("", ("part", "needs"), rows))
    screen.print(Text("\nlosses", style="bold"))
    screen.print(table("", ("loss", "needs", "can stand on"), [_loss(loss, made) for loss in made.losses]))


def _columns(made: Matrix) -> Iterator[list[str]]:
    """The maskers, as many at a time as fit a line."""
    first = max(map(len, ("decoder", *made.decoders)))
    line: list[str] = []
    for masker in made.maskers:
        if line and first + sum(len(name) + 2 for name in (*line, masker)) > WIDTH:
            yield line
            line = []
        line.append(masker)
    yield line


def _pairs(decoders: Sequence[str], maskers: Sequence[str], cells: Mapping[tuple[str, str], str]) -> Table:
    drawn = Table(box=None, pad_edge=False)
    for name in chain([""], maskers):
        drawn.add_column(name, no_wrap=True)
    for decoder in decoders:
        found = [cells[decoder, masker] for masker in maskers]
        drawn.add_row(decoder, *(Text(cell, style="green" if cell == FITS else "red") for cell in found))
    return drawn


def _loss(loss: LossPlacement, made: Matrix) -> tuple[str, str, str]:
    decoders = "every decoder" if loss.decoders == made.decoders else ", ".join(loss.decoders)
    places = ["encoder"] if loss.encoder else []
    places += [f"decoder ({decoders})"] if loss.decoders else []
    places += [f"fine-tuning{' with a teacher' if loss.needs_teacher else ''}"] if loss.finetuning else []
    places += ["re-ranker"] if loss.reranking else []
    return loss.name, ", ".join(loss.needs), "; ".join(places) or "nothing that is installed"
