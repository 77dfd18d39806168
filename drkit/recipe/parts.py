"""The parts that a recipe uses: what they require of the run, and which other parts would fit in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from drkit.core.registry import Registry
from drkit.core.spec import (
    BATCHING,
    PAIRS,
    Choice,
    ComponentSpec,
    Kind,
    is_stage_output,
    provided_by,
    vector_name,
    vector_names,
)
from drkit.data.column_sources import is_computed
from drkit.data.query_sources import is_from_plugin
from drkit.errors import DrkitError, MissingExtraError, did_you_mean
from drkit.recipe.schema import DecoderTask, EncoderTask, Finetune, Pretrain, Recipe

# The signal that weighs the spans of a text that stand in for queries (extractive candidate queries).
FOR_EXTRACTIVE = "importance"


@frozen
class PartInUse:
    """A part that a recipe names: its spec, its settings, and its path in the recipe."""

    spec: ComponentSpec
    config: Any
    path: str = ""

    @classmethod
    def of(cls, kind: Kind, choice: Choice, registry: Registry, path: str = "") -> PartInUse:
        """Return a part by its choice in a recipe. Raises UnknownNameError if it is not installed."""
        return cls(registry.get(kind, choice.use), choice.config, path)

    @property
    def title(self) -> str:
        """Kind and name, as in `masker 'pmi'`."""
        return f"{self.spec.kind} {self.spec.name!r}"

    @property
    def full_title(self) -> str:
        """The title with package and version, as in `masker 'mine' (my-package 1.0)`."""
        return f"{self.title} ({self.spec.provider or 'unknown package'})"


def with_nested(choice: Choice, path: str = "") -> Iterator[tuple[str, Choice]]:
    """Yield a chosen part and the parts that its settings choose, at any depth, each with its path in the recipe."""
    yield path, choice
    for name in (a.name for a in attrs.fields(type(choice.config))):
        inner = getattr(choice.config, name)
        if isinstance(inner, Choice):
            yield from with_nested(inner, f"{path}.{name}" if path else name)


def parts_within(value: Any, registry: Registry) -> Iterator[ComponentSpec]:
    """Yield the spec of every part that is chosen in settings of any shape, at any depth.

    A choice does not say its kind: of parts with one name, those that take its settings count.
    """
    return (spec for spec, _ in chosen_within(value, registry))


def chosen_within(value: Any, registry: Registry) -> Iterator[tuple[ComponentSpec, Any]]:
    """Yield spec and settings of every part that is chosen in settings of any shape, as `parts_within` finds them."""
    if isinstance(value, Choice):
        found = (registry.get(kind, value.use) for kind in Kind if value.use in registry.names(kind))
        yield from ((spec, value.config) for spec in found if isinstance(value.config, spec.config))
    if attrs.has(type(value)):
        value = attrs.asdict(value, recurse=False)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for one in inner:
        yield from chosen_within(one, registry)


# The kinds of parts that can read the output of a stage of the run.
_READ_OUTPUTS = (Kind.QUERIES, Kind.COLUMN, Kind.MINER, Kind.STAGE)


def stage_outputs(settings: Any, registry: Registry) -> tuple[str, ...]:
    """Return the outputs of stages that the parts in settings of any shape read, as `stage:NAME/FILE`, each once.

    Raises DrkitError for a part of a kind that cannot read them.
    """
    found = []
    for spec, config in chosen_within(settings, registry):
        outputs = [path for path in spec.paths_of(config) if is_stage_output(path)]
        if outputs and spec.kind not in _READ_OUTPUTS:
            raise DrkitError(
                f"{spec.kind} {spec.name!r} cannot read {outputs[0]!r}: only parts of the kinds "
                f"{', '.join(map(str, _READ_OUTPUTS))} read outputs of stages; give it the path of a file"
            )
        found += outputs
    return tuple(dict.fromkeys(found))


def with_outputs(choice: Choice, paths: Mapping[str, Any], registry: Registry) -> Choice:
    """Return a choice whose settings have paths in place of outputs of stages; paths: by `stage:NAME/FILE`."""
    names = {name for spec, config in chosen_within(choice, registry) if config is choice.config for name in spec.files}
    changes: dict[str, Any] = {}
    for attribute in attrs.fields(type(choice.config)):
        value = getattr(choice.config, attribute.name)
        if attribute.name in names and is_stage_output(value):
            changes[attribute.name] = str(paths[value])
        elif isinstance(value, Choice):
            changes[attribute.name] = with_outputs(value, paths, registry)
        elif isinstance(value, tuple) and any(isinstance(one, Choice) for one in value):
            changes[attribute.name] = tuple(with_outputs(one, paths, registry) for one in value)
    return attrs.evolve(choice, config=attrs.evolve(choice.config, **changes)) if changes else choice


def parts_in_use(pretrain: Pretrain, registry: Registry) -> Iterator[PartInUse]:
    """Yield the maskers, contexts, decoders and losses of a pre-training, the encoder's first."""
    yield from parts_of(pretrain.encoder, registry, "pretrain.encoder")
    for name, task in pretrain.decoders.items():
        yield from parts_of(task, registry, f"pretrain.decoders.{name}")


def parts_of(task: EncoderTask | DecoderTask, registry: Registry, path: str) -> Iterator[PartInUse]:
    """Yield the parts of the encoder's task or of a decoder's."""
    for kind in (Kind.MASKER, Kind.CONTEXT, Kind.DECODER):
        if choice := getattr(task, kind.value, None):
            yield PartInUse.of(kind, choice, registry, f"{path}.{kind}")
    for name, term in task.losses.items():
        yield PartInUse.of(Kind.LOSS, term, registry, f"{path}.losses.{name}")


def all_parts(recipe: Recipe, registry: Registry) -> Iterator[PartInUse]:
    """Yield every part that a recipe names, from the collection to the re-ranker's miners."""
    yield PartInUse.of(Kind.COLLECTION, recipe.collection, registry)
    sets = (recipe.collections or {}).values()
    yield from (PartInUse.of(Kind.COLLECTION, own.collection, registry) for own in sets)
    if recipe.pretrain:
        yield from parts_in_use(recipe.pretrain, registry)
    miners: list[Choice] = []
    yield from query_parts(recipe, registry)
    for name, stage in (recipe.stages or {}).items():
        yield PartInUse.of(Kind.STAGE, stage, registry, f"stages.{name}")
    if recipe.finetune:
        yield from column_parts(recipe.finetune, registry)
        for one in recipe.finetune.rounds:
            losses = with_nested(recipe.finetune.for_round(one).loss)
            yield from (PartInUse.of(Kind.LOSS, loss, registry) for _, loss in losses)
            yield PartInUse.of(Kind.BATCHES, recipe.finetune.for_round(one).batches, registry)
            miners += one.miners
    if recipe.reranker:
        yield PartInUse.of(Kind.LOSS, recipe.reranker.loss, registry)
        miners += recipe.reranker.miners
    for own in sets:
        miners += own.miners or ()
    yield from (PartInUse.of(Kind.MINER, miner, registry) for miner in miners)


def column_parts(finetune: Finetune, registry: Registry) -> Iterator[PartInUse]:
    """Yield the parts that compute columns, each with its settings once."""
    chosen = filter(is_computed, finetune.column_sources())
    yield from (PartInUse.of(Kind.COLUMN, source, registry) for source in chosen)


def query_parts(recipe: Recipe, registry: Registry) -> Iterator[PartInUse]:
    """Yield the parts of plugins that make training queries."""
    sources = recipe.pseudo_queries.sources if recipe.pseudo_queries else ()
    for index, source in enumerate(sources):
        if is_from_plugin(source):
            yield PartInUse.of(Kind.QUERIES, source, registry, f"pseudo_queries.sources.{index}")


def required_signals(pretrain: Pretrain | None, registry: Registry) -> dict[str, Choice]:
    """Return the signals that the parts of a pre-training read, by name, with their settings.

    A setting that no part specifies has its default. Candidate queries always need the signal `importance`. Raises
    UnknownNameError for a signal that is not installed.
    """
    required: dict[str, dict[str, Any]] = {}
    if "generated-queries" in required_capabilities(pretrain, registry):
        required[FOR_EXTRACTIVE] = {}
    if pretrain and pretrain.weigh_by:
        required.setdefault(pretrain.weigh_by, {})
    for part in parts_in_use(pretrain, registry) if pretrain else ():
        for name, settings in part.spec.signals_of(part.config).items():
            required.setdefault(name, {}).update(settings)
    return {
        name: Choice(name, registry.get(Kind.SIGNAL, name).config(**settings))
        for name, settings in sorted(required.items())
    }


def signal_scopes(pretrain: Pretrain, registry: Registry) -> dict[str, str]:
    """Return what each signal of a pre-training has one value for, with the settings that it is computed with."""
    signals = required_signals(pretrain, registry)
    return {name: registry.get(Kind.SIGNAL, name).scope_of(chosen.config) for name, chosen in signals.items()}


def call_signals(spec: ComponentSpec, config: Any, scopes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the signals that a loss's call receives; signals of the vocabulary are in its `BuildContext` instead."""
    return tuple(name for name in sorted(spec.signals_of(config)) if scopes[name] != "vocabulary")


def required_capabilities(pretrain: Pretrain | None, registry: Registry) -> dict[str, Any]:
    """Return the capabilities that the parts of a pre-training require, by name, with their settings (or None)."""
    required: dict[str, Any] = {}
    for part in parts_in_use(pretrain, registry) if pretrain else ():
        for name, settings in part.spec.requires_of(part.config).items():
            required[name] = settings if settings is not None else required.get(name)
    return required


def columns_of(spec: ComponentSpec, config: Any) -> tuple[str, ...]:
    """Return the columns that a loss of fine-tuning receives beside the pairs; none for other losses."""
    receives = spec.receives_of(config)
    beside = receives - {PAIRS, *map(vector_name, vector_names(receives))}
    return tuple(sorted(beside)) if PAIRS in receives else ()


def pooling_vectors(pooling: Choice, registry: Registry) -> tuple[str, ...]:
    """Return the names of the vectors of a pooling that gives several, sorted; empty for one vector."""
    return vector_names(registry.get(Kind.POOLING, pooling.use).provides_of(pooling.config))


def vector_problems(spec: ComponentSpec, config: Any, path: str, pooling: Choice, registry: Registry) -> list[str]:
    """Return the problem of a part that reads a named vector which the pooling does not give, if there is one."""
    offered = pooling_vectors(pooling, registry)
    lacking = [name for name in vector_names(spec.receives_of(config)) if name not in offered]
    if not lacking:
        return []
    gives = f"gives {join_names(offered)}" if offered else "gives one vector"
    return [
        f"{spec.kind} {spec.name!r} reads the vector {join_names(map(repr, lacking))}, but the pooling {pooling.use!r} "
        f"{gives}{did_you_mean(lacking[0], offered)} choose a pooling, or settings of it, that provides "
        f"{vector_name(lacking[0])} (`drkit show pooling NAME`) @ {path}"
    ]


def received_columns(loss: Choice, registry: Registry) -> frozenset[str]:
    """Return the columns that a chosen loss, and each loss that it wraps, receives."""
    return frozenset(
        name for _, one in with_nested(loss) for name in columns_of(registry.get(Kind.LOSS, one.use), one.config)
    )


def batch_columns(finetune: Finetune, registry: Registry) -> tuple[str, ...]:
    """Return the columns of queries that the batches of fine-tuning receive."""
    return tuple(sorted(batches_receive(finetune, registry) - {*provided_by(BATCHING)}))


def batches_receive(finetune: Finetune, registry: Registry) -> frozenset[str]:
    """Return everything that the batches of fine-tuning receive, by name."""
    return registry.get(Kind.BATCHES, finetune.batches.use).receives_of(finetune.batches.config)


def maskers_that_fit(registry: Registry, receives: Iterable[str]) -> str:
    """Return a phrase that lists the maskers that provide all these names."""
    required = set(receives)
    names = [spec.name for spec in registry.specs(Kind.MASKER) if required <= set(spec.provides)]
    return f"maskers that fit: {', '.join(names) or 'none'}"


def compares_texts(pretrain: Pretrain, registry: Registry) -> bool:
    """Return whether any loss of a pre-training compares the texts of a batch (scope `batch`)."""
    terms = [term for _, term in pretrain.losses().values()]
    return any(registry.get(Kind.LOSS, term.use).scope_of(term.config) == "batch" for term in terms)


def losses_that_fit(registry: Registry, provided: Iterable[str]) -> str:
    """Return a phrase that lists the losses that receive only these names."""
    available = {*provided}
    names = [s.name for s in registry.specs(Kind.LOSS) if s.receives and {*s.receives} <= available]
    return f"losses that fit: {', '.join(names) or 'none'}"


def missing_extras(spec: ComponentSpec) -> list[str]:
    """Return a line that says what to install for a part; none if everything is installed."""
    try:
        spec.check_extras()
    except MissingExtraError as missing:
        return [str(missing)]
    return []


def join_names(names: Iterable[str]) -> str:
    """Return `a and b and c`, or `nothing` for an empty list."""
    return " and ".join(names) or "nothing"
