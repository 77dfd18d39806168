"""Progress of a run, as events: the command line draws them, a library user may ignore them."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the events of a run, in order, from one process."""

    def begin(self, stage: str, summary: str, reason: str = "") -> None:
        """Called when a stage starts; reason: why it is rebuilt, or where it resumes."""

    def skip(self, stage: str, summary: str) -> None:
        """Called when a finished stage is kept."""

    def advance(self, done: int, total: int | None, unit: str, **metrics: float) -> None:
        """Called after `done` of `total` units; `metrics` (loss, learning_rate) are shown beside the bar."""

    def note(self, text: str) -> None:
        """Called to report a fact worth knowing: truncated texts, a low recall."""

    def end(self, stage: str, seconds: float) -> None:
        """Called when a stage is finished and its folder is complete."""


class Silent:
    """A `Progress` that reports nothing."""

    def begin(self, stage: str, summary: str, reason: str = "") -> None:
        """Do nothing."""

    def skip(self, stage: str, summary: str) -> None:
        """Do nothing."""

    def advance(self, done: int, total: int | None, unit: str, **metrics: float) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def end(self, stage: str, seconds: float) -> None:
        """Do nothing."""
