"""What a stage of a plugin is called with: its settings and inputs, the folder that it writes, and what it may use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from attrs import field, frozen

from drkit.core.engine import Engine, LocalEngine
from drkit.core.file_chunks import FileChunk, FileChunks
from drkit.core.files import write_lines
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.data.corpus import StoredCollection, StoredCorpus, collection_of
from drkit.data.rows import batched

T = TypeVar("T")


@frozen(eq=False)
class StageContext:
    """What the function of a stage (`Kind.STAGE`) is called with; it returns facts for the manifest, or None.

    settings: of its config class; those that name the output of another stage have the path of that file or folder.
    inputs: the paths of what its spec receives, by name. folder: where it writes; the run gets the folder when the
    function returns, so that a kill leaves nothing half done. With `resumable`, the folder is kept after a kill, and
    the function is called with it again. seed: of the run, for all random numbers. progress: `advance` and `note`.
    """

    name: str
    settings: Any
    inputs: Mapping[str, Path]
    folder: Path
    registry: Registry
    seed: int = 42
    progress: Progress = field(factory=Silent)
    engine: Engine = field(factory=LocalEngine)

    def passages(self) -> StoredCorpus:
        """Open the passages of the collection; the spec must receive `passages`."""
        return StoredCorpus(self.inputs["passages"])

    def collection(self, split: str | Path) -> StoredCollection:
        """Open the passages, and the queries and judgements in the folder of a split, as the split `train`.

        The spec must receive `passages`. split: such as the setting "stage:pseudo-queries/train", or `inputs["train"]`.
        """
        return collection_of({"passages": self.inputs["passages"], "train": Path(split)})

    def write_rows(
        self,
        name: str,
        items: Iterable[T],
        make: Callable[[Sequence[T]], Iterable[Mapping[str, Any]]],
        *,
        size: int = 256,
    ) -> Path:
        """Write the rows that `make` yields for `size` items at a time to a file of JSON Lines; returns its path.

        In a resumable stage, what was finished before a kill is not made again; items must come in the same order.
        """
        path = self.folder / name
        if not path.exists():
            kept = FileChunks.beside(path)
            chunks = (
                FileChunk(
                    f"{self.name}: {name}, items {number * size + 1:,} ..", len(some), number, _lines, (make, some)
                )
                for number, some in enumerate(batched(items, size))
            )
            files = kept.write(chunks, write_lines, LocalEngine(), self._report)
            write_lines((line for file in files for line in file.read_bytes().splitlines(keepends=True)), path)
            kept.remove()
        return path

    def _report(self, done: int) -> None:
        self.progress.advance(done, None, "items")


def _lines(make: Callable[[Sequence[T]], Iterable[Mapping[str, Any]]], items: Sequence[T]) -> Iterator[bytes]:
    for row in make(items):
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
