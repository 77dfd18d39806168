"""What all code of a process shares: its current folder, signal handlers, whether logging is on, settings of torch.

Code of a plugin that changes it breaks drkit far away: relative paths lead elsewhere, Ctrl-C does nothing, warnings are
lost, other parts get tensors of another type. Nothing here imports torch.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn


def _logging_of_drkit() -> tuple[int, frozenset[str]]:
    """Return the level of drkit's logger, and which of its loggers are off, as `dictConfig` leaves those that exist."""
    found = {name: log for name, log in logging.root.manager.loggerDict.items() if name.split(".")[0] == "drkit"}
    return logging.getLogger("drkit").level, frozenset(name for name, log in found.items() if _is_off(log))


def _restore_logging(before: tuple[int, frozenset[str]]) -> None:
    level, off = before
    logging.getLogger("drkit").setLevel(level)
    for name in _logging_of_drkit()[1] - off:
        logging.getLogger(name).disabled = False


def _is_off(log: logging.Logger | logging.PlaceHolder) -> bool:
    return isinstance(log, logging.Logger) and log.disabled


# How to read and to set each, by what a message calls it.
_SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "the current folder": (os.getcwd, os.chdir),
    "the handler of Ctrl-C": (partial(signal.getsignal, signal.SIGINT), partial(signal.signal, signal.SIGINT)),
    "the handler of SIGTERM": (partial(signal.getsignal, signal.SIGTERM), partial(signal.signal, signal.SIGTERM)),
    "what logging.disable has set": (lambda: logging.root.manager.disable, logging.disable),
    "drkit's loggers": (_logging_of_drkit, _restore_logging),
}

# The same of torch, as texts and numbers: what it has when it is imported, and how to read and to set it.
_TORCH: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "torch's default dtype": (
        "torch.float32",
        lambda torch: str(torch.get_default_dtype()),
        lambda torch, name: torch.set_default_dtype(getattr(torch, name.removeprefix("torch."))),
    ),
    "torch's default device": (
        "cpu",
        lambda torch: str(torch.get_default_device()),
        lambda torch, name: torch.set_default_device(name),
    ),
    "torch's gradient mode": (
        True,
        lambda torch: torch.is_grad_enabled(),
        lambda torch, on: torch.set_grad_enabled(on),
    ),
    "torch's deterministic algorithms": (
        False,
        lambda torch: torch.are_deterministic_algorithms_enabled(),
        lambda torch, on: torch.use_deterministic_algorithms(on),
    ),
    "torch's precision of matrix products": (
        "highest",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, name: torch.set_float32_matmul_precision(name),
    ),
    "torch's anomaly detection": (
        False,
        lambda torch: torch.is_anomaly_enabled(),
        lambda torch, on: torch.autograd.set_detect_anomaly(on),
    ),
    "torch's number of threads": (
        None,
        lambda torch: torch.get_num_threads(),
        lambda torch, count: torch.set_num_threads(count),
    ),
}


@contextmanager
def restored_process_state() -> Iterator[list[str]]:
    """Run code of others, and restore what it has changed of the process; yields the list of it, filled at the end.

    >>> with restored_process_state() as changed:
    ...     os.chdir("/")
    >>> changed
    ['the current folder']
    """
    before, torch_before = {name: _value(get) for name, (get, _) in _SHARED.items()}, _torch_settings()
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, (get, put) in _SHARED.items():
            if _value(get) != before[name]:
                changed.append(name)
                with suppress(OSError, ValueError, TypeError):  # the folder is gone; only the main thread sets handlers
                    put(before[name])
        for name, value in _torch_settings().items():
            if torch_before[name] is not None and value != torch_before[name]:
                changed.append(name)
                _TORCH[name][2](sys.modules["torch"], torch_before[name])


@contextmanager
def no_silent_end() -> Iterator[None]:
    """Run code of others, whose `os._exit(0)` would end this process without a word, as if all were done.

    Within the block it raises SystemExit(0). Processes that are forked meanwhile end as usual, and so does
    `os._exit` with another exit code, which says that something failed.
    """
    end, process = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == process:
            raise SystemExit(status)
        end(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = end


def _torch_settings() -> dict[str, Any]:
    """Return the settings of torch by name; those that it will have if it is not imported, None if that is unknown."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "autograd"):  # or being imported
        return {name: usual for name, (usual, _, _) in _TORCH.items()}
    return {name: get(torch) for name, (_, get, _) in _TORCH.items()}


def _value(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except OSError:  # the current folder was removed
        return None
