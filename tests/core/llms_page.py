"""The file llms.txt: every page of the documentation with one line, for programs that read it.

`python -m tests.core.llms_page` writes docs/llms.txt from docs/README.md and the titles of the pages on the API.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.core.public_api import pages as api_pages

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "llms.txt"
LINE = re.compile(r"^- \[([^\]]+)\]\(([\w/.-]+\.(?:md|ipynb))\): (.+)$")


def page() -> str:
    """Return the file: the title, the summary, and the pages under the headings of docs/README.md."""
    lines = (DOCS / "README.md").read_text(encoding="utf-8").splitlines()
    title, summary = lines[0], lines[2]
    found = [title, "", f"> {summary}"]
    heading = ""
    for line in lines:
        if line.startswith("## "):
            heading = line
        if LINE.match(line):
            if heading:
                found += ["", heading, ""]
                heading = ""
            found.append(line)
    found += ["", "## Public API, by package", ""]
    for path, text in api_pages().items():
        if path != "api.md":
            found.append(
                f"- [{path.removeprefix('api/').removesuffix('.md')}](reference/{path}): {text.splitlines()[0][2:]}"
            )
    return "\n".join(found) + "\n"


def listed() -> list[str]:
    """Return the paths of the pages in the written file."""
    return [match[2] for line in PAGE.read_text(encoding="utf-8").splitlines() if (match := LINE.match(line))]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
