"""Which maskers and decoders go together, pair by pair, and where each loss can stand: `drkit list --matrix`.

Every pair is composed and checked as `drkit compose --masker M --decoder D` does it, the decoder's own loss in the
place of one that does not fit it included. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from attrs import frozen

from drkit.core.discovery import Installed
from drkit.core.provided import BATCH, ENCODER, FINETUNING, MADE_FOR_PRETRAINING, PROVIDED, RERANKING, provided_by
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Choice, Recipe


@frozen
class Pair:
    """A masker with a decoder; `problems` says why it cannot work, and is empty where it can."""

    masker: str
    decoder: str
    problems: tuple[str, ...] = ()


@frozen
class LossPlacement:
    """Where a loss can stand: on the encoder's output, on that of some decoders, in fine-tuning, in the re-ranker.

    needs: what its call receives, its signals, and what it requires of the run.
    """

    name: str
    needs: tuple[str, ...]
    encoder: bool
    decoders: tuple[str, ...]
    finetuning: bool
    reranking: bool
    needs_teacher: bool


@frozen
class Matrix:
    """All pairs, row by row; what each part needs that a stage of the run makes (by `kind name`); the losses."""

    maskers: tuple[str, ...]
    decoders: tuple[str, ...]
    pairs: tuple[Pair, ...]
    made: dict[str, tuple[str, ...]]
    losses: tuple[LossPlacement, ...]

    def reasons(self) -> dict[str, tuple[Pair, ...]]:
        """The pairs that do not go together, by the reason."""
        found: dict[str, tuple[Pair, ...]] = {}
        for pair in self.pairs:
            for problem in pair.problems:
                found[problem] = (*found.get(problem, ()), pair)
        return found


def matrix(parts: Installed) -> Matrix:
    """What goes together of everything installed."""
    maskers, decoders, losses = (_by_name(parts, kind) for kind in (Kind.MASKER, Kind.DECODER, Kind.LOSS))
    pairs = [pair for decoder in decoders for pair in _row(parts, decoder, maskers)]
    named = [*maskers.items(), *decoders.items(), *losses.items()]
    return Matrix(
        maskers=tuple(maskers),
        decoders=tuple(decoders),
        pairs=tuple(pairs),
        made={f"{spec.kind} {name}": _made(spec) for name, spec in named if _made(spec)},
        losses=tuple(_places(name, loss, decoders) for name, loss in losses.items()),
    )


def _row(parts: Installed, decoder: str, maskers: Mapping[str, ComponentSpec]) -> list[Pair]:
    """One decoder with every masker. The recipe is composed once: a masker's defaults do not depend on the decoder."""
    try:
        recipe = compose(ComposeRequest(decoder=decoder), parts)
    except DrkitError as error:
        return [Pair(name, decoder, _said(error)) for name in maskers]
    return [Pair(name, decoder, _problems(recipe, name, masker, parts)) for name, masker in maskers.items()]


def _problems(recipe: Recipe, name: str, masker: ComponentSpec, parts: Installed) -> tuple[str, ...]:
    try:
        chosen = Choice(name, masker.config())
    except TypeError as error:  # a stranger's config without a default
        return (f"masker {name!r} has settings without a default: {error}",)
    assert recipe.pretrain is not None
    try:
        check(attrs.evolve(recipe, pretrain=attrs.evolve(recipe.pretrain, masker=chosen)), parts.registry)
    except DrkitError as error:
        return _said(error)
    return ()


def _said(error: DrkitError) -> tuple[str, ...]:
    """The problems of an error, without the place in the recipe."""
    problems = error.problems if isinstance(error, ProblemsError) else (str(error),)
    return tuple(problem.rpartition(" @ ")[0] or problem for problem in problems)


def _by_name(parts: Installed, kind: Kind) -> dict[str, ComponentSpec]:
    """The parts of a kind by the names that recipes have for them: `PACKAGE:NAME` where a name is another's."""
    return {parts.registry.name_of(spec): spec for spec in parts.registry.specs(kind)}


def _made(spec: ComponentSpec) -> tuple[str, ...]:
    """The signals it reads and what it requires that a stage of the run makes."""
    config = _defaults(spec)
    return tuple(sorted({*spec.signals_of(config), *({*spec.requires_of(config)} & {*MADE_FOR_PRETRAINING})}))


def _provides(spec: ComponentSpec) -> frozenset[str]:
    return spec.provides_of(_defaults(spec))


def _defaults(spec: ComponentSpec) -> object:
    try:
        return spec.config()
    except TypeError:
        return None


def _places(name: str, loss: ComponentSpec, decoders: Mapping[str, ComponentSpec]) -> LossPlacement:
    config = _defaults(loss)
    wanted, beside = loss.receives_of(config), {*provided_by(BATCH)}
    fitting = [n for n, d in decoders.items() if wanted <= {*_provides(d), *beside} and wanted - beside]
    masked = {p.name for p in PROVIDED if p.if_masked}
    return LossPlacement(
        name=name,
        needs=tuple(sorted({*wanted, *loss.signals_of(config), *loss.requires_of(config)})),
        encoder=bool(wanted) and wanted <= {*provided_by(ENCODER, BATCH, masker=masked)},
        decoders=tuple(fitting),
        finetuning=bool(wanted) and wanted <= {*provided_by(FINETUNING)},
        reranking=bool(wanted) and wanted <= {*provided_by(RERANKING)},
        needs_teacher="teacher" in loss.requires_of(config),
    )
