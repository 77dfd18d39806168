"""Types of command-line values: names of parts, paths, settings; checked, and completed in the shell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from drkit.core.files import input_path, local_path
from drkit.core.registry import installed
from drkit.core.settings import MOST
from drkit.core.spec import EXTENSIONS, Kind
from drkit.errors import DrkitError, UnknownNameError

if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:  # only new releases of click take a type here
    _ParamType = click.ParamType

LARGEST_SEED = 2**31 - 1
PARTS = tuple(kind.value for kind in Kind)
KINDS = (*PARTS, "pipeline", "recipe", *EXTENSIONS)
# Kinds by other names.
_KIND_OF = {"paper": "recipe", "dataset": "collection", "negative": "miner"}
_OPTIONS = ("masker", "context", "decoder", "loss", "miner", "batches", "collection", "pipeline")
# The option of `drkit compose` that takes a name of each kind.
CHOSEN_BY = {
    **{kind: f"--{kind}" for kind in _OPTIONS},
    "recipe": "--paper",
}


def names_of(kind: str) -> tuple[str, ...]:
    """Return the installed names of a kind."""
    parts = installed()
    return parts.registry.names(kind) if kind in PARTS else tuple(parts.table(kind))


def kinds_of(name: str) -> list[str]:
    """Return the kinds that have something of this name, in any case."""
    return [kind for kind in KINDS if recased(name, names_of(kind)) in names_of(kind)]


def recased(name: str, known: Iterable[str]) -> str:
    """Return the known name that differs only in case, if there is a single one; otherwise the name itself.

    >>> recased("RetroMAE", ["retromae", "simlm"]), recased("bert", ["simlm"])
    ('retromae', 'bert')
    """
    found = [one for one in known if one.lower() == name.lower()]
    return found[0] if len(found) == 1 else name


def chosen_by(name: str) -> str:
    """Say what a name is and which option of `drkit compose` takes it; nothing if no option does.

    >>> chosen_by("pmi"), chosen_by("nothing")
    ("'pmi' is a masker: --masker pmi", '')
    """
    return ", or ".join(
        f"{name!r} is a {kind}: {CHOSEN_BY[kind]} {recased(name, names_of(kind))}"
        for kind in kinds_of(name)
        if kind in CHOSEN_BY
    )


class Count(_ParamType):
    """A whole number of things, from `least` to `most`."""

    name = "n"

    def __init__(self, least: int, most: int = MOST) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; refuses one that is too small or too large."""
        number = click.INT.convert(value, param, ctx)
        if not self.least <= number <= self.most:
            bound = f"at least {self.least}" if number < self.least else f"at most {self.most:,}"
            self.fail(f"must be {bound}, got {number}", param, ctx)
        return number


def count(least: int, most: int = MOST) -> Count:
    """Return the type of a number of things, from `least` to `most`."""
    return Count(least, most)


class Between(click.FloatRange):
    """A number within bounds; NaN is refused, too."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that was given; nan is refused."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class LocalPath(click.Path):
    """A path, as `drkit.core.files.local_path` allows it. dir_okay, file_okay: as click's."""

    def __init__(self, *, dir_okay: bool = True, file_okay: bool = True) -> None:
        super().__init__(dir_okay=dir_okay, file_okay=file_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises DrkitError as `local_path` does."""
        return super().convert(local_path(value), param, ctx)


class InputPath(LocalPath):
    """A file to read; `-` is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises DrkitError as `local_path` does."""
        return super().convert(input_path(value), param, ctx)


@contextmanager
def _of_another_kind() -> Iterator[None]:
    """Name the option for an unknown name that belongs to another kind."""
    try:
        yield
    except UnknownNameError as error:
        if found := chosen_by(error.name):
            raise DrkitError(f"no {error.kind} named {error.name!r}; {found}") from None
        raise


class KindName(_ParamType):
    """A kind of part, or recipe, pipeline ..; plurals and capitals are understood, other words left as they are."""

    name = "kind"

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the kind, or the text unchanged."""
        spellings = (value.lower().removesuffix(end) for end in ("", "s", "es"))
        return next((_KIND_OF.get(one, one) for one in spellings if one in (*KINDS, *_KIND_OF)), value)

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the kinds that start with the incomplete text."""
        return [CompletionItem(kind) for kind in KINDS if kind.startswith(incomplete)]


class PartName(_ParamType):
    """The name of a registered part of one kind: `NAME`, or `NAME:VALUE` if it takes a value.

    others: words that are allowed, too.
    """

    def __init__(self, kind: str, *others: str) -> None:
        self.name, self.others = kind, others

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the text, its name in the case of the part. Raises as `Registry.split` does if it names no part."""
        if value in self.others:
            return value
        head, colon, rest = value.partition(":")
        text = f"{recased(head, names_of(self.name))}{colon}{rest}"
        with _of_another_kind():
            installed().registry.split(self.name, text)
        return text

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the registered names that start with the incomplete text."""
        named = [(spec.name, spec.summary) for spec in installed().registry.specs(self.name)]
        named += [(other, "") for other in self.others]
        return [CompletionItem(name, help=summary) for name, summary in named if name.startswith(incomplete)]


class LossOnSide(PartName):
    """A loss with a side and a weight, `NAME[@SIDE][=WEIGHT]`; `drkit.recipe.compose` checks it."""

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the text unchanged."""
        return value


class InstalledName(_ParamType):
    """The name of a recipe, a pipeline, or an extension of a kind."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the name in its own case. Raises as `NameTable.get` does if it is unknown."""
        name = recased(value, names_of(self.name))
        with _of_another_kind():
            installed().table(self.name).get(name)
        return name

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names that start with the incomplete text."""
        return [CompletionItem(name) for name in installed().table(self.name) if name.startswith(incomplete)]


class NameOfKind(_ParamType):
    """The name of a part, a recipe ..; the argument KIND before it names the kind."""

    name = "name"

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the names of the kind that start with the incomplete text."""
        # Before an option without its value, click leaves arguments unparsed.
        kind = ctx.params.get("kind") or next(iter(ctx.args), "")
        names = PartName(kind) if kind in list(Kind) else InstalledName(kind)
        return names.shell_complete(ctx, _param, incomplete) if kind else []


class CollectionName(_ParamType):
    """A collection: `NAME`, `NAME:VALUE`, or the folder of a run. What it means is checked where it is opened."""

    name = "collection"

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Return the collections that start with the incomplete text; if none does, let the shell complete folders."""
        found = PartName("collection").shell_complete(_ctx, _param, incomplete)
        return found or [CompletionItem(incomplete, type="dir")]


class PathOrId(_ParamType):
    """The folder of a model or run, or a hub id; folders are completed."""

    name = "path"

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        """Let the shell complete folders."""
        return [CompletionItem(incomplete, type="dir")]


# A second setting behind a comma.
_FURTHER = re.compile(r",\s*(?=[a-z_]+(\.[a-z0-9_]+)+=)")


class Assignment(_ParamType):
    """A setting `PATH=VALUE`; paths are those of the recipe, or of the parts, that the command line chooses."""

    name = "setting"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged; refuses one without an equals sign."""
        path, _, rest = value.partition("=")
        if further := _FURTHER.search(rest):
            first, others = rest[: further.start()], rest[further.end() :]
            self.fail(f"expected one setting; write --set {path}={first} --set {others}", param, ctx)
        if "=" not in value and not (ctx and ctx.resilient_parsing):  # a line that is still being typed
            self.fail(
                f"expected PATH=VALUE without spaces, as in pretrain.learning_rate=1e-4, got {value!r}", param, ctx
            )
        return value
