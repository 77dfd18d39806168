"""A plan under construction: stages by name, and the states of files outside the run that they read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from attrs import field, frozen

from drkit.core.files import local_path
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec
from drkit.recipe.schema import PSEUDO, Recipe, Round
from drkit.runs.manifest import digest
from drkit.runs.stage import Part, Stage, StageSpec, settings_from
from drkit.runs.stages.queries import PSEUDO_QUERIES, SPLIT

PASSAGES = Part("collection", "passages")


def split_of(name: str) -> Part:
    """Return a split of the collection: its queries, judgements and given negatives."""
    return Part("collection", name)


def training_split(pairs: str) -> Part:
    """Return the split that a round learns from: pseudo-queries, or the collection's training queries."""
    return Part(PSEUDO_QUERIES.name, SPLIT) if pairs == PSEUDO else split_of("train")


def queries_of(name: str) -> Part:
    """Return the queries of a split, without its judgements."""
    return Part("collection", f"{name}/queries.arrow")


@frozen
class Draft:
    """A plan under construction: recipe, installed parts, splits of the collection, stages by name, and notes."""

    recipe: Recipe
    registry: Registry
    splits: tuple[str, ...]
    stages: dict[str, Stage[Any]] = field(factory=dict)
    notes: list[str] = field(factory=list)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of fine-tuning up to the first one whose training queries are missing."""
        rounds = self.recipe.finetune.rounds if self.recipe.finetune else ()
        return tuple(takewhile(lambda one: one.pairs == PSEUDO or "train" in self.splits, rounds))

    @property
    def learns_from_judgements(self) -> bool:
        """Whether training may look at the collection's training queries: unless all rounds use pseudo-queries."""
        return "train" in self.splits and not (self.rounds and all(one.pairs == PSEUDO for one in self.rounds))

    def add(
        self,
        name: str,
        spec: StageSpec[Any],
        summary: str,
        inputs: Mapping[str, Part] | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Add a stage unless the draft has one with this name; returns the name.

        extra: settings that are not at one path of the recipe; the others are read from the recipe. options: further
        fields of the `Stage`.
        """
        if name not in self.stages:
            states = {key: state for key, state in (sources or {}).items() if state}
            settings = settings_from(spec.settings, self.recipe, **(extra or {}))
            self.stages[name] = Stage(name, spec, settings, summary, inputs or {}, states, **options)
        return name


def path_state(text: str | None) -> str:
    """Return a fingerprint of the files at a local path (names, sizes, modification times); empty for anything else."""
    path = local_path(text) if text else None
    if path is None or not path.exists():
        return ""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return digest([(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files])


def files_state(spec: ComponentSpec, config: Any) -> str:
    """Return the state of the local files that a part reads with these settings."""
    states = [path_state(path) for path in spec.paths_of(config)]
    return states[0] if len(states) == 1 else digest(states)
