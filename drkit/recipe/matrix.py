"""The compatibility matrix of `drkit list --matrix`: maskers with decoders, and what each loss can be used for.

Every pair is composed and checked exactly as by `drkit compose --masker M --decoder D`: if the recipe's loss does not
fit the decoder, the decoder's own loss replaces it. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from attrs import frozen

from drkit.core.discovery import Installed
from drkit.core.spec import (
    BATCH,
    ENCODER,
    FINETUNING,
    MADE_FOR_PRETRAINING,
    PROVIDED,
    RERANKING,
    ComponentSpec,
    Kind,
    provided_by,
)
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Choice, Recipe


@frozen
class Pair:
    """A masker with a decoder; `problems` lists why they cannot work together, and is empty if they can."""

    masker: str
    decoder: str
    problems: tuple[str, ...] = ()


@frozen
class LossPlacement:
    """What a loss can be used for: on the encoder, on some decoders, in fine-tuning, for the re-ranker.

    needs: the names it receives, the signals it reads, and the capabilities it requires.
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
    """All pairs, row by row; what stages of the run must make for each part (by `kind name`); the losses."""

    maskers: tuple[str, ...]
    decoders: tuple[str, ...]
    pairs: tuple[Pair, ...]
    made: dict[str, tuple[str, ...]]
    losses: tuple[LossPlacement, ...]

    def reasons(self) -> dict[str, tuple[Pair, ...]]:
        """Return the pairs that cannot work together, by reason."""
        found: dict[str, tuple[Pair, ...]] = {}
        for pair in self.pairs:
            for problem in pair.problems:
                found[problem] = (*found.get(problem, ()), pair)
        return found


def matrix(parts: Installed) -> Matrix:
    """Return the matrix of all installed maskers, decoders and losses."""
    maskers, decoders, losses = (_by_name(parts, kind) for kind in (Kind.MASKER, Kind.DECODER, Kind.LOSS))
    pairs = [pair for decoder in decoders for pair in _row(parts, decoder, maskers)]
    named = [*maskers.items(), *decoders.items(), *losses.items()]
    return Matrix(
        maskers=tuple(maskers),
        decoders=tuple(decoders),
        pairs=tuple(pairs),
        made={f"{spec.kind} {name}": _made(spec) for name, spec in named if _made(spec)},
        losses=tuple(_loss_placement(name, loss, decoders) for name, loss in losses.items()),
    )


def _row(parts: Installed, decoder: str, maskers: Mapping[str, ComponentSpec]) -> list[Pair]:
    """Return one decoder with every masker. The recipe is composed once, for maskers do not depend on the decoder."""
    try:
        recipe = compose(ComposeRequest(decoder=decoder), parts)
    except DrkitError as error:
        return [Pair(name, decoder, _reasons(error)) for name in maskers]
    return [Pair(name, decoder, _problems(recipe, name, masker, parts)) for name, masker in maskers.items()]


def _problems(recipe: Recipe, name: str, masker: ComponentSpec, parts: Installed) -> tuple[str, ...]:
    try:
        chosen = Choice(name, masker.config())
    except TypeError as error:  # a plugin's config without a default
        return (f"masker {name!r} has settings without a default: {error}",)
    assert recipe.pretrain is not None
    try:
        check(attrs.evolve(recipe, pretrain=attrs.evolve(recipe.pretrain, masker=chosen)), parts.registry)
    except DrkitError as error:
        return _reasons(error)
    return ()


def _reasons(error: DrkitError) -> tuple[str, ...]:
    """Return the problems of an error, without their paths in the recipe."""
    problems = error.problems if isinstance(error, ProblemsError) else (str(error),)
    return tuple(problem.rpartition(" @ ")[0] or problem for problem in problems)


def _by_name(parts: Installed, kind: Kind) -> dict[str, ComponentSpec]:
    """Return the parts of a kind by their shortest unambiguous name."""
    return {parts.registry.name_of(spec): spec for spec in parts.registry.specs(kind)}


def _made(spec: ComponentSpec) -> tuple[str, ...]:
    """Return the signals and capabilities that stages of the run must make for a part."""
    config = _defaults(spec)
    return tuple(sorted({*spec.signals_of(config), *({*spec.requires_of(config)} & {*MADE_FOR_PRETRAINING})}))


def _defaults(spec: ComponentSpec) -> object:
    try:
        return spec.config()
    except TypeError:
        return None


def _loss_placement(name: str, loss: ComponentSpec, decoders: Mapping[str, ComponentSpec]) -> LossPlacement:
    config = _defaults(loss)
    receives, batch = loss.receives_of(config), {*provided_by(BATCH)}
    provides = {name: spec.provides_of(_defaults(spec)) for name, spec in decoders.items()}
    fitting = [name for name in decoders if receives <= {*provides[name], *batch} and receives - batch]
    masked = {p.name for p in PROVIDED if p.if_masked}
    return LossPlacement(
        name=name,
        needs=tuple(sorted({*receives, *loss.signals_of(config), *loss.requires_of(config)})),
        encoder=bool(receives) and receives <= {*provided_by(ENCODER, BATCH, masker=masked)},
        decoders=tuple(fitting),
        finetuning=bool(receives) and receives <= {*provided_by(FINETUNING)},
        reranking=bool(receives) and receives <= {*provided_by(RERANKING)},
        needs_teacher="teacher" in loss.requires_of(config),
    )
