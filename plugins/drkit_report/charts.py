"""A chart on a page: a drawing with its title and a note."""

from __future__ import annotations

from attrs import frozen

from drkit.charts import Bars, Intervals, Panel, draw_svg


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
