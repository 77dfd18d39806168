"""What a run reads from outside its folder, and whether that changed: size and time of local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drkit.core.spec import ComponentSpec
from drkit.runs.manifest import digest


def path_state(text: str | None) -> str:
    """A fingerprint of the files at a local path (names, sizes, modification times); empty for anything else."""
    path = Path(text).expanduser() if text else None
    if path is None or not path.exists():
        return ""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return digest([(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files])


def files_state(spec: ComponentSpec, config: Any) -> str:
    """The state of the local files that a part reads with these settings."""
    states = [path_state(path) for path in spec.paths_of(config)]
    return states[0] if len(states) == 1 else digest(states)
