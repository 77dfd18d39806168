"""Draw the README's picture as `overview.svg`.

python docs/img/overview.py [--png FOLDER]
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
WIDTH, HEIGHT = 100, 53
BOX = 14.5  # width of a box
# The parts that a recipe chooses have a colour of their own; the rest of the pipeline is grey.
COLORS = {"ink": "#1f2328", "quiet": "#59636e", "fixed": "#eaeef2", "chosen": "#bfdbfe", "edge": "#2563eb"}
# Where the reader prefers dark pages, dark lines become light ones, and blue stays blue.
DARK = "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg); } }</style>"
# name, x and y of its centre, whether a recipe chooses it, some of the choices
BOXES = (
    ("text", 8, 40, False, ""),
    ("masker", 29, 40, True, "uniform, pmi\ngenerator"),
    ("encoder", 50, 40, False, "BERT .. ModernBERT\nor from scratch"),
    ("decoder", 71, 40, True, "mlm, enhanced, bow\ncondenser\nautoregressive .."),
    ("losses", 92, 40, True, "mlm, replaced-lm\nbag-of-words\nspan-contrastive .."),
    ("negatives", 29, 14, True, "bm25, dense, refresh\nmargin, ranks\ncross-encoder-filter"),
    ("losses", 50, 14, True, "contrastive, pairwise\nkl-distillation\nmargin-mse"),
    ("retriever", 71, 14, False, "one encoder, or\none for queries and\none for passages"),
    ("evaluation", 92, 14, False, "index, TREC runs\nmeasures, t-tests"),
)


def draw_box(axes: Any, colors: dict[str, str], name: str, x: float, y: float, chosen: bool, choices: str) -> None:
    """Draw a named box around (x, y), with some of its choices below."""
    from matplotlib.patches import FancyBboxPatch

    face, edge = (colors["chosen"], colors["edge"]) if chosen else (colors["fixed"], colors["quiet"])
    corner = (x - BOX / 2, y - 3)
    axes.add_patch(FancyBboxPatch(corner, BOX, 6, boxstyle="round,pad=0,rounding_size=1.2", fc=face, ec=edge, lw=1.4))
    axes.text(x, y, name, ha="center", va="center", color=colors["ink"], fontsize=13, weight="bold")
    axes.text(x, y - 4, choices, ha="center", va="top", color=colors["quiet"], fontsize=8.5, linespacing=1.35)


def draw_arrow(axes: Any, colors: dict[str, str], start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a straight arrow."""
    style = {"arrowstyle": "-|>,head_width=0.3,head_length=0.6", "color": colors["quiet"], "lw": 1.5}
    axes.annotate("", xy=end, xytext=start, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})


def draw_pretraining(axes: Any, colors: dict[str, str]) -> None:
    """Draw the arrows and labels of the upper row."""
    half = BOX / 2
    for left, right in ((8, 29), (29, 50), (50, 71), (71, 92)):
        draw_arrow(axes, colors, (left + half, 40), (right - half, 40))
    axes.plot([60, 60], [38.3, 41.7], color=colors["edge"], lw=5, solid_capstyle="round")
    for x, label in ((39.5, "view"), (60.2, "one vector")):
        axes.text(x, 43.4, label, ha="center", va="bottom", color=colors["ink"], fontsize=9)
    # The decoder's view goes around the encoder: only the vector comes through it.
    axes.plot([29, 29, 71], [43, 47.5, 47.5], color=colors["quiet"], lw=1.5, solid_joinstyle="round")
    draw_arrow(axes, colors, (71, 47.5), (71, 43))
    axes.text(50, 48, "a second view, with more hidden", ha="center", va="bottom", color=colors["ink"], fontsize=9)


def draw_finetuning(axes: Any, colors: dict[str, str]) -> None:
    """Draw the arrows and labels of the lower row, and the way down to it."""
    half = BOX / 2
    for left, right in ((29, 50), (50, 71), (71, 92)):
        draw_arrow(axes, colors, (left + half, 14), (right - half, 14))
    draw_arrow(axes, colors, (50, 30.5), (50, 17))
    axes.text(51, 23.5, "keep the encoder, drop the decoder", ha="left", va="center", color=colors["ink"], fontsize=9)
    axes.plot([71, 71, 29], [4.5, 2, 2], color=colors["quiet"], lw=1.5, solid_joinstyle="round")
    draw_arrow(axes, colors, (29, 2), (29, 5))
    axes.text(
        50, 1.4, "mine negatives with the retriever, and repeat", ha="center", va="top", color=colors["ink"], fontsize=9
    )


def draw(colors: dict[str, str]) -> Any:
    """Return the figure, on a transparent ground."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 10 * HEIGHT / WIDTH))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(-1.5, HEIGHT - 1.5))
    axes.set_axis_off()
    for box in BOXES:
        draw_box(axes, colors, *box)
    draw_pretraining(axes, colors)
    draw_finetuning(axes, colors)
    for y, title in ((49.5, "Pre-training"), (23.5, "Fine-tuning")):
        axes.text(0.75, y, title, ha="left", va="center", color=colors["ink"], fontsize=13)
    axes.text(
        0.75, 13.9, "Blue: parts that\na recipe chooses", ha="left", va="center", color=colors["edge"], fontsize=9
    )
    return figure


def write_svg(figure: Any, path: Path) -> None:
    """Write a figure that follows the reader's light or dark pages; the same file on every run."""
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "drkit"}):
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    path.write_text(drawn.getvalue().replace("<defs>", f"{DARK}\n <defs>", 1), encoding="utf-8")


def main() -> None:
    """Write the picture next to this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--png", type=Path, help="also write a PNG file to this folder")
    png = parser.parse_args().png
    figure = draw(COLORS)
    write_svg(figure, FOLDER / "overview.svg")
    if png:
        png.mkdir(parents=True, exist_ok=True)
        figure.savefig(png / "overview.png", facecolor="#ffffff", dpi=110)


if __name__ == "__main__":
    main()
