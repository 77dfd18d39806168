"""Progress of a run: a bar per stage on a terminal, else plain lines. Work done, rate and time left come first."""

from __future__ import annotations

import time
from types import TracebackType

from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from drkit.core.escaping import escape_line
from drkit_cli.render import error_console

# Seconds between progress lines if the output is not a terminal.
_INTERVAL = 15.0
# Seconds over which rich averages the rate: long enough for lines that are far apart, and for slow steps.
_AVERAGED = 60.0
# Seconds between two samples of the rate: rich keeps 1,000, which must last for the time that is averaged.
_SAMPLED = 0.1


class RichProgress:
    """Draws the events of a run on standard error (see `drkit.core.progress.Progress`)."""

    def __init__(self, stages: int) -> None:
        self._console = error_console()
        self._live = self._console.is_terminal
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=12 if self._console.width >= 60 else 4),
            _Details(),
            # The description takes what is left of the line, and is cut off there.
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._live,
            speed_estimate_period=_AVERAGED,
            get_time=lambda: time.monotonic(),
        )
        self._stages, self._index = stages, 0
        self._name = ""
        self._task, self._label = self._bar.add_task("", total=None, visible=False), ""
        self._last_line = self._last_sample = 0.0
        self._done, self._unit, self._is_new = 0, "", True

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
        self._name, self._last_line, self._is_new = stage, time.monotonic(), True
        self._label = f"[bold]{escape(escape_line(stage))}[/] {escape(escape_line(summary))}"
        self._new_task(total=None)
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
        if self._is_new or unit != self._unit or done < self._done:
            # Work done before a resumed stage, and start-up time, must not count towards the rate.
            self._restart(done, total, unit)
        elif now - self._last_sample >= _SAMPLED or done == total:
            self._bar.update(self._task, completed=done, total=total)
            self._last_sample = now
        self._done = done
        of = f"/{total:,}" if total else ""
        shown = escape_line("  ".join(f"{name} {_number(value)}" for name, value in metrics.items()))
        self._bar.update(self._task, work=escape_line(f"{done:,}{of} {unit}"), metrics=shown)
        if not self._live and now - self._last_line > _INTERVAL:
            self._last_line = now
            self._console.print(f"      {self._name}: {_details(self._bar.tasks[0])}", soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a note above the progress bar, without cutting its lines."""
        self._console.print(Text("      ").append("note:", style="yellow").append(f" {text}"), soft_wrap=True)

    def end(self, stage: str, seconds: float) -> None:
        """Replace the bar by a line with the stage's time."""
        self._bar.update(self._task, visible=False)
        self._console.print(self._count().append(f" {stage}: {seconds:,.1f} s"), soft_wrap=True)

    def _restart(self, done: int, total: int | None, unit: str) -> None:
        """Count the work, and the time that it takes, from here on."""
        self._new_task(total=total, completed=done)
        self._bar.advance(self._task, 0)  # the first sample of the rate
        self._unit, self._is_new, self._last_sample = unit, False, time.monotonic()

    def _new_task(self, *, total: int | None, completed: int = 0) -> None:
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._label, total=total, completed=completed, work="", metrics="")

    def _count(self) -> Text:
        return Text().append(f"[{self._index:2d}/{self._stages}]", style="dim")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class _Details(TextColumn):
    """The work done, its rate, the time left, and metrics."""

    def __init__(self) -> None:
        super().__init__("", table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """Return the text of a task."""
        return Text(_details(task))


def _details(task: Task) -> str:
    """Return the work done, the rate and the time left as rich averages them, and the metrics."""
    left = task.time_remaining
    time_left = f", {left:,.0f} s left" if task.total and left is not None else ""
    rate = [f"{task.speed:,.1f}/s{time_left}"] if task.speed else []
    return "  ".join(filter(None, [task.fields.get("work", ""), *rate, task.fields.get("metrics", "")]))
