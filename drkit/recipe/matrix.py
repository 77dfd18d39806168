"""Which maskers and decoders go together, and what each loss can be used for: `drkit list --matrix`.

`matrix` checks every masker with every decoder exactly as `drkit compose --masker M --decoder D` does: if the recipe's
loss does not fit the decoder, the decoder's own loss replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from attrs import frozen

from drkit.core.registry import Installed
from drkit.core.spec import (
    BATCH,
    ENCODER,
    MADE_FOR_PRETRAINING,
    PAIRS,
    PROVIDED,
    RERANKING,
    Choice,
    ComponentSpec,
    Kind,
    provided_by,
    vector_name,
    vector_names,
)
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check, unread_choices
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.parts import columns_of
from drkit.recipe.schema import MAIN, Recipe


@frozen
class PairOfParts:
    """A masker with a decoder; `problems` lists why they cannot work together, and is empty if they can.

    unread: what the pair chooses without effect.
    """

    masker: str
    decoder: str
    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@frozen
class LossPlacement:
    """What a loss can be used for: on the encoder, on some decoders, in fine-tuning, for the re-ranker.

    needs: the names it receives, the signals it reads, and the capabilities it requires. columns: those that it
    receives in fine-tuning.
    """

    name: str
    needs: tuple[str, ...]
    encoder: bool
    decoders: tuple[str, ...]
    finetuning: bool
    reranking: bool
    columns: tuple[str, ...]


@frozen
class Matrix:
    """All pairs, row by row; what stages of the run must make for each part (by `kind name`); the losses."""

    maskers: tuple[str, ...]
    decoders: tuple[str, ...]
    pairs: tuple[PairOfParts, ...]
    made: dict[str, tuple[str, ...]]
    losses: tuple[LossPlacement, ...]

    def reasons(self) -> dict[str, tuple[PairOfParts, ...]]:
        """Return the pairs that cannot work together, or not as chosen, by reason."""
        found: dict[str, tuple[PairOfParts, ...]] = {}
        for pair in self.pairs:
            for problem in (*pair.problems, *pair.unread):
                found[problem] = (*found.get(problem, ()), pair)
        return found


def matrix(parts: Installed) -> Matrix:
    """Return the matrix of all installed maskers, decoders and losses."""
    maskers, contexts, decoders, losses = (
        {spec.name: spec for spec in parts.registry.specs(kind)}
        for kind in (Kind.MASKER, Kind.CONTEXT, Kind.DECODER, Kind.LOSS)
    )
    pairs = [pair for decoder in decoders for pair in _matrix_row(parts, decoder, maskers)]
    named = [*maskers.items(), *contexts.items(), *decoders.items(), *losses.items()]
    return Matrix(
        maskers=tuple(maskers),
        decoders=tuple(decoders),
        pairs=tuple(pairs),
        made={f"{spec.kind} {name}": _made_by_stages(spec) for name, spec in named if _made_by_stages(spec)},
        losses=tuple(_loss_placement(name, loss, decoders) for name, loss in losses.items()),
    )


def _matrix_row(parts: Installed, decoder: str, maskers: Mapping[str, ComponentSpec]) -> list[PairOfParts]:
    """Return one decoder with every masker. The recipe is composed once, for maskers do not depend on the decoder."""
    try:
        recipe = compose(ComposeRequest(decoder=(decoder,)), parts)
    except DrkitError as error:
        return [PairOfParts(name, decoder, _reasons(error)) for name in maskers]
    return [_pair(recipe, name, decoder, masker, parts) for name, masker in maskers.items()]


def _pair(recipe: Recipe, name: str, decoder: str, masker: ComponentSpec, parts: Installed) -> PairOfParts:
    try:
        chosen = masker.config().base if masker.context else Choice(name, masker.config())
    except TypeError as error:  # a plugin's config without a default
        return PairOfParts(name, decoder, (f"masker {name!r} has settings without a default: {error}",))
    assert recipe.pretrain is not None
    main = attrs.evolve(recipe.pretrain.decoders[MAIN], masker=chosen)
    pretrain = attrs.evolve(recipe.pretrain, decoders={MAIN: main})
    try:
        check(attrs.evolve(recipe, pretrain=pretrain), parts.registry)
    except DrkitError as error:
        return PairOfParts(name, decoder, _reasons(error))
    return PairOfParts(name, decoder, unread=tuple(unread_choices(pretrain, parts.registry)))


def _reasons(error: DrkitError) -> tuple[str, ...]:
    """Return the problems of an error, without their paths in the recipe."""
    problems = error.problems if isinstance(error, ProblemsError) else (str(error),)
    return tuple(problem.rpartition(" @ ")[0] or problem for problem in problems)


def _made_by_stages(spec: ComponentSpec) -> tuple[str, ...]:
    """Return the signals and capabilities that stages of the run must make for a part."""
    config = _default_settings(spec)
    return tuple(sorted({*spec.signals_of(config), *({*spec.requires_of(config)} & {*MADE_FOR_PRETRAINING})}))


def _default_settings(spec: ComponentSpec) -> object:
    try:
        return spec.config()
    except TypeError:
        return None


def _loss_placement(name: str, loss: ComponentSpec, decoders: Mapping[str, ComponentSpec]) -> LossPlacement:
    config = _default_settings(loss)
    receives, batch = loss.receives_of(config), {*provided_by(BATCH)}
    provides = {name: spec.provides_of(_default_settings(spec)) for name, spec in decoders.items()}
    fitting = [name for name in decoders if receives <= {*provides[name], *batch} and receives - batch]
    masked, named = {p.masker for p in PROVIDED}, {*map(vector_name, vector_names(receives))}
    return LossPlacement(
        name=name,
        needs=tuple(sorted({*receives, *loss.signals_of(config), *loss.requires_of(config)})),
        encoder=bool(receives) and receives - named <= {*provided_by(ENCODER, BATCH, masker=masked)},
        decoders=tuple(fitting),
        finetuning=PAIRS in receives,
        reranking=bool(receives) and receives <= {*provided_by(RERANKING)},
        columns=columns_of(loss, config),
    )
