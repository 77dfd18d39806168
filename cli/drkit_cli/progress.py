"""Progress of a run: a bar per stage on a terminal, else plain lines. Work done, rate and time left come first."""

from __future__ import annotations

import time
from types import TracebackType

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column
from rich.text import Text

from drkit.core.escaping import escape_line
from drkit_cli.render import error_console

# Seconds between progress lines if the output is not a terminal.
_INTERVAL = 15.0


class RichProgress:
    """Draws the events of a run on standard error (see `drkit.core.progress.Progress`)."""

    def __init__(self, stages: int) -> None:
        self._console = error_console()
        self._live = self._console.is_terminal
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[details]}", markup=False, table_column=Column(no_wrap=True)),
            # The description takes what is left of the line, and is cut off there.
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._live,
        )
        self._stages, self._index = stages, 0
        self._name = ""
        self._task = self._bar.add_task("", total=None, details="", visible=False)
        self._started = self._last_line = 0.0
        self._from, self._done, self._unit = -1, 0, ""

    def __enter__(self) -> RichProgress:
        self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, stage: str, summary: str, reason: str = "") -> None:
        """Show a bar, of unknown length until the stage reports a total; reason: why a stage is rebuilt or resumed."""
        self._index += 1
        self._name, self._started, self._last_line, self._from = stage, time.monotonic(), time.monotonic(), -1
        label = f"[bold]{escape(escape_line(stage))}[/] {escape(escape_line(summary))}"
        self._bar.reset(self._task, description=label, total=None, details="", visible=True)
        if not self._live:
            self._console.print(self._count().append(f" {stage}: {summary} .."), soft_wrap=True)
        if reason:
            self._console.print(Text(f"      {stage}: {reason}", style="yellow"), soft_wrap=True)

    def skip(self, stage: str, summary: str) -> None:
        """Print a line for a finished stage."""
        self._index += 1
        line = self._count().append(f" {stage}: ").append(f"{summary}; kept", style="dim")
        self._console.print(line, soft_wrap=True)

    def advance(self, done: int, total: int | None, unit: str, **metrics: float) -> None:
        """Move the bar, and show the rate and the metrics beside it."""
        now = time.monotonic()
        if unit != self._unit or done < self._done or self._from < 0:
            # Work done before a resumed stage, and start-up time, must not count towards the rate.
            self._from, self._started, self._unit = done, now, unit
        self._done = done
        rate = (done - self._from) / max(now - self._started, 1e-9)
        of = f"/{total:,}" if total else ""
        left = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
        speed = [f"{rate:,.1f}/s{left}"] if rate else []
        shown = escape_line("  ".join([f"{done:,}{of} {unit}", *speed, *(f"{k} {v:.4g}" for k, v in metrics.items())]))
        self._bar.update(self._task, completed=done, total=total, details=shown)
        if not self._live and now - self._last_line > _INTERVAL:
            self._last_line = now
            self._console.print(f"      {self._name}: {shown}", soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a note."""
        self._console.print(Text("      ").append("note:", style="yellow").append(f" {text}"), soft_wrap=True)

    def end(self, stage: str, seconds: float) -> None:
        """Replace the bar by a line with the stage's time."""
        self._bar.update(self._task, visible=False)
        self._console.print(self._count().append(f" {stage}: {seconds:,.1f} s"), soft_wrap=True)

    def _count(self) -> Text:
        return Text().append(f"[{self._index:2d}/{self._stages}]", style="dim")
