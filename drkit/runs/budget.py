"""Fit a recipe that tunes an encoder to a number of minutes: folds, steps, tokens of passages, and passages searched.

The time of a plan is that of the encoder, by rates that were measured with it, and of other stages as far as earlier
runs have shown them. Of all that may fit, the first that does is taken: first folds are given up, then tokens of
training passages, then steps; with many labels, then cross-validation for a share of labels that is held out; and at
last passages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve, frozen

from drkit.core.protocols import Collection, HoldsOutQueries
from drkit.core.registry import Registry
from drkit.core.types import CollectionSize
from drkit.recipe.schema import Recipe
from drkit.runs.costs import Rates, estimate_cost, fitting_chunk, planned_sizes
from drkit.runs.plan import plan
from drkit.runs.stage import Stage
from drkit.runs.work import encoder_size, examples_at_once, examples_per_step

# Steps that a training should have: as many passes over the labels, and at least this number, where there are few.
_EPOCHS, _STEPS = 4, 50
# Steps that are worth giving up folds and tokens for, and those that help few labels if there is time for them.
_ENOUGH, _MOST = 100, 200
# (folds, share of these steps, tokens of a training passage or None for all), from the best to the least. Without
# folds, a share of the labels is held out, which is at least two trainings and two readings of all passages less.
SHORT = 128
_Choice = tuple[int | None, float, int | None]
_CHOICES: tuple[_Choice, ...] = (
    *((5, 1.0, None), (5, 1.0, SHORT), (3, 1.0, None), (3, 1.0, SHORT), (3, 0.7, SHORT)),
    *((2, 1.0, SHORT), (2, 0.7, SHORT), (2, 0.5, SHORT)),
)
_HELD_OUT_CHOICES: tuple[_Choice, ...] = ((None, 1.0, SHORT), (None, 0.7, SHORT), (None, 0.5, SHORT))
# The share of the labels that is held out, and the fewest queries that it must have.
HELD_OUT, _FEWEST_HELD_OUT = 0.3, 100
# Fewest passages that are searched besides the judged ones; share of the minutes that is planned with, and seconds of
# them for starting, the trial and the report.
_FEWEST, _PLANNED, _START = 1000, 0.85, 10


@frozen
class Budget:
    """A recipe that fits, and what was given up for it, as notes."""

    recipe: Recipe
    seconds: float
    notes: tuple[str, ...] = ()


def wanted_steps(labels: int, batch: int) -> int:
    """Return the steps that a training on this number of labelled queries should have.

    >>> wanted_steps(200, 32), wanted_steps(4000, 32)
    (50, 500)
    """
    return max(_STEPS, math.ceil(_EPOCHS * labels / batch))


def fit_budget(
    recipe: Recipe,
    registry: Registry,
    size: CollectionSize,
    rates: Rates,
    *,
    minutes: float,
    labels: int,
    judged: int,
    memory: int | None,
) -> Budget:
    """Return the recipe with the numbers that take about `minutes`; its trainings have `max_steps`.

    size: of the whole collection. labels: labelled queries that are learned from. judged: passages with a judgement,
    all of which are searched. memory: bytes that a step may need, None for no limit.
    """
    assert recipe.finetune is not None
    limit, wanted = _PLANNED * 60 * minutes - _START, wanted_steps(labels, examples_per_step(recipe.finetune))
    candidates = [_Candidate.of(recipe, choice, registry, memory) for choice in _choices(recipe, labels)]
    validated = [one for one in candidates if not one.held_out]
    whole = min(one.cost(size, rates).seconds(one.steps(wanted)) for one in validated)
    for passages in _samples(size.passages, judged):
        searched = evolve(size, passages=passages or size.passages)
        for candidate in candidates:
            cost = candidate.cost(searched, rates)
            steps = min(max(wanted, _MOST), cost.steps_within(limit))
            if steps >= candidate.steps(wanted):
                break
        else:
            continue
        break
    else:  # what takes the least time
        steps = candidate.steps(wanted)
    made = candidate.recipe(steps, passages)
    notes = _notes(made, size, wanted, needed=(whole + _START) / _PLANNED / 60, held_out=candidate.held_out)
    return Budget(made, cost.seconds(steps) + _START, tuple(notes))


def run_minutes(recipe: Recipe, registry: Registry, size: CollectionSize, rates: Rates) -> float:
    """Return the minutes that a recipe is planned to take, with those that are kept back for what is not estimated."""
    cost = estimate_cost(plan(recipe, registry).stages, planned_sizes(recipe, size), rates)
    return cost.seconds / _PLANNED / 60


def fit_memory(
    recipe: Recipe, registry: Registry, memory: int, collection: Collection | None = None
) -> tuple[Recipe, dict[str, str]]:
    """Return the recipe with trainings whose steps fit the memory, and the reasons for what that changes, by setting.

    Only the fine-tuning of an existing encoder changes, unless it has a gradient cache already: fewer texts at a time
    give the same gradients. memory: bytes. collection: see `plan`. Raises DrkitError as `plan` does.
    """
    finetune = recipe.finetune
    if finetune is None or finetune.gradient_cache_chunk or not recipe.encoder.pretrained:
        return recipe, {}
    if encoder_size(recipe.encoder) is None:
        return recipe, {}
    chunk = fitting_chunk(recipe, plan(recipe, registry, collection).stages, memory)
    if chunk is None:
        return recipe, {}
    reason = (
        f"a batch of {examples_at_once(finetune)} queries and their passages needs more than the "
        f"{memory / 2**30:.0f} GB of memory of this machine; {chunk} texts at a time give the same gradients"
    )
    made = evolve(recipe, finetune=evolve(finetune, gradient_cache_chunk=chunk))
    return made, {"finetune.gradient_cache_chunk": reason}


@frozen
class _Cost:
    """Seconds of a run without any step of training, and those that a step of every training adds."""

    fixed: float
    step: float

    def seconds(self, steps: int) -> float:
        return self.fixed + self.step * steps

    def steps_within(self, seconds: float) -> int:
        return max(math.floor((seconds - self.fixed) / self.step), 0)


@frozen
class _Candidate:
    """A recipe with some folds and some tokens of training passages; share: of the usual steps, which it needs.

    held_out: whether labels are held out in place of folds.
    """

    base: Recipe
    share: float
    stages: tuple[Stage[Any], ...]
    held_out: bool

    @classmethod
    def of(cls, recipe: Recipe, choice: _Choice, registry: Registry, memory: int | None) -> _Candidate:
        folds, share, length = choice
        assert recipe.finetune is not None
        is_shorter = length is not None and length < recipe.encoder.passage_length
        finetune = evolve(recipe.finetune, passage_length=length if is_shorter else None, max_steps=1)
        made = evolve(recipe, finetune=finetune, evaluation=evolve(recipe.evaluation, folds=folds))
        held_out = folds is None and recipe.evaluation.folds is not None
        made = hold_out(made) if held_out else made
        stages = plan(made, registry).stages
        if memory is not None and (chunk := fitting_chunk(made, stages, memory)):
            made = evolve(made, finetune=evolve(finetune, gradient_cache_chunk=chunk))
            stages = plan(made, registry).stages
        return cls(made, share, stages, held_out)

    def steps(self, wanted: int) -> int:
        """Return the fewest steps that this candidate is worth its time with."""
        return max(1, math.floor(self.share * min(wanted, _ENOUGH)))

    def cost(self, size: CollectionSize, rates: Rates) -> _Cost:
        if self.held_out:
            count = size.queries.get("train", 0)
            held_out = round(HELD_OUT * count)
            size = evolve(size, queries={"train": count - held_out, "test": held_out})
        sizes = planned_sizes(self.base, size)
        one, more = (estimate_cost(_with_steps(self.stages, steps), sizes, rates).seconds for steps in (1, 101))
        step = (more - one) / 100
        return _Cost(one - step, step)

    def recipe(self, steps: int, passages: int | None) -> Recipe:
        """Return the recipe with this number of steps and of passages to search."""
        assert self.base.finetune is not None
        return evolve(
            self.base,
            finetune=evolve(self.base.finetune, max_steps=steps),
            evaluation=evolve(self.base.evaluation, passages=passages),
        )


def _with_steps(stages: Sequence[Stage[Any]], steps: int) -> list[Stage[Any]]:
    """Return the stages of a plan with this number of steps in every training."""
    return [
        evolve(one, settings=evolve(one.settings, training=evolve(one.settings.training, max_steps=steps)))
        if one.is_training
        else one
        for one in stages
    ]


def _choices(recipe: Recipe, labels: int) -> Sequence[_Choice]:
    """Return the choices of folds, steps and tokens; without cross-validation, those of steps and tokens."""
    if recipe.evaluation.folds is None:
        return [*dict.fromkeys((None, share, length) for _, share, length in _CHOICES)]
    is_possible = recipe.evaluation.split == "train" and isinstance(recipe.collection.config, HoldsOutQueries)
    if not is_possible or HELD_OUT * labels < _FEWEST_HELD_OUT:
        return _CHOICES
    return [*_CHOICES, *_HELD_OUT_CHOICES]


def hold_out(recipe: Recipe) -> Recipe:
    """Return the recipe with a share of the training queries as its test queries, on which it is evaluated."""
    config = evolve(recipe.collection.config, test_share=HELD_OUT)
    collection, evaluation = evolve(recipe.collection, config=config), evolve(recipe.evaluation, split="test")
    return evolve(recipe, collection=collection, evaluation=evaluation)


def is_held_out(recipe: Recipe) -> bool:
    """Return whether `hold_out` has made a recipe."""
    config = recipe.collection.config
    is_share = isinstance(config, HoldsOutQueries) and config.test_share == HELD_OUT
    return is_share and recipe.evaluation.split == "test"


def _samples(passages: int, judged: int) -> Iterator[int | None]:
    """Yield numbers of passages to search: all (None), a half, a quarter and so on, with all judged ones."""
    yield None
    count, least = passages / 2, judged + _FEWEST
    while count > least:
        yield round(count)
        count /= 2
    if least < passages:
        yield least


def _notes(recipe: Recipe, size: CollectionSize, wanted: int, *, needed: float, held_out: bool) -> Iterator[str]:
    """Yield what the minutes do not reach; needed: the minutes that would take all folds and passages."""
    assert recipe.finetune is not None
    minutes = f"--minutes {math.ceil(needed)}"
    if recipe.evaluation.passages is not None:
        yield (
            f"searches {recipe.evaluation.passages:,} of {size.passages:,} passages, all judged ones and a random "
            f"rest, with every system; {minutes} searches all"
        )
    if held_out:
        yield (
            f"learns from {1 - HELD_OUT:.0%} of the labelled queries, and ranks the others; {minutes} cross-validates, "
            f"which ranks all"
        )
    if recipe.finetune.max_steps < wanted:
        yield f"trains for {recipe.finetune.max_steps:,} steps, and {wanted:,} are usual for as many queries"
