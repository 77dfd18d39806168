"""For the site: examples in docstrings (`>>>`) are shown as code."""

import re
from typing import Any

import griffe

# Lines from the first `>>>` after a blank line to the next blank line.
EXAMPLE = re.compile(r"(?:(?<=\n\n)|^)(>>> .*?)(?=\n\n|\Z)", re.DOTALL)


class Doctests(griffe.Extension):
    """Puts a fence around each example."""

    def on_object(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", obj.docstring.value)
