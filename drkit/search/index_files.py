"""The files that every saved index has: its ids, and a description of what it is and which encoder it is for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drkit.core.files import write_text
from drkit.errors import DrkitError

VECTORS, IDS, FAISS, ABOUT = "vectors.npy", "ids.arrow", "index.faiss", "index.json"


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write index.json: kind, count, dimension, the encoder's identity, settings and recall of an approximate one."""
    content = {"format": 1, "metric": "inner_product", **about}
    write_text(folder / ABOUT, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_about(folder: Path, kind: str | None = None, files: tuple[str, ...] = (IDS,)) -> dict[str, Any]:
    """What index.json says. kind: the kind it has to be, or None.

    Raises DrkitError where it or one of `files` is missing or broken, or it describes another kind.
    """
    missing = [name for name in (*files, ABOUT) if not (folder / name).is_file()]
    if (folder / ABOUT).is_file():
        about = _read(folder)
        found = about.get("kind", "flat")
        if kind and found != kind:
            raise DrkitError(f"{folder} holds an index of kind {found!r}, not {kind!r}; open_index reads any kind")
        if not missing:
            return about
    raise DrkitError(f"{folder} is no index: {', '.join(missing)} missing; build it again")


def _read(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DrkitError(f"cannot read the index in {folder}: {error}; build it again") from error
    if not isinstance(about, dict):
        raise DrkitError(f"{folder / ABOUT} is no description of an index; build it again")
    return about
