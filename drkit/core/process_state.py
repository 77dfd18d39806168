"""What all code of a process shares: its current folder, signal handlers, and whether logging is on.

Code of a plugin that changes it breaks drkit far away: relative paths lead elsewhere, Ctrl-C does nothing, warnings are
lost.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

# How to read and to set each, by what a message calls it.
_SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the current folder": (os.getcwd, os.chdir),
    "the handler of Ctrl-C": (partial(signal.getsignal, signal.SIGINT), partial(signal.signal, signal.SIGINT)),
    "the handler of SIGTERM": (partial(signal.getsignal, signal.SIGTERM), partial(signal.signal, signal.SIGTERM)),
    "what logging.disable has set": (lambda: logging.root.manager.disable, logging.disable),
}


@contextmanager
def restored_process_state() -> Iterator[list[str]]:
    """Run code of others, and restore what it has changed of the process; yields the list of it, filled at the end.

    >>> with restored_process_state() as changed:
    ...     os.chdir("/")
    >>> changed
    ['the current folder']
    """
    before = {name: _value(get) for name, (get, _) in _SHARED.items()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, (get, put) in _SHARED.items():
            if _value(get) != before[name]:
                changed.append(name)
                with suppress(OSError, ValueError, TypeError):  # the folder is gone; only the main thread sets handlers
                    put(before[name])


def _value(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except OSError:  # the current folder was removed
        return None
