"""A chart on a page: a drawing with its title and a note; the curves of trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from drkit.charts import Bars, Intervals, Line, Panel, draw_svg

# Curves of a panel, beside each other's ends.
_MAX_LABELS = 5
_SPREAD = {"anisotropy": "mean cosine", "top_direction": "top direction"}


@frozen
class Chart:
    """A drawing of a page, a note below it, and whether it takes a row."""

    drawing: Panel | Bars | Intervals
    note: str = ""
    is_wide: bool = False

    @property
    def title(self) -> str:
        """The heading above the drawing."""
        return self.drawing.title

    @property
    def svg(self) -> str:
        """The drawing as an SVG element."""
        return draw_svg(self.drawing, is_wide=self.is_wide)


Log: TypeAlias = "Sequence[Mapping[str, float]]"


def loss_panels(trainings: Mapping[str, Log], probes: Mapping[str, Log]) -> list[Panel]:
    """Return panels of the losses in training logs: one per pre-training term, and one for every five fine-tunings.

    trainings, probes: logs by stage. A term that probes measured on held-out texts gets a second curve.
    """
    terms = dict.fromkeys(key for log in trainings.values() for entry in log for key in entry if key.endswith("_loss"))
    pretrained = {name: log for name, log in trainings.items() if any(term in entry for term in terms for entry in log)}
    panels = []
    for term in terms:
        lines = []
        for name, log in pretrained.items():
            prefix = f"{name}, " if len(pretrained) > 1 else ""
            lines.append(Line(f"{prefix}training", _points(log, term)))
            lines.append(Line(f"{prefix}held out", _points(probes.get(name, ()), term)))
        panels.append(Panel(f"Pre-training loss: {term.removesuffix('_loss')}", "nats", _drawn(lines)))
    others = [Line(name, _points(log, "loss")) for name, log in trainings.items() if name not in pretrained]
    groups = [others[start : start + _MAX_LABELS] for start in range(0, len(others), _MAX_LABELS)]
    for number, group in enumerate(groups, 1):
        panels.append(
            Panel(f"Fine-tuning loss{f', {number} of {len(groups)}' if len(groups) > 1 else ''}", "nats", group)
        )
    return panels


def probe_panels(probes: Mapping[str, Log]) -> list[Panel]:
    """Return panels of accuracy per side, gain from the bottleneck, anisotropy and retrieval, over the probes.

    probes: of each pre-training, by stage.
    """
    return [
        Panel("Accuracy on held-out texts", "% correct", _probe_lines(probes, _accuracies(probes), 100), floor=True),
        Panel("Gain from the bottleneck", "nats", _probe_lines(probes, {"gain": "gain"}), floor=True),
        Panel("Anisotropy", "cosine; share of variance", _probe_lines(probes, _SPREAD), floor=True),
        Panel("Retrieval probe", "RR@10", _probe_lines(probes, {"RR@10": "RR@10"}), floor=True),
    ]


def _accuracies(probes: Mapping[str, Log]) -> dict[str, str]:
    names = dict.fromkeys(name for log in probes.values() for one in log for name in one if name.endswith("_accuracy"))
    return {name: name.removesuffix("_accuracy") for name in names}


def _probe_lines(probes: Mapping[str, Log], names: Mapping[str, str], times: float = 1) -> list[Line]:
    """Return a line for each value of each pre-training; names: what a value is called, by its key."""
    return _drawn(
        [
            Line(f"{stage}, {shown}" if len(probes) > 1 else shown, _points(log, key, times))
            for stage, log in probes.items()
            for key, shown in names.items()
        ]
    )


def _drawn(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that have points."""
    return [line for line in lines if line.points]


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
