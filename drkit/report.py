"""A report in Markdown: headings, tables and figures; and the curves of trainings as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import frozen

from drkit.charts import Line, Panel
from drkit.core.escaping import escape_markdown, escape_paragraph

# Curves of a panel, beside each other's ends.
_MAX_LABELS = 5


def loss_panels(
    trainings: Mapping[str, Sequence[Mapping[str, float]]], probes: Sequence[Mapping[str, float]] = ()
) -> list[Panel]:
    """Return panels of the losses in training logs: one per pre-training term, and one for every five fine-tunings.

    A term that probes measured on held-out texts gets a second curve.
    """
    panels, others = [], []
    for name, log in trainings.items():
        terms = [key for key in dict.fromkeys(key for entry in log for key in entry) if key.endswith("_loss")]
        for term in terms:
            lines = [Line("training", _points(log, term)), Line("held out", _points(probes, term))]
            panels.append(Panel(f"Pre-training loss: {term.removesuffix('_loss')}", "nats", lines))
        if not terms:
            others.append(Line(name, _points(log, "loss")))
    groups = [others[start : start + _MAX_LABELS] for start in range(0, len(others), _MAX_LABELS)]
    return [*panels, *(Panel("Fine-tuning loss", "nats", group) for group in groups)]


def probe_panels(probes: Sequence[Mapping[str, float]]) -> list[Panel]:
    """Return panels of accuracy per side, gain from the bottleneck, anisotropy and retrieval, over the probes."""
    measured = dict.fromkeys(name for one in probes for name in one if name.endswith("_accuracy"))
    branches = [Line(name.removesuffix("_accuracy"), _points(probes, name, 100)) for name in measured]
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
