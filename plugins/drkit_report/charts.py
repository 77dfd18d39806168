"""A chart on a page: a drawing with its title and a note; the curves of trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from drkit.charts import Bars, Intervals, Line, Panel, draw_svg

# Curves of a panel, beside each other's ends.
_MAX_LABELS = 5


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
