"""One large file, made in parts by the tasks of an engine; finished parts are kept until the file is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import frozen

from drkit.core.engine import Engine, LocalEngine, Task, Uses, is_local
from drkit.core.files import digest, read_chunks, remove_folder, replacing
from drkit.core.processes import Shard

T = TypeVar("T")


@frozen
class FileChunk(Generic[T]):
    """A part of a file: the items that `make(*arguments)` yields.

    name: what an error message calls it. size: how many items it holds, for progress. content: plain data that
    identifies everything that it is made from. make, arguments, uses: as in `Task`.
    """

    name: str
    size: int
    content: Any
    make: Callable[..., Iterable[T]]
    arguments: tuple[Any, ...]
    uses: Uses = "threads"


@frozen
class PartFormat(Generic[T]):
    """How the items of a part are written to a file, atomically, and read again, by functions that can be imported."""

    write: Callable[[Iterable[T], Path], Any]
    read: Callable[[Path], Iterable[T]]


@frozen
class FileChunks:
    """The folder in which the parts of a file are kept until it is complete."""

    folder: Path

    @classmethod
    def beside(cls, path: Path) -> FileChunks:
        """Return the parts of a file, in a hidden folder beside it."""
        return cls(path.with_name(f".{path.name}.parts"))

    def are_needed(self, engine: Engine | None) -> bool:
        """Return whether to write in parts: with an engine other than the local one, or if parts are left to use."""
        return self.folder.is_dir() or not is_local(engine)

    def write(
        self,
        parts: Iterable[FileChunk[T]],
        write: Callable[[Iterable[T], Path], Any],
        engine: Engine | None,
        on_progress: Callable[[int], None] | None = None,
        shard: Shard | None = None,
    ) -> list[Path]:
        """Write the parts that are missing, a task each; returns the files of all parts, in order.

        on_progress: called with the number of items in finished parts. shard: the share of this process, which leaves
        the other parts to others. Raises DrkitError for tasks that fail.
        """
        files: list[Path] = []
        own, kept, made = shard or Shard(), 0, 0

        def missing() -> Iterator[Task[int]]:
            nonlocal kept
            for number, part in enumerate(parts):
                path = self.folder / f"{number:05d}-{digest(part.content)}"
                files.append(path)
                if path.is_file() or number % own.processes != own.rank:
                    kept += part.size
                else:
                    yield Task(part.name, write_part, (part, write, path), uses=part.uses)

        for size in (engine or LocalEngine()).run(missing()):
            made += size
            if on_progress:
                on_progress(kept + made)
        return files

    def remove(self) -> None:
        """Remove all parts, once the file is complete."""
        remove_folder(self.folder)


def items_of(
    parts: Iterable[FileChunk[T]],
    form: PartFormat[T],
    *,
    kept: FileChunks | None,
    engine: Engine | None,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[T]:
    """Yield the items of all parts, in order: made here as they are read, or first all on another engine.

    kept: where an engine keeps finished parts, until the caller removes them; None: all are made here. on_progress:
    called with the number of items done.

    Raises DrkitError for tasks that fail.
    """
    if kept is not None and kept.are_needed(engine):
        for file in kept.write(parts, form.write, engine, on_progress):
            yield from form.read(file)
        return
    items = (item for part in parts for item in part.make(*part.arguments))
    for done, item in enumerate(items, start=1):
        yield item
        if on_progress:
            on_progress(done)


def write_part(part: FileChunk[T], write: Callable[[Iterable[T], Path], Any], path: Path) -> int:
    """Make the items of a part and write them, in whatever process; returns their number."""
    write(part.make(*part.arguments), path)
    return part.size


def write_chunks(chunks: Iterable[bytes], path: Path) -> None:
    """Write bytes to a file, atomically."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(chunks)


CHUNKS = PartFormat(write_chunks, read_chunks)
