"""A short document of headings, paragraphs, tables and figures, as Markdown and as a self-contained HTML page."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen


@frozen
class Text:
    """A paragraph of plain text."""

    text: str


@frozen
class Heading:
    """A heading; level 1 is the document's title."""

    text: str
    level: int = 2


@frozen
class Table:
    """Columns, and rows of cells; the first column names the row, the others hold numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@frozen
class Figure:
    """A PNG file beside the document, and its caption."""

    path: Path
    caption: str


Block = Text | Heading | Table | Figure


def markdown(blocks: Sequence[Block]) -> str:
    r"""Format the document as Markdown; figures are linked by file name.

    >>> print(markdown([Heading("Run", level=1), Table(["system", "RR@10"], [["a|b", "0.5"]])]))
    # Run
    <BLANKLINE>
    | system | RR@10 |
    |---|---:|
    | a\|b | 0.5 |
    <BLANKLINE>
    """
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Table):
        lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in block.rows]
        head = [f"| {' | '.join(block.columns)} |", "|---" + "|---:" * (len(block.columns) - 1) + "|"]
        return "\n".join([*head, *lines])
    if isinstance(block, Figure):
        return f"![{block.caption}]({block.path.name})"
    return block.text


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0 }
th, td { padding: .15rem .8rem .15rem 0; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
figure { margin: 1.5rem 0 } img { max-width: 100% } figcaption { color: #444 }
"""


def html_page(blocks: Sequence[Block]) -> str:
    """Format the document as one HTML page with embedded figures, which needs no other file."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "report")
    body = "\n".join(map(_html, blocks))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n{body}\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Table):
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in block.columns)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in block.rows]
        return f"<table>\n<tr>{head}</tr>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"
    if isinstance(block, Figure):
        data = base64.b64encode(block.path.read_bytes()).decode()
        caption = html.escape(block.caption)
        image = f'<img alt="{caption}" src="data:image/png;base64,{data}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"
    return f"<p>{html.escape(block.text)}</p>"
