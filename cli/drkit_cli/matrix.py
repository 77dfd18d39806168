"""Print the matrix of `drkit list --matrix`: decoders in rows, maskers in columns, reasons below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from drkit_cli.render import table

if TYPE_CHECKING:
    from rich.console import Console

    from drkit.recipe.matrix import LossPlacement, Matrix, PairOfParts

WIDTH = 78  # of the table of pairs, so that rows fit an 80-column terminal
FITS = "yes"


def print_matrix(matrix: Matrix, screen: Console) -> None:
    """Print the pairs, why some do not go together, what stages make for them, and what losses can be used for."""
    reasons = matrix.reasons()
    numbers = {problem: number for number, problem in enumerate(reasons, start=1)}
    cells = {
        (pair.decoder, pair.masker): " ".join([_word(pair), *(str(numbers[p]) for p in (*pair.problems, *pair.unread))])
        for pair in matrix.pairs
    }
    words = {problem: _word(pairs[0]) for problem, pairs in reasons.items()}
    screen.print(Text("masker (across) and decoder (down)", style="bold"))
    for maskers in _columns(matrix, min(WIDTH, screen.width)):
        screen.print(_pairs(matrix.decoders, maskers, cells))
        screen.print()
    if numbers:
        reasons_table = Table.grid(padding=(0, 2))
        for problem, number in numbers.items():
            reasons_table.add_row(Text(f"{words[problem]} {number}"), Text(problem))
        screen.print(reasons_table)
        screen.print()
    rows = [(part, ", ".join(names)) for part, names in matrix.made.items()]
    screen.print(Text("made from the texts by a stage of the run", style="bold"))
    screen.print(table("", ("part", "needs"), rows))
    screen.print(Text("\nlosses", style="bold"))
    screen.print(table("", ("loss", "needs", "can be used for"), [_loss(loss, matrix) for loss in matrix.losses]))


def _word(pair: PairOfParts) -> str:
    """Return whether a pair works: `yes`, `no`, or `idle` if it does without an effect of the masker's choice."""
    return "no" if pair.problems else "idle" if pair.unread else FITS


def _columns(matrix: Matrix, width: int) -> Iterator[list[str]]:
    """Yield the maskers in groups that fit a line of this width."""
    first = max(map(len, ("decoder", *matrix.decoders)))
    line: list[str] = []
    for masker in matrix.maskers:
        if line and first + sum(len(name) + 2 for name in (*line, masker)) > width:
            yield line
            line = []
        line.append(masker)
    yield line


def _pairs(decoders: Sequence[str], maskers: Sequence[str], cells: Mapping[tuple[str, str], str]) -> Table:
    drawn = Table(box=None, pad_edge=False)
    for name in chain([""], maskers):
        drawn.add_column(name, overflow="fold")
    for decoder in decoders:
        found = [cells[decoder, masker] for masker in maskers]
        drawn.add_row(decoder, *(Text(cell, style="green" if cell == FITS else "red") for cell in found))
    return drawn


def _loss(loss: LossPlacement, matrix: Matrix) -> tuple[str, str, str]:
    decoders = "every decoder" if loss.decoders == matrix.decoders else ", ".join(loss.decoders)
    uses = ["encoder"] if loss.encoder else []
    uses += [f"decoder ({decoders})"] if loss.decoders else []
    uses += [" with ".join(["fine-tuning", *loss.columns])] if loss.finetuning else []
    uses += ["re-ranker"] if loss.reranking else []
    return loss.name, ", ".join(loss.needs), "; ".join(uses) or "nothing installed"
