"""The one door through which text from outside drkit reaches a terminal, an HTML page or a Markdown file.

Ids, texts, names of files, plugins and recipes may hold anything: escape sequences that rewrite a terminal, characters
that reorder a line, tags, links. Nothing else in drkit escapes text.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

# C0 and C1 controls but tab and newline, surrogates, line separators, and the marks that reorder text.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# What starts an element, an entity, code, emphasis, a link, a table cell or mathematics. `a < b`, `one_name` and the
# star of `(p = 0.02*)` stay as they are: they start nothing.
_MARKDOWN = re.compile(
    r"<(?=[A-Za-z/!?])|&(?=[A-Za-z#])|[\\`\[\]|$~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<![A-Za-z0-9])\*(?=\S)"
    r"|\*(?=[^\s)])|(?<=:)//"
)
_ENTITIES = {"<": "&lt;", "&": "&amp;", "//": r"\//"}
# What makes a line a heading, a quotation, an item or a rule.
_LINE_START = re.compile(r"\A(\d+(?=[.)](?:\s|\Z))|(?=[#>+=*-]))")


def escape_controls(text: str) -> str:
    r"""Spell out control characters, all but newline and tab, as their Python escapes.

    >>> escape_controls("\x1b[2Ja\u202eb\n")
    '\\x1b[2Ja\\u202eb\n'
    """
    # From DEL on in the form that JSON and TOML read too; both refuse the characters below as they are.
    return _CONTROLS.sub(lambda c: f"\\x{ord(c[0]):02x}" if c[0] < " " else f"\\u{ord(c[0]):04x}", text)


def escape_line(text: str) -> str:
    r"""Spell out control characters, with newlines and tabs as spaces, for a text that must stay on one line.

    >>> escape_line("an id\nerror: none")
    'an id error: none'
    """
    return escape_controls(" ".join(re.split(r"[\t\n\v\f\r]+", text)))


def escape_markdown(text: str) -> str:
    r"""Return a text as Markdown that renders literally, within a line: in a heading, a table cell, an item.

    >>> print(escape_markdown("<b>[x](y) a_b < c"))
    &lt;b>\[x\](y) a_b < c
    """
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), escape_line(text).strip())


def escape_paragraph(text: str) -> str:
    r"""Return a text as a paragraph of Markdown that renders literally; see `escape_markdown`.

    >>> print(escape_paragraph("# one"), escape_paragraph("1. one"))
    \# one 1\. one
    """
    return _LINE_START.sub(r"\1\\", escape_markdown(text))


def page_templates(package: str) -> jinja2.Environment:
    """Return the environment of a package's folder `templates`, whose pages show every value as text.

    Text is escaped and its control characters are spelled out, wherever a template puts it. The filter `spelled_out`
    does the latter for the texts in plain data, before `tojson` writes it into a script; a number that is not finite
    becomes null. `asset(name)` is a style sheet or script of the same folder.
    """
    environment = _environment(package, escape_controls, autoescape=True)
    environment.filters["spelled_out"] = _spelled_out
    environment.globals["asset"] = partial(page_asset, package)
    return environment


def page_asset(package: str, name: str) -> str:
    """Return the text of a style sheet or script in a package's folder `templates`."""
    from importlib.resources import files

    return (files(package) / "templates" / name).read_text(encoding="utf-8")


def markdown_templates(package: str) -> jinja2.Environment:
    """Return the environment of a package's folder `templates` for Markdown, which shows every value as text.

    Code comes from `markdown_code`, which is Markdown already.
    """
    return _environment(package, escape_markdown, autoescape=False)


def _environment(package: str, escape: Callable[[str], str], *, autoescape: bool) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: escape(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def markdown_code(text: str, language: str) -> str:
    r"""Return a text as a block of code for a Markdown template, which no backticks within it can end.

    >>> print(markdown_code("a = 1\n", "toml"))
    ```toml
    a = 1
    ```
    """
    from markupsafe import Markup

    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{escape_controls(text).strip()}\n{fence}")


def _spelled_out(value: Any) -> Any:
    """Return plain data with the control characters of its texts spelled out."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, dict):
        return {escape_controls(str(key)): _spelled_out(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):  # Python writes NaN, which browsers do not read
        return None
    return [_spelled_out(item) for item in value] if isinstance(value, (list, tuple)) else value


def unescape(text: str) -> str:
    """Return the text of markup: `&amp;` and the like as characters.

    >>> unescape("salt &amp; pepper")
    'salt & pepper'
    """
    return html.unescape(text)
