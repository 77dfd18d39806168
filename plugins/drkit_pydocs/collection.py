"""The default collection: find a function by what it does.

The first paragraph of a docstring is a query and the rest of it the passage to find. Docstrings are read from the
sources of the standard library and of the installed packages; whole modules go to train, dev or test.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.core.processes import available_cores
from drkit.data.examples import names_somebody
from drkit.data.splits import fraction
from drkit.errors import UnknownNameError, did_you_mean
from drkit.plugin import (
    SPLITS,
    BuildContext,
    CollectionSize,
    DrkitError,
    Judgement,
    Passage,
    Query,
    split_by_hash,
)
from drkit_pydocs.docstrings import Found, read_files, summary_and_rest
from drkit_pydocs.specs import PydocsConfig

# Tests describe themselves, and vendored folders hold second copies.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "test", "tests", "_vendor", "site-packages", "dist-packages"})
_WORD = re.compile(r"\w+")
# A heading with its underline, and an example: nobody asks for a function like this.
_NO_SENTENCE = re.compile(r"([~=\-^#*+])\1{3}|>>>")
# Of the standard library and a hundred packages: bytes of source for each passage;
# queries for each passage; characters of an id; tokens of passages and queries, equal shares of them.
_SOURCE_BYTES, _QUERIES, _ID_LENGTH = 5000, 0.83, 46
_PASSAGE_TOKENS = (17, 24, 31, 37, 45, 54, 64, 74, 86, 100, 115, 134, 157, 186, 223, 265, 330, 420, 600, 1100)
_QUERY_TOKENS = (8, 12, 13, 16, 19, 20, 21, 28, 36, 60)

# Files between two reports of progress.
_SHOWN_EVERY = 100


@frozen
class Documented:
    """A docstring of the collection; `summary` is empty if it is not used as a query."""

    doc_id: str
    module: str
    summary: str
    rest: str


class PydocsCollection:
    """Docstrings of the installed Python packages; the same environment gives the same collection.

    `roots` are the folders that hold packages: by default the standard library and every `site-packages` in use,
    drkit's own packages left out. What counts as a passage and as a query: docs/guide/collections.md.

    Raises DrkitError if a package in `config.packages` is not installed, or no docstring is found.
    """

    def __init__(
        self, config: PydocsConfig, _context: BuildContext | None = None, *, roots: Iterable[Path] | None = None
    ) -> None:
        self.config = config
        self.name = "pydocs"
        self._roots = tuple(default_roots() if roots is None else roots)
        self._found: dict[str, list[Found] | None] | None = None

    def passages(self) -> Iterator[Passage]:
        """Stream the rest of every docstring, in the order of module names; sources are read for the first."""
        for found in self._documented:
            yield Passage(found.doc_id, found.rest)

    def splits(self) -> tuple[str, ...]:
        """Return train, dev and test; known without reading any source."""
        return SPLITS

    def queries(self, split: str) -> Iterator[Query]:
        """Stream the summaries of the split's modules; a query has the id of its passage."""
        return (Query(found.doc_id, found.summary) for found in self._queried(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Stream one judged passage per query."""
        return (Judgement(found.doc_id, found.doc_id, 1) for found in self._queried(split))

    def _queried(self, split: str) -> Iterator[Documented]:
        """Yield the docstrings whose summaries are the queries of a split."""
        if split not in SPLITS:
            raise UnknownNameError("split", split, SPLITS, where="pydocs")
        shares = {"dev_share": self.config.dev_share, "test_share": self.config.test_share}
        return (one for one in self._documented if one.summary and split_by_hash(one.module, **shares) == split)

    def size(self) -> CollectionSize:
        """Estimate the size from the bytes of the sources, without parsing them."""
        passages = round(sum(path.stat().st_size for path in self._modules.values()) / _SOURCE_BYTES)
        shares = {"dev": self.config.dev_share, "test": self.config.test_share}
        shares["train"] = 1 - sum(shares.values())
        queries = {split: round(share * _QUERIES * passages) for split, share in shares.items()}
        return CollectionSize(passages, queries, _PASSAGE_TOKENS, _QUERY_TOKENS, _ID_LENGTH)

    def describe(self) -> Mapping[str, Any]:
        """Return packages with their versions and passages, all counts, and a hash of every passage and query."""
        documented = self._documented
        digest = hashlib.sha256()
        for found in documented:
            digest.update("\0".join((found.doc_id, found.summary, found.rest, "\n")).encode())
        return {
            "collection": "pydocs",
            "python": ".".join(map(str, sys.version_info[:3])),
            "packages": _versions(Counter(found.module.split(".")[0] for found in documented)),
            "counts": {
                "modules": len(self._read),
                "unreadable": sum(found is None for found in self._read.values()),
                "docstrings": sum(1 for _ in self._docstrings),
                "passages": len(documented),
                "queries": {split: sum(1 for _ in self._queried(split)) for split in self.splits()},
            },
            "content_sha256": digest.hexdigest(),
        }

    @cached_property
    def _modules(self) -> dict[str, Path]:
        modules: dict[str, Path] = {}
        for root in self._roots:
            for name, path in _sources(root, self.config.packages):
                modules.setdefault(name, path)
        self._check(modules)
        chosen = sorted(modules)
        if self.config.limit is not None:
            chosen = sorted(sorted(chosen, key=lambda name: fraction(f"limit {name}"))[: self.config.limit])
        return {name: modules[name] for name in chosen}

    def _check(self, modules: Mapping[str, Path]) -> None:
        present = {name.split(".")[0] for name in modules}
        for package in self.config.packages:
            if package not in present:
                installed = {name for root in self._roots for name in _packages(root)}
                raise DrkitError(
                    f"collection pydocs: package {package!r} is not installed"
                    f"{did_you_mean(package, sorted(installed))} use the name that is imported, such as 'sklearn'"
                )
        if not modules:
            raise DrkitError(
                f"collection pydocs: no Python sources in {', '.join(map(str, self._roots)) or 'no folder'}"
            )

    @cached_property
    def _documented(self) -> list[Documented]:
        found = list(_first_of_each(_split_docstrings(self._docstrings, self.config)))
        if not found:
            raise DrkitError("collection pydocs: no docstring is long enough; add packages or lower the limits")
        # A summary that several passages share would have one judged answer among many.
        uses = Counter(_key(item.summary) for item in found)
        return [evolve(item, summary="") if uses[_key(item.summary)] > 1 else item for item in found]

    def read_ahead(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Read all sources, unless they have been read; on_progress: called with the files read, and all of them."""
        if self._found is not None:
            return
        modules, found = self._modules, dict[str, list[Found] | None]()
        for module, one in zip(modules, read_files(list(modules.values()), workers=available_cores()), strict=True):
            found[module] = one
            if on_progress and (len(found) % _SHOWN_EVERY == 0 or len(found) == len(modules)):
                on_progress(len(found), len(modules))
        self._found = found

    @property
    def _read(self) -> dict[str, list[Found] | None]:
        self.read_ahead()
        assert self._found is not None
        return self._found

    @property
    def _docstrings(self) -> Iterator[tuple[str, str, str]]:
        return ((module, name, text) for module, found in self._read.items() for name, text in found or ())


def default_roots() -> list[Path]:
    """Return the folders of the standard library and of the installed packages, each once, in a fixed order."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += sorted(path for path in sys.path if Path(path).name in ("site-packages", "dist-packages"))
    return list(dict.fromkeys(Path(path).resolve() for path in paths if Path(path).is_dir()))


def _packages(root: Path) -> Iterator[str]:
    """Yield names that can be imported from `root`: modules, and folders that may be packages."""
    for path in sorted(root.iterdir()):
        name = path.stem if path.suffix == ".py" else path.name
        kept = path.suffix == ".py" or (path.is_dir() and path.name not in _SKIPPED_FOLDERS)
        if kept and name.isidentifier() and not name.startswith("drkit"):
            yield name


def _sources(root: Path, packages: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield (module name, file) of every source file of these packages, or of all packages."""
    for package in _packages(root):
        if packages and package not in packages:
            continue
        if (root / f"{package}.py").is_file():
            yield package, root / f"{package}.py"
        for folder, inner, files in os.walk(root / package):
            inner[:] = sorted(name for name in inner if name.isidentifier() and name not in _SKIPPED_FOLDERS)
            parts = Path(folder).relative_to(root).parts
            for file in sorted(file for file in files if file.endswith(".py")):
                stem = file.removesuffix(".py")
                yield ".".join(parts if stem == "__init__" else (*parts, stem)), Path(folder, file)


def _split_docstrings(docstrings: Iterable[tuple[str, str, str]], config: PydocsConfig) -> Iterator[Documented]:
    """Yield the docstrings whose rest is long enough and names nobody, with unique ids.

    One that cannot be a query has no summary.
    """
    seen: Counter[str] = Counter()
    for module, name, text in docstrings:
        summary, rest = summary_and_rest(text)
        if len(_WORD.findall(rest)) < config.min_passage_words or names_somebody(text):
            continue
        doc_id = f"{module}.{name}" if name else module
        seen[doc_id] += 1
        if seen[doc_id] > 1:
            # Overloads, the setter of a property and the branches of an `if` have the same name.
            doc_id = f"{doc_id}#{seen[doc_id]}"
        fits = config.min_query_words <= len(_WORD.findall(summary)) <= config.max_query_words
        fits &= _NO_SENTENCE.search(summary) is None
        yield Documented(doc_id, module, summary if fits else "", rest)


def _first_of_each(found: Iterable[Documented]) -> Iterator[Documented]:
    """Drop docstrings whose rest occurred before: their query would find it in another module."""
    seen: set[bytes] = set()
    for item in found:
        key = _key(item.rest)
        if key not in seen:
            seen.add(key)
            yield item


def _key(text: str) -> bytes:
    """Return a hash that is equal for texts that differ only in case and punctuation."""
    return hashlib.blake2b(" ".join(_WORD.findall(text.lower())).encode(), digest_size=16).digest()


def _versions(passages: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the version and number of passages of each package; the standard library counts as one package."""
    # Looking through the files of all distributions takes a while.
    owners = packages_distributions() if passages.keys() - sys.stdlib_module_names else {}
    table: dict[str, dict[str, Any]] = {}
    for package, number in sorted(passages.items()):
        owner = min(owners.get(package, [""]))
        standard = package in sys.stdlib_module_names and not owner
        name = "Python" if standard else owner or package
        release = sys.version.split()[0] if standard else version(owner) if owner else ""
        table.setdefault(name, {"version": release, "passages": 0})["passages"] += number
    return table
