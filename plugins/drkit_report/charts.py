"""Charts as Vega-Lite specifications: plain data that the page draws, with colours that follow its style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from drkit.errors import import_extra
from drkit.report import Panel

# Variables of the style sheet, so that light, dark and printed pages have their own colours.
_COLOURS = [f"var(--series-{number})" for number in range(1, 7)]
_DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3]]
_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
_INK, _FAINT = "var(--ink)", "var(--grid)"
_HEIGHT = 190
_CONFIG: Mapping[str, Any] = {
    "background": None,
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif",
    "view": {"stroke": None},
    "axis": {
        **{"labelColor": _INK, "titleColor": _INK, "domainColor": _INK, "tickColor": _INK, "gridColor": _FAINT},
        **{"titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 11, "labelLimit": 220},
    },
    "legend": {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 11, "symbolSize": 70, "labelLimit": 260},
    "header": {"labelColor": _INK, "titleColor": _INK, "labelFontSize": 12, "labelFontWeight": "bold"},
    "range": {"category": _COLOURS, "symbol": _SHAPES},
}


@frozen
class Chart:
    """A chart of the page: its title, a note below it, its Vega-Lite specification, and whether it takes a row."""

    title: str
    note: str
    spec: Mapping[str, Any]
    is_wide: bool = False


def chart_script() -> str:
    """Return the JavaScript of the charting library (Vega, Vega-Lite and vega-embed), to be put into the page.

    Raises as `import_extra` does.
    """
    vl_convert = import_extra("vl_convert", "the report's charts", "vl-convert-python", "report")
    return str(vl_convert.javascript_bundle())


def line_chart(panel: Panel, note: str = "") -> Chart:
    """Return a chart of curves, distinguished by colour, dashes and markers."""
    rows = [{"curve": line.label, "x": step, "y": value} for line in panel.lines for step, value in line.points]
    names = [line.label for line in panel.lines if line.points]
    has_markers = len(rows) < 200
    curve = {"field": "curve", "type": "nominal", "title": None, "legend": _legend(names, has_markers=has_markers)}
    axis: dict[str, Any] = {"tickCount": 5}
    if panel.log:
        largest = max(step for line in panel.lines for step, _ in line.points)
        axis = {"values": [0, *(10**power for power in range(2, 9) if 10**power <= largest)], "format": ",d"}
    x_scale = (
        {"type": "symlog", "constant": 50, "padding": 8} if panel.log else {"nice": False, "zero": False, "padding": 8}
    )
    spec = {
        **_spec(f"{panel.title}: {', '.join(names)}", rows),
        "height": _HEIGHT,
        "params": [{"name": "zoom", "select": _ZOOM, "bind": "scales"}],
        "mark": {"type": "line", "point": {"filled": True, "size": 40} if has_markers else False},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": panel.x, "scale": x_scale, "axis": axis},
            "y": {
                **{
                    "field": "y",
                    "type": "quantitative",
                    "title": panel.unit,
                    "scale": {"zero": panel.floor},
                },
                "axis": {"tickCount": 5},
            },
            **(_distinguished(curve, names) if len(names) > 1 else {"color": {"value": _COLOURS[0]}}),
            "tooltip": [
                {"field": "curve", "title": panel.unit if len(names) == 1 else "curve"},
                {"field": "x", "title": panel.x, "format": ","},
                {"field": "y", "title": panel.unit, "format": ".4f"},
            ],
        },
    }
    return Chart(panel.title, note, spec, is_wide=panel.log)


def _distinguished(field: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the encoding of a field by colour, dashes and markers, with one legend."""
    ranges: dict[str, list[Any]] = {"color": _COLOURS, "strokeDash": _DASHES, "shape": _SHAPES}
    return {
        channel: {**field, "scale": {"domain": list(names), "range": values[: len(names)]}}
        for channel, values in ranges.items()
    }


def _legend(names: Sequence[str], *, has_markers: bool) -> dict[str, Any]:
    """Return a legend above the chart, in as many columns as the names leave room for."""
    columns = max(1, min(3, _LEGEND_WIDTH // (max(map(len, names), default=0) + 4)))
    # The dashes of a line would go around its marker and fray it.
    outline = {"symbolStrokeWidth": 0} if has_markers else {}
    return {"orient": "top", "columns": columns, "symbolSize": 60, **outline}


_LEGEND_WIDTH = 44  # characters of all columns together
# The wheel alone scrolls the page.
_ZOOM = {"type": "interval", "zoom": "wheel![event.shiftKey]", "clear": "dblclick"}


def interval_chart(rows: Sequence[Mapping[str, Any]], systems: Sequence[str], measures: Sequence[str]) -> Chart:
    """Return a chart of means with intervals: a panel per measure, a line per system; rows: see `interval_points`."""
    system = {"field": "system", "type": "nominal", "sort": list(systems), "title": None}
    tooltip = [{"field": "system"}, {"field": "measure"}]
    tooltip += [{"field": name, "format": ".3f"} for name in ("mean", "low", "high")]
    panels = [
        {
            "title": {"text": measure, "color": _INK, "fontSize": 12, "anchor": "start"},
            "width": 190,
            "height": {"step": 24},
            "transform": [{"filter": {"field": "measure", "equal": measure}}],
            "encoding": {"y": {**system, "axis": {"labels": not index, "ticks": not index, "grid": True}}},
            "layer": [
                {
                    "mark": {"type": "rule", "strokeWidth": 2, "color": _COLOURS[0], "opacity": 0.6},
                    "encoding": {"x": _value_axis("low"), "x2": {"field": "high"}, "tooltip": tooltip},
                },
                {
                    "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "color": _COLOURS[0]},
                    "encoding": {"x": _value_axis("mean"), "tooltip": tooltip},
                },
            ],
        }
        for index, measure in enumerate(measures)
    ]
    spec = {
        "description": "Means and 95 % intervals of every system",
        "data": {"values": list(rows)},
        "config": _CONFIG,
        "concat": panels,
        "columns": 4,
        "spacing": 18,
    }
    return Chart("Means and 95 % intervals", "", spec, is_wide=True)


def _value_axis(name: str) -> dict[str, Any]:
    axis = {"tickCount": 4, "format": ".2~f", "labelOverlap": "greedy"}
    return {"field": name, "type": "quantitative", "title": None, "scale": {"zero": False, "nice": True}, "axis": axis}


def bar_chart(title: str, rows: Sequence[Mapping[str, Any]], unit: str, note: str = "") -> Chart:
    """Return a chart of grouped horizontal bars; rows: `label`, `group` and a share `value`, in the order to show."""
    groups = list(dict.fromkeys(str(row["group"]) for row in rows))
    group = {"field": "group", "type": "nominal", "sort": groups, "title": None}
    spec = {
        **_spec(title, rows),
        "height": 17 * len({row["label"] for row in rows}),
        "mark": {"type": "bar"},
        "encoding": {
            "y": {"field": "label", "type": "nominal", "sort": None, "title": None},
            "yOffset": group,
            "x": {
                **{"field": "value", "type": "quantitative", "title": unit},
                "axis": {"format": "%", "tickCount": 5},
            },
            "color": {**group, "legend": {"orient": "top"} if len(groups) > 1 else None},
            "tooltip": [{"field": "label"}, {"field": "group"}, {"field": "value", "format": ".2%", "title": unit}],
        },
    }
    return Chart(title, note, spec)


def word_chart(title: str, rows: Sequence[Mapping[str, Any]], unit: str, note: str = "") -> Chart:
    """Return a chart of a share for each word of a text, in order; rows: `label` (each once), `group`, `value`."""
    groups = list(dict.fromkeys(str(row["group"]) for row in rows))
    group = {"field": "group", "type": "nominal", "title": None, "legend": _legend(groups, has_markers=True)}
    spec = {
        **_spec(title, rows),
        "height": _HEIGHT,
        "mark": {"type": "line", "point": {"filled": True, "size": 40}},
        "encoding": {
            "x": {
                **{"field": "label", "type": "nominal", "sort": None, "title": None},
                "axis": {"labelAngle": -55, "labelOverlap": False},
            },
            "y": {
                **{"field": "value", "type": "quantitative", "title": unit},
                **{"scale": {"domain": [0, 1]}, "axis": {"format": "%", "tickCount": 5}},
            },
            **_distinguished(group, groups),
            "tooltip": [{"field": "label", "title": "word"}, {"field": "group"}, {"field": "value", "format": ".0%"}],
        },
    }
    return Chart(title, note, spec, is_wide=True)


def _spec(description: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "description": description,
        "data": {"values": list(rows)},
        "width": "container",
        "config": _CONFIG,
    }
