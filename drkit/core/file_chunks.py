"""One large file, made in chunks by the tasks of an engine; finished chunks are kept until the file is complete.

The name of a finished chunk ends with the hash of its file, so a damaged one is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import frozen

from drkit.core.engine import Engine, LocalEngine, Task, Uses, is_local
from drkit.core.files import digest, file_hash, remove_folder
from drkit.core.processes import Shard

T = TypeVar("T")


@frozen
class FileChunk(Generic[T]):
    """A chunk of a file: the items that `make(*arguments)` yields.

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
class FileChunks:
    """The folder in which the chunks of a file are kept until it is complete."""

    folder: Path

    @classmethod
    def beside(cls, path: Path) -> FileChunks:
        """Return the chunks of a file, in a hidden folder beside it."""
        return cls(path.with_name(f".{path.name}.parts"))

    def path_of(self, number: int, chunk: FileChunk[Any]) -> Path:
        """Return the file of a chunk: its name has a hash of what the chunk is made from, but not of its content."""
        return self.folder / f"{number:05d}-{digest(chunk.content)}"

    def are_needed(self, engine: Engine | None) -> bool:
        """Return whether to write in chunks: with an engine other than the local one, or if chunks are left to use."""
        return self.folder.is_dir() or not is_local(engine)

    def write(
        self,
        chunks: Iterable[FileChunk[T]],
        write: Callable[[Iterable[T], Path], Any],
        engine: Engine | None,
        on_progress: Callable[[int], None] | None = None,
        shard: Shard | None = None,
    ) -> list[Path]:
        """Write the chunks that are missing, a task each; returns the files of all chunks, in order.

        The file of a chunk that another process has not finished does not exist.

        write: writes the items of a chunk to a file, atomically. on_progress: called with the number of items in
        finished chunks. shard: the share of this process, which leaves the other chunks to others.

        Raises DrkitError for tasks that fail.
        """
        files: list[Path] = []
        own, kept, made = shard or Shard(), 0, 0

        def missing() -> Iterator[Task[int]]:
            nonlocal kept
            for number, chunk in enumerate(chunks):
                path = self.path_of(number, chunk)
                files.append(path)
                if number % own.processes != own.rank or finished_chunk(path):
                    kept += chunk.size
                else:
                    yield Task(chunk.name, write_chunk, (chunk, write, path), uses=chunk.uses)

        for size in (engine or LocalEngine()).run(missing()):
            made += size
            if on_progress:
                on_progress(kept + made)
        return [finished_chunk(path) or path for path in files]

    def remove(self) -> None:
        """Remove all chunks, once the file is complete."""
        remove_folder(self.folder)


def items_of(
    chunks: Iterable[FileChunk[T]],
    *,
    write: Callable[[Iterable[T], Path], Any],
    read: Callable[[Path], Iterable[T]],
    kept: FileChunks | None,
    engine: Engine | None,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[T]:
    """Yield the items of all chunks, in order: made here as they are read, or first all on another engine.

    write, read: write the items of a chunk to a file, atomically, and read it; functions that can be imported. kept:
    where an engine keeps finished chunks, until the caller removes them; None: all are made here. on_progress: called
    with the number of items done.

    Raises DrkitError for tasks that fail.
    """
    if kept is not None and kept.are_needed(engine):
        for file in kept.write(chunks, write, engine, on_progress):
            yield from read(file)
        return
    items = (item for chunk in chunks for item in chunk.make(*chunk.arguments))
    for done, item in enumerate(items, start=1):
        yield item
        if on_progress:
            on_progress(done)


def write_chunk(chunk: FileChunk[T], write: Callable[[Iterable[T], Path], Any], path: Path) -> int:
    """Make the items of a chunk and write them, in whatever process; returns their number.

    path: the file's, without the hash that its name gets at the end.
    """
    write(chunk.make(*chunk.arguments), path)
    with suppress(FileNotFoundError):  # a repeated task has finished the same chunk
        path.replace(path.with_name(f"{path.name}-{file_hash(path)}"))
    return chunk.size


def name_of_chunk(file: Path) -> str:
    """Return the name of a chunk's file without the hash of its content, whether it is finished or not.

    >>> name_of_chunk(Path("00002-6d61-9f2b")), name_of_chunk(Path("00002-6d61"))
    ('00002-6d61', '00002-6d61')
    """
    return "-".join(file.name.split("-")[:2])


def finished_chunk(path: Path) -> Path | None:
    """Return the intact file of a finished chunk; path: as in `write_chunk`. None if it is missing or damaged."""
    found = path.parent.glob(f"{path.name}-*")
    return next((file for file in found if file_hash(file) == file.name.rpartition("-")[2]), None)
