"""Inputs as commands name them: a collection, an index, a file of queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from drkit.core.discovery import Installed, installed
from drkit.core.files import local_path
from drkit.core.spec import Kind
from drkit.core.types import Passage, Query
from drkit.data.corpus import StoredCollection, open_collection
from drkit.data.readers import read_topics
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import RECIPE
from drkit.runs.manifest import read_manifest
from drkit.search.vectors import Vectors

if TYPE_CHECKING:
    from drkit.core.protocols import Collection


@frozen(slots=False)
class NamedCollection:
    """A collection by its name on the command line: a run's folder, or a name as `drkit compose --collection` takes it.

    settings: of a name such as `beir:FOLDER`, for instance `collection.limit=100`. parts: where names are looked up;
    everything that is installed if None.

    Raises DrkitError, when it is used, if the run has no finished collection, or as `drkit compose` does.
    """

    name: str
    settings: tuple[str, ...] = ()
    parts: Installed | None = field(default=None, eq=False, repr=False)

    @property
    def stored_folder(self) -> Path | None:
        """The folder of the collection stored in a run; None if the name is not a run's folder."""
        run = local_path(self.name)
        if read_manifest(run / "collection") is not None:
            return run / "collection"
        if (run / RECIPE).is_file():
            raise DrkitError(f"{run} has no finished collection; resume it with `drkit run {run}`")
        return None

    @cached_property
    def source(self) -> StoredCollection | Collection:
        """The collection itself."""
        if folder := self.stored_folder:
            return open_collection(folder)
        parts = self.parts or installed()
        choice = compose(ComposeRequest(collection=self.name, settings=self.settings), parts).collection
        built: Collection = parts.registry.build(Kind.COLLECTION, choice.use, choice.config)
        return built

    def check_split(self, split: str) -> None:
        """Raise DrkitError if the collection has no such split."""
        splits = self.source.splits()
        if split not in splits:
            raise DrkitError(f"{self.name} has no {split!r} queries; its splits: {', '.join(splits) or 'none'}")

    def queries(self, split: str) -> Iterator[Query]:
        """Stream the queries of a split. Raises DrkitError if the collection has no such split."""
        self.check_split(split)
        return iter(self.source.queries(split))

    def passages(self) -> Iterator[Passage]:
        """Stream all passages."""
        source = self.source
        return iter(source.corpus if isinstance(source, StoredCollection) else source.passages())

    def contents(self) -> Iterator[tuple[str, str]]:
        """Stream (id, title and text) of all passages."""
        return ((passage.doc_id, passage.content) for passage in self.passages())


def find_index(folder: str | Path) -> Path:
    """Return the index folder of a run, or the folder itself if it is not a run.

    Raises DrkitError if the folder does not exist, or the run has no finished index.
    """
    path = local_path(folder)
    if not path.is_dir():
        raise DrkitError(
            f"folder not found: {path}; give a run (made by `drkit compose`) or an index (made by `drkit index`)"
        )
    if not (path / RECIPE).is_file():
        return path
    if read_manifest(path / "index") is None:
        raise DrkitError(f"{path} has no finished index; resume it with `drkit run {path}`")
    return path / "index"


def find_queries(text: str | Path) -> Iterable[Query] | Vectors:
    """Return the queries in a file (.tsv, .jsonl, .csv, TREC topics ..), or the vectors in a folder.

    Raises DrkitError if neither exists, or, naming `file:line`, for an invalid line.
    """
    path = local_path(text)
    if path.is_dir():
        vectors = Vectors.open(path)
        if vectors.about["role"] != "queries":
            raise DrkitError(f"{path} holds vectors of passages; encode queries with `drkit encode --split test`")
        return vectors
    if not path.is_file():
        raise DrkitError(f"queries not found: {path}; give a file of queries, or a folder of their vectors")
    return (query for _, query in read_topics(path))
