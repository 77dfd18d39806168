"""One large file, written in parts by the tasks of an engine; finished parts are kept until the file is complete."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.engine import Engine, LocalEngine, Task, Uses
from drkit.core.files import remove_folder, replacing


@frozen
class FilePart:
    """A part of a file, which `function(*arguments, path)` writes atomically.

    name: what an error message calls it. size: how many items it holds, for progress. content: a hash of
    everything that it is made from. function, arguments, uses: see `Task`.
    """

    name: str
    size: int
    content: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    uses: Uses = "threads"


@frozen
class FileParts:
    """The folder in which the parts of a file are kept until it is complete."""

    folder: Path

    @classmethod
    def beside(cls, path: Path) -> FileParts:
        """Return the parts of a file, in a hidden folder beside it."""
        return cls(path.with_name(f".{path.name}.parts"))

    def are_needed(self, engine: Engine | None) -> bool:
        """Return whether to write in parts: with an engine other than the local one, or if parts are left to use."""
        return self.folder.is_dir() or not (engine is None or isinstance(engine, LocalEngine))

    def write(
        self, parts: Iterable[FilePart], engine: Engine | None, on_progress: Callable[[int], None] | None = None
    ) -> list[Path]:
        """Write the parts that are missing, a task each; returns the files of all parts, in order.

        on_progress: called with the number of items in finished parts. Raises DrkitError for tasks that fail.
        """
        files: list[Path] = []
        kept = made = 0

        def missing() -> Iterator[Task[int]]:
            nonlocal kept
            for number, part in enumerate(parts):
                path = self.folder / f"{number:05d}-{part.content}"
                files.append(path)
                if path.is_file():
                    kept += part.size
                else:
                    yield Task(part.name, write_part, (part, path), uses=part.uses)

        for size in (engine or LocalEngine()).run(missing()):
            made += size
            if on_progress:
                on_progress(kept + made)
        return files

    def remove(self) -> None:
        """Remove all parts, once the file is complete."""
        remove_folder(self.folder)


def write_part(part: FilePart, path: Path) -> int:
    """Write a part; returns its size."""
    part.function(*part.arguments, path)
    return part.size


def concatenate(files: Sequence[Path], path: Path) -> None:
    """Write one file with the bytes of others, in this order, atomically."""
    with replacing(path) as temporary, temporary.open("wb") as whole:
        for file in files:
            with file.open("rb") as content:
                shutil.copyfileobj(content, whole)
