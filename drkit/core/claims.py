"""Names that several packages claim: which claim a bare name means, and how to name each of them.

A bare name means drkit's own part where drkit has one, and otherwise the only part of that name. `PACKAGE:NAME` names
any part for certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from drkit.errors import DrkitError, UnknownNameError

OWN = "drkit"


class Claim(Protocol):
    """A thing with a name, brought by a package: `provider` is the package and its version."""

    @property
    def name(self) -> str:
        """Its name, without a package."""

    @property
    def provider(self) -> str:
        """`PACKAGE VERSION`."""


Claimed = TypeVar("Claimed", bound=Claim)


def package_of(provider: str) -> str:
    """Return the normalised name of the package in `PACKAGE VERSION`; `unknown` where the provider is empty.

    >>> package_of("My_Masker 1.0"), package_of("")
    ('my-masker', 'unknown')
    """
    return re.sub(r"[^a-z0-9]+", "-", provider.split(" ")[0].lower()) or "unknown"


def full_name(claim: Claim) -> str:
    """Return `PACKAGE:NAME`."""
    return f"{package_of(claim.provider)}:{claim.name}"


class Claims(Generic[Claimed]):
    """The parts of one kind (or the recipes, or the pipelines) by name; immutable. Iterating gives their names.

    what: the kind, for messages. failed: a line for each plugin that could not be loaded and might have had the name.
    """

    def __init__(self, what: str, items: Iterable[Claimed] = (), failed: Iterable[str] = ()) -> None:
        self.what, self.failed = what, tuple(failed)
        self._table: dict[str, list[Claimed]] = {}
        for item in items:
            self._table.setdefault(item.name, []).append(item)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.name_of(item) for item in self.items()))

    def items(self) -> tuple[Claimed, ...]:
        """Return everything, sorted by bare name; of a name that is claimed twice, each claim."""
        return tuple(item for name in sorted(self._table) for item in self._table[name])

    def get(self, name: str) -> Claimed:
        """Return what `NAME` or `PACKAGE:NAME` means.

        Raises UnknownNameError (with the closest name), or DrkitError for a bare name that is ambiguous.
        """
        package, colon, bare = name.rpartition(":")
        rivals = self._table.get(bare, [])
        if colon:
            rivals = [item for item in rivals if package_of(item.provider) == package_of(package)]
        if not rivals:
            raise UnknownNameError(self.what, name, tuple(self), self.failed)
        meant = _meant(rivals)
        if meant is None:
            raise DrkitError(self._ambiguous(name, rivals))
        return meant

    def name_of(self, item: Claimed) -> str:
        """Return the shortest name that `get` finds this item under."""
        return item.name if _meant(self._table.get(item.name, ())) is item else full_name(item)

    def clashes(self) -> tuple[str, ...]:
        """Return a sentence for each name that several packages claim: whose it is, and how to name the others."""
        return tuple(self._clash(rivals) for _, rivals in sorted(self._table.items()) if len(rivals) > 1)

    def _ambiguous(self, name: str, rivals: Sequence[Claimed]) -> str:
        providers = sorted({item.provider or "unknown" for item in rivals})
        if len(providers) == 1:
            return f"the {self.what} name {name!r} is registered twice by {providers[0]}; ask its author to rename one"
        spellings = " or ".join(sorted(repr(full_name(item)) for item in rivals))
        return f"the {self.what} name {name!r} is claimed by {' and '.join(providers)}; write {spellings}"

    def _clash(self, rivals: Sequence[Claimed]) -> str:
        name, meant = rivals[0].name, _meant(rivals)
        packages = " and ".join(sorted({package_of(item.provider) for item in rivals}))
        others = " or ".join(sorted(repr(full_name(item)) for item in rivals if item is not meant))
        own = f"{name!r} means {package_of(meant.provider)}'s, " if meant is not None else ""
        return f"{self.what} {name!r} is claimed by {packages}: {own}write {others}{' for the other' if own else ''}"


def _meant(rivals: Sequence[Claimed]) -> Claimed | None:
    """Return what a bare name means: drkit's own, or the only claim; None where it is ambiguous."""
    own = [item for item in rivals if package_of(item.provider) == OWN] or rivals
    return own[0] if len(own) == 1 else None
