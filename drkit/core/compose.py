"""Which parts go together: typed data flow, checked before torch is imported.

A part *receives* and *provides* names, reads *signals* and *requires* capabilities of the run; the check follows a
recipe from the collection to the losses and says of every gap who asks for what, who offers what, and which other parts
would fit. `drkit.core.provided` lists the names that are always there, with their meanings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core import provided
from drkit.core.compose_rounds import rounds_problems
from drkit.core.declared import declared
from drkit.core.loading import check_model_path
from drkit.core.reasons import fitting, listed, losses_for, missing_extras
from drkit.core.recipe import Choice, Pretrain, Recipe
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind, scope_problems
from drkit.errors import DrkitError, ProblemsError, did_you_mean

# The signal by which texts without a given query are searched for spans that stand for one.
FOR_EXTRACTIVE = "importance"


@frozen
class PartInUse:
    """A part of the pre-training: its spec, its settings, and where the recipe names it."""

    spec: ComponentSpec
    config: Any
    path: str

    @property
    def title(self) -> str:
        """`masker 'pmi'`."""
        return f"{self.spec.kind} {self.spec.name!r}"


def check(recipe: Recipe, registry: Registry) -> None:
    """Raise ProblemsError, listing every combination in the recipe that cannot work."""
    problems = [*_collection_problems(recipe, registry), *_encoder_problems(recipe)]
    if recipe.pretrain:
        problems += _pretrain_problems(recipe.pretrain, registry)
    problems += rounds_problems(recipe, registry)
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def parts_in_use(pretrain: Pretrain, registry: Registry) -> Iterator[PartInUse]:
    """The masker, the decoder and the losses of a pre-training."""
    chosen = [(Kind.MASKER, pretrain.masker), (Kind.DECODER, pretrain.decoder)]
    for kind, choice in chosen:
        yield PartInUse(registry.get(kind, choice.use), choice.config, f"pretrain.{kind}")
    for name, term in pretrain.losses.items():
        yield PartInUse(registry.get(Kind.LOSS, term.use), term.config, f"pretrain.losses.{name}")


def wanted_signals(pretrain: Pretrain | None, registry: Registry) -> dict[str, Choice]:
    """The signals that the parts of a pre-training read, by name, each with the settings wanted of it.

    Settings that no part names have their defaults. Candidate queries need `importance`, whoever reads it. Raises
    UnknownNameError for a signal that nothing makes.
    """
    wanted: dict[str, dict[str, Any]] = {}
    if "generated-queries" in capabilities(pretrain, registry):
        wanted[FOR_EXTRACTIVE] = {}
    for part in parts_in_use(pretrain, registry) if pretrain else ():
        for name, settings in part.spec.signals_of(part.config).items():
            wanted.setdefault(name, {}).update(settings)
    return {
        name: Choice(name, registry.get(Kind.SIGNAL, name).config(**settings))
        for name, settings in sorted(wanted.items())
    }


def capabilities(pretrain: Pretrain | None, registry: Registry) -> dict[str, Any]:
    """What the parts of a pre-training require of the run, by name, with the settings that a part wants (or None)."""
    found: dict[str, Any] = {}
    for part in parts_in_use(pretrain, registry) if pretrain else ():
        for name, settings in part.spec.requires_of(part.config).items():
            found[name] = settings if settings is not None else found.get(name)
    return found


def context_kind(pretrain: Pretrain, registry: Registry) -> str:
    """Which other text the decoder rebuilds: `span`, `query`, `mixed`; `self` where the masker provides no context."""
    masker = next(parts_in_use(pretrain, registry))
    if "context" not in masker.spec.provides_of(masker.config):
        return "self"
    required = masker.spec.requires_of(masker.config)
    kinds = [kind for kind, stage in (("span", "spans"), ("query", "generated-queries")) if stage in required]
    return "mixed" if len(kinds) > 1 else kinds[0] if kinds else "self"


def _collection_problems(recipe: Recipe, registry: Registry) -> list[str]:
    spec = registry.get(Kind.COLLECTION, recipe.collection.use)
    problems = []
    if spec.shorthand and not getattr(recipe.collection.config, spec.shorthand):
        problems.append(
            f"collection {spec.name!r} needs {spec.shorthand!r}: write `--collection {spec.name}:VALUE` @ collection"
        )
    if recipe.pretrain is None and recipe.finetune is None:
        problems.append("the recipe has neither [pretrain] nor [finetune]: there is nothing to train")
    if recipe.finetune and recipe.pretrain is None and "queries" not in spec.provides:
        problems.append(f"collection {spec.name!r} has no queries and judgements to fine-tune on @ finetune")
    return problems


def _encoder_problems(recipe: Recipe) -> list[str]:
    sizes = recipe.encoder
    if sizes.pretrained is None and sizes.hidden % sizes.heads:
        return [f"hidden ({sizes.hidden}) is no multiple of heads ({sizes.heads}) @ encoder"]
    if sizes.pretrained is None:
        return []
    try:
        check_model_path(sizes.pretrained)
    except DrkitError as error:
        return [f"{error} @ encoder.pretrained"]
    if sizes.declared == "ignore":
        return []
    told = declared(Path(sizes.pretrained).expanduser())
    return told.clashes(sizes) if told else []


def _pretrain_problems(pretrain: Pretrain, registry: Registry) -> list[str]:
    masker, decoder, *losses = parts_in_use(pretrain, registry)
    views = masker.spec.provides_of(masker.config)
    problems = [problem for part in (masker, decoder, *losses) for problem in _own_problems(part)]
    problems += _signal_problems((masker, decoder, *losses), registry)
    problems += _masker_problems(masker)
    problems += _decoder_problems(decoder, masker, registry)
    offers = {
        "encoder": provided.provided_by(provided.ENCODER, provided.BATCH, masker=views),
        "decoder": tuple(sorted({*decoder.spec.provides_of(decoder.config), *provided.provided_by(provided.BATCH)})),
    }
    for loss, term in zip(losses, pretrain.losses.values(), strict=True):
        source = "the encoder" if term.on == "encoder" else decoder.title
        problems += _loss_problems(loss, offers[term.on], source, registry)
    return problems


def _own_problems(part: PartInUse) -> list[str]:
    """What is wrong with a part's declaration under these settings, whatever stands beside it."""
    receives, spec = part.spec.receives_of(part.config), part.spec
    problems = [f"{problem} @ {part.path}" for problem in missing_extras(spec)]
    problems += [
        f"{part.title} requires {word!r}, which no stage of a pre-training makes"
        f"{did_you_mean(word, provided.MADE_FOR_PRETRAINING)} allowed: "
        f"{', '.join(provided.MADE_FOR_PRETRAINING)} @ {part.path}"
        for word in spec.requires_of(part.config)
        if word not in provided.MADE_FOR_PRETRAINING
    ]
    problems += [
        f"{part.title}: {problem} @ {part.path}"
        for problem in scope_problems(spec.kind, spec.scope_of(part.config), receives)
    ]
    return problems


def _signal_problems(parts: Iterable[PartInUse], registry: Registry) -> Iterator[str]:
    """Signals that nothing makes, settings that they do not have, and settings that two parts want otherwise."""
    seen: dict[tuple[str, str], tuple[PartInUse, Any]] = {}
    known = registry.names(Kind.SIGNAL)
    for part in parts:
        for name, settings in part.spec.signals_of(part.config).items():
            if name not in known:
                yield (
                    f"{part.title} reads the signal {name!r}, which nothing installed makes{did_you_mean(name, known)} "
                    f"known: {', '.join(known) or 'none'}; see `drkit list signal` @ {part.path}"
                )
                continue
            yield from _settings_problems(part, registry.get(Kind.SIGNAL, name), settings)
            for key, value in settings.items():
                other, before = seen.setdefault((name, key), (part, value))
                if before != value:
                    yield (
                        f"{part.title} wants the signal {name!r} with {key} = {value!r}, {other.title} wants it with "
                        f"{before!r}, and a run has it once: set both to the same @ {part.path}"
                    )


def _settings_problems(part: PartInUse, signal: ComponentSpec, settings: Mapping[str, Any]) -> Iterator[str]:
    try:
        signal.config(**settings)
    except (TypeError, ValueError) as error:
        yield f"{part.title} wants the signal {signal.name!r} with settings that it refuses: {error} @ {part.path}"


def _masker_problems(masker: PartInUse) -> list[str]:
    received = sorted(masker.spec.receives_of(masker.config))
    if not received:
        return []
    return [
        f"{masker.title} receives {listed(received)}; a masker's call receives the batch alone, with its signals "
        f"@ {masker.path}"
    ]


def _decoder_problems(decoder: PartInUse, masker: PartInUse, registry: Registry) -> list[str]:
    wanted, views = decoder.spec.receives_of(decoder.config), masker.spec.provides_of(masker.config)
    lacking = sorted(wanted - views)
    if not lacking:
        return []
    return [
        f"{decoder.title} needs {listed(lacking)}; {masker.title} provides {listed(sorted(views))}. "
        f"{_unknown_names(lacking, Kind.MASKER, registry)}{fitting(registry, Kind.MASKER, wanted)} @ {decoder.path}"
    ]


def _loss_problems(loss: PartInUse, offered: tuple[str, ...], source: str, registry: Registry) -> list[str]:
    lacking = sorted(loss.spec.receives_of(loss.config) - {*offered})
    if not lacking:
        return _gathering_problems(loss)
    return [
        f"{loss.title} needs {listed(lacking)}; {source} provides {listed(offered)}. "
        f"{_unknown_names(lacking, Kind.DECODER, registry)}{losses_for(registry, offered)} @ {loss.path}"
    ]


def _gathering_problems(loss: PartInUse) -> list[str]:
    """A loss that compares rows of the whole batch receives plain tensors: bundles cannot be gathered."""
    if loss.spec.scope_of(loss.config) != "batch":
        return []
    bundles = {p.name for p in provided.PROVIDED if p.source == provided.ENCODER and not p.per_text}
    wrong = sorted(bundles & loss.spec.receives_of(loss.config))
    if not wrong:
        return []
    return [
        f"{loss.title} has scope 'batch' and receives {listed(wrong)}, which cannot be gathered from chunks and "
        f"processes; a loss of that scope receives tensors with one row a text, such as bottleneck @ {loss.path}"
    ]


def _unknown_names(names: Iterable[str], by: Kind, registry: Registry) -> str:
    """A sentence for each name that neither the engine nor any installed part of this kind provides."""
    known = provided.engine_names() | {name for spec in registry.specs(by) for name in spec.provides}
    unknown = [name for name in names if name not in known]
    return "".join(f"nothing installed provides {name!r}{did_you_mean(name, sorted(known))} " for name in unknown)
