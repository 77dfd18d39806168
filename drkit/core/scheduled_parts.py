"""Maskers and losses whose settings change over a training.

`Registry.build` returns one of these for settings with a schedule. The part is built anew, with plain numbers, whenever
they change: a masker in the collator, by the progress of its random numbers; a loss in the trainer, before each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.protocols import CountsItems, FollowsProgress, MeasuresAccuracy, ReplacingMasker
from drkit.core.schedules import settings_at
from drkit.core.types import BuildContext, MaskedView, StepOutput, TokenBatch
from drkit.errors import DrkitError

# Builds a part with settings.
Make = Callable[[Any], Any]


class ScheduledMasker:
    """A masker with the settings of the progress of its random numbers (`Draws.progress`)."""

    def __init__(self, make: Make, settings: Any, first: Any) -> None:
        self._make, self._settings = make, settings
        self._part, self._now = first, settings_at(settings, 0.0)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0, nested: MaskedView | None = None) -> MaskedView:
        """Return the view of the masker at this progress."""
        now = settings_at(self._settings, rng.progress)
        if now != self._now:
            self._part, self._now = self._make(now), now
        view: MaskedView = self._part(tokens, rng, rows=rows, nested=nested)
        return view


class ScheduledReplacingMasker(ScheduledMasker):
    """A scheduled masker whose masked positions are filled by a model."""

    def replacer(self, context: BuildContext) -> Any:
        """Return the module that fills them, of the masker as training begins."""
        return self._part.replacer(context)


def scheduled_masker(make: Make, settings: Any) -> ScheduledMasker:
    """Return a masker whose settings have schedules; make: builds it with plain settings."""
    first = make(settings_at(settings, 0.0))
    kind = ScheduledReplacingMasker if isinstance(first, ReplacingMasker) else ScheduledMasker
    return kind(make, settings, first)


class ScheduledLoss(nn.Module):
    """A loss with the settings of the trainer's progress (`set_progress`).

    first: the loss as training begins. Weights and buffers are its own, whatever the settings; all else is built anew.
    """

    def __init__(self, make: Make, settings: Any, first: Any) -> None:
        super().__init__()
        self._make, self._settings, self._now = make, settings, settings_at(settings, 0.0)
        self.part: Any = first
        self._set_current(self.part)

    def set_progress(self, progress: float) -> None:
        """Take the settings of a progress in [0, 1]."""
        now = settings_at(self._settings, progress)
        if now != self._now:
            with torch.random.fork_rng([]):  # what a part draws for weights that are replaced
                made = self._make(now)
            if isinstance(made, nn.Module):
                _share_weights(made, self.part)
            self._set_current(made)
            self._now = now
        if isinstance(self._current, FollowsProgress):
            self._current.set_progress(progress)

    def _set_current(self, part: Any) -> None:
        object.__setattr__(self, "_current", part)  # not a module of this one: its weights are those of `part`

    @property
    def current(self) -> Any:
        """The loss with the settings of the progress."""
        if isinstance(self._current, nn.Module) and self._current.training is not self.training:
            self._current.train(self.training)
        return self._current

    def forward(self, **given: Any) -> StepOutput:
        """Return the loss of a batch."""
        step: StepOutput = self.current(**given)
        return step


class _Counts:
    current: Any

    def items(self, **given: Any) -> Tensor:
        """Return the number of items of the loss."""
        items: Tensor = self.current.items(**given)
        return items


class _Measures:
    current: Any

    def accuracy(self, **given: Any) -> tuple[float, float]:
        """Return the accuracy of the loss."""
        found: tuple[float, float] = self.current.accuracy(**given)
        return found


class _CountingLoss(_Counts, ScheduledLoss):
    """A scheduled loss that is a mean over items other than rows."""


class _MeasuringLoss(_Measures, ScheduledLoss):
    """A scheduled loss whose predictions can be right or wrong."""


class _CountingMeasuringLoss(_Counts, _Measures, ScheduledLoss):
    """A scheduled loss that does both."""


def scheduled_loss(make: Make, settings: Any) -> ScheduledLoss:
    """Return a loss whose settings have schedules; make: builds it with plain settings."""
    first = make(settings_at(settings, 0.0))
    kinds = {
        (False, False): ScheduledLoss,
        (True, False): _CountingLoss,
        (False, True): _MeasuringLoss,
        (True, True): _CountingMeasuringLoss,
    }
    return kinds[isinstance(first, CountsItems), isinstance(first, MeasuresAccuracy)](make, settings, first)


def _share_weights(made: nn.Module, first: nn.Module) -> None:
    """Give a module the weights and buffers of another one that is built alike."""
    theirs = dict(first.named_modules())
    mine = dict(made.named_modules())
    if mine.keys() != theirs.keys():
        raise DrkitError(
            f"{type(made).__name__} has other modules with other settings, so that its weights cannot follow a "
            f"schedule: use a constant"
        )
    for name, module in mine.items():
        for weight, parameter in theirs[name].named_parameters(recurse=False):
            module.register_parameter(weight, parameter)
        for constant, value in theirs[name].named_buffers(recurse=False):
            module.register_buffer(constant, value)


def follow_progress(module: nn.Module, progress: float) -> None:
    """Tell every part of a module that changes over a training how far it is."""
    for one in [one for one in module.modules() if isinstance(one, FollowsProgress)]:
        one.set_progress(progress)
