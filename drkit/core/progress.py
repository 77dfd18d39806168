"""How a run reports what it is doing; the command line draws it, a library user may ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives a run's events, in order, from one process."""

    def begin(self, stage: str, summary: str, reason: str = "") -> None:
        """A stage starts; reason: why it is made again, or where it is resumed."""

    def skip(self, stage: str, summary: str) -> None:
        """A finished stage is kept."""

    def advance(self, done: int, total: int | None, unit: str, **figures: float) -> None:
        """`done` of `total` units are through; `figures` are shown beside the bar (loss, learning_rate)."""

    def note(self, text: str) -> None:
        """A fact worth knowing: texts that were truncated, a search without faiss."""

    def end(self, stage: str, seconds: float) -> None:
        """A stage is finished, and its folder in place."""


class Silent:
    """A `Progress` that says nothing."""

    def begin(self, stage: str, summary: str, reason: str = "") -> None:
        """Ignored."""

    def skip(self, stage: str, summary: str) -> None:
        """Ignored."""

    def advance(self, done: int, total: int | None, unit: str, **figures: float) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""

    def end(self, stage: str, seconds: float) -> None:
        """Ignored."""
