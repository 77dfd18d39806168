"""The engine `ray`: tasks on the machines of a Ray cluster.

Scheduling, retries after a crash and the loss of a machine are Ray's. Machines share a file system.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from drkit.core import processes
from drkit.core.engine import Task, Uses
from drkit.core.escaping import escape_controls
from drkit.core.processes import THREADS
from drkit.errors import DrkitError, import_extra, storage_failure

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)
RETRIES = 2
# Tasks that wait on the cluster for each that runs: enough to keep machines busy, few enough to fit in memory.
_AHEAD = 2
_ADDRESS = re.compile(r"auto|[A-Za-z0-9_.\-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5}")
# Arguments of tasks that wait, in the memory of a cluster that is started here.
_OBJECT_STORE = 2**29
# What numbers and downloads depend on besides the code.
_ENVIRONMENT = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "MKL_CBWR")


@frozen
class RayEngine:
    """Carries out tasks on a Ray cluster that this process is connected to; see `open_engine`.

    A task is repeated after an error, or the loss of its process or machine, `RETRIES` times. If it fails for good, the
    others are carried out first. threads: of a task that uses them; Ray reserves as many cores. uses_gpus: whether
    tasks that use a GPU get one each.
    """

    threads: int
    uses_gpus: bool = False

    def run(self, tasks: Iterable[Task[T]]) -> Iterator[T]:
        """Yield the result of each task that succeeds, in order.

        Raises DrkitError, after the last of them, naming every task that failed and the reason; and at once if no
        machine has enough cores for a task.
        """
        self._check_room()
        work: _RayWork[T] = _RayWork(self)
        try:
            for task in tasks:
                yield from work.submit(task)
            yield from work.finish()
        finally:
            work.cancel()

    @property
    def slots(self) -> int:
        """How many tasks that use threads the cluster can carry out at once; it may grow and shrink."""
        return self.at_once("threads")

    def at_once(self, uses: Uses) -> int:
        """Return how many tasks of a kind the cluster can carry out at once."""
        held, needed = _ray().cluster_resources(), self.resources(uses)
        return max(1, int(min(held.get(kind, 0) // count for kind, count in needed.items() if count)))

    def resources(self, uses: Uses) -> dict[str, int]:
        """Return the cores and GPUs that Ray reserves for a task of a kind."""
        on_gpu = uses == "gpu" and self.uses_gpus
        return {"CPU": 1 if on_gpu or uses == "core" else self.threads, "GPU": int(on_gpu)}

    def _check_room(self) -> None:
        most = max((node["Resources"].get("CPU", 0) for node in _ray().nodes() if node["Alive"]), default=0)
        if most < self.threads and not self.uses_gpus:
            raise DrkitError(
                f"a task needs {self.threads} cores, but the machines of the Ray cluster have at most {most:g}: set "
                f"{THREADS} to at most {max(1, int(most))}"
            )


@frozen(eq=False)
class _RayWork(Generic[T]):
    """Tasks of one `run`: running by Ray's reference, and the results that wait for an earlier one."""

    engine: RayEngine
    running: dict[Any, tuple[int, str]] = field(factory=dict)
    done: dict[int, list[T]] = field(factory=dict)
    failed: dict[int, str] = field(factory=dict)
    counts: dict[str, int] = field(factory=lambda: {"submitted": 0, "yielded": 0})

    def submit(self, task: Task[T]) -> Iterator[T]:
        """Hand a task to Ray, once there is room; yields the results that are due."""
        while len(self.running) >= (1 + _AHEAD) * self.engine.at_once(task.uses):
            self._collect()
        needed = self.engine.resources(task.uses)
        # No name: Ray shows it on its pages, and it may come from a collection.
        remote = _ray().remote(
            num_cpus=needed["CPU"],
            num_gpus=needed["GPU"],
            max_retries=RETRIES,
            retry_exceptions=True,
            max_calls=0,
        )(_execute)
        reference = remote.remote(str(Path.cwd()), task.function, task.arguments)
        self.running[reference] = (self.counts["submitted"], task.name)
        self.counts["submitted"] += 1
        yield from self._due()

    def finish(self) -> Iterator[T]:
        """Yield the other results. Raises DrkitError, naming the tasks that failed."""
        while self.running:
            self._collect()
            yield from self._due()
        if self.failed:
            raise DrkitError(
                f"{len(self.failed)} of {self.counts['submitted']} tasks failed, after {1 + RETRIES} attempts each; "
                f"the others are done:\n"
                + "\n".join(f"  - {self.failed[number]}" for number in sorted(self.failed))
                + "\nfix the cause and repeat the command, which keeps what is finished"
            )

    def cancel(self) -> None:
        """Stop what is still running."""
        for reference in self.running:
            _ray().cancel(reference, force=True)

    def _collect(self) -> None:
        """Wait for one task to end."""
        ray = _ray()
        (ended,), _ = ray.wait([*self.running], num_returns=1)
        number, name = self.running.pop(ended)
        try:
            self.done[number] = [ray.get(ended)]
        except ray.exceptions.RayError as error:
            _LOGGER.info("%s failed", name, exc_info=True)
            self.done[number] = []
            self.failed[number] = f"{name}: {_reason(getattr(error, 'cause', None) or error)}"

    def _due(self) -> Iterator[T]:
        while (found := self.done.pop(self.counts["yielded"], None)) is not None:
            self.counts["yielded"] += 1
            yield from found


def _execute(folder: str, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Carry out a task in a worker process of Ray's, with the paths and the GPU that are meant."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise DrkitError(
            f"the folder {folder} cannot be opened on this machine ({error.strerror}); mount the same file system on "
            f"all machines of the cluster"
        ) from None
    gpus = _ray().get_gpu_ids()
    os.environ["LOCAL_RANK"] = str(int(gpus[0])) if gpus else "0"
    try:
        return function(*arguments)
    except Exception as error:
        _LOGGER.exception("a task failed")  # in Ray's log of the worker
        # Escaped here: Ray prints the exceptions that it passes on.
        raise DrkitError(escape_controls(_reason(error))) from None


def _reason(error: Exception) -> str:
    """Return why a task failed."""
    if isinstance(error, DrkitError):
        return str(error)
    failure = storage_failure(error)
    if failure is not None:
        return "; ".join(failure)
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said:.300}" if said else type(error).__name__


def _ray() -> ModuleType:
    """Return the module `ray`, which sends no usage statistics. Raises as `import_extra` does."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray prints retries and lost machines on standard output, where results go.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "$")
    ray: ModuleType = import_extra("ray", "the engine ray")
    return ray


@contextmanager
def open_ray(address: str, device: str) -> Iterator[RayEngine]:
    """Yield the engine of a cluster for the length of a block.

    address: `auto` (this machine's), or HOST:PORT; if empty, a cluster is started on this machine, and stopped
    afterwards. device: `auto` or `cpu`, for tasks that use a GPU.

    Raises DrkitError for another address or device, among several processes (torchrun), if the cluster cannot be
    reached, or without ray.
    """
    if address and not _ADDRESS.fullmatch(address):
        raise DrkitError(f"unknown address {address!r:.100} of a Ray cluster; use ray, ray:auto or ray:HOST:PORT")
    if processes.process_count() > 1:
        raise DrkitError("the engine ray needs a single process, since Ray starts the others; leave out torchrun")
    if device not in ("auto", "cpu"):
        raise DrkitError(f"device {device!r} cannot be chosen with the engine ray, which assigns GPUs; use auto or cpu")
    with _connected(address) as ray:
        yield RayEngine(processes.configured_threads(os.environ), device == "auto" and _has_gpus(ray))


def _has_gpus(ray: ModuleType) -> bool:
    return bool(ray.cluster_resources().get("GPU", 0))


@contextmanager
def _connected(address: str) -> Iterator[ModuleType]:
    """Connect to a cluster, or start one on this machine; Ray protects that one with a token in ~/.ray."""
    if address:  # Ray's own patience with a cluster that does not answer is a quarter of an hour
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    ray = _ray()
    started: dict[str, Any] = {}
    if not address:
        started = {
            "num_cpus": processes.available_cores(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
        }
    threads = processes.configured_threads(os.environ)
    variables = {
        # All GPUs stay visible, and LOCAL_RANK says which one is meant: a worker that gets another one can use it.
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
        THREADS: str(threads),
        "RAYON_NUM_THREADS": os.environ.get("RAYON_NUM_THREADS", str(threads)),  # of tokenizers
        **{name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }
    try:
        ray.init(
            address or "local",
            log_to_driver=False,  # what workers print is not escaped
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
            **started,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise DrkitError(
            f"cannot use the Ray cluster {address or 'on this machine'}: {said:.300}. Run this command on one of its "
            f"machines, with the same versions of Python and ray"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
