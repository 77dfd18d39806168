"""The code of a plugin's part: the files that it is made of, and a hash of each.

A finished stage must not be kept after somebody edited the part that made it. drkit's own stages and parts have version
numbers, which their developers raise; a plugin's part is identified by its source. Its files are the modules that it
imports, at any depth, unless an installed library contains them, and the data files of its package. Other plugins, and
packages installed from a local folder, do not count as libraries: their owner edits them without a new version. Files
are found in the source text, so nothing is imported. Cost: a run reads every file twice.
"""

from __future__ import annotations

import ast
import json
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distribution, entry_points, packages_distributions, requires, version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from attrs import asdict, field, frozen

from drkit.core.files import digest, file_hash
from drkit.core.registry import DRKIT, GROUP, installed, package_of
from drkit.core.spec import ComponentSpec, Extension
from drkit.errors import DrkitError

# Names whose use means that a module may import others that its text does not name.
_DYNAMIC = {"import_module", "__import__", "load_module", "exec_module", "spec_from_file_location"}
# Names of folders that libraries are installed in, also of another Python.
_LIBRARIES = {"site-packages", "dist-packages"}
# Files of a package that are neither code nor data.
_NOT_DATA = (".py", ".pyc", ".pyi", ".md", ".rst", ".typed")
# Larger data files are compared by size and time of modification; texts longer than a name do not name a file.
_LARGE, _LONGEST_NAME = 64 * 2**20, 200


@frozen
class PluginCode:
    """What a plugin's parts are made of.

    files: a hash of each file, by its path below the folder that Python imports from (`ideas/masker.py`). packages:
    versions of the plugin's distribution and of the libraries that it imports beyond those of drkit, by name.
    """

    files: Mapping[str, str] = field(factory=dict)
    packages: Mapping[str, str] = field(factory=dict)

    @property
    def hash(self) -> str:
        """One hash of all files and versions; empty without any."""
        return digest(asdict(self)) if self.files or self.packages else ""

    def __or__(self, other: PluginCode) -> PluginCode:
        """Return the files and packages of both."""
        return PluginCode({**self.files, **other.files}, {**self.packages, **other.packages})


def part_code(part: ComponentSpec | Extension) -> PluginCode:
    """Return the code of a part or extension, and of its settings' class; empty if it is drkit's own."""
    modules = {part.target.partition(":")[0], *([part.config.__module__] if isinstance(part, ComponentSpec) else [])}
    found = PluginCode()
    for module in sorted(modules):
        found |= plugin_code(module, part.provider)
    return found


def plugin_code(module: str, provider: str = "") -> PluginCode:
    """Return the files and packages of a module of a plugin; empty for a module of drkit, and for one that is missing.

    They are read once in a process, as modules are. provider: name and version of the plugin's distribution, as in
    `ComponentSpec.provider`.

    >>> plugin_code("drkit.maskers.uniform", "drkit 0.1.0").files
    {}
    """
    if (module, provider) not in _read:
        _read[module, provider] = _read_code(module, provider)
    return _read[module, provider]


def refuse_edited_code() -> None:
    """Raise DrkitError if code of a plugin was edited since this process read it: it may still run the old one."""
    edited = {
        label
        for (module, provider), known in _read.items()
        for label, _ in set(known.files.items()) ^ set(_read_code(module, provider).files.items())
    }
    if edited:
        raise DrkitError(
            f"{', '.join(sorted(edited))} changed since this Python process read it, and Python may still run the old "
            f"code; restart Python (in a notebook, its kernel) and repeat what you did: finished stages are kept"
        )


# The code of modules, by module and provider, as this process first read it.
_read: dict[tuple[str, str], PluginCode] = {}


def _read_code(module: str, provider: str) -> PluginCode:
    top = module.partition(".")[0]
    if top in _own_packages():
        return PluginCode()
    files, libraries = _closure(module, top)
    recipes = _recipes()  # a run has a recipe of its own
    found = {label: path for label, path in {**files, **_data_files(top)}.items() if str(path) not in recipes}
    name, _, known = provider.partition(" ")
    packages = {name: known} if known else {}
    return PluginCode({label: _hash(path) for label, path in sorted(found.items())}, packages | _versions(libraries))


def _closure(module: str, top: str) -> tuple[dict[str, Path], set[str]]:
    """Return the files of a module and of all that it imports, by label, and the libraries among these imports."""
    pending, seen = [module], set[str]()
    files: dict[str, Path] = {}
    libraries: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        package, _, _ = name.rpartition(".")
        pending += [package] if package else []
        spec = _locate(name)
        if spec is None or name.partition(".")[0] in (_own_packages() | sys.stdlib_module_names):
            continue
        part_of = name.partition(".")[0]
        if part_of != top and _is_library(spec) and not _is_edited_here(part_of):
            libraries.add(part_of)
            continue
        if spec.origin and (path := Path(spec.origin)).is_file():
            files[_label(name, path)] = path
            imported = _read_source(path, name, is_package=spec.submodule_search_locations is not None)
            pending += imported.modules
            files |= {_label(name, found): found for found in imported.files}
            if imported.is_dynamic:
                pending += _modules_of(top)
    return files, libraries


@cache
def _locate(name: str) -> ModuleSpec | None:
    """Return where a module is, without importing a package; None if it does not exist."""
    package, _, _ = name.rpartition(".")
    try:
        if not package:
            return find_spec(name)
        parent = _locate(package)
        folders = parent.submodule_search_locations if parent else None
        return PathFinder.find_spec(name, list(folders)) if folders else None
    except (ImportError, ValueError):  # a module without a specification, such as that of a script
        return None


@cache
def _own_packages() -> frozenset[str]:
    """Return the top-level packages of drkit's own distribution."""
    entries = [one for one in entry_points(group=GROUP) if one.dist and package_of(one.dist.name) == DRKIT]
    return frozenset({DRKIT, "drkit_cli", *(one.module.partition(".")[0] for one in entries)})


@cache
def _library_folders() -> tuple[Path, ...]:
    names = {*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))}
    return tuple(Path(name).resolve() for name in names)


def _is_library(spec: ModuleSpec) -> bool:
    """Return whether a module is installed (or built in), and so identified by its version."""
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or ())
    found = [Path(place).resolve() for place in places]
    return not found or any(
        {*path.parts} & _LIBRARIES or any(path.is_relative_to(folder) for folder in _library_folders())
        for path in found
    )


@cache
def _is_edited_here(library: str) -> bool:
    """Return whether an installed package belongs to another plugin, or was installed from a folder that exists."""
    if package_of(library) in _requirements():
        return False
    found = [distribution(name) for name in _distributions().get(library, ())]
    if any(entry.group == GROUP for one in found for entry in one.entry_points):
        return True
    origins = [json.loads(text) for one in found if (text := one.read_text("direct_url.json"))]
    folders = [urlsplit(one["url"]).path for one in origins if "dir_info" in one and one["url"].startswith("file:")]
    return any(Path(unquote(folder)).is_dir() for folder in folders)


def _label(module: str, path: Path) -> str:
    """Return the path of a file below the folder that its top-level package or module is imported from."""
    spec = _locate(module.partition(".")[0])
    folders = [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]
    root = next((folder.parent for folder in folders if path.is_relative_to(folder)), path.parent)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


@frozen
class _Source:
    """What the text of a module says: names of modules that it may import, and files beside it that it names."""

    modules: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    is_dynamic: bool = False


def _read_source(path: Path, module: str, *, is_package: bool) -> _Source:
    """Read the text of a module; empty for a compiled one, and for text that is not Python."""
    if path.suffix != ".py":
        return _Source()
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return _Source()
    package = module if is_package else module.rpartition(".")[0]
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return _Source(
        modules=tuple(name for node in nodes for name in _imported(node, package)),
        files=tuple(_named_files(nodes, path.parent)),
        is_dynamic=bool(words & _DYNAMIC),
    )


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the modules that a statement may import; an imported attribute may look like a module here."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        above = parents[: len(parents) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        if base:
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _named_files(nodes: Iterable[ast.AST], folder: Path) -> Iterator[Path]:
    """Yield the data files in a module's folder that a text in its source names."""
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for text in texts:
        if 0 < len(text.encode(errors="replace")) <= _LONGEST_NAME and not text.endswith(_NOT_DATA):
            path = folder / text
            if path.is_relative_to(folder) and ".." not in path.parts and text.isprintable() and path.is_file():
                yield path


def _package_folders(top: str) -> list[Path]:
    spec = _locate(top)
    return [Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]


def _modules_of(top: str) -> list[str]:
    """Return every module of a package."""
    return [
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        for folder in _package_folders(top)
        for path in folder.rglob("*.py")
    ]


def _data_files(top: str) -> dict[str, Path]:
    """Return the data files of a package, by label."""
    found = (path for folder in _package_folders(top) for path in folder.rglob("*") if path.is_file())
    data = (path for path in found if not path.name.endswith(_NOT_DATA))
    named = {_label(top, path): path for path in data}
    return {label: path for label, path in named.items() if not re.search(r"(^|/)(\.|__)", label)}


def _recipes() -> set[str]:
    """Return the paths of all recipes and pipelines that plugins add."""
    here = installed()
    return {str(file) for one in (*here.recipes.items(), *here.pipelines.items()) for file in (one.file, one.small)}


def _hash(path: Path) -> str:
    state = path.stat()
    return file_hash(path) if state.st_size <= _LARGE else digest([state.st_size, state.st_mtime_ns])


def _versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions of these libraries, but of those that every drkit requires."""
    others = [library for library in libraries if package_of(library) not in _requirements()]
    names = {name for library in others for name in _distributions().get(library, ())}
    return {name: version(name) for name in sorted(names) if package_of(name) not in _requirements()}


@cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the names of the distributions that contain each top-level package or module."""
    return packages_distributions()


@cache
def _requirements() -> frozenset[str]:
    """Return drkit and the distributions that it requires without an extra: manifests record their versions."""
    lines = [line for line in requires(DRKIT) or () if "extra ==" not in line]
    return frozenset({DRKIT, *(package_of(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines)})
