"""Which parts go together: typed data flow, checked before torch is imported.

A part *receives* names, reads *signals*, *requires* capabilities of the run and *provides* names. The check follows a
recipe from the collection to the losses and the rounds of fine-tuning, and says of every gap who needs what, who
provides what, and which other parts would fit. `drkit.core.provided` lists the names that the engine brings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core import provided
from drkit.core.loading import check_model_path
from drkit.core.protocols import RefreshesNegatives
from drkit.core.provided import FINETUNING, FOR_LOSSES, RERANKING, provided_by
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind, scope_problems
from drkit.errors import DrkitError, ProblemsError, did_you_mean
from drkit.recipe.schema import RERANKER, Choice, Finetune, Pretrain, Recipe, similarity_of
from drkit.recipe.start import declared


def fitting(registry: Registry, kind: Kind, receives: Iterable[str]) -> str:
    """Which parts of a kind provide these."""
    wanted = set(receives)
    names = [registry.name_of(spec) for spec in registry.specs(kind) if wanted <= set(spec.provides)]
    return f"{kind}s that fit: {', '.join(names) or 'none'}"


def losses_for(registry: Registry, provided: Iterable[str]) -> str:
    """Which losses receive no more than this."""
    names = [registry.name_of(s) for s in registry.specs(Kind.LOSS) if s.receives and {*s.receives} <= {*provided}]
    return f"losses that fit: {', '.join(names) or 'none'}"


def missing_extras(spec: ComponentSpec) -> list[str]:
    """A line for every package that a part needs and that is not installed."""
    absent = [extra for extra in spec.extras if find_spec(extra) is None]
    return [f"{spec.kind} {spec.name!r} needs the package {name!r}, which is not installed" for name in absent]


def listed(names: Iterable[str]) -> str:
    """`a and b and c`, or `nothing`."""
    return " and ".join(names) or "nothing"


# Folders of a run that a round's own folder must not be taken for.
STAGE_NAMES = (
    "collection",
    "vocabulary",
    "tokens",
    "spans",
    "queries",
    "generator",
    "initial",
    "pretrained",
    "no-pretraining",
    "encoder",
    "index",
    "runs",
    "evaluation",
    "report",
    "bm25",
    "reranker",
)
STAGE_FAMILIES = ("signal-", "index-", "negatives-", "teacher-")
_ROUND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def rounds_problems(recipe: Recipe, registry: Registry) -> list[str]:
    """Every combination of rounds, losses, miners and the re-ranker that cannot work."""
    problems = []
    if recipe.finetune:
        problems += _finetune_problems(recipe.finetune, registry)
        problems += _round_problems(recipe, recipe.finetune, registry)
        problems += _model_problems(recipe, recipe.finetune)
    if recipe.reranker:
        problems += _reranker_problems(recipe, registry)
    return problems


def _finetune_problems(finetune: Finetune, registry: Registry) -> list[str]:
    """Losses, and the names of rounds, which become folders."""
    problems = _fine_tuning_loss("finetune.loss", finetune.loss, FINETUNING, registry)
    for place, current in enumerate(finetune.rounds):
        loss = finetune.of(current).loss
        if current.loss:
            problems += _fine_tuning_loss(f"finetune.rounds.{place}.loss", loss, FINETUNING, registry)
        if "teacher" in registry.get(Kind.LOSS, loss.use).requires_of(loss.config) and not current.teacher:
            problems.append(
                f"loss {loss.use!r} learns from a teacher's scores, and the round has none: set teacher to reranker, "
                f"or to a cross-encoder's path or hub id @ finetune.rounds.{place}"
            )
        similarities = {similarity_of(one) for one in (finetune.loss, loss)}
        if len(similarities) > 1:
            problems.append(
                f"the round trains for another similarity than finetune.loss ({', '.join(sorted(similarities))}), and "
                f"one encoder has one: set both to the same @ finetune.rounds.{place}.loss"
            )
    return [*problems, *_name_problems([r.name for r in finetune.rounds])]


def _fine_tuning_loss(path: str, loss: Choice, source: str, registry: Registry) -> list[str]:
    """source: `provided.FINETUNING` or `provided.RERANKING`."""
    spec, offered = registry.get(Kind.LOSS, loss.use), provided_by(source)
    receives = spec.receives_of(loss.config)
    problems = []
    if not receives or not receives <= {*offered}:
        problems.append(
            f"loss {spec.name!r} needs {listed(sorted(receives))}; this training provides {listed(offered)}. "
            f"{losses_for(registry, offered)} @ {path}"
        )
    if signals := sorted(spec.signals_of(loss.config)):
        problems.append(
            f"loss {spec.name!r} reads the signal {listed(signals)}, and {source} carries none; signals reach the "
            f"parts of [pretrain] @ {path}"
        )
    if lacking := sorted(spec.requires_of(loss.config).keys() - {*FOR_LOSSES}):
        problems.append(
            f"loss {spec.name!r} requires {listed(lacking)}; a loss of {source} may require {listed(FOR_LOSSES)} "
            f"@ {path}"
        )
    return problems


def _name_problems(names: list[str]) -> list[str]:
    problems = [
        f"two rounds are named {name!r} @ finetune.rounds" for name in sorted({*names}) if names.count(name) > 1
    ]
    for name in dict.fromkeys(names):
        if name in STAGE_NAMES or name.startswith(STAGE_FAMILIES) or not _ROUND_NAME.fullmatch(name):
            problems.append(
                f"a round cannot be named {name!r}: it becomes a folder beside the run's other stages. Use letters, "
                f"digits, '.', '_' and '-', and none of "
                f"{', '.join(STAGE_NAMES)}, {', '.join(f'{f}*' for f in STAGE_FAMILIES)} @ finetune.rounds"
            )
    return problems


def _round_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> list[str]:
    """What a round's miners and teacher want of the rounds before it."""
    problems, trained = [], False
    for place, current in enumerate(finetune.rounds):
        path = f"finetune.rounds.{place}"
        if current.teacher == RERANKER:
            problems += _teacher_problems(recipe, place, path)
            trained = True
        if current.teacher and any(isinstance(m.config, RefreshesNegatives) for m in current.miners):
            problems.append(
                f"a teacher scores the list that was mined before the round, and 'refresh' mines another one while it "
                f"runs: take dense in its place @ {path}.miners"
            )
        present = (*(["retriever"] if place else []), *([RERANKER] if trained else []))
        problems += _chain_problems(current.miners, present, registry, f"{path}.miners")
    return problems


def _model_problems(recipe: Recipe, finetune: Finetune) -> list[str]:
    """Models that are first loaded when much is done already: those that cannot be there are told at once."""
    named = {f"finetune.rounds.{place}.teacher": own.teacher for place, own in enumerate(finetune.rounds)}
    if recipe.reranker:
        named["reranker.pretrained"] = recipe.reranker.pretrained or ""
    problems = []
    for path, model in named.items():
        if model and model != RERANKER:
            try:
                check_model_path(model)
            except DrkitError as error:
                problems.append(f"{error} @ {path}")
    return problems


def _teacher_problems(recipe: Recipe, place: int, path: str) -> list[str]:
    if recipe.reranker is None:
        return [f"the teacher 'reranker' wants a table [reranker], and the recipe has none @ {path}.teacher"]
    if not place:
        return [f"the re-ranker is trained on what the round before finds, and there is none @ {path}.teacher"]
    return []


def _reranker_problems(recipe: Recipe, registry: Registry) -> list[str]:
    assert recipe.reranker is not None
    if recipe.finetune is None:
        return ["the re-ranker is trained on what a retriever finds: [finetune] is missing @ reranker"]
    return [
        *_fine_tuning_loss("reranker.loss", recipe.reranker.loss, RERANKING, registry),
        *_chain_problems(recipe.reranker.miners, ("retriever",), registry, "reranker.miners"),
    ]


def _chain_problems(miners: tuple[Choice, ...], present: tuple[str, ...], registry: Registry, path: str) -> list[str]:
    """A chain is a source of negatives, then filters; each needs what the run has by then."""
    problems = []
    for place, choice in enumerate(miners):
        miner = registry.get(Kind.MINER, choice.use)
        requires = miner.requires_of(choice.config)
        problems += missing_extras(miner)
        if ("candidates" in miner.receives_of(choice.config)) != bool(place):
            what = "only filters what another miner found" if not place else "finds negatives itself"
            where = "put a source such as bm25 or dense before it" if not place else "a chain begins with it"
            problems.append(f"miner {miner.name!r} {what}; {where} @ {path}.{place}")
        if "retriever" in requires and "retriever" not in present:
            problems.append(
                f"miner {miner.name!r} searches with the retriever of the round before, and there is none; "
                f"put a round with bm25 or random before it @ {path}.{place}"
            )
        if RERANKER in requires and RERANKER not in present:
            problems.append(
                f"miner {miner.name!r} scores with the run's re-ranker, which is not trained by then; "
                f"give its `model` a cross-encoder's path or hub id @ {path}.{place}"
            )
    return problems


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
