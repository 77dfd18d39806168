"""The output of `drkit inspect` as one self-contained HTML page, without scripts or downloads, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drkit_report.inspect.terminal import LEGEND, heading, shown, summaries

if TYPE_CHECKING:
    from drkit_report.inspect.masks import InspectedMask, InspectedText
    from drkit_report.inspect.words import InspectedWords


def mask_page(found: InspectedMask) -> str:
    """Return the page of `drkit inspect mask`."""
    return _page(
        title="What a masker hides",
        heading=heading(found),
        texts=[_columns(text) for text in found.texts],
        notes=[LEGEND, *found.notes],
    )


def words_page(found: InspectedWords) -> str:
    """Return the page of `drkit inspect words`."""
    return _page(
        title="Words in a vector",
        heading=f"{len(found.top)} most probable words of {found.vocabulary:,}",
        words=found,
        most=max((word.probability for word in found.top), default=1.0) or 1.0,
        shades=_shades([word.probability for word in found.words]),
    )


def _columns(text: InspectedText) -> dict[str, Any]:
    """Return what the page shows of a text: a column for each token, with what each view makes of it."""
    values = [piece.importance for piece in text.pieces]
    return {
        "title": text.title,
        "has_importance": any(value is not None for value in values),
        "views": [view.name for view in text.views],
        "columns": [
            {
                "text": piece.text,
                "shade": shade,
                "importance": "" if piece.importance is None else f"{piece.importance:.1f}",
                "cells": [
                    {"state": view.cells[position].state, "shown": shown(view.cells[position], piece)}
                    for view in text.views
                ],
            }
            for position, (piece, shade) in enumerate(zip(text.pieces, _shades(values), strict=True))
        ],
        "summaries": summaries(text),
    }


def _shades(values: Sequence[float | None]) -> list[float]:
    """Scale values to 0 .. 1, by their position between the smallest and the largest."""
    known = [value for value in values if value is not None]
    low, span = min(known, default=0.0), (max(known, default=0.0) - min(known, default=0.0)) or 1.0
    return [0.0 if value is None else (value - low) / span for value in values]


def _page(**content: Any) -> str:
    from drkit.core.escaping import page_templates

    template = page_templates("drkit_report").get_template("inspect.html.jinja")
    nothing: dict[str, Any] = {"words": None, "texts": [], "notes": []}
    return template.render(**{**nothing, **content})
