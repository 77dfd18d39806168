"""The curves of a run's report, drawn by matplotlib: small panels, readable in black and white.

matplotlib is imported when something is drawn, and draws to files alone, without a screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

# Told apart without colours: by line first, then by mark.
_LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
_MARKS = ("o", "s", "^", "D", "v")
_SHADES = ("#000000", "#0b5fa5", "#b2461b", "#4d7c0f", "#6b4a9c")
_PANEL = (3.5, 2.35)  # inches, wide and high
_STYLE = {
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
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.6,
    "figure.dpi": 160,
    "svg.hashsalt": "drkit",
}


@frozen
class Line:
    """One curve: its label, and (step, value) points in the order of their steps."""

    label: str
    points: Sequence[tuple[float, float]]


@frozen
class Panel:
    """One small plot. unit: what stands at its y-axis; floor: the axis begins at 0; marks: each point is drawn."""

    title: str
    unit: str
    lines: Sequence[Line]
    floor: bool = False
    marks: bool = False


def draw(panels: Sequence[Panel], path: Path, *, columns: int = 2) -> Path:
    """Draw panels into one PNG file, row by row; panels without a point are left out."""
    shown = [panel for panel in panels if any(line.points for line in panel.lines)]
    columns = max(1, min(columns, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    with _figure(columns, rows) as (figure, cells):
        for cell, panel in zip(cells, shown, strict=False):
            _panel(cell, panel)
        for cell in cells[len(shown) :]:
            cell.set_axis_off()
        figure.savefig(path, metadata={"Software": None})  # the same curves, the same file
    return path


@contextmanager
def _figure(columns: int, rows: int) -> Iterator[tuple[Any, list[Any]]]:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows), layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(wspace=0.06, hspace=0.08)
        yield figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _panel(cell: Any, panel: Panel) -> None:
    for place, line in enumerate(panel.lines):
        steps, values = zip(*line.points, strict=True) if line.points else ((), ())
        style = {"linestyle": _LINES[place % 5], "color": _SHADES[place % 5]}
        cell.plot(steps, values, label=line.label, marker=_MARKS[place % 5] if panel.marks else "", **style)
    cell.set_title(panel.title)
    cell.set_xlabel("step")
    cell.set_ylabel(panel.unit)
    cell.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    cell.xaxis.get_major_locator().set_params(nbins=6, integer=True)
    cell.margins(x=0.02)
    if panel.floor:
        low, high = cell.get_ylim()
        cell.set_ylim(min(0.0, low), max(high, 1e-3) * 1.08)
    if len(panel.lines) > 1:
        cell.legend(loc="best")


def loss_panels(trainings: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Panel]:
    """Training losses from the entries of each training's log: the terms of pre-training, then all fine-tunings."""
    panels, others = [], []
    for name, log in trainings.items():
        terms = sorted({key for entry in log for key in entry if key.endswith("_loss")})
        if terms:
            lines = [Line("weighted sum", _points(log, "loss"))] if len(terms) > 1 else []
            lines += [Line(term.removesuffix("_loss"), _points(log, term)) for term in terms]
            panels.append(Panel(f"Training loss: {name}", "nats", lines))
        else:
            others.append(Line(name, _points(log, "loss")))
    return [*panels, Panel("Training loss: fine-tuning", "nats", others)]


def probe_panels(probes: Sequence[Mapping[str, float]]) -> list[Panel]:
    """Held-out loss and accuracy of each branch, gain, anisotropy and retrieval, over the steps of the probes."""
    losses = sorted({key for probe in probes for key in probe if key.endswith("_loss")})
    shares = [(branch, _points(probes, f"{branch}_accuracy", 100)) for branch in ("encoder", "decoder")]
    top = [Line("mean cosine of two texts", _points(probes, "anisotropy"))]
    top += [Line("variance in one direction", _points(probes, "top_direction"))]
    return [
        Panel("Held-out loss", "nats", [Line(n.removesuffix("_loss"), _points(probes, n)) for n in losses], marks=True),
        Panel("Held-out accuracy", "% right", [Line(*share) for share in shares if share[1]], floor=True, marks=True),
        Panel("Gain from the bottleneck", "nats", [Line("gain", _points(probes, "gain"))], floor=True, marks=True),
        Panel("Anisotropy", "share", top, floor=True, marks=True),
        Panel("Retrieval", "RR@10", [Line("RR@10", _points(probes, "RR@10"))], floor=True, marks=True),
    ]


def _points(entries: Sequence[Mapping[str, float]], name: str, times: float = 1) -> list[tuple[float, float]]:
    return [(entry["step"], times * entry[name]) for entry in entries if name in entry]
