"""Memory that a long training does not need any more, handed back to the system.

The number of targets changes from batch to batch, so freed blocks rarely fit the next step's, and the C allocator keeps
them: about a megabyte a step without this.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def trimmer() -> Callable[[], None]:
    """A function that gives freed heap pages back (glibc's malloc_trim); it does nothing on other systems."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def give_back() -> None:
        if trim is not None:
            trim(0)

    return give_back
