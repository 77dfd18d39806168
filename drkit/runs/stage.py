"""A stage: one folder of a run, made by one function from declared settings and declared inputs only.

The files in `drkit/runs/stages` declare stages: a frozen class of settings, the inputs by name, the record files
(logs, probes), and the name of the function, which is in `drkit/runs/making`. The plan (`drkit.runs.plan`) fills in the
settings and connects the inputs in a `PlanBuilder`. The fingerprint covers exactly what the function can see, so a
finished stage cannot be stale.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
from attrs import asdict, field, frozen

from drkit.core.checksums import check_unchanged
from drkit.core.engine import Engine, LocalEngine
from drkit.core.files import digest, local_path, path_state, read_json, write_text
from drkit.core.plugin_code import PluginCode
from drkit.core.progress import Progress
from drkit.core.protocols import Collection
from drkit.core.registry import Registry
from drkit.core.settings import NEVER_ABSENT, is_lasting
from drkit.core.spec import STAGE_OUTPUT, Choice, ComponentSpec, declared_by, is_stage_output
from drkit.data.splits import PSEUDO
from drkit.encoders.card import EncoderCard
from drkit.encoders.declarations import MODULES
from drkit.errors import DrkitError, check_extras
from drkit.recipe.parts import parts_within, stage_outputs, with_outputs
from drkit.recipe.schema import Recipe, Round
from drkit.recipe.toml import plain, typed
from drkit.recipe.training import Training
from drkit.runs.code import stage_code
from drkit.runs.manifest import text_libraries, versions
from drkit.runs.work import Sizes, Work

S = TypeVar("S")

# The pattern of a stage's files with the weights of a model.
WEIGHT_FILES = "*.safetensors"


def from_recipe(
    path: str,
    *,
    observes: bool = False,
    absent_when: Any = NEVER_ABSENT,
    converter: Callable[[Any], Any] | None = None,
    written: Callable[[Any], Any] | None = None,
) -> Any:
    """Declare a setting of a stage that comes from a dotted path of the recipe.

    observes: the setting affects only records (a log, probes) or checks, never a result; the fingerprint excludes it.
    absent_when: the fingerprint excludes it at this value; see `drkit.core.settings.setting`. converter: makes the
    stage's value of the recipe's. written: what the fingerprint has for the value.
    """
    metadata = {"recipe": path, "observes": observes, "absent_when": absent_when, "written": written}
    return field(metadata=metadata, converter=converter)


def settings_from(cls: type[S], recipe: Recipe, **extra: Any) -> S:
    """Build a stage's settings: those declared with `from_recipe` from the recipe, the others from `extra`."""
    declared = {
        a.name: attrgetter(a.metadata["recipe"])(recipe)
        for a in attrs.fields(cls)  # type: ignore[arg-type]
        if a.name not in extra and a.metadata.get("recipe")
    }
    return cls(**declared, **extra)


def lasting_settings(settings: Any) -> dict[str, Any]:
    """Return the settings that affect a result, as plain values by the recipe's dotted paths (without observing ones).

    >>> from drkit.recipe.training import Training
    >>> lasting = lasting_settings(Training())
    >>> lasting["learning_rate"], "logging_steps" in lasting
    (0.001, False)
    """
    return dict(_flat(settings, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if attrs.has(type(value)) and not hasattr(value, "use"):
        for a in attrs.fields(type(value)):
            if is_lasting(a, value):
                name = a.metadata.get("recipe") or (f"{path}.{a.name}" if path else a.name)
                found = typed(a, getattr(value, a.name))
                yield from _flat(_untyped(found) if "Any" in str(a.type) else found, name)
    elif isinstance(value, Mapping) or hasattr(value, "use"):
        table = value if isinstance(value, Mapping) else plain(value)
        for key, item in table.items():
            yield from _flat(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)) and any(hasattr(i, "use") or isinstance(i, Mapping) for i in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}.{index}")
    else:
        yield path, plain(value)


def _untyped(value: Any) -> Any:
    """Return settings without a declared type with equal numbers written alike: 0.0 as 0, within tables and lists."""
    if isinstance(value, Mapping):
        return {key: _untyped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_untyped(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@frozen
class StageOutput:
    """The output of an earlier stage that a stage reads: its folder, or one file or folder in it.

    observed: it is read only for records, so changed content does not repeat any stage.

    >>> str(StageOutput("collection", "train/queries.arrow"))
    'collection/train/queries.arrow'
    """

    stage: str
    path: str = ""
    observed: bool = False

    def __str__(self) -> str:
        return f"{self.stage}/{self.path}" if self.path else self.stage


@frozen
class StageSpec(Generic[S]):
    """The declaration of a stage, independent of any plan.

    name, version: its identity. Raise the version when the same settings and inputs give another result; moving or
    renaming a module changes neither. settings: a frozen attrs class. run: the `"module:function"` that makes the
    stage, imported only then; it is called with a `StageRun` and returns the metrics of the manifest. inputs: a
    description of each input, by name; `NAME/*` stands for any number of inputs. records: files that document the stage
    (logs, probes) and are not results. resumable: an unfinished folder is kept, and `run` continues from it. joint: all
    processes of a run take part.
    folders: the names of its stages in a plan, their folders in a run; `NAME-*` is a family, `*` any name that a recipe
    gives to a round. prunable: the files that `drkit prune` removes from a finished run, as a pattern.
    work: what a stage of a plan has to do, counted from sizes; None: too little to count. extras: the extras of drkit
    that it needs; if they depend on the settings, their class has a property of this name. libraries: distributions
    that decide the result (where a sentence ends, what a word's stem is): another version of one makes the stage again.
    Those that only round numbers in another way are recorded, and repeat nothing.
    """

    name: str
    version: int
    settings: type[S]
    run: str
    inputs: Mapping[str, str] = field(factory=dict)
    records: tuple[str, ...] = ()
    resumable: bool = False
    joint: bool = False
    folders: tuple[str, ...] = ()
    prunable: str = ""
    work: Callable[[Stage[S], Sizes], Work] | None = None
    extras: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@frozen
class Stage(Generic[S]):
    """A stage in a plan.

    name: its folder in the run. sources: fingerprints of files outside the run, by the setting that names them. code:
    of the plugins whose parts the stage runs.

    Raises TypeError for settings of another class, or an input that the spec does not declare.
    """

    name: str
    spec: StageSpec[S]
    settings: S
    summary: str
    inputs: Mapping[str, StageOutput] = field(factory=dict)
    sources: Mapping[str, str] = field(factory=dict)
    code: PluginCode = field(factory=PluginCode)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.settings, self.spec.settings):
            raise TypeError(f"{self.name}: expected {self.spec.settings.__name__}, got {type(self.settings).__name__}")
        allowed = self.spec.inputs
        for name in self.inputs:
            is_named = name in allowed or f"{name.split('/')[0]}/*" in allowed
            if not is_named and not is_stage_output(name):
                raise TypeError(f"{self.name}: {self.spec.name} declares no input {name!r}; declared: {[*allowed]}")

    @property
    def needs(self) -> tuple[str, ...]:
        """The stages that this stage reads, in the order of its inputs."""
        return tuple(dict.fromkeys(output.stage for output in self.inputs.values()))

    @property
    def is_training(self) -> bool:
        """Whether the stage trains a model."""
        return bool(self._trainings)

    @property
    def scales_with_processes(self) -> bool:
        """Whether the stage trains a model with larger steps the more processes there are."""
        return any(training.batch_size is None for training in self._trainings)

    @property
    def _trainings(self) -> list[Training]:
        settings: Any = self.settings
        return [value for value in attrs.astuple(settings, recurse=False) if isinstance(value, Training)]

    def identity(self, contents: Mapping[str, str]) -> dict[str, Any]:
        """Return everything that affects the result, as plain data; contents: content hashes of inputs, by name."""
        made_by = {"code": dict(self.code.files), "packages": self.packages}
        return {
            "stage": self.spec.name,
            "version": self.spec.version,
            "settings": lasting_settings(self.settings),
            "inputs": {name: contents[name] for name, output in self.inputs.items() if not output.observed},
            "sources": dict(self.sources),
            **{name: found for name, found in made_by.items() if found},
        }

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the packages that decide the result: of plugins and their libraries, and of the stage's own."""
        here = versions()
        own = {name: here.get(name, "") for name in self.spec.libraries}
        return {**own, **text_libraries(self._extras), **self.code.packages}

    @property
    def _extras(self) -> tuple[str, ...]:
        trained = (extra for training in self._trainings for extra in training.extras)
        return (*declared_by(self.settings, "extras", self.spec.extras), *trained)

    def check_extras(self) -> None:
        """Raise MissingExtraError if packages that the stage needs are not installed."""
        check_extras(f"the stage {self.name!r}", self._extras)

    def fingerprint(self, contents: Mapping[str, str]) -> str:
        """Return the hash of `identity`."""
        return digest(self.identity(contents))


@frozen
class PlanBuilder:
    """A plan under construction: recipe, installed parts, the recipe's collection, stages by name, and notes.

    when_read: what adds a stage that has no place of its own in the order, by name; it is added before the first stage
    that reads it.
    """

    recipe: Recipe
    registry: Registry
    collection: Collection
    splits: tuple[str, ...] = field(init=False)
    stages: dict[str, Stage[Any]] = field(factory=dict)
    notes: list[str] = field(factory=list)
    when_read: dict[str, Callable[[PlanBuilder], object]] = field(factory=dict)

    @splits.default
    def _read_splits(self) -> tuple[str, ...]:
        made = (PSEUDO,) if self.recipe.evaluation.split == PSEUDO else ()
        return (*self.collection.splits(), *made)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of fine-tuning up to the first one whose training queries are missing."""
        rounds = self.recipe.finetune.rounds if self.recipe.finetune else ()
        return tuple(takewhile(lambda one: one.pairs == PSEUDO or self.labelled in self.splits, rounds))

    @property
    def labelled(self) -> str:
        """The split that rounds with labels learn from: with cross-validation, the one that is evaluated."""
        return self.recipe.evaluation.split if self.recipe.evaluation.folds else "train"

    @property
    def learns_from_judgements(self) -> bool:
        """Whether training may look at the collection's training queries: unless all rounds use pseudo-queries."""
        return "train" in self.splits and not (self.rounds and all(one.pairs == PSEUDO for one in self.rounds))

    def has(self, spec: StageSpec[Any]) -> bool:
        """Return whether a stage of this declaration is planned."""
        return any(stage.spec is spec for stage in self.stages.values())

    def add(
        self,
        name: str,
        spec: StageSpec[Any],
        summary: str,
        inputs: Mapping[str, StageOutput] | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a stage unless the plan has one with this name; returns the name.

        extra: settings that are not at one path of the recipe; the others are read from the recipe. Raises TypeError
        for a name that the spec does not declare.
        """
        if not any(fnmatchcase(name, folder) for folder in spec.folders):
            raise TypeError(f"a stage {spec.name!r} has no folder {name!r}; declared: {', '.join(spec.folders)}")
        if name not in self.stages:
            states = {key: state for key, state in (sources or {}).items() if state}
            settings = settings_from(spec.settings, self.recipe, **(extra or {}))
            read = {one: self.output(one, name) for one in stage_outputs(settings, self.registry)}
            inputs = {**(inputs or {}), **read}
            extras = {extra for part in parts_within(settings, self.registry) for extra in part.extras}
            code = stage_code(name, inputs, settings, self.recipe, self.registry)
            code |= PluginCode(packages=text_libraries(extras))
            self.stages[name] = Stage(name, spec, settings, summary, inputs, states, code)
        return name

    def output(self, text: str, reader: str) -> StageOutput:
        """Return the output `stage:NAME/FILE` that a stage reads; its stage is added if no other stage has read it.

        Raises DrkitError if the run does not make the stage before.
        """
        name, _, path = text.removeprefix(STAGE_OUTPUT).partition("/")
        if name not in self.stages and name in self.when_read:
            self.when_read.pop(name)(self)
        if name not in self.stages:
            in_progress = name in (self.recipe.stages or {})
            why = "which reads its output" if in_progress else "which is not a stage that this run makes before it"
            known = f"known there: {', '.join([*self.stages, *self.when_read])}"
            raise DrkitError(f"{reader!r} reads {text!r}, of the stage {name!r}, {why}; {known}")
        if not all(part not in ("", ".", "..") for part in path.split("/")) and path:
            raise DrkitError(f"{reader!r} reads {text!r}; expected stage:NAME or stage:NAME/FILE")
        return StageOutput(name, path)


def files_state(spec: ComponentSpec, config: Any) -> str:
    """Return the state of the local files that a part reads with these settings."""
    states = [path_state(path) for path in spec.paths_of(config)]
    return states[0] if len(states) == 1 else digest(states)


@frozen(eq=False)
class StageRun(Generic[S]):
    """The argument of a stage's function, which writes into `folder` and returns metrics for the manifest.

    inputs: paths of the declared inputs, by name, without optional inputs that the plan does not use. engine: where the
    data work is done; no result depends on it.
    """

    name: str
    settings: S
    inputs: Mapping[str, Path]
    folder: Path
    registry: Registry
    progress: Progress
    engine: Engine = field(factory=LocalEngine)

    def resolved(self, choice: Choice) -> Choice:
        """Return a choice of the settings with paths in place of the outputs of stages that it names."""
        return with_outputs(choice, self.inputs, self.registry) if any(map(is_stage_output, self.inputs)) else choice


def declared_card(encoder: str, recipe: EncoderCard) -> EncoderCard:
    """Return the card of an existing encoder: as its folder declares, or that of the recipe if it declares nothing.

    No folder declares a precision, and the passages of a document are those of the recipe; a pooling's settings are
    known by its checkpoint.

    Raises DrkitError if it declares modules, a pooling or a similarity that drkit does not support.
    """
    folder = local_path(encoder)
    if not (folder / MODULES).is_file():
        return recipe
    card = EncoderCard.read(folder)
    return attrs.evolve(
        card,
        similarity="cosine" if card.normalize else card.similarity,  # the same ranking: all vectors have length 1
        normalize=False,
        truncate_dim=None,  # truncated encoders start no run
        pooling_settings=None,
        precision=recipe.precision,
        passages_per_document=recipe.passages_per_document,
    )


# The record of truncated texts in a stage's folder, a list of `Truncation`.
TRUNCATED = "truncated.json"


@frozen
class Truncation:
    """How many texts of one kind exceed their limit; lengths are in tokens, special ones included.

    what: the texts, in the plural. setting: path of the limit in the recipe. longest, p95: the maximum and the 95th
    percentile of the lengths before truncation.

    >>> print(Truncation("test queries", "encoder.query_length", 32, texts=76, truncated=47, longest=171, p95=120))
    47 of 76 test queries were truncated to 32 tokens; --set encoder.query_length=120 reads 95 % of them whole
    """

    what: str
    setting: str
    limit: int
    texts: int
    truncated: int
    longest: int
    p95: int

    def __str__(self) -> str:
        enough, share = (self.p95, "95 %") if self.p95 > self.limit else (self.longest, "all")
        return (
            f"{self.truncated:,} of {self.texts:,} {self.what} were truncated to {self.limit} tokens; "
            f"--set {self.setting}={enough} reads {share} of them whole"
        )


def record_truncations(found: Iterable[Truncation], folder: Path, progress: Progress) -> None:
    """Write the truncations of a stage into its folder, and report those of at least one text."""
    kept = list(dict.fromkeys(found))
    write_text(folder / TRUNCATED, json.dumps([asdict(one) for one in kept]))
    for one in kept:
        if one.truncated:
            progress.note(str(one))


def read_truncations(path: Path) -> list[Truncation]:
    """Read the truncations of at least one text from a file of a stage; empty if the stage has no such file.

    Raises DrkitError if it is missing, damaged, or has changed since it was written.
    """
    check_unchanged(path)
    advice = f"remove the folder {path.parent} and make it again with `drkit run {path.parent.parent}`"
    try:
        entries = read_json(path, advice) if path.is_file() else []
        return [Truncation(**entry) for entry in entries if entry["truncated"]]
    except (KeyError, TypeError):
        raise DrkitError(f"does not list truncated texts; {advice}", where=path) from None
