"""A collection as commands name it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from attrs import frozen

from drkit.core.files import local_path
from drkit.core.protocols import Collection, ExplainsReading
from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.core.types import Judgement, Passage, Query
from drkit.data.corpus import StoredCollection, open_collection
from drkit.data.writing import refuse_duplicate_passages, refuse_duplicate_queries, write_collection
from drkit.errors import DrkitError, UnknownNameError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.start import RECIPE
from drkit.runs.manifest import read_manifest

_LOGGER = logging.getLogger("drkit")


@frozen(slots=False)
class NamedCollection:
    """A collection by its name on the command line: a run's folder, or a name as `drkit compose --collection` takes it.

    settings: of a name such as `beir:FOLDER`, for instance `collection.limit=100`.

    Raises DrkitError for a setting of anything but the collection, and, when it is used, if the run has no finished
    collection, or as `drkit compose` does.
    """

    name: str
    settings: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        names = [text.partition("=")[0].strip() for text in self.settings]
        if unread := [name for name in names if not name.startswith("collection.")]:
            raise DrkitError(
                f"--set {unread[0]}: this command reads only settings of the collection that it opens "
                f"(collection.NAME); other choices are options, such as --pooling, --query-prompt, --exclude-self"
            )

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
            if self.settings:
                raise DrkitError(
                    f"--set {self.settings[0]}: the run {self.name} has stored its collection; leave it out"
                )
            return open_collection(folder)
        parts = installed()
        choice = compose(ComposeRequest(collection=self.name, settings=self.settings), parts).collection
        built: Collection = parts.registry.build(Kind.COLLECTION, choice.use, choice.config)
        if isinstance(built, ExplainsReading):
            for note in built.notes():
                _LOGGER.warning("note: %s", note)
        return built

    @cached_property
    def _checked_source(self) -> StoredCollection | Collection:
        """The collection itself, once all passage ids are known to be unique."""
        if not isinstance(self.source, StoredCollection):
            refuse_duplicate_passages(self.source)
        return self.source

    def store(
        self, scratch: Path, *, splits: Sequence[str] | None = None, drop_unknown: bool = False
    ) -> tuple[Path, Mapping[str, Any]]:
        """Return the folder of the collection, below `scratch` unless a run has stored it, and its counts (or none).

        The other arguments are those of `write_collection`. Raises DrkitError as it does.
        """
        if folder := self.stored_folder:
            return folder, {}
        folder, source = scratch / "collection", cast("Collection", self.source)
        return folder, write_collection(source, folder, splits=splits, drop_unknown=drop_unknown)

    def check_split(self, split: str) -> None:
        """Raise DrkitError if the collection has no such split."""
        splits = self.source.splits()
        if split not in splits:
            raise UnknownNameError("split", split, splits, where=self.name)

    def queries(self, split: str) -> Iterator[Query]:
        """Stream the queries of a split. Raises DrkitError at once if it does not exist, or an id occurs twice."""
        self.check_split(split)
        if not isinstance(self.source, StoredCollection):
            refuse_duplicate_queries(self.source, split)
        return iter(self.source.queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Stream the judgements of a split. Raises DrkitError if the collection has no such split."""
        self.check_split(split)
        return iter(self.source.judgements(split))

    def passages(self) -> Iterator[Passage]:
        """Stream all passages. Raises DrkitError at once if an id occurs twice."""
        source = self._checked_source
        return iter(source.corpus if isinstance(source, StoredCollection) else source.passages())

    def contents(self) -> Iterator[tuple[str, str]]:
        """Stream (id, title and text) of all passages; see `passages`."""
        return ((passage.doc_id, passage.content) for passage in self.passages())


def missing_result(run: Path, name: str, instead: str) -> DrkitError:
    """Return the error for a run without a finished stage `index` or `evaluation`, which runs without queries lack.

    instead: what to do with such a run.
    """
    collection = read_manifest(run / "collection")
    if collection is not None and collection.metrics.get("queries") == {}:
        return DrkitError(f"{run} has no {name}, as its collection has no queries; {instead}")
    return DrkitError(f"{run} has no finished {name}; resume it with `drkit run {run}`")
