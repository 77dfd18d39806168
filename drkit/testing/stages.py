"""The contract of stages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import evolve

from drkit.core.files import file_hash
from drkit.core.registry import installed
from drkit.core.spec import ComponentSpec, Kind, is_stage_output
from drkit.core.types import Judgement, Passage, Query
from drkit.data.splits import PSEUDO, SPLITS
from drkit.data.stage_context import StageContext
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.testing.specs import check_facts, checked_spec, require, running
from drkit.testing.toys import ToyCorpus, toy_requests

_QUERIES = 5


class _ToyCollection:
    """Toy passages, with training queries that each have one relevant passage."""

    name = "toys"

    def passages(self) -> Iterator[Passage]:
        return iter(ToyCorpus())

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def queries(self, split: str) -> Iterator[Query]:
        if split != "train":
            raise DrkitError(f"no split {split!r}")
        return (Query(one.query_id, one.text) for one in toy_requests(_QUERIES))

    def judgements(self, split: str) -> Iterator[Judgement]:
        ids = [passage.doc_id for passage in ToyCorpus()]
        return (Judgement(one.query_id, ids[row % len(ids)], 1) for row, one in enumerate(self.queries(split)))

    def describe(self) -> Mapping[str, Any]:
        return {}


def check_stage(
    part: ComponentSpec | str, config: Any = None, outputs: Mapping[str, Path] | None = None
) -> Mapping[str, str]:
    """Run the contract of stages on a spec or the name of an installed part, with default settings or `config`.

    The function is called with toy passages and training queries. It must write at least one file, return None or facts
    that can be written as JSON, write the same bytes into another folder, and leave its inputs as they are. If it is
    resumable, a call with a folder that it has finished changes no file. outputs: files and folders in place of the
    outputs that its settings name (`stage:NAME/FILE`); those of a split are toy queries. Returns a hash of each file.
    """
    spec, settings = checked_spec(Kind.STAGE, part, config)
    with TemporaryDirectory() as name, running(spec.name, "making the stage"):
        root = Path(name)
        write_collection(_ToyCollection(), root / "collection")
        inputs = {one: root / "collection" / one for one in ("passages", "train")}
        settings, before = _with_paths(spec, settings, outputs or {}, inputs["train"]), _hashes(root / "collection")
        calls = [_call(spec, settings, inputs, root / folder) for folder in ("first", "second")]
        require(calls[0], f"{spec.name}: writes no file into its folder")
        require(calls[0] == calls[1], f"{spec.name}: a second run with the same inputs writes other bytes")
        again = _call(spec, settings, inputs, root / "second") if spec.resumable else calls[1]
        require(again == calls[1], f"{spec.name}: resuming in a folder that it has finished changes its files")
        require(_hashes(root / "collection") == before, f"{spec.name}: changes its inputs")
        return calls[0]


def _call(spec: ComponentSpec, settings: Any, inputs: Mapping[str, Path], folder: Path) -> Mapping[str, str]:
    """Call the function of a stage with a folder; returns a hash of each file that is there afterwards."""
    folder.mkdir(exist_ok=True)
    given = {one: inputs[one] for one in spec.receives}
    facts = spec.load()(StageContext(spec.name, settings, given, folder, installed().registry))
    check_facts({} if facts is None else facts, f"{spec.name}: a stage")
    return _hashes(folder)


def _with_paths(spec: ComponentSpec, settings: Any, outputs: Mapping[str, Path], split: Path) -> Any:
    """Return settings with files that exist in place of the outputs of stages."""
    changes = {}
    for name in spec.files:
        value = getattr(settings, name)
        if is_stage_output(value):
            is_split = value.rpartition("/")[2] in (*SPLITS, PSEUDO)
            found = outputs.get(value, split if is_split else None)
            require(found, f"{spec.name}: name the file that stands for {value!r}: outputs={{{value!r}: PATH}}")
            changes[name] = os.fspath(found or "")
    return evolve(settings, **changes)


def _hashes(folder: Path) -> Mapping[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_hash(path) for path in files}
