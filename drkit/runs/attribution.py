"""Which part of a recipe fails: its name, package and version, in one line. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.registry import DRKIT, Registry, package_of
from drkit.core.settings import config_problems
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError
from drkit.recipe.schema import Choice, Recipe, WeightedLoss
from drkit.testing.specs import ContractError, require

if TYPE_CHECKING:
    from drkit.core.types import BuildContext

LONGEST = 200
COLLECTION_METHODS = ("passages", "splits", "queries", "judgements", "describe")


@frozen
class ChosenPart:
    """A part that a recipe chose: its spec, and its settings."""

    spec: ComponentSpec
    config: Any

    @property
    def title(self) -> str:
        """The part with its package and version: `masker 'mine' (my-package 1.0)`."""
        return f"{self.spec.kind} {self.spec.name!r} ({self.spec.provider or 'unknown package'})"


def chosen(kind: Kind, choice: Choice | WeightedLoss, registry: Registry) -> ChosenPart:
    """Return a part that a recipe names, with the settings it has there."""
    return ChosenPart(registry.get(kind, choice.use), choice.config)


def chosen_parts(recipe: Recipe, registry: Registry) -> Iterator[ChosenPart]:
    """Yield every part that a recipe names, from the collection to the re-ranker's miners."""
    yield chosen(Kind.COLLECTION, recipe.collection, registry)
    if recipe.pretrain:
        yield chosen(Kind.MASKER, recipe.pretrain.masker, registry)
        yield chosen(Kind.DECODER, recipe.pretrain.decoder, registry)
        yield from (chosen(Kind.LOSS, term, registry) for term in recipe.pretrain.losses.values())
    rounds = [recipe.finetune.for_round(own) for own in recipe.finetune.rounds] if recipe.finetune else []
    yield from (chosen(Kind.LOSS, settings.loss, registry) for settings in rounds)
    miners = [miner for own in recipe.finetune.rounds for miner in own.miners] if recipe.finetune else []
    if recipe.reranker:
        yield chosen(Kind.LOSS, recipe.reranker.loss, registry)
        miners += recipe.reranker.miners
    yield from (chosen(Kind.MINER, miner, registry) for miner in miners)


def part_behind(error: BaseException, parts: Iterable[ChosenPart]) -> ChosenPart | None:
    """Return the part whose code raised an exception, the innermost where parts call each other; None: no part did.

    A part's code is the class or function of its target; for a package other than drkit, any module of the package.
    """
    known = list(parts)
    for frame in reversed(list(_frames(error))):
        found = next((part for part in known if _is_of(frame, part.spec)), None)
        if found is not None:
            return found
    return None


def described(error: BaseException) -> str:
    """Return the type and the first line of an exception, shortened.

    >>> described(ValueError("too small" + chr(10) + "and more"))
    'ValueError: too small'
    """
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    named = not isinstance(error, DrkitError)  # a message of drkit's own says what is wrong by itself
    text = f"{type(error).__name__}: {first}" if first and named else first or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def raised_at(error: BaseException, spec: ComponentSpec) -> str:
    """Return `file:line` of a part's own code that an exception came through last, or an empty string."""
    traceback, place = error.__traceback__, ""
    while traceback is not None:
        if _package(traceback.tb_frame) == spec.target.partition(".")[0].partition(":")[0]:
            place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


@contextmanager
def trying(part: ChosenPart, doing: str) -> Iterator[None]:
    """A block that runs a part: whatever it raises becomes a DrkitError, one line that names the part."""
    try:
        yield
    except ContractError as error:
        raise DrkitError(str(error)) from None
    except Exception as error:  # a stranger's part may fail in any way
        place = raised_at(error, part.spec)
        where = f" ({place})" if place else ""
        raise DrkitError(f"{part.title} failed on a toy batch, {doing}: {described(error)}{where}") from error


def target_of(part: ChosenPart) -> Any:
    """Return what the target of a part names; raises DrkitError, one line, where it does not resolve."""
    spec = part.spec
    problems = config_problems(spec.config)
    if problems:
        raise DrkitError(f"{part.title}: {'; '.join(problems)}")
    try:
        factory = spec.load()
    except Exception as error:  # a stranger's module may fail in any way
        raise DrkitError(f"{part.title}: its target {spec.target!r} does not resolve: {described(error)}") from error
    refuse_unless(callable(factory), f"{part.title}: its target {spec.target!r} is not callable")
    return factory


def build_part(part: ChosenPart, context: BuildContext | None, methods: Sequence[str] = ()) -> Any:
    """Build a part with its settings.

    Raises DrkitError, one line, where it cannot be built, or lacks one of `methods`.
    """
    factory = target_of(part)
    with trying(part, "while it was built"):
        made = factory(part.config, context)
        require_methods(part, made, methods)
    return made


def refuse_unless(condition: bool, message: str) -> None:
    """Raise DrkitError with `message` where the condition does not hold."""
    if not condition:
        raise DrkitError(message)


def require_methods(part: ChosenPart, made: Any, names: Sequence[str]) -> None:
    """Raise ContractError where an object lacks a method."""
    missing = [name for name in names if not callable(getattr(made, name, None))]
    require(not missing, f"{part.title}: {type(made).__name__} has no method {' and no method '.join(missing)}")


def try_collection(recipe: Recipe, registry: Registry) -> None:
    """Build a recipe's collection and ask for its splits; raises DrkitError, one line, where that fails.

    One that reads local files is not built: reading may take long, and its own messages name file and line.
    """
    part = chosen(Kind.COLLECTION, recipe.collection, registry)
    if any(part.spec.paths_of(part.config)):
        target_of(part)
        return
    made = build_part(part, None, methods=COLLECTION_METHODS)
    with trying(part, "asked for its splits"):
        splits = made.splits()
        words = isinstance(splits, (tuple, list)) and all(isinstance(split, str) for split in splits)
        require(words, f"{part.title}: splits() must be a tuple of names, got {splits!r}")


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _is_of(frame: FrameType, spec: ComponentSpec) -> bool:
    module, _, attribute = spec.target.partition(":")
    if frame.f_globals.get("__name__") == module:
        owner = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else frame.f_code.co_name
        return owner == attribute or package_of(spec.provider) != DRKIT
    return package_of(spec.provider) != DRKIT and _package(frame) == module.partition(".")[0]


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
