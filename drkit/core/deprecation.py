"""What will be removed from the public API: its replacement, and the version that removes it.

A public name that goes is declared in `DEPRECATED`, and nowhere else: `drkit.core.lazy_exports` answers for it with its
replacement and a warning. A part declares it in its spec (`ComponentSpec.deprecated`), a setting with another name in
its field (`setting(.., formerly=FormerName("old", "0.3"))`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

from attrs import field, frozen
from attrs.validators import matches_re


class DrkitDeprecationWarning(FutureWarning):
    """Something is used that a later version removes; Python shows it once for each place that uses it."""


@frozen
class Deprecation:
    """What replaces a deprecated name or part, and the version of its package that removes it.

    Raises ValueError if the version is not made of numbers and dots.

    >>> Deprecation("drkit.search.Reranker", "0.3").sentence("drkit.search.Ranker")
    'drkit.search.Ranker is deprecated and will be removed in version 0.3; use drkit.search.Reranker'
    """

    replacement: str
    removed_in: str = field(validator=matches_re(r"\d+(\.\d+)+"))

    def sentence(self, name: str) -> str:
        """Return what is deprecated, until when it works, and what to use."""
        return f"{name} is deprecated and will be removed in version {self.removed_in}; use {self.replacement}"

    def warn(self, name: str, stacklevel: int) -> None:
        """Warn at the place that uses `name`; stacklevel: as of `warnings.warn`, 1 being the caller of this method."""
        warnings.warn(self.sentence(name), DrkitDeprecationWarning, stacklevel=stacklevel + 1)

    def outlives(self, version: str) -> bool:
        """Return whether `version` should no longer have it.

        >>> Deprecation("drkit.search.Reranker", "0.3").outlives("0.3.0")
        True
        """
        return _numbers(version) >= _numbers(self.removed_in)


@frozen
class FormerName:
    """The name that a setting had before, and the version of its package that no longer reads it.

    Raises ValueError if the version is not made of numbers and dots.
    """

    name: str
    removed_in: str = field(validator=matches_re(r"\d+(\.\d+)+"))

    def deprecation(self, now: str) -> Deprecation:
        """Return the deprecation of this name, which the setting `now` replaces."""
        return Deprecation(now, self.removed_in)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with, three at least: (0, 3, 0) of `0.3`, `0.3.0` and `0.3.0rc1`."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    found = tuple(map(int, numbers[0].split("."))) if numbers else ()
    return found + (0,) * (3 - len(found))


# Public names that go, `PACKAGE.NAME`, each with the public name that replaces it.
DEPRECATED: Mapping[str, Deprecation] = {}
