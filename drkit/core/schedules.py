"""Numbers that change over a training: `ratio = {from = 0.3, to = 0.7}` in a recipe.

A config class declares the settings that may change by `setting(.., schedulable=True)`, with the type float. Its part
never sees a schedule: it is built with plain numbers, anew whenever they change (`drkit.core.scheduled_parts`). The
value is a function of the progress alone, the optimizer steps already made as a share of those planned, so that resumed
trainings, other workers and other numbers of processes see the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import attrs
from attrs import frozen

from drkit.errors import did_you_mean

SHAPES = ("linear", "cosine", "exponential", "steps")
# Each key of a schedule in a recipe, and the argument of `Scheduled` that it sets.
_KEYS = {"from": "first", "to": "last", "shape": "shape", "start": "start", "end": "end", "steps": "steps"}
# Points at which the mean is computed, and those of a drawing.
_POINTS, _DRAWN = 256, 8
_BARS = "▁▂▃▄▅▆▇█"
_T = TypeVar("_T")


class Scheduled(float):
    """A number that changes from `first` to `last` over a training; as a float, it is its mean over the training.

    shape: `linear`; `cosine`, slow at both ends; `exponential`, by equal factors; or `steps`, which jumps between as
    many equal stretches as `steps`. start, end: the shares of the training between which it changes.

    Raises ValueError for a shape that does not exist, ends that are not finite (above 0 for `exponential`), and shares
    that are not in order within [0, 1].

    >>> ratio = Scheduled(0.25, 0.75, end=0.5)
    >>> ratio.value(0.0), ratio.value(0.25), ratio.value(1.0), float(ratio)
    (0.25, 0.5, 0.75, 0.625)
    """

    first: float
    last: float
    shape: str
    start: float
    end: float
    steps: int

    def __new__(
        cls, first: float, last: float, shape: str = "linear", start: float = 0.0, end: float = 1.0, steps: int = 2
    ) -> Scheduled:
        """Check the arguments, and compute the mean."""
        _check(first, last, shape, start, end, steps)
        values = (_value(first, last, shape, start, end, steps, (n + 0.5) / _POINTS) for n in range(_POINTS))
        made = super().__new__(cls, math.fsum(values) / _POINTS)
        made.first, made.last, made.shape = float(first), float(last), shape
        made.start, made.end, made.steps = float(start), float(end), steps
        return made

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Scheduled:
        """Return the schedule that a recipe writes as a table. Raises ValueError for a table that is not a schedule."""
        if unknown := [key for key in table if key not in _KEYS]:
            raise ValueError(f"a schedule has no {unknown[0]!r}{did_you_mean(unknown[0], _KEYS)} known: {_EXAMPLE}")
        if missing := [key for key in ("from", "to") if key not in table]:
            raise ValueError(f"a schedule needs {missing[0]!r}; known: {_EXAMPLE}")
        return cls(**{_KEYS[key]: value for key, value in table.items()})

    @property
    def table(self) -> dict[str, Any]:
        """The schedule as a recipe writes it; shares of the training and steps only if they are not the defaults."""
        table: dict[str, Any] = {"from": self.first, "to": self.last, "shape": self.shape}
        table |= {"start": self.start} if self.start else {}
        table |= {"end": self.end} if self.end < 1 else {}
        return table | ({"steps": self.steps} if self.shape == "steps" else {})

    def value(self, progress: float) -> float:
        """Return the value at a progress in [0, 1]."""
        return _value(self.first, self.last, self.shape, self.start, self.end, self.steps, progress)

    def describe(self, steps: int | None = None) -> str:
        """Return the schedule in one line, with a drawing; steps: those of the training, if they are known.

        >>> print(Scheduled(0.3, 0.7).describe(1000))
        0.3 -> 0.7, linear over 1,000 steps ▁▂▃▄▅▆▇█
        >>> print(Scheduled(1, 0, "cosine", start=0.1).describe())
        1 -> 0, cosine from 10% to 100% of the steps ██▇▆▄▃▁▁
        """
        shape = f"in {self.steps} steps" if self.shape == "steps" else self.shape
        if self.start == 0 and self.end == 1:
            over = "over all steps" if steps is None else f"over {steps:,} steps"
        elif steps is None:
            over = f"from {100 * self.start:.3g}% to {100 * self.end:.3g}% of the steps"
        else:
            over = f"from step {round(self.start * steps):,} to {round(self.end * steps):,} of {steps:,}"
        return f"{self.first:g} -> {self.last:g}, {shape} {over} {self._drawing()}"

    def _drawing(self) -> str:
        low, high = sorted((self.first, self.last))
        values = [self.value(n / (_DRAWN - 1)) for n in range(_DRAWN)]
        return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1)) if high > low else 0] for v in values)

    def _arguments(self) -> tuple[Any, ...]:
        return self.first, self.last, self.shape, self.start, self.end, self.steps

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scheduled) and self._arguments() == other._arguments()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._arguments())

    def __repr__(self) -> str:
        return f"Scheduled{self._arguments()}"

    def __str__(self) -> str:
        return self.describe()

    def __reduce__(self) -> tuple[type[Scheduled], tuple[Any, ...]]:
        return type(self), self._arguments()


_EXAMPLE = f"from, to, shape ({', '.join(SHAPES)}), start and end (shares of the training), steps (of the shape steps)"


def _check(first: Any, last: Any, shape: Any, start: Any, end: Any, steps: Any) -> None:
    for name, number in {"from": first, "to": last, "start": start, "end": end}.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise ValueError(f"a schedule's {name!r} must be a finite number, got {number!r:.80}")
    if shape not in SHAPES:
        raise ValueError(f"a schedule's 'shape' must be {' or '.join(SHAPES)}, got {shape!r:.80}")
    if not 0 <= start < end <= 1:
        raise ValueError(
            f"a schedule's 'start' and 'end' are shares of the training, with 0 <= start < end <= 1; got {start} and "
            f"{end}"
        )
    if shape == "exponential" and min(first, last) <= 0:
        raise ValueError(f"an exponential schedule has ends above 0, got {first} and {last}; use linear or cosine")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 2 <= steps <= 10**6:
        raise ValueError(f"a schedule's 'steps' must be a whole number from 2, got {steps!r:.80}")


def _value(first: float, last: float, shape: str, start: float, end: float, steps: int, progress: float) -> float:
    within = min(1.0, max(0.0, (progress - start) / (end - start)))
    if shape == "steps":
        within = min(math.floor(within * steps), steps - 1) / (steps - 1)
    elif shape == "cosine":
        within = (1 - math.cos(math.pi * within)) / 2
    if within in (0.0, 1.0):
        return float(last if within else first)
    if shape == "exponential":
        return float(first * (last / first) ** within)
    return float(first + (last - first) * within)


@runtime_checkable
class CollatesAtProgress(Protocol):
    """A collator whose batches depend on the progress of a training."""

    def at_progress(self, progress: float) -> Any:
        """Return the collator of the batches at a progress in [0, 1]."""


def at_both_ends(validator: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return a validator that holds at both ends of a schedule, between which all of its values are."""
    return validator and _AtBothEnds((validator,))


@frozen
class _AtBothEnds:
    _validators: tuple[Callable[..., Any], ...]  # named as those of attrs' `and_`

    def __call__(self, instance: Any, attribute: Any, value: Any) -> None:
        for one in (value.first, value.last) if isinstance(value, Scheduled) else (value,):
            self._validators[0](instance, attribute, one)


def settings_at(value: _T, progress: float) -> _T:
    """Return settings, or any part of a recipe, with plain numbers: the value of each schedule at a progress in [0, 1].

    The same object, if nothing in it is a schedule.
    """
    found: Any = value
    if isinstance(value, Scheduled):
        found = value.value(progress)
    elif attrs.has(type(value)):
        instance: Any = value
        fields = [a for a in attrs.fields(type(instance)) if a.init]
        old = {a.alias: getattr(value, a.name) for a in fields}
        new = {name: settings_at(inner, progress) for name, inner in old.items()}
        found = attrs.evolve(instance, **new) if _differs(old, new) else value
    elif isinstance(value, Mapping):
        new = {name: settings_at(inner, progress) for name, inner in value.items()}
        found = new if _differs(value, new) else value
    elif isinstance(value, (list, tuple)):
        items = [settings_at(inner, progress) for inner in value]
        is_new = any(one is not other for one, other in zip(items, value, strict=True))
        found = type(value)(items) if is_new else value
    return found  # type: ignore[no-any-return]


def _differs(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> bool:
    return any(new[name] is not old[name] for name in old)


def schedules_in(value: Any, path: str = "") -> Iterator[tuple[str, Scheduled, bool]]:
    """Yield the dotted path of each schedule in settings, the schedule, and whether its setting is schedulable."""
    if attrs.has(type(value)):
        # What a slot adds to a chosen part (`weight`) stands beside the part's own settings, as in a recipe.
        is_choice = {"use", "config"} <= {*attrs.fields_dict(type(value))}
        for a in attrs.fields(type(value)):
            inner = getattr(value, a.name)
            where = path if is_choice and a.name == "config" else f"{path}.{a.name}".lstrip(".")
            if isinstance(inner, Scheduled):
                yield where, inner, bool(a.metadata.get("schedulable"))
            else:
                yield from schedules_in(inner, where)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _inside(inner, f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _inside(inner, f"{path}.{index}")


def _inside(value: Any, path: str) -> Iterator[tuple[str, Scheduled, bool]]:
    if isinstance(value, Scheduled):
        yield path.lstrip("."), value, False
    else:
        yield from schedules_in(value, path.lstrip("."))


def is_scheduled(value: Any) -> bool:
    """Return whether anything in settings is a schedule."""
    return settings_at(value, 0.0) is not value
