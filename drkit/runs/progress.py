"""How a run tells what it is doing; the command line draws it, a library user may ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives a run's events, in order, from one process."""

    def begin(self, stage: str, summary: str) -> None:
        """A stage starts, or goes on where it was cut off."""

    def skip(self, stage: str, summary: str) -> None:
        """A stage was done before."""

    def advance(self, done: int, total: int | None, unit: str, **figures: float) -> None:
        """`done` of `total` units are through; `figures` are shown beside the bar (loss, learning_rate)."""

    def note(self, text: str) -> None:
        """A fact worth knowing: texts that were truncated, a search without faiss."""

    def end(self, stage: str, seconds: float) -> None:
        """A stage is complete and stands in its folder."""


class Silent:
    """A `Progress` that says nothing."""

    def begin(self, stage: str, summary: str) -> None:
        """Ignored."""

    def skip(self, stage: str, summary: str) -> None:
        """Ignored."""

    def advance(self, done: int, total: int | None, unit: str, **figures: float) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""

    def end(self, stage: str, seconds: float) -> None:
        """Ignored."""
