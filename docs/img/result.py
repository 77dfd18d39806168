"""Draw the README's picture of a result: the systems of a finished run with 95 % intervals, as `result.svg`.

python docs/img/result.py RUN [--png FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure
from overview import COLORS, write_svg

from drkit.commands import open_run
from drkit.core.registry import installed
from drkit.evaluate.names import system_name
from drkit.evaluate.significance import mean_intervals

FOLDER = Path(__file__).resolve().parent
# Rows of parts that the recipe chooses are blue, as in the other pictures.
CHOSEN = ("retriever", "hybrid")


def draw(run: Path) -> Figure:
    """Return the figure: a row for each system, its mean by the first measure, and the interval over queries."""
    record = open_run(run, installed())
    names, scores = list(record.scores), list(record.scores.values())
    measure = scores[0].measures[0]
    intervals = mean_intervals(scores, measure)
    figure = Figure(figsize=(6.4, 0.42 * len(names) + 1.1))
    axes = figure.add_axes((0.25, 0.12, 0.72, 0.76 - 0.4 / len(names)))
    for row, (name, one, (low, high)) in enumerate(zip(names, scores, intervals, strict=True)):
        color = COLORS["edge"] if name.startswith(CHOSEN) else COLORS["quiet"]
        axes.plot([0, one.mean(measure)], [row, row], color=color, lw=9, alpha=0.25, solid_capstyle="butt")
        axes.plot([low, high], [row, row], color=color, lw=2)
        axes.scatter([one.mean(measure)], [row], s=46, color=color, zorder=3)
        axes.text(high, row, f"  {one.mean(measure):.3f}", va="center", color=COLORS["ink"], fontsize=12)
    axes.set_yticks(range(len(names)), [system_name(name) for name in names], fontsize=13, color=COLORS["ink"])
    axes.set(ylim=(len(names) - 0.4, -0.6), xlim=(0, max(high for _, high in intervals) * 1.18))
    axes.tick_params(colors=COLORS["ink"], length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(COLORS["quiet"])
    count = len(scores[0].per_query[measure])
    figure.text(
        0.01,
        0.985,
        f"{measure} on {count:,} test queries, with 95 % intervals",
        va="top",
        fontsize=13,
        color=COLORS["ink"],
    )
    return figure


def main() -> None:
    """Write the picture next to this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--png", type=Path, help="also write a PNG file to this folder")
    given = parser.parse_args()
    figure = draw(given.run)
    write_svg(figure, FOLDER / "result.svg")
    if given.png:
        given.png.mkdir(parents=True, exist_ok=True)
        figure.savefig(given.png / "result.png", facecolor="#ffffff", dpi=110)


if __name__ == "__main__":
    main()
