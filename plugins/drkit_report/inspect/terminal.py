"""The output of `drkit inspect` on a terminal: a text with each view below it, token by token, in colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from drkit_cli.render import table
from drkit_report.inspect.masks import Cell, InspectedMask, InspectedText
from drkit_report.inspect.source import Piece
from drkit_report.inspect.words import InspectedWords

LEGEND = "[_] masked   [word] replaced by that word   [=word] a target that stays readable"
# From unimportant to important: readable on dark and on light.
HEAT = ("bright_black", "blue", "magenta", "red", "bold red")
_LABEL, _PIPED = 14, 80

Line = tuple[str, Sequence[str], Sequence[str]]  # label, a string per token, a style per token


def print_masks(found: InspectedMask, screen: Console) -> None:
    """Print the maskers, each text with its views, how much each view hides, and the notes."""
    screen.print(Text(heading(found)))
    for text in found.texts:
        screen.print(Text(f"\n{text.title}", style="bold"))
        for row in _wrapped(_lines(text), _width(screen)):
            screen.print(row, no_wrap=True, overflow="ignore", crop=False)
        for line in summaries(text):
            screen.print(Text(line))
    screen.print(Text(f"\n{LEGEND}", style="dim"))
    for note in found.notes:
        screen.print(Text(f"note: {note}"), soft_wrap=True)


def print_words(found: InspectedWords, screen: Console) -> None:
    """Print the most probable words of the vocabulary, then the text with each word's probability below it."""
    screen.print(Text(f"{len(found.top)} most probable words of {found.vocabulary:,}", style="bold"))
    most = max((word.probability for word in found.top), default=1.0)
    rows = [
        (w.text, f"{w.probability:.4f}", "#" * round(24 * w.probability / most), "in the text" if w.in_text else "")
        for w in found.top
    ]
    screen.print(table("", ("word", "probability", "", ""), rows))
    screen.print(
        Text("\nthe words of the text, with the probabilities of their pieces summed (in per cent)", style="bold")
    )
    styles = heat([word.probability for word in found.words])
    shown = [word.text for word in found.words]
    percents = [f"{100 * word.probability:.1f}" for word in found.words]
    for line in _wrapped([("word", shown, styles), ("per cent", percents, styles)], _width(screen)):
        screen.print(line, no_wrap=True, overflow="ignore", crop=False)
    share = sum(word.probability for word in found.top if word.in_text)
    screen.print(Text(f"words of the text have {found.own_share:.1%} of the distribution; {share:.1%} is listed above"))


def heading(found: InspectedMask) -> str:
    """Format the masker of each side and its settings."""
    lines = []
    for side, masker in found.maskers.items():
        named = found.settings[side].items()
        settings = ", ".join(
            f"{name} {value}" for name, value in named if name not in ("mask_token_share", "row_share")
        )
        lines.append(f"{side}: masker {masker}{': ' if settings else ''}{settings}")
    return "\n".join(lines)


def summaries(text: InspectedText) -> list[str]:
    """Describe how much each view hides, and how much of that is stop words and punctuation."""
    count, lines = sum(text.maskable), []
    for view in text.views:
        share = f", {text.common_share(view):.0%} of them stop words or punctuation" if view.hidden else ""
        lines.append(f"{view.name} hides {view.hidden} of {count} tokens ({view.hidden / max(count, 1):.0%}){share}")
    return lines


def shown(cell: Cell, piece: Piece) -> str:
    """Format a token as a view sees it."""
    marks = {"seen": piece.text, "masked": "[_]", "replaced": f"[{cell.shown}]", "kept": f"[={piece.text}]"}
    return marks[cell.state]


def heat(values: Sequence[float | None]) -> list[str]:
    """Return a style per value, by its position between the smallest and the largest."""
    known = [value for value in values if value is not None]
    low, span = min(known, default=0.0), (max(known, default=0.0) - min(known, default=0.0)) or 1.0
    steps = len(HEAT) - 1
    return ["" if value is None else HEAT[round(steps * (value - low) / span)] for value in values]


def _width(screen: Console) -> int:
    return screen.width if screen.is_terminal else _PIPED


def _lines(text: InspectedText) -> Iterator[Line]:
    values = [piece.importance for piece in text.pieces]
    styles = heat(values)
    yield "token", _joined(text.pieces), styles
    if any(value is not None for value in values):
        yield "importance", [f"{value:.1f}" for value in values if value is not None], styles
    for view in text.views:
        cells = [shown(cell, piece) for cell, piece in zip(view.cells, text.pieces, strict=True)]
        yield view.name, cells, ["dim" if cell.state == "seen" else "reverse" for cell in view.cells]


def _joined(pieces: Sequence[Piece]) -> list[str]:
    """Return the tokens, with a dot before each one that continues a word."""
    before = [Text(), *pieces[:-1]]
    continues = [
        not piece.spaced and str(getattr(last, "text", ""))[-1:].isalnum() and piece.text[:1].isalnum()
        for last, piece in zip(before, pieces, strict=True)
    ]
    return [
        f"\N{MIDDLE DOT}{piece.text}" if joins else piece.text for joins, piece in zip(continues, pieces, strict=True)
    ]


def _wrapped(lines: Iterator[Line] | list[Line], width: int) -> Iterator[Text]:
    """Align the lines in columns, in blocks of as many tokens as fit the width."""
    drawn = list(lines)
    widths = [max(Text(cells[i]).cell_len for _, cells, _ in drawn) for i in range(len(drawn[0][1]))]
    for first, last in _blocks(widths, width - _LABEL):
        for label, cells, styles in drawn:
            line = Text().append(f"{label[: _LABEL - 1]:{_LABEL}}", style="dim")
            for i in range(first, last):
                line.append(cells[i], style=styles[i])
                line.append(" " * (widths[i] - Text(cells[i]).cell_len + 1))
            line.rstrip()
            yield line
        yield Text()


def _blocks(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    first, used = 0, 0
    for i, width in enumerate(widths):
        if used and used + width > room:
            yield first, i
            first, used = i, 0
        used += width + 1
    if len(widths):
        yield first, len(widths)
