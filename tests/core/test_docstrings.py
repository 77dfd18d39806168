"""A docstring says more than the name above it."""

import ast
import re
from pathlib import Path

import pytest

import drkit

ROOT = Path(drkit.__file__).parents[1]
# Words that say nothing by themselves.
FILLERS = (
    "a all and are as at by for from in is it its no of on one or return setting that the these this to with yield"
)


def words(text):
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)}


def says_nothing(name, docstring):
    """Whether a docstring only repeats the name, or that of the part whose settings a class holds."""
    said = re.sub(r"^Settings of `\w+`", "", docstring)
    return words(said) <= words(f"{name.replace('_', ' ')} {FILLERS}")


def empty_docstrings(source):
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in documented:
        docstring = ast.get_docstring(node)
        if docstring and says_nothing(node.name, docstring):
            yield f"{node.lineno}: {node.name}: {docstring}"


@pytest.mark.parametrize("folder", ["drkit", "cli", "plugins"])
def test_no_docstring_only_repeats_its_name(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [f"{path}:{line}" for path in files for line in empty_docstrings(path.read_text(encoding="utf-8"))]
    assert not found, "say what it does, or leave the docstring out: " + "; ".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'class PmiConfig:\n    """Settings of `PmiMasker`."""',
        'class Study:\n    """The study."""',
        'def read_rows():\n    """Return the rows."""',
        'def splits():\n    """Return the splits."""',
    ],
)
def test_such_docstrings_are_found(source):
    assert list(empty_docstrings(source))


def test_a_docstring_that_says_something_is_kept():
    source = 'class PmiConfig:\n    """Settings of `PmiMasker`: tokens with the largest importance are hidden."""'
    assert not list(empty_docstrings(source))
