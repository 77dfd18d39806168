"""Packages of strangers, written into a folder with the metadata that an installer writes."""

import os
import sys
from importlib import invalidate_caches
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

from drkit.core.registry import GROUP, discover

# What the modules of most packages begin with.
HEAD = """
from pathlib import Path
from attrs import define, frozen
from drkit.plugin import ComponentSpec, NoSettings, hookimpl, setting

def part(kind, name, target="nowhere:Part", config=NoSettings, **rest):
    return ComponentSpec(kind=kind, name=name, target=target, config=config, summary="a part", **rest)
"""


def write_package(site: Path, name: str, source: str, version: str = "1.0", head: str = HEAD) -> None:
    """A package `name` whose module of the same name (with underscores) is its plugin."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(head + dedent(source))
    metadata = site / f"{module}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {module}\n")


def installed_with(site: Path):
    """drkit's own plugins and those in `site`, which must be on `sys.path`."""
    invalidate_caches()
    assert str(site) in sys.path
    return discover(entry_points(group=GROUP))


def path_with(site: Path) -> str:
    """`PYTHONPATH` for another process, with `site` before what it holds here."""
    return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))


def forget(site: Path) -> None:
    """Take the modules of `site` out of the modules that Python keeps."""
    for file in site.glob("*.py"):
        sys.modules.pop(file.stem, None)
