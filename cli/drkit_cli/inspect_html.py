"""The output of `drkit inspect` as one self-contained HTML page, without scripts or downloads, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from drkit.core.escaping import escape_html
from drkit_cli.inspect_text import LEGEND, heading, shown, summaries

if TYPE_CHECKING:
    from drkit.inspect.masks import InspectedMask, InspectedText
    from drkit.inspect.words import InspectedWords

# Translucent colours over the page's background suit both light and dark mode.
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
.text { display: flex; }
.flow { display: flex; flex-wrap: wrap; gap: .6rem .15rem; }
.labels, .token { display: flex; flex-direction: column; text-align: center; }
.labels { flex: none; text-align: right; opacity: .7; padding-right: .6rem; }
.token > *, .labels > * { height: 1.5rem; line-height: 1.5rem; padding: 0 .25rem; white-space: pre; }
.heat { background: rgb(255 120 0 / var(--heat)); border-radius: .2em; }
.seen { opacity: .55; }
.masked, .replaced, .kept { background: rgb(90 130 255 / .35); border-radius: .2em; }
.kept { text-decoration: underline; } .replaced { font-style: italic; }
.number { font-variant-numeric: tabular-nums; opacity: .8; font-size: .85em; }
table { border-collapse: collapse; } td { padding: .1rem .8rem .1rem 0; }
.bar { background: rgb(255 120 0 / .6); height: .8em; border-radius: .2em; }
.note { opacity: .75; }
"""


def mask_page(found: InspectedMask) -> str:
    """Return the page of `drkit inspect mask`."""
    body = [f"<h1>{escape_html(heading(found))}</h1>"]
    for text in found.texts:
        body.append(f"<h2>{escape_html(text.title)}</h2>")
        body.append(_columns(text))
        body += [f"<p>{escape_html(line)}</p>" for line in summaries(text)]
    body.append(_notes([LEGEND, *found.notes]))
    return _page("What a masker hides", body)


def words_page(found: InspectedWords) -> str:
    """Return the page of `drkit inspect words`."""
    most = max((word.probability for word in found.top), default=1.0) or 1.0
    rows = [
        f"<tr><td>{escape_html(w.text)}</td><td class=number>{w.probability:.4f}</td>"
        f'<td><div class=bar style="width: {12 * w.probability / most:.2f}rem"></div></td>'
        f"<td>{'in the text' if w.in_text else ''}</td></tr>"
        for w in found.top
    ]
    values = _shades([word.probability for word in found.words])
    tokens = [
        _token([_heat(word.text, value), _number(f"{100 * word.probability:.1f}%")])
        for word, value in zip(found.words, values, strict=True)
    ]
    body = [
        f"<h1>{len(found.top)} most probable words of {found.vocabulary:,}</h1>",
        f"<table>{''.join(rows)}</table>",
        "<h2>the words of the text, with the probabilities of their pieces summed</h2>",
        f"<div class=flow>{''.join(tokens)}</div>",
        f"<p>Words of the text have {found.own_share:.1%} of the distribution.</p>",
    ]
    return _page("Words in a vector", body)


def _columns(text: InspectedText) -> str:
    values = [piece.importance for piece in text.pieces]
    has_importance = any(value is not None for value in values)
    labels = ["token", *(["importance"] if has_importance else []), *(view.name for view in text.views)]
    beside = f"<div class=labels>{''.join(f'<span>{escape_html(label)}</span>' for label in labels)}</div>"
    columns = []
    for position, (piece, shade) in enumerate(zip(text.pieces, _shades(values), strict=True)):
        lines = [_heat(piece.text, shade)]
        lines += [_number("" if piece.importance is None else f"{piece.importance:.1f}")] if has_importance else []
        for view in text.views:
            cell = view.cells[position]
            lines.append(f"<span class={cell.state}>{escape_html(shown(cell, piece))}</span>")
        columns.append(_token(lines))
    return f"<div class=text>{beside}<div class=flow>{''.join(columns)}</div></div>"


def _token(lines: Iterable[str]) -> str:
    return f"<div class=token>{''.join(lines)}</div>"


def _heat(text: str, shade: float) -> str:
    return f'<span class=heat style="--heat: {shade:.2f}">{escape_html(text)}</span>'


def _number(text: str) -> str:
    return f"<span class=number>{escape_html(text)}</span>"


def _shades(values: Sequence[float | None]) -> list[float]:
    """Scale values to 0 .. 0.75, by their position between the smallest and the largest."""
    known = [value for value in values if value is not None]
    low, span = min(known, default=0.0), (max(known, default=0.0) - min(known, default=0.0)) or 1.0
    return [0.0 if value is None else 0.75 * (value - low) / span for value in values]


def _notes(lines: Iterable[str]) -> str:
    return "".join(f"<p class=note>{escape_html(line)}</p>" for line in lines)


def _page(title: str, body: Iterable[str]) -> str:
    head = f"<meta charset=utf-8><title>{escape_html(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
