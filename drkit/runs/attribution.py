"""Name the part of a recipe that fails, with its package and version, in one line. Imports no torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import Any, cast

from drkit.core.process_state import restored_process_state
from drkit.core.protocols import Collection
from drkit.core.registry import DRKIT, Registry, package_of
from drkit.core.settings import config_problems
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import BuildContext
from drkit.errors import DrkitError, MissingExtraError, is_out_of_memory
from drkit.recipe.parts import PartInUse
from drkit.recipe.schema import Recipe
from drkit.testing.specs import ContractError, require

_MAX_LENGTH = 200
COLLECTION_METHODS = ("passages", "splits", "queries", "judgements", "describe")


def failing_part(error: BaseException, parts: Iterable[PartInUse]) -> PartInUse | None:
    """Return the part whose code raised an exception, the innermost if parts call each other; None if no part did.

    A part's code is the class or function of its target; for a package other than drkit, any module of the package.
    """
    candidates = list(parts)
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        part = next((part for part in candidates if _belongs_to(frame, part.spec)), None)
        if part is not None:
            return part
    return None


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an exception, shortened.

    >>> describe_error(ValueError("too small" + chr(10) + "and more"))
    'ValueError: too small'
    """
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    has_type = not isinstance(error, DrkitError)  # drkit's own messages need no type
    text = f"{type(error).__name__}: {first}" if first and has_type else first or type(error).__name__
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."


def error_location(error: BaseException, spec: ComponentSpec) -> str:
    """Return `file:line` of the innermost frame of an exception in a part's package, or an empty string."""
    package = re.split("[.:]", spec.target)[0]
    found = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _package(frame) == package]
    return f"{found[-1][0].f_code.co_filename}:{found[-1][1]}" if found else ""


@contextmanager
def trying(part: PartInUse, action: str) -> Iterator[None]:
    """Run a block that uses a part; any exception becomes a one-line DrkitError that names the part and the action.

    What the part changed of the process, or of torch, is named before an error, which may be due to it.
    """
    seed = _torch_seed()
    changed: list[str] = []
    try:
        with restored_process_state() as changed:
            yield
    except ContractError as error:
        _refuse_changes(part, changed, action)
        raise DrkitError(str(error)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third-party part may fail in any way, as by a failure of pytest or a task's end
        _refuse_changes(part, changed, action)
        if is_out_of_memory(error):  # of the machine, not of the part
            raise
        location = error_location(error, part.spec)
        where = f" ({location})" if location else ""
        raise DrkitError(
            f"{part.full_title} failed on a toy batch, {action}: {describe_error(error)}{where}"
        ) from error
    _refuse_changes(part, [*changed, *(["torch's random seed"] if _torch_seed() != seed else [])], action)


def _torch_seed() -> int | None:
    """Return what the last `torch.manual_seed` set, if torch is imported; drawing numbers does not change it."""
    torch: Any = sys.modules.get("torch")
    return torch.initial_seed() if torch else None


def _refuse_changes(part: PartInUse, changed: Sequence[str], action: str) -> None:
    """Raise DrkitError if a part has changed what all code of the process shares."""
    if changed:
        raise DrkitError(
            f"{part.full_title} changed {' and '.join(changed)}, {action}; a part must leave the process as it is"
        )


def target_of(part: PartInUse) -> Any:
    """Import the class or function that a part's target names; raises a one-line DrkitError if that fails."""
    spec = part.spec
    problems = config_problems(spec.config)
    if problems:
        raise DrkitError(f"{part.full_title}: {'; '.join(problems)}")
    try:
        with restored_process_state() as changed:
            factory = spec.load()
    except MissingExtraError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third-party module may fail in any way
        if is_out_of_memory(error):
            raise
        raise DrkitError(
            f"{part.full_title}: cannot import its target {spec.target!r}: {describe_error(error)}"
        ) from error
    _refuse_changes(part, changed, "while it was imported")
    if not callable(factory):
        raise DrkitError(f"{part.full_title}: its target {spec.target!r} is not callable")
    return factory


def build_part(part: PartInUse, context: BuildContext | None, methods: Sequence[str] = ()) -> Any:
    """Build a part with its settings.

    Raises a one-line DrkitError if that fails, or the part lacks one of `methods`.
    """
    factory = target_of(part)
    with trying(part, "while it was built"):
        built = factory(part.config, context)
        require_methods(part, built, methods)
    return built


def require_methods(part: PartInUse, built: Any, names: Sequence[str]) -> None:
    """Raise ContractError if a built part lacks a method."""
    missing = [name for name in names if not callable(getattr(built, name, None))]
    require(not missing, f"{part.full_title}: {type(built).__name__} has no method {' and no method '.join(missing)}")


class _Collections(Registry):
    """Builds the collections of several data sets: errors of files are left as they are, others name the part."""

    def make(self, spec: ComponentSpec, settings: Any, context: BuildContext | None) -> Any:
        """Build a collection."""
        part = PartInUse(spec, settings)
        if any(spec.paths_of(settings)):
            return target_of(part)(settings, context)
        return build_part(part, context, methods=COLLECTION_METHODS)


def build_collection(recipe: Recipe, registry: Registry) -> Collection:
    """Build a recipe's collection, and read its splits; raises a one-line DrkitError if that fails.

    What a collection of local files raises is left as it is: its own messages name file and line.
    """
    part = PartInUse.of(Kind.COLLECTION, recipe.collection, registry)
    if recipe.collections:  # each of which is built as one alone
        context = BuildContext(registry=_Collections(registry, registry.failed))
        return cast("Collection", target_of(part)(part.config, context))
    if any(part.spec.paths_of(part.config)):
        return cast("Collection", target_of(part)(part.config, None))
    collection: Collection = build_part(part, None, methods=COLLECTION_METHODS)
    with trying(part, "while reading its splits"):
        splits = collection.splits()
        is_valid = isinstance(splits, (tuple, list)) and all(isinstance(split, str) for split in splits)
        require(is_valid, f"{part.full_title}: splits() must be a tuple of names, got {splits!r}")
    return collection


def _belongs_to(frame: FrameType, spec: ComponentSpec) -> bool:
    module, _, attribute = spec.target.partition(":")
    if frame.f_globals.get("__name__") == module:
        owner = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else frame.f_code.co_name
        return owner == attribute or package_of(spec.provider) != DRKIT
    return package_of(spec.provider) != DRKIT and _package(frame) == module.partition(".")[0]


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
