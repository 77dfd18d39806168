"""The rival of a composition: the same pre-training with one part replaced, which says what that part is worth."""

from __future__ import annotations

from drkit.core.registry import Registry
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import pretrain_problems
from drkit.recipe.compose import with_part
from drkit.recipe.parts import required_capabilities, required_signals
from drkit.recipe.schema import ENCODER_SIDE, MAIN, NONE, Pretrain, Recipe


def rival_of(recipe: Recipe, baseline: str, registry: Registry) -> Pretrain | None:
    """Return the pre-training that a baseline `SLOT=PART` starts from; None without the slot.

    Raises DrkitError if the parts do not go together, or need something that the recipe's own pre-training does not
    make.
    """
    own, (slot, _, part) = recipe.pretrain, baseline.partition("=")
    if own is None:
        return None
    rival = with_part(recipe, slot, part, registry).pretrain
    assert rival is not None
    if problems := pretrain_problems(rival, registry):
        raise ProblemsError(f"the recipe with {baseline} cannot work", problems)
    made, signals = required_capabilities(own, registry), required_signals(own, registry)
    needed, read = required_capabilities(rival, registry), required_signals(rival, registry)
    other = [name for name, settings in needed.items() if name not in made or settings != made[name]]
    other += [name for name, chosen in read.items() if signals.get(name, chosen) != chosen]
    if other:
        raise DrkitError(
            f"it needs {', '.join(other)}, which this run does not make, or makes with other settings: compose it by "
            f"itself"
        )
    return rival


def replaced_part(pretrain: Pretrain, slot: str) -> str:
    """Return the name of the part in a slot of a pre-training, which has it.

    >>> from drkit.core.registry import installed
    >>> from drkit.recipe.compose import ComposeRequest, compose
    >>> replaced_part(compose(ComposeRequest(masker="pmi"), installed()).pretrain, "masker")
    'pmi'
    """
    side, _, kind = slot.rpartition("-")
    task = pretrain.encoder if side == ENCODER_SIDE else pretrain.decoders[MAIN]
    part = getattr(task, kind)
    return part.use if part else NONE
