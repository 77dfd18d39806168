"""The check of a recipe: do its parts go together? It runs before torch is imported.

Each part *receives* names, reads *signals*, *requires* capabilities of the run and *provides* names. The check follows
a recipe from the collection through pre-training to the rounds of fine-tuning (`drkit.recipe.rounds`). For every gap it
reports which part needs what, what is provided instead, and which other parts would fit. `drkit.core.spec` lists the
names that drkit itself provides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from drkit.core.files import local_path
from drkit.core.loading import check_model_path
from drkit.core.registry import Registry
from drkit.core.spec import (
    BATCH,
    ENCODER,
    MADE_FOR_PRETRAINING,
    PROVIDED,
    ComponentSpec,
    Kind,
    engine_names,
    provided_by,
    scope_problems,
)
from drkit.encoders.folder import MODULES, read_modules
from drkit.encoders.pooling import static_problem
from drkit.errors import DrkitError, ProblemsError, did_you_mean
from drkit.recipe.parts import PartInUse, join_names, losses_that_fit, maskers_that_fit, missing_extras, parts_in_use
from drkit.recipe.rounds import rounds_problems
from drkit.recipe.schema import Pretrain, Recipe
from drkit.recipe.start import declared_settings_of


def check(recipe: Recipe, registry: Registry) -> None:
    """Raise ProblemsError that lists every combination in the recipe that cannot work."""
    problems = [*_collection_problems(recipe, registry), *_encoder_problems(recipe)]
    if recipe.pretrain:
        problems += _pretrain_problems(recipe.pretrain, registry)
    problems += rounds_problems(recipe, registry)
    if problems:
        raise ProblemsError(f"recipe {recipe.name!r} cannot work", problems)


def _collection_problems(recipe: Recipe, registry: Registry) -> list[str]:
    spec = registry.get(Kind.COLLECTION, recipe.collection.use)
    problems = []
    if spec.shorthand and not getattr(recipe.collection.config, spec.shorthand):
        problems.append(
            f"collection {spec.name!r} needs {spec.shorthand!r}: write `--collection {spec.name}:VALUE` @ collection"
        )
    is_trained = recipe.pretrain or (recipe.finetune and recipe.finetune.rounds)
    if not is_trained and recipe.encoder.pretrained is None:
        problems.append("the recipe trains nothing: add [pretrain] or [finetune], or evaluate an --encoder as it is")
    if recipe.pseudo_queries and not (recipe.finetune and recipe.finetune.rounds):
        problems.append(
            "pseudo-queries are trained on by fine-tuning, which is missing: add [finetune] @ pseudo_queries"
        )
    has_queries = recipe.pseudo_queries or "queries" in spec.provides
    if recipe.finetune and recipe.pretrain is None and not has_queries:
        problems.append(f"collection {spec.name!r} has no queries and judgements to fine-tune on @ finetune")
    return problems


def _encoder_problems(recipe: Recipe) -> list[str]:
    encoder = recipe.encoder
    if encoder.pretrained is None:
        if encoder.hidden % encoder.heads:
            return [f"hidden ({encoder.hidden}) must be a multiple of heads ({encoder.heads}) @ encoder"]
        return [] if encoder.layers else list(_static_problems(recipe))
    folder = local_path(encoder.pretrained)
    if (folder / MODULES).is_file() and "StaticEmbedding" in read_modules(folder):
        return [
            f"{folder} is an exported static encoder, which has neither its LM head nor separate token weights: start "
            f"from its run or its checkpoint @ encoder.pretrained"
        ]
    try:
        check_model_path(encoder.pretrained)
    except DrkitError as error:
        return [f"{error} @ encoder.pretrained"]
    if encoder.declared == "ignore":
        return []
    declared = declared_settings_of(folder)
    return declared.clashes(encoder) if declared else []


def _static_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what an encoder without layers cannot do."""
    encoder = recipe.encoder
    problem = static_problem(encoder.pooling, has_unit_length=recipe.similarity == "cosine")
    if problem:
        yield f"{problem}, or --set encoder.layers=1 for a transformer layer (encoder.layers is 0) @ encoder.pooling"
    if encoder.lm_head != "tied":
        yield "a static encoder (encoder.layers = 0) has only the LM head 'tied' @ encoder.lm_head"
    if recipe.pretrain and getattr(recipe.pretrain.decoder.config, "init", "") == "encoder-tail":
        yield (
            "a static encoder (encoder.layers = 0) has no layers that a decoder could start from: "
            "--set pretrain.decoder.init=random @ pretrain.decoder"
        )
    if recipe.reranker and recipe.reranker.pretrained is None:
        yield (
            "a re-ranker cannot start from a static encoder (encoder.layers = 0): set reranker.pretrained to a path or "
            "hub id, or encoder.layers to 1 or more @ reranker.pretrained"
        )


def _pretrain_problems(pretrain: Pretrain, registry: Registry) -> list[str]:
    masker, decoder, *losses = parts_in_use(pretrain, registry)
    problems = [problem for part in (masker, decoder, *losses) for problem in _declaration_problems(part)]
    problems += _signal_problems((masker, decoder, *losses), registry)
    problems += _masker_problems(masker)
    problems += _decoder_problems(decoder, masker, registry)
    views = masker.spec.provides_of(masker.config)
    offers = {
        "encoder": provided_by(ENCODER, BATCH, masker=views),
        "decoder": tuple(sorted({*decoder.spec.provides_of(decoder.config), *provided_by(BATCH)})),
    }
    for loss, term in zip(losses, pretrain.losses.values(), strict=True):
        source = "the encoder" if term.on == "encoder" else decoder.title
        problems += _loss_problems(loss, offers[term.on], source, registry)
    return problems


def _declaration_problems(part: PartInUse) -> list[str]:
    """Return what is wrong with a part's declaration under these settings, regardless of the other parts."""
    receives, spec = part.spec.receives_of(part.config), part.spec
    problems = [f"{problem} @ {part.path}" for problem in missing_extras(spec)]
    problems += [
        f"{part.title} requires {word!r}, which no stage of pre-training provides"
        f"{did_you_mean(word, MADE_FOR_PRETRAINING)} allowed: "
        f"{', '.join(MADE_FOR_PRETRAINING)} @ {part.path}"
        for word in spec.requires_of(part.config)
        if word not in MADE_FOR_PRETRAINING
    ]
    problems += [
        f"{part.title}: {problem} @ {part.path}"
        for problem in scope_problems(spec.kind, spec.scope_of(part.config), receives)
    ]
    return problems


def _signal_problems(parts: Iterable[PartInUse], registry: Registry) -> Iterator[str]:
    """Yield unknown signals, settings that a signal refuses, and settings on which two parts disagree."""
    seen: dict[tuple[str, str], tuple[PartInUse, Any]] = {}
    available = registry.names(Kind.SIGNAL)
    for part in parts:
        for name, settings in part.spec.signals_of(part.config).items():
            if name not in available:
                yield (
                    f"{part.title} reads the signal {name!r}, which is not installed{did_you_mean(name, available)} "
                    f"known: {', '.join(available) or 'none'}; see `drkit list signal` @ {part.path}"
                )
                continue
            yield from _settings_problems(part, registry.get(Kind.SIGNAL, name), settings)
            for key, value in settings.items():
                other, earlier = seen.setdefault((name, key), (part, value))
                if earlier != value:
                    yield (
                        f"{part.title} needs the signal {name!r} with {key} = {value!r}, but {other.title} needs it "
                        f"with {earlier!r}, and a run computes each signal once: set both to the same @ {part.path}"
                    )


def _settings_problems(part: PartInUse, signal: ComponentSpec, settings: Mapping[str, Any]) -> Iterator[str]:
    try:
        signal.config(**settings)
    except (TypeError, ValueError) as error:
        yield f"{part.title} reads the signal {signal.name!r} with invalid settings: {error} @ {part.path}"


def _masker_problems(masker: PartInUse) -> list[str]:
    received = sorted(masker.spec.receives_of(masker.config))
    if not received:
        return []
    return [
        f"{masker.title} receives {join_names(received)}, but a masker can only receive the batch, with its signals "
        f"@ {masker.path}"
    ]


def _decoder_problems(decoder: PartInUse, masker: PartInUse, registry: Registry) -> list[str]:
    receives, views = decoder.spec.receives_of(decoder.config), masker.spec.provides_of(masker.config)
    lacking = sorted(receives - views)
    if not lacking:
        return []
    return [
        f"{decoder.title} needs {join_names(lacking)}; {masker.title} provides {join_names(sorted(views))}. "
        f"{_unknown_names(lacking, Kind.MASKER, registry)}{maskers_that_fit(registry, receives)} @ {decoder.path}"
    ]


def _loss_problems(loss: PartInUse, offered: tuple[str, ...], source: str, registry: Registry) -> list[str]:
    lacking = sorted(loss.spec.receives_of(loss.config) - {*offered})
    if not lacking:
        return _gathering_problems(loss)
    return [
        f"{loss.title} needs {join_names(lacking)}; {source} provides {join_names(offered)}. "
        f"{_unknown_names(lacking, Kind.DECODER, registry)}{losses_that_fit(registry, offered)} @ {loss.path}"
    ]


def _gathering_problems(loss: PartInUse) -> list[str]:
    """A loss that compares the rows of the whole batch must receive plain tensors: bundles cannot be gathered."""
    if loss.spec.scope_of(loss.config) != "batch":
        return []
    bundles = {p.name for p in PROVIDED if p.source == ENCODER and not p.per_text}
    wrong = sorted(bundles & loss.spec.receives_of(loss.config))
    if not wrong:
        return []
    return [
        f"{loss.title} has scope 'batch' and receives {join_names(wrong)}, which cannot be gathered from chunks and "
        f"processes; it must receive tensors with one row per text, such as bottleneck @ {loss.path}"
    ]


def _unknown_names(names: Iterable[str], kind: Kind, registry: Registry) -> str:
    """Return a sentence for each name that neither drkit nor any installed part of this kind provides."""
    available = engine_names() | {name for spec in registry.specs(kind) for name in spec.provides}
    unknown = [name for name in names if name not in available]
    return "".join(f"No installed part provides {name!r}{did_you_mean(name, sorted(available))} " for name in unknown)
