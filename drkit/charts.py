"""Charts by matplotlib: curves, bars and intervals as plain data, drawn as SVG for pages; intervals also as PNG.

matplotlib is imported only when something is drawn, and needs no display.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.escaping import escape_controls
from drkit.errors import import_extra

_INK, _GRID = "#1c1c1c", "#dcdcdc"
# Distinguishable without colours: by line style, then by marker.
_COLOURS = ("#0072b2", "#d55e00", "#00795c", "#b2508a", "#7a6a00", "#4b4b4b")
_LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
_MARKS = ("o", "s", "^", "D", "X", "v")
# Variables of a page's style sheet in place of the colours, so that light, dark and printed pages have their own.
_VARIABLES = {_INK: "var(--ink)", _GRID: "var(--grid)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(_COLOURS, 1)
}
_PANEL, _WIDE_PANEL = (3.6, 2.3), (11.0, 2.6)  # width and height in inches
_MAX_MARKED = 30  # up to this many points get a marker each
_LABEL_GAP = 0.12  # between two labels, as a share of the panel's height
_ROW = 0.22  # inches of a row of bars or intervals
_LONGEST = 40  # characters of a label; more would leave no room for the curves
_STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.6,
    "figure.dpi": 150,
    "text.parse_math": False,  # labels are names, and a $ in one is not a formula
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "drkit",  # equal charts are equal files
    "grid.color": _GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
}
# What matplotlib adds that a page has no use for: a style sheet, comments, names of groups, and clipping, of which
# nothing is drawn outside. A page may have equal names in parts that are closed, where browsers find no clip path.
_LEFT_OUT = re.compile(
    r'<defs>\s*<(style|clipPath).*?</\1>\s*</defs>|<!--.*?-->|(?<=<g) id="[^"]*"| clip-path="[^"]*"', re.DOTALL
)
_FONT = re.compile(r"font-family: [^;]*; ")


@frozen
class Line:
    """One curve: a label, and (step, value) points ordered by step."""

    label: str
    points: Sequence[tuple[float, float]]


@frozen
class Panel:
    """One small plot of curves. unit, x: labels of the axes; floor: the y-axis starts at 0.

    log: the x-axis is logarithmic, with 0 at its left end. names: of the x values 0, 1, .. in place of the numbers.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    floor: bool = False
    x: str = "step"
    log: bool = False
    names: Sequence[str] = ()


@frozen
class Bars:
    """Grouped horizontal bars: a value for each label, from top to bottom, in each group; unit: of the values."""

    title: str
    unit: str
    labels: Sequence[str]
    groups: Mapping[str, Sequence[float]]


@frozen
class Intervals:
    """Means with intervals: for each measure, (mean, low, high) of each name."""

    title: str
    names: Sequence[str]
    measures: Mapping[str, Sequence[tuple[float, float, float]]]


def draw_png(chart: Intervals, path: Path) -> Path:
    """Draw intervals, a panel for each measure side by side, into one PNG file; 0 is marked where they span it."""
    columns = len(chart.measures)
    longest = max(map(len, map(_label, chart.names)))
    width, height = 0.085 * longest + 2.6 * columns + 0.4, 0.9 + 0.3 * len(chart.names)
    with _figure(width, height, (1, columns)) as (figure, cells):
        _draw_intervals(cells, chart, columns)
        figure.suptitle(escape_controls(chart.title), x=0.01, ha="left", fontsize=9.5)
        figure.savefig(path, metadata={"Software": None})
    return path


def draw_svg(chart: Panel | Bars | Intervals, *, is_wide: bool = False) -> str:
    """Return a chart without its title as an SVG element for a page, in the colours of the page's style sheet."""
    width, height = _WIDE_PANEL if is_wide else _PANEL
    if isinstance(chart, Intervals):
        columns = min(4, len(chart.measures))
        rows = -(-len(chart.measures) // columns)
        height = rows * (0.6 + _ROW * len(chart.names))
    else:
        rows = columns = 1
        if isinstance(chart, Bars):
            height = 0.7 + _ROW * len(chart.labels)
    drawn = io.StringIO()
    with _figure(width, height, (rows, columns)) as (figure, cells):
        if isinstance(chart, Intervals):
            _draw_intervals(cells, chart, columns)
        elif isinstance(chart, Bars):
            _draw_bars(cells[0], chart)
        else:
            _draw_lines(cells[0], chart)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=nothing)
    element = _LEFT_OUT.sub("", drawn.getvalue()[drawn.getvalue().index("<svg") :])
    return re.sub(r'style="[^"]*"', _follow_style_sheet, element)


def _follow_style_sheet(style: re.Match[str]) -> str:
    in_colours = re.sub(r"#[0-9a-f]{6}", lambda colour: _VARIABLES.get(colour[0], colour[0]), style[0])
    return _FONT.sub("", in_colours)


@contextmanager
def _figure(width: float, height: float, cells: tuple[int, int]) -> Iterator[tuple[Any, list[Any]]]:
    matplotlib = import_extra("matplotlib", "a chart")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a script that matplotlib's font lacks
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.08))
        FigureCanvasAgg(figure)
        yield figure, list(figure.subplots(*cells, squeeze=False).flat)


def _draw_lines(cell: Any, panel: Panel) -> None:
    lines = [line for line in panel.lines if line.points]
    for number, line in enumerate(lines):
        is_marked = len(line.points) <= _MAX_MARKED or bool(panel.names)
        steps, values = zip(*line.points, strict=True)
        style = {
            "linestyle": _LINES[number % len(_LINES)],
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKS[number % len(_MARKS)] if is_marked else "",
        }
        cell.plot(steps, values, clip_on=not is_marked, **style)  # markers on the axis are not clipped
    cell.set_xlabel(escape_controls(panel.x))
    cell.set_ylabel(escape_controls(panel.unit))
    cell.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if panel.log:
        cell.set_xscale("symlog", linthresh=50)
        largest = max(step for line in lines for step, _ in line.points)
        cell.set_xticks([0, *(10**power for power in range(2, 9) if 10**power <= largest)], minor=False)
        cell.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value >= 1000 else f"{value:.0f}")
        cell.minorticks_off()
    elif panel.names:
        names = map(_label, panel.names)
        cell.set_xticks(range(len(panel.names)), list(names), rotation=55, ha="right", rotation_mode="anchor")
    else:
        cell.xaxis.get_major_locator().set_params(nbins=5, integer=True)
    cell.margins(x=0.02, y=0.08)
    if panel.floor:
        low, high = cell.get_ylim()
        below = min(value for line in lines for _, value in line.points) < 0
        cell.set_ylim(low if below else 0.0, max(high, 1e-3))
    if len(lines) > 1:
        _label_lines(cell, lines)


def _label_lines(cell: Any, lines: Sequence[Line]) -> None:
    """Put each curve's label beside its end, moved apart if labels would overlap."""
    low, high = cell.get_ylim()
    ends = sorted(((line.points[-1][1] - low) / (high - low), number) for number, line in enumerate(lines))
    above = -_LABEL_GAP
    for height, number in ends:
        above = max(height, above + _LABEL_GAP)
        label, colour = _label(lines[number].label), _COLOURS[number % len(_COLOURS)]
        where = {"xycoords": "axes fraction", "xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        cell.annotate(label, (1, above), color=colour, fontsize=8, **where)


def _label(text: str) -> str:
    shown = escape_controls(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}\u2026"


def _draw_bars(cell: Any, chart: Bars) -> None:
    thickness = 0.8 / max(len(chart.groups), 1)
    for number, (name, values) in enumerate(chart.groups.items()):
        places = [index + (number - (len(chart.groups) - 1) / 2) * thickness for index in range(len(values))]
        colour = _COLOURS[number % len(_COLOURS)]
        cell.barh(places, values, height=thickness, color=colour, label=_label(name))
    cell.set_yticks(range(len(chart.labels)), list(map(_label, chart.labels)))
    cell.invert_yaxis()
    cell.grid(visible=False, axis="y")
    cell.set_xlabel(escape_controls(chart.unit))
    if len(chart.groups) > 1:
        cell.legend(frameon=False, fontsize=8)


def _draw_intervals(cells: Sequence[Any], chart: Intervals, columns: int) -> None:
    rows = range(len(chart.names))
    for index, (cell, (measure, found)) in enumerate(zip(cells, chart.measures.items(), strict=False)):
        means, lows, highs = zip(*found, strict=True)
        cell.hlines(rows, lows, highs, color=_COLOURS[0], linewidth=1.6)
        cell.plot(means, rows, linestyle="", marker="o", color=_COLOURS[0])
        if min(lows) < 0 < max(highs):
            cell.axvline(0, color=_INK, linewidth=0.8, zorder=1)
        cell.set_title(escape_controls(measure))
        cell.set_yticks(rows, list(map(_label, chart.names)) if index % columns == 0 else [""] * len(rows))
        cell.set_ylim(len(rows) - 0.5, -0.5)
        cell.xaxis.get_major_locator().set_params(nbins=4)
    for cell in cells[len(chart.measures) :]:
        cell.set_axis_off()
