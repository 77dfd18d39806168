"""Draw the five pictures of the page on ideas, `idea-*.svg`.

python docs/img/ideas.py [--png FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle
from overview import COLORS, write_svg

FOLDER = Path(__file__).resolve().parent
WIDTH, HEIGHT = 100, 36
INK, QUIET, EDGE, CHOSEN, FIXED = (COLORS[name] for name in ("ink", "quiet", "edge", "chosen", "fixed"))
WORDS = ("remove", "a", "suffix", "from", "each", "string")


def say(axes: Any, x: float, y: float, text: str, size: float = 10, color: str = INK, **more: Any) -> None:
    """Write a text, centred unless `ha` says otherwise."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "linespacing": 1.35, **more}, color=color, fontsize=size)


def box(axes: Any, x: float, y: float, width: float, text: str, *, chosen: bool = False, size: float = 10) -> None:
    """Draw a box around (x, y) with a text; blue if it is what the picture is about."""
    face, edge = (CHOSEN, EDGE) if chosen else (FIXED, QUIET)
    corner = (x - width / 2, y - 2.5)
    axes.add_patch(FancyBboxPatch(corner, width, 5, boxstyle="round,pad=0,rounding_size=0.9", fc=face, ec=edge, lw=1.2))
    say(axes, x, y, text, size)


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], color: str = QUIET) -> None:
    """Draw a straight arrow."""
    style = {"arrowstyle": "-|>,head_width=0.3,head_length=0.6", "color": color, "lw": 1.5}
    axes.annotate("", xy=end, xytext=start, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})


def words(axes: Any, x: float, y: float, hidden: Sequence[str], width: float = 10.5) -> None:
    """Draw the sentence from x on, a box for each word; hidden ones are blue and empty."""
    for number, word in enumerate(WORDS):
        is_hidden = word in hidden
        box(axes, x + number * (width + 1), y, width, "" if is_hidden else word, chosen=is_hidden)


def draw_masking(axes: Any) -> None:
    """Draw a text, and what two maskers leave of it."""
    for y, name, note, hidden in (
        (29, "the text", "", ()),
        (18, "uniform", "hides words at random", ("a", "each")),
        (7, "pmi", "hides words that tell\nmuch about the others", ("remove", "suffix", "string")),
    ):
        say(axes, 1, y + (1.6 if note else 0), name, 12, weight="bold", ha="left")
        say(axes, 1, y - 1.8, note, 8.5, QUIET, ha="left", va="center" if "\n" not in note else "top")
        words(axes, 36, y, hidden)


def draw_bottleneck(axes: Any) -> None:
    """Draw how a text goes through one vector."""
    for number, word in enumerate(("remove", "a", "", "from", "each", "")):
        box(axes, 8, 31 - 5.6 * number, 13, word, chosen=not word)
    arrow(axes, (16, 17), (22, 17))
    axes.add_patch(Polygon([(23, 32), (41, 21), (41, 13), (23, 2)], fc=FIXED, ec=QUIET, lw=1.2))
    say(axes, 31, 17, "encoder", 12, weight="bold")
    arrow(axes, (42, 17), (47, 17))
    for number in range(7):
        axes.add_patch(Rectangle((48, 9.6 + 2.2 * number), 3.4, 2, fc=CHOSEN, ec=EDGE, lw=1.2))
    say(axes, 49.7, 5.6, "one vector:\nthe bottleneck", 10, EDGE)
    arrow(axes, (53, 17), (58, 17))
    axes.add_patch(Polygon([(59, 20), (73, 25), (73, 9), (59, 14)], fc=FIXED, ec=QUIET, lw=1.2))
    say(axes, 67, 17, "decoder", 12, weight="bold")
    say(axes, 67, 5.6, "small, and sees\neven less of the text", 8.5, QUIET)
    arrow(axes, (74, 17), (79, 17))
    for number, word in enumerate(WORDS):
        box(axes, 90, 31 - 5.6 * number, 13, word)


def grid(axes: Any, x: float, name: str, note: str, sees: Callable[[int, int], bool], rows: Sequence[int]) -> None:
    """Draw which words (columns) a decoder sees while it rebuilds a word (row)."""
    side = 2.7
    for row in range(len(WORDS)):
        for column in range(len(WORDS)):
            is_seen = row in rows and sees(row, column)
            face = CHOSEN if is_seen else "none"
            edge = EDGE if is_seen else (QUIET if row in rows else FIXED)
            axes.add_patch(Rectangle((x + side * column, 23.5 - side * row), side, side, fc=face, ec=edge, lw=0.8))
    say(axes, x + 3 * side, 31.5, name, 12, weight="bold")
    say(axes, x + 3 * side, 7.2, note, 8.5, QUIET, va="top")


def draw_decoder(axes: Any) -> None:
    """Draw what four decoders see while they rebuild each word."""
    pattern = np.random.default_rng(5).random((6, 6)) < 0.5
    every = range(len(WORDS))
    for number, word in enumerate(WORDS):
        say(axes, 12.4, 24.8 - 2.7 * number, word, 8.5, QUIET, ha="right")
    grid(
        axes,
        14,
        "mlm",
        "only hidden words,\nall from one context",
        lambda _, column: column not in (0, 2, 5),
        (0, 2, 5),
    )
    grid(
        axes,
        36,
        "enhanced",
        "every word, each\nfrom its own context",
        lambda row, column: bool(pattern[row, column]) and row != column,
        every,
    )
    grid(
        axes,
        58,
        "autoregressive",
        "every word, from\nthe few before it",
        lambda row, column: row - 3 < column < row,
        every,
    )
    grid(axes, 80, "bow", "the set of words,\nfrom the vector alone", lambda _row, _column: False, every)
    say(axes, 1, 31.5, "rebuilt", 8.5, QUIET, ha="left")


def draw_negatives(axes: Any) -> None:
    """Draw a query among passages: near ones teach more than far ones, if they are wrong."""
    rng = np.random.default_rng(2)
    far = np.column_stack([rng.uniform(4, 30, 26), rng.uniform(4, 33, 26)])
    axes.scatter(*far.T, s=42, color=FIXED, edgecolor=QUIET, lw=1)
    axes.scatter([62], [17], s=330, marker="*", color=INK, zorder=3)
    say(axes, 62, 12.6, "query", 11, weight="bold")
    axes.scatter([70], [22], s=90, color="#bbf7d0", edgecolor="#166534", lw=1.4)
    say(axes, 72, 22.4, "its passage: pull closer", 10, "#166534", ha="left")
    near = np.array([(53, 22), (55, 11.5), (50, 16)])
    axes.scatter(*near.T, s=90, color=CHOSEN, edgecolor=EDGE, lw=1.4)
    for x, y in near:
        arrow(axes, (x - 1.2, y), (x - 6, y + (y - 17) * 0.35), EDGE)
    say(axes, 53, 31, "hard negatives: near, and wrong.\nPush away", 10, EDGE)
    axes.scatter([66], [9], s=90, color="#fde68a", edgecolor="#92400e", lw=1.4)
    say(axes, 68, 8.4, "near, and right, but not judged:\na filter drops it", 10, "#92400e", ha="left")
    say(axes, 17, 0.6, "random negatives: too easy", 10, QUIET)


def draw_evaluation(axes: Any) -> None:
    """Draw splits of queries, a measure of a ranking, and a paired comparison."""
    for y, width, name, note, chosen in (
        (27, 24, "train", "learn from these", False),
        (18, 12, "dev", "choose by these", False),
        (9, 16, "test", "report these, once", True),
    ):
        axes.add_patch(
            Rectangle((1, y - 2.2), width, 4.4, fc=CHOSEN if chosen else FIXED, ec=EDGE if chosen else QUIET)
        )
        say(axes, 2.2, y, name, 10, weight="bold", ha="left")
        say(axes, 1, y - 4, note, 8.5, QUIET, ha="left")
    for rank in range(1, 6):
        y = 30.5 - 4.6 * rank
        axes.add_patch(
            Rectangle((41, y - 1.7), 16, 3.4, fc=CHOSEN if rank == 3 else FIXED, ec=EDGE if rank == 3 else QUIET)
        )
        say(axes, 38.5, y, str(rank), 9, QUIET)
    say(axes, 49, 30.5 - 4.6 * 3, "relevant", 9)
    say(axes, 48, 31, "one query's ranking", 10, weight="bold")
    say(axes, 48, 3, "RR@10 = 1/3", 10, EDGE)
    rng = np.random.default_rng(4)
    gains = rng.normal(2.2, 3.2, 40)
    axes.plot([81, 81], [6.5, 28], color=QUIET, lw=1, ls=":")
    axes.scatter(81 + gains * 1.6, rng.uniform(9, 25, 40), s=14, color=FIXED, edgecolor=QUIET, lw=0.7)
    mean, error = gains.mean() * 1.6, 1.96 * gains.std() / 40**0.5 * 1.6
    axes.plot([81 + mean - error, 81 + mean + error], [17, 17], color=EDGE, lw=2.4)
    axes.scatter([81 + mean], [17], s=60, color=EDGE, zorder=3)
    say(axes, 81, 31, "gain of B over A, query by query", 10, weight="bold")
    say(axes, 81, 4.6, "0", 9, QUIET)
    say(axes, 81, 1.5, "the mean gain's interval leaves out 0", 8.5, EDGE)


PICTURES = {
    "masking": draw_masking,
    "bottleneck": draw_bottleneck,
    "decoder": draw_decoder,
    "negatives": draw_negatives,
    "evaluation": draw_evaluation,
}


def main() -> None:
    """Write the pictures next to this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--png", type=Path, help="also write PNG files to this folder")
    png = parser.parse_args().png
    for name, draw in PICTURES.items():
        figure = Figure(figsize=(9, 9 * HEIGHT / WIDTH))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(-1, HEIGHT - 1))
        axes.set_axis_off()
        draw(axes)
        write_svg(figure, FOLDER / f"idea-{name}.svg")
        if png:
            png.mkdir(parents=True, exist_ok=True)
            figure.savefig(png / f"idea-{name}.png", facecolor="#ffffff", dpi=80)


if __name__ == "__main__":
    main()
