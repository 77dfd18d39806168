"""A report in Markdown: headings, tables and figures; the curves of trainings as plain data, and as PNG by matplotlib.

matplotlib is imported only when plotting, and writes to files without a display.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.escaping import escape_markdown, escape_paragraph

# Systems of a run that have another name for readers.
SYSTEM_NAMES = {
    "bm25": "BM25",
    "as-it-is": "as it is",
    "initial": "as it starts",
    "no-pretraining": "without pre-training",
}
# Distinguishable without colours: by line style, then by marker.
_LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
_MARKS = ("o", "s", "^", "D", "v")
_SHADES = ("#000000", "#0b5fa5", "#b2461b", "#4d7c0f", "#6b4a9c")
_PANEL = (3.3, 2.2)  # width and height in inches
_MAX_LABELS = 5  # of the curves of a panel, beside each other's ends
_MAX_MARKED = 30  # up to this many points get a marker each
_LABEL_GAP = 0.12  # between two labels, as a share of the panel's height
_STYLE: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.6,
    "figure.dpi": 150,
    "text.parse_math": False,  # labels are names, and a $ in one is not a formula
}


@frozen
class Line:
    """One curve: a label, and (step, value) points ordered by step."""

    label: str
    points: Sequence[tuple[float, float]]


@frozen
class Panel:
    """One small plot. unit, x: labels of the axes; floor: the y-axis starts at 0.

    log: the x-axis is logarithmic, with 0 at its left end.
    """

    title: str
    unit: str
    lines: Sequence[Line]
    floor: bool = False
    x: str = "step"
    log: bool = False


def draw(panels: Sequence[Panel], path: Path) -> Path:
    """Draw panels into one PNG file, two or three per row; panels without points are left out."""
    shown = [panel for panel in panels if any(line.points for line in panel.lines)]
    columns = 3 if len(shown) % 3 == 0 else min(2, len(shown))
    rows = -(-len(shown) // columns)
    with _figure(columns, rows) as (figure, cells):
        for cell, panel in zip(cells, shown, strict=False):
            _panel(cell, panel)
        for cell in cells[len(shown) :]:
            cell.set_axis_off()
        figure.savefig(path, metadata={"Software": None})  # equal curves give equal files
    return path


@contextmanager
def _figure(columns: int, rows: int) -> Iterator[tuple[Any, list[Any]]]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(_STYLE):
        spread = ConstrainedLayoutEngine(wspace=0.06, hspace=0.08)
        width = _PANEL[0] * max(columns, 1.5)  # a single panel has room for longer labels
        figure = Figure(figsize=(width, _PANEL[1] * rows), layout=spread)
        FigureCanvasAgg(figure)
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _panel(cell: Any, panel: Panel) -> None:
    lines = [line for line in panel.lines if line.points]
    for number, line in enumerate(lines):
        is_marked = len(line.points) <= _MAX_MARKED
        steps, values = zip(*line.points, strict=True)
        style = {
            "linestyle": _LINES[number % 5],
            "color": _SHADES[number % 5],
            "marker": _MARKS[number % 5] if is_marked else "",
        }
        cell.plot(steps, values, clip_on=not is_marked, **style)  # markers on the axis are not clipped
    cell.set_title(panel.title)
    cell.set_xlabel(panel.x)
    cell.set_ylabel(panel.unit)
    cell.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if panel.log:
        cell.set_xscale("symlog", linthresh=50)
        largest = max(step for line in lines for step, _ in line.points)
        cell.set_xticks([0, *(10**power for power in range(2, 9) if 10**power <= largest)], minor=False)
        cell.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k" if value >= 1000 else f"{value:.0f}")
        cell.minorticks_off()
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
        colour = _SHADES[number % 5]
        cell.annotate(
            lines[number].label, (1.02, above), xycoords="axes fraction", va="center", color=colour, fontsize=8
        )


def loss_panels(
    trainings: Mapping[str, Sequence[Mapping[str, float]]], probes: Sequence[Mapping[str, float]] = ()
) -> list[Panel]:
    """Return panels of the losses in training logs: one per pre-training term, and one for every five fine-tunings.

    A term that probes measured on held-out texts gets a second curve.
    """
    panels, others = [], []
    for name, log in trainings.items():
        terms = sorted({key for entry in log for key in entry if key.endswith("_loss")}, reverse=True)
        for term in terms:
            lines = [Line("training", _points(log, term)), Line("held out", _points(probes, term))]
            panels.append(Panel(f"Pre-training loss: {term.removesuffix('_loss')}", "nats", lines))
        if not terms:
            others.append(Line(name, _points(log, "loss")))
    groups = [others[start : start + _MAX_LABELS] for start in range(0, len(others), _MAX_LABELS)]
    return [*panels, *(Panel("Fine-tuning loss", "nats", group) for group in groups)]


def probe_panels(probes: Sequence[Mapping[str, float]]) -> list[Panel]:
    """Return panels of accuracy per branch, gain from the bottleneck, anisotropy and retrieval, over the probes."""
    branches = [Line(branch, _points(probes, f"{branch}_accuracy", 100)) for branch in ("encoder", "decoder")]
    spread = [Line("mean cosine", _points(probes, "anisotropy"))]
    spread += [Line("top direction", _points(probes, "top_direction"))]
    return [
        Panel("Accuracy on held-out texts", "% correct", branches, floor=True),
        Panel("Gain from the bottleneck", "nats", [Line("gain", _points(probes, "gain"))], floor=True),
        Panel("Anisotropy", "cosine; share of variance", spread, floor=True),
        Panel("Retrieval probe", "RR@10", [Line("RR@10", _points(probes, "RR@10"))], floor=True),
    ]


def validation_panel(trainings: Mapping[str, Sequence[Mapping[str, float]]]) -> Panel:
    """Return a panel of the validation measure on dev queries, for each validated training."""
    measures = dict.fromkeys(name for records in trainings.values() for record in records for name in record)
    shown = " ".join(name for name in measures if name != "step")
    lines = [
        Line(name, [point for measure in shown.split() for point in _points(records, measure)])
        for name, records in trainings.items()
    ]
    return Panel("Validation", shown, lines, floor=True)


def _points(entries: Sequence[Mapping[str, float]], name: str, times: float = 1) -> list[tuple[float, float]]:
    return [(entry["step"], times * entry[name]) for entry in entries if name in entry]


@frozen
class Text:
    """A paragraph of plain text."""

    text: str


@frozen
class Heading:
    """A heading; level 1 is the document's title."""

    text: str
    level: int = 2


@frozen
class Table:
    """Columns, and rows of cells; the first column names the row, the others hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@frozen
class Figure:
    """A PNG file beside the document, and its caption."""

    path: Path
    caption: str


Block = Text | Heading | Table | Figure


def markdown(blocks: Sequence[Block]) -> str:
    r"""Format the document as Markdown; figures are linked by file name.

    >>> print(markdown([Heading("Run", level=1), Table(["system", "RR@10"], [["a|b", "0.5"]])]))
    # Run
    <BLANKLINE>
    | system | RR@10 |
    |---|---:|
    | a\|b | 0.5 |
    <BLANKLINE>
    """
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escape_markdown(block.text)}"
    if isinstance(block, Table):
        head, *lines = [f"| {' | '.join(map(escape_markdown, row))} |" for row in (block.columns, *block.rows)]
        return "\n".join([head, "|---" + "|---:" * (len(block.columns) - 1) + "|", *lines])
    if isinstance(block, Figure):
        return f"![{escape_markdown(block.caption)}]({block.path.name})"
    return escape_paragraph(block.text)
