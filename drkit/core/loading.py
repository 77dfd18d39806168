"""What transformers raises when something cannot be loaded, in drkit's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drkit.errors import DrkitError


@contextmanager
def told_from(path_or_id: str, doing: str, wanted: str = "") -> Iterator[None]:
    """A block that loads: its errors say what was tried, the reason, and what to do next.

    doing: as in "load the encoder"; wanted: a sentence on what fits. Raises DrkitError for a missing or broken file,
    a model of another kind, or a hub that cannot be reached.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        advice = (
            "check the files in this folder"
            if Path(path_or_id).is_dir()
            else (
                "no such folder exists here, so it was looked up on the hub: check the spelling and the network, "
                "or give the path of a folder"
            )
        )
        raise DrkitError(
            " ".join(filter(None, [f"cannot {doing} {path_or_id!r}: {reason} ({advice}).", wanted]))
        ) from error
