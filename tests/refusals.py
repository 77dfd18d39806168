"""What an error must say, whatever its wording: the file with its line, the setting, and the values that it names."""

import re
from contextlib import contextmanager

import pytest

from drkit.errors import DrkitError, UnknownNameError


@contextmanager
def refused(*named, where=None, setting=None, error=DrkitError):
    """A block that raises this error, about the file at the end of `where` or this setting, naming these values."""
    with pytest.raises(error) as caught:
        yield caught
    assert all(name in str(caught.value) for name in named), str(caught.value)
    assert where is None or caught.value.where.endswith(where), str(caught.value)
    assert setting is None or setting in caught.value.settings, str(caught.value)


@contextmanager
def unknown(kind, name, *known):
    """A block that refuses the name of such a thing, naming at least these that exist."""
    with pytest.raises(UnknownNameError) as caught:
        yield caught
    assert (caught.value.kind, caught.value.name) == (kind, name), str(caught.value)
    assert {*known} <= {*caught.value.known}, str(caught.value)


def says(text, *named):
    """Return whether a text has these names and values in this order, however its lines break."""
    return re.search(".*".join(map(re.escape, named)), " ".join(text.split())) is not None
