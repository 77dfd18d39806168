"""Where the data work of a run is carried out: in this process, or by the engine of a plugin.

Work is a stream of tasks. A task calls an importable function with plain data and paths; the function writes one
immutable file or folder atomically, so that a task may be repeated, and the results are the same with every engine.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from attrs import frozen

from drkit.core import processes
from drkit.core.registry import installed
from drkit.errors import DrkitError, UnknownNameError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# What a task computes with: one core, the threads of its engine, or a GPU (threads on a machine without one).
Uses: TypeAlias = Literal["core", "threads", "gpu"]
LOCAL = "local"
_PROCESSES = "processes"
_SIDE_BY_SIDE = re.compile(rf"{_PROCESSES}:([1-9][0-9]{{0,3}})")
_LOGGER = logging.getLogger(__name__)


@frozen
class Task(Generic[T_co]):
    """One call of a function that can be imported, with arguments of plain data, paths and `Loaded` values.

    name: what an error message calls it.
    """

    name: str
    function: Callable[..., T_co]
    arguments: tuple[Any, ...]
    uses: Uses = "threads"


class Engine(Protocol):
    """Carries out tasks."""

    @property
    def threads(self) -> int:
        """How many threads a task may use."""

    @property
    def slots(self) -> int:
        """How many tasks that use threads are carried out at once."""

    def run(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        """Yield the result of each task, in order; tasks are read as they are needed.

        Raises DrkitError for tasks that fail.
        """


class LocalEngine:
    """Carries out tasks in this process, one after another; the first that fails ends the work."""

    slots: ClassVar[int] = 1

    @property
    def threads(self) -> int:
        """How many threads a task may use: as many as there are cores."""
        return processes.available_cores()

    def run(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        """Yield the result of each task, in order."""
        return (task.function(*task.arguments) for task in tasks)


@frozen
class GroupEngine:
    """Carries out tasks in all processes of torchrun, of all machines, one each at a time.

    The first process calls `run`. The others wait in `processes.broadcast`; when that returns `TASKS`, they call
    `join_tasks`.
    """

    @property
    def threads(self) -> int:
        """How many threads a task may use: those of its process."""
        return processes.configured_threads(os.environ)

    @property
    def slots(self) -> int:
        """How many tasks are carried out at once: one in each process."""
        return processes.process_count()

    def run(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        """Yield the result of each task, in order.

        Raises DrkitError naming every task that failed and the reason, after the others that were carried out with it.
        """
        waiting = iter(tasks)
        while some := [*islice(waiting, self.slots)]:
            processes.broadcast(TASKS)
            # The first process keeps its own task as it is: what that has loaded is not loaded again.
            processes.scatter([None, *some[1:], *[None] * (self.slots - len(some))])
            failed: dict[str, str] = {}
            for task, outcome in zip(some, processes.gather(_outcome(some[0])), strict=False):
                if isinstance(outcome, _Failure):
                    failed[task.name] = outcome.reason
                else:
                    yield outcome
            if failed:
                raise _failures(failed, len(some))


# What the first process broadcasts when it hands out tasks.
TASKS = ("tasks",)


def join_tasks() -> None:
    """Carry out the task that the first process has for this one, if it has one."""
    processes.gather(_outcome(processes.scatter(None)))


@frozen
class _Failure:
    """Why a task failed."""

    reason: str


def _outcome(task: Task[T] | None) -> T | _Failure | None:
    """Return the result of a task, or why it failed; None without one."""
    if task is None:
        return None
    try:
        return task.function(*task.arguments)
    except Exception as error:
        _LOGGER.info("%s failed", task.name, exc_info=True)
        return _Failure(_reason(error))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, DrkitError) else f"{type(error).__name__}: {error}"


def _failures(failed: Mapping[str, str], count: int) -> DrkitError:
    """Return an error that names the failed ones of `count` tasks, each with the reason."""
    return DrkitError(
        f"{len(failed)} of {count} failed{'; the others are done' * (len(failed) < count)}:\n"
        + "\n".join(f"  - {name}: {reason}" for name, reason in failed.items())
        + "\nfix the cause and repeat the command, which keeps what is finished"
    )


# Seconds that interrupted processes get to save their checkpoints.
_GRACE = 5.0
# Tasks for each process that are read before their turn: they may hold texts.
_AHEAD = 2


@frozen
class ProcessEngine:
    """Carries out tasks in processes of this machine, `slots` at a time, each with its share of the threads."""

    slots: int

    @property
    def threads(self) -> int:
        """How many threads a task may use: its share of those of this process."""
        return max(1, processes.configured_threads(os.environ) // self.slots)

    def run(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        """Yield the result of each task that succeeds, in order.

        Raises DrkitError, after the last of them, naming every task that failed and the reason.
        """
        waiting, before = iter(tasks), {*multiprocessing.active_children()}
        pool = ProcessPoolExecutor(
            self.slots, mp_context=multiprocessing.get_context("spawn"), initializer=_print_to_errors
        )
        failed: dict[str, str] = {}
        count, pending = 0, deque[tuple[str, Future[T]]]()
        try:
            while True:
                for task in islice(waiting, _AHEAD * self.slots - len(pending)):
                    with _variable(processes.THREADS, str(self.threads)):  # which a process reads when it starts
                        pending.append((task.name, pool.submit(task.function, *task.arguments)))
                    count += 1
                if not pending:
                    break
                yield from _result(*pending.popleft(), failed)
            pool.shutdown()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            _end({*multiprocessing.active_children()} - before)
        if failed:
            raise _failures(failed, count)


def _result(name: str, future: Future[T], failed: dict[str, str]) -> Iterator[T]:
    """Yield the result of a task; of one that failed, add the reason to `failed`."""
    try:
        yield future.result()
    except BrokenProcessPool:
        raise DrkitError(
            "a process was killed, perhaps because memory ran out: repeat the command with fewer processes; it keeps "
            "what is finished"
        ) from None
    except Exception as error:
        failed[name] = _reason(error)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for the length of a block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _print_to_errors() -> None:
    """Send what a process prints to standard error: standard output has the result of the command."""
    os.dup2(2, 1)


def _end(children: Iterable[BaseProcess]) -> None:
    """End processes that an interrupt has left working."""
    for child in children:
        child.join(_GRACE)
        if child.is_alive():
            child.terminate()


def is_local(engine: Engine | None) -> bool:
    """Return whether tasks are carried out in this process: without an engine, or on the local one."""
    return engine is None or isinstance(engine, LocalEngine)


def count_done(tasks: Iterable[Task[Iterator[int]]], engine: Engine | None) -> Iterator[int]:
    """Carry out tasks that yield how many items they did, and yield these numbers.

    In this process a number comes as soon as the items are done; from another engine, all of a task's as one.
    """
    if is_local(engine):
        return (count for task in tasks for count in task.function(*task.arguments))
    summed = (Task(task.name, sum_counts, (task.function, task.arguments), task.uses) for task in tasks)
    return (engine or LocalEngine()).run(summed)


def sum_counts(function: Callable[..., Iterator[int]], arguments: tuple[Any, ...]) -> int:
    """Return the sum of all numbers that a function yields."""
    return sum(function(*arguments))


class Loaded(Generic[T_co]):
    """A model, an index or another large value, which another process loads for itself.

    It is pickled as the call that makes it: a function that can be imported, and arguments that can be hashed. The
    value is loaded on first use; a worker process keeps it for its next tasks.

    >>> text = Loaded(str.format, "{} shards", 3)
    >>> text.value
    '3 shards'
    """

    def __init__(self, function: Callable[..., T_co], *arguments: Any, **settings: Any) -> None:
        self.function, self.arguments, self.settings = function, arguments, tuple(sorted(settings.items()))
        self._value: list[T_co] = []

    @property
    def value(self) -> T_co:
        """The value itself. Raises what the function raises."""
        if not self._value:
            self._value.append(self.function(*self.arguments, **dict(self.settings)))
        return self._value[0]

    def checked(self, check: Callable[..., T_co], *arguments: Any) -> Loaded[T_co]:
        """Return the same value, which other processes load through `check(loaded, *arguments)`."""
        made = Loaded(_checked, check, arguments, self.function, self.arguments, self.settings)
        made._value.append(self.value)
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _loaded_once, (self.function, self.arguments, self.settings)


# Two: an index and the encoder of its queries.
@lru_cache(maxsize=2)
def _loaded_once(function: Callable[..., T], arguments: tuple[Any, ...], settings: tuple[Any, ...]) -> Loaded[T]:
    return Loaded(function, *arguments, **dict(settings))


def _checked(
    check: Callable[..., T], given: tuple[Any, ...], function: Callable[..., T], arguments: Any, settings: Any
) -> T:
    return check(function(*arguments, **dict(settings)), *given)


def loaded_value(given: Any) -> Any:
    """Return the value of a `Loaded`; anything else is returned unchanged."""
    return given.value if isinstance(given, Loaded) else given


def open_engine(name: str = LOCAL, device: str = "auto") -> AbstractContextManager[Engine]:
    """Return a context whose value is the engine of this name.

    name: `local`, `processes:N`, or an engine of a plugin as `NAME` or `NAME:ADDRESS` (`ray`, `ray:auto`). device:
    `auto` or `cpu`, for tasks that use a GPU.

    Raises DrkitError for an unknown name, and as the engine does.
    """
    check_engine(name)
    if name == LOCAL:
        return nullcontext(LocalEngine())
    if found := _SIDE_BY_SIDE.fullmatch(name):
        if processes.process_count() > 1:
            raise DrkitError(f"the engine {name} needs a single process; under torchrun its processes share the work")
        return nullcontext(ProcessEngine(int(found[1])))
    kind, _, address = name.partition(":")
    opened: AbstractContextManager[Engine] = installed().extensions["engine"].get(kind).load()(address, device)
    return opened


def check_engine(name: str) -> None:
    """Raise DrkitError if no engine has this name (see `open_engine`); nothing is started."""
    table = installed().extensions["engine"]
    is_own = name == LOCAL or _SIDE_BY_SIDE.fullmatch(name) is not None
    if not is_own and (name.partition(":")[0] not in table or name.endswith(":")):
        raise UnknownNameError("engine", name, (LOCAL, f"{_PROCESSES}:N", *(f"{one}[:ADDRESS]" for one in table)))
