"""The space of a search: which compositions there are, and the run of each with a number of steps."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, frozen

from drkit.core.files import digest
from drkit.core.registry import installed
from drkit.core.spec import FINETUNING, PAIRS, RERANKING, ComponentSpec, Kind, provided_by
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import reads_mask
from drkit.recipe.schema import NONE, Recipe
from drkit.recipe.toml import recipe_table
from drkit.studies.design import (
    ADDED,
    Cell,
    PlannedRun,
    make_cell,
    plan_run,
    problems_of_axes,
    reasons,
    show_level,
    study_recipe,
)

# What a filter of negatives receives.
_CANDIDATES = "candidates"
# The split that a search decides by.
DEV = "dev"
# The choices of the default space, with the kind of part whose every name is tried.
_PARTS = {
    "masker": Kind.MASKER,
    "decoder": Kind.DECODER,
    "context": Kind.CONTEXT,
    "pretrain_loss": Kind.LOSS,
    "loss": Kind.LOSS,
    "miners": Kind.MINER,
}
_RATE = "pretrain.learning_rate"
# The first rung has at least one in so many of the recipe's steps: at a fifteenth, the order was that of chance
# (docs/guide/command-line.md); combinations that are tried for each that is wanted.
_LEAST, _TRIES = 4, 30
_SAME = "it trains the same as another combination: they differ in a masker that the decoder does not read"
# What a search decides itself, and why it cannot be chosen.
_DECIDED = {
    "evaluation.split": "a search decides by dev queries, and never reads those of test",
    "labels": "a search has one number of labels; set finetune.rounds.0.queries",
}


@frozen
class Space:
    """What is searched: choices of all compositions, and the levels of each axis, of which the first are the baseline.

    steps: the recipe's own, of pre-training, or of fine-tuning without it; left_out: why each value of the default
    space is not in it, by `choice value`.
    """

    folder: Path
    choices: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    seed: int
    steps: int
    left_out: Mapping[str, str]

    @property
    def combinations(self) -> int:
        """The number of combinations of all levels."""
        return int(np.prod([len(levels) for levels in self.axes.values()]))

    @property
    def least(self) -> int:
        """The fewest steps of a rung."""
        return max(1, self.steps // _LEAST)

    def cell(self, number: int) -> Cell:
        """Return a combination by its number; 0 is the baseline."""
        indices = np.unravel_index(number, [len(levels) for levels in self.axes.values()])
        return make_cell(
            [*self.axes], [levels[i] for levels, i in zip(self.axes.values(), map(int, indices), strict=True)]
        )

    def cell_of(self, levels: Mapping[str, str]) -> Cell:
        """Return the combination of these levels, as text."""
        values = [next(one for one in self.axes[axis] if show_level(one) == level) for axis, level in levels.items()]
        return make_cell([*levels], values)

    def run(self, cell: Cell, steps: int, rung: int) -> PlannedRun:
        """Return the run of a composition in a rung. Raises DrkitError if it cannot work."""
        recipe = study_recipe({**self.choices, **cell.choices}, self.seed, None, cell.name)
        recipe = _measured_on_dev(with_fewer_steps(recipe, steps))
        return plan_run(cell, self.seed, None, self.folder / f"rung-{rung}" / cell.name, recipe)


@frozen
class Drawn:
    """Compositions drawn from a space, out of so many that were tried; left_out: how many had each problem."""

    cells: tuple[Cell, ...]
    tried: int
    left_out: Mapping[str, int]


def open_space(*, folder: Path, seed: int, **choices: Any) -> Space:
    """Return the space of a search, checked; choices: as for `design_study`, where no list means the default space.

    Raises ProblemsError with all that is wrong, and DrkitError without dev queries, or without a number of steps.
    """
    axes = {key: value for key, value in choices.items() if isinstance(value, list)}
    fixed = {key: value for key, value in choices.items() if key not in axes}
    problems = [f"{path!r} cannot be chosen: {why}" for path, why in _DECIDED.items() if path in choices]
    problems += problems_of_axes(axes, choices) if axes else ()
    first = {key: value[0] for key, value in axes.items()}
    if problems:
        raise ProblemsError("the search cannot be made", problems)
    recipe = study_recipe({**fixed, **_composed(first, fixed)}, seed, None, folder.name)
    collection = installed().registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config)
    if DEV not in (splits := collection.splits()):
        raise DrkitError(
            f"a search decides by judged dev queries, and the collection has none (its splits: "
            f"{', '.join(splits) or 'none'}). Give it some, or let it draw them from the training queries with "
            f"--set collection.dev_share=0.1, or from those of test with --set collection.train_share=0.5, if the "
            f"format has the setting (`drkit show collection {recipe.collection.use}`)"
        )
    path, steps = _steps_of(recipe)
    if path in axes or f"{path.partition('.')[0]}.num_train_epochs" in axes:
        raise ProblemsError("the search cannot be made", [f"{path!r} cannot be an axis: a search decides on the steps"])
    left_out: dict[str, str] = {}
    space = Space(folder, fixed, axes, seed, steps, left_out)
    return space if axes else _default_space(evolve(space, axes={}), recipe)


def _composed(first: Mapping[str, Any], fixed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first levels if they can be composed; otherwise none, so that the recipe's own parts are read."""
    cell = make_cell([*first], [*first.values()])
    try:
        study_recipe({**fixed, **cell.choices}, 0, None, "search")
    except DrkitError:
        return {}
    return cell.choices


def _steps_of(recipe: Recipe) -> tuple[str, int]:
    """Return the setting that has the steps of a search, and its value. Raises DrkitError if it counts epochs."""
    table, name = (recipe.pretrain, "pretrain") if recipe.pretrain else (recipe.finetune, "finetune")
    if table is None:
        raise DrkitError("the recipe trains nothing, so that there is nothing to search; choose another one (--paper)")
    if table.max_steps < 1:
        raise DrkitError(
            f"a search counts in steps, and the recipe in epochs: give the steps of a whole training, as in --set "
            f"{name}.max_steps=1000"
        )
    return f"{name}.max_steps", table.max_steps


def _default_space(space: Space, recipe: Recipe) -> Space:
    """Return the space of every part that can be composed with the recipe, or with one other choice."""
    registry, own = installed().registry, _own_parts(recipe)
    axes: dict[str, list[Any]] = {}
    for choice, kind in _PARTS.items():
        is_trained = recipe.finetune if choice in ("loss", "miners") else recipe.pretrain
        if is_trained:
            specs = (spec for spec in registry.specs(kind) if _is_for(choice, spec))
            names = [spec.name for spec in specs if spec.name != own.get(choice)]
            axes[choice] = [*([NONE] if choice in ADDED else [own[choice]] if choice in own else ()), *names]
    if recipe.pretrain and _RATE not in space.choices:
        rate = recipe.pretrain.learning_rate
        axes[_RATE] = [rate, float(f"{rate / 10:.3g}")]
    baseline = {choice: levels[0] for choice, levels in axes.items()}
    kept, left_out = dict[str, list[Any]](), dict[str, str]()
    for choice, levels in axes.items():
        kept[choice] = levels[:1]
        for level in levels[1:]:
            if problem := _why_not(space, baseline, axes, choice, level):
                left_out[f"{choice} {level}"] = problem
            else:
                kept[choice].append(level)
    kept = {choice: levels for choice, levels in kept.items() if len(levels) > 1}
    if not kept:
        raise DrkitError("nothing can be searched with this recipe: no other part fits it; name the choices to search")
    return evolve(space, axes=kept, left_out=left_out)


def _is_for(choice: str, spec: ComponentSpec) -> bool:
    """Return whether a choice takes a part of its kind: a loss of the right training, a source of negatives."""
    receives = {*spec.receives}
    if choice == "pretrain_loss":
        return not receives & {*provided_by(FINETUNING, RERANKING)}
    return PAIRS in receives if choice == "loss" else choice != "miners" or _CANDIDATES not in receives


def _own_parts(recipe: Recipe) -> dict[str, str]:
    """Return the recipe's own parts, by choice."""
    found = {}
    if recipe.pretrain and recipe.pretrain.decoders:
        main = next(iter(recipe.pretrain.decoders.values()))
        found = {"decoder": main.decoder.use, "context": main.context.use}
        found |= {"masker": main.masker.use} if main.masker else {}
    if recipe.finetune:
        found["loss"] = recipe.finetune.loss.use
    return found


def _why_not(
    space: Space, baseline: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], choice: str, level: Any
) -> str:
    """Return why a level fits neither the baseline nor the baseline with one other part; empty if it does."""
    first = ""
    others = [(other, one) for other, levels in axes.items() if other != choice for one in levels[1:]]
    for changed in ({}, *({other: one} for other, one in others)):
        chosen = {**baseline, **changed, choice: level}
        try:
            space.run(make_cell([*chosen], [*chosen.values()]), space.steps, 0)
        except DrkitError as error:
            first = first or "; ".join(reasons(error))
        else:
            return ""
    return first


def draw(space: Space, wanted: int) -> Drawn:
    """Return so many compositions, the baseline first and others in a seeded order, of those that can be composed.

    Of combinations that train the same, such as two maskers for a decoder that reads no masked text, the first is kept.

    Raises DrkitError if two of them have the same name.
    """
    others = range(1, space.combinations)
    order = random.Random(space.seed).sample(others, min(len(others), _TRIES * wanted))
    cells, left_out, tried, made = list[Cell](), dict[str, int](), 0, set[str]()
    for number in (0, *order):
        if len(cells) == wanted:
            break
        tried += 1
        cell = space.cell(number)
        try:
            recipe = space.run(cell, space.steps, 0).recipe
        except DrkitError as error:
            problems = reasons(error)
        else:
            identity = _identity(recipe)
            problems = (_SAME,) if identity in made else ()
            made.add(identity)
            cells += [] if problems else [cell]
        for problem in problems:
            left_out[problem] = left_out.get(problem, 0) + 1
    if len({cell.name for cell in cells}) < len(cells):
        raise DrkitError("two combinations have the same name, as x:1 and x-1 have; give each value once")
    return Drawn(tuple(cells), tried, left_out)


def _identity(recipe: Recipe) -> str:
    """Return a hash of all that a recipe trains by, without its name, and the maskers that no decoder reads."""
    if recipe.pretrain:
        tasks = recipe.pretrain.decoders
        read = {
            name: task if reads_mask(task, installed().registry) else evolve(task, masker=None)
            for name, task in tasks.items()
        }
        recipe = evolve(recipe, pretrain=evolve(recipe.pretrain, decoders=read))
    return digest(recipe_table(evolve(recipe, name="same")))


def with_fewer_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return a recipe with these steps of pre-training (of fine-tuning without it); its other trainings in proportion.

    Raises DrkitError if it counts in epochs.
    """
    share = steps / _steps_of(recipe)[1]

    def scaled(table: Any) -> Any:
        most, epochs, warmup = (getattr(table, name) for name in ("max_steps", "num_train_epochs", "warmup_steps"))
        changes: dict[str, Any] = {"max_steps": max(1, round(share * most))} if most and most > 0 else {}
        changes |= {"num_train_epochs": share * epochs} if epochs else {}
        changes |= {"warmup_steps": float(round(share * warmup))} if warmup and warmup >= 1 else {}
        return evolve(table, **changes)

    pretrain, finetune, reranker = recipe.pretrain, recipe.finetune, recipe.reranker
    if finetune:
        finetune = evolve(scaled(finetune), rounds=tuple(map(scaled, finetune.rounds)))
    return evolve(
        recipe,
        pretrain=scaled(pretrain) if pretrain else None,
        finetune=finetune,
        reranker=scaled(reranker) if reranker else None,
    )


def _measured_on_dev(recipe: Recipe) -> Recipe:
    """Return a recipe that is evaluated on the dev queries alone, and probed at its first and last step."""
    evaluation = evolve(recipe.evaluation, split=DEV, bm25=False, pretrained=False)
    recipe = evolve(recipe, evaluation=evaluation)
    if recipe.pretrain is None or not recipe.pretrain.probe.every:
        return recipe
    probe = evolve(recipe.pretrain.probe, every=recipe.pretrain.max_steps)
    return evolve(recipe, pretrain=evolve(recipe.pretrain, probe=probe))
