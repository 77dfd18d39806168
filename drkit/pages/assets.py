"""Style sheets and scripts of the pages."""

from __future__ import annotations

from importlib.resources import files


def page_asset(name: str) -> str:
    """Return the text of a file in the folder `templates`."""
    return (files("drkit.pages") / "templates" / name).read_text(encoding="utf-8")
