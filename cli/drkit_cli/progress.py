"""A run's progress on the terminal: a bar a stage with rate, time left and loss; plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

# Seconds between two lines of progress where output goes to a file.
_QUIET = 15.0


class RichProgress:
    """Draws the events of a run on standard error (see `drkit.core.progress.Progress`)."""

    def __init__(self, stages: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._live,
        )
        self._stages, self._place = stages, 0
        self._name = ""
        self._task = self._bar.add_task("", total=None, figures="", visible=False)
        self._started = self._said = 0.0
        self._from, self._done, self._unit = -1, 0, ""

    def __enter__(self) -> RichProgress:
        self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, stage: str, summary: str, reason: str = "") -> None:
        """A bar of unknown length, until the stage reports how much there is; why it is made, where it was before."""
        self._place += 1
        self._name, self._started, self._said, self._from = stage, time.monotonic(), time.monotonic(), -1
        label = f"[bold]{stage}[/] {summary}"
        self._bar.reset(self._task, description=label, total=None, figures="", visible=True)
        if not self._live:
            self._console.print(f"{self._count()} {stage}: {summary} ..", soft_wrap=True)
        if reason:
            self._console.print(Text(f"      {stage}: {reason}", style="yellow"), soft_wrap=True)

    def skip(self, stage: str, summary: str) -> None:
        """One line for a stage that stands already."""
        self._place += 1
        self._console.print(f"{self._count()} {stage}: [dim]{summary}; kept[/]", soft_wrap=True)

    def advance(self, done: int, total: int | None, unit: str, **figures: float) -> None:
        """Move the bar; rate and figures stand beside it."""
        now = time.monotonic()
        if unit != self._unit or done < self._done or self._from < 0:
            # What a resumed stage had done before, and what it took to start, must not count as speed.
            self._from, self._started, self._unit = done, now, unit
        self._done = done
        rate = (done - self._from) / max(now - self._started, 1e-9)
        of = f"/{total:,}" if total else ""
        speed = [f"{rate:,.1f}/s"] if rate else []
        shown = "  ".join([f"{done:,}{of} {unit}", *speed, *(f"{k} {v:.4g}" for k, v in figures.items())])
        self._bar.update(self._task, completed=done, total=total, figures=shown)
        if not self._live and now - self._said > _QUIET:
            self._said = now
            left = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
            self._console.print(f"      {self._name}: {shown}{left}", soft_wrap=True)

    def note(self, text: str) -> None:
        """A fact worth knowing."""
        self._console.print(f"      [yellow]note:[/] {text}", soft_wrap=True)

    def end(self, stage: str, seconds: float) -> None:
        """The bar gives way to a line with the stage's time."""
        self._bar.update(self._task, visible=False)
        self._console.print(f"{self._count()} {stage}: {seconds:,.1f} s", soft_wrap=True)

    def _count(self) -> str:
        return f"[dim]\\[{self._place:2d}/{self._stages}][/]"
