"""Looking at runs: a page about finished runs, a page to search and judge on, and what maskers and vectors hold."""

from __future__ import annotations

from collections.abc import Sequence

from drkit.plugin import Extension, hookimpl


@hookimpl
def drkit_commands() -> Sequence[Extension]:
    """Return the commands that look at finished runs and serve them."""
    commands = "drkit_report.commands"
    return [
        Extension("inspect", f"{commands}.inspect:inspect", "Show what a masker hides, or what a vector holds"),
        Extension("report", f"{commands}.report:report", "Write an HTML page about one or several runs"),
        Extension("serve", f"{commands}.serve:serve", "Serve a page to search runs and judge passages"),
    ]
