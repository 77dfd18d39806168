"""Models by path or hub id: what cannot be one, and what transformers raises, in drkit's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drkit.errors import DrkitError


@contextmanager
def without_bars() -> Iterator[None]:
    """A block in which transformers draws no bar; its setting comes back afterwards."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


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


def check_model_path(path_or_id: str) -> None:
    """Raise DrkitError for what is neither a folder with a model nor can be a hub id; nothing is fetched."""
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            # as sentence-transformers once saved it, or one of two encoders
            inner = sorted(path.glob("*_Transformer/config.json")) or sorted(path.glob("*_encoder/config.json"))
            inside = " or ".join(str(config.parent) for config in inner)
            raise DrkitError(
                f"{path} has no config.json; give {inside or 'a folder that save_pretrained wrote, or a hub id'}"
            )
    elif path.exists():
        raise DrkitError(f"{path} is a file; give the folder of the checkpoint, or a hub id")
    elif not may_be_hub_id(path_or_id):
        raise DrkitError(f"no folder {path_or_id!r}, and it cannot be a hub id (NAME or OWNER/NAME); check the path")


def may_be_hub_id(name: str) -> bool:
    """Whether a text has the form NAME or OWNER/NAME.

    >>> may_be_hub_id("bert-base-uncased"), may_be_hub_id("intfloat/e5"), may_be_hub_id("./e5"), may_be_hub_id("")
    (True, True, False, False)
    """
    return name.count("/") <= 1 and not name.startswith((".", "~", "/")) and bool(name)
