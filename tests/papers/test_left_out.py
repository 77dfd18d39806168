"""A paper's plugin that is not installed takes its own parts and recipes along, and nothing else."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from attrs import evolve

import drkit
import drkit.core.citations
import drkit.data
from drkit.core.registry import GROUP, discover
from drkit.core.spec import CAPABILITIES
from drkit.errors import ProblemsError
from drkit.plugin import Kind
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.matrix import matrix
from tests.core.public_api import PACKAGES, exports
from tests.refusals import unknown

ROOT = Path(drkit.__file__).parents[1]
ENTRIES = tuple(entry_points(group=GROUP))
PAPERS = sorted(entry.name for entry in ENTRIES if (ROOT / "plugins" / entry.value / "recipes").is_dir())
ALL = discover(ENTRIES)
# Recipes with a part of another paper: they are refused without it.
BORROWING = {"condenser": {"cocondenser", "cocondenser-qac"}, "seed": {"cotmae-qac-ar"}}


def without(paper: str):
    return discover(entry for entry in ENTRIES if entry.name != paper)


def own(paper: str):
    return discover(entry for entry in ENTRIES if entry.name == paper)


def asked(name: str | None, scale: str) -> ComposeRequest:
    """The request for a recipe; the one that improves an encoder gets one."""
    return ComposeRequest(paper=name, scale=scale, encoder="some/encoder" if name == "improve" else None)


@cache
def composed_with_all(name: str | None, scale: str):
    return compose(asked(name, scale), ALL)


def test_the_papers_are_found():
    assert PAPERS == ["cdmae", "condenser", "cpdae", "query-as-context", "retromae", "seed", "simlm"]


@pytest.mark.parametrize("paper", PAPERS)
def test_everything_else_is_listed(paper):
    left, gone = without(paper), own(paper)
    assert not [failure for report in left.plugins for failure in report.failures]
    assert {*left.registry} == {*ALL.registry} - {*gone.registry}
    assert {*left.recipes} == {*ALL.recipes} - {*gone.recipes}
    assert {*left.pipelines} == {*ALL.pipelines}
    assert {*matrix(left).decoders} == {*left.registry.names(Kind.DECODER)}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_other_recipe_is_composed_as_before(paper):
    left = without(paper)
    lacking = "|".join(f"no {spec.kind} named '{spec.name}'" for spec in own(paper).registry)
    for name in (None, *left.recipes):
        for scale in ("paper", "small", "quick"):
            request = asked(name, scale)
            if name in BORROWING.get(paper, ()):
                with pytest.raises(ProblemsError, match=lacking):
                    compose(request, left)
                continue
            recipe = compose(request, left)
            check(recipe, left.registry)
            assert recipe == composed_with_all(name, scale)


def test_a_masker_that_is_not_installed_is_named():
    with unknown("masker", "generator", "pmi"):
        compose(ComposeRequest(masker="generator", context="query"), without("simlm"))


def files(*folders: str):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_no_package_imports_a_plugin():
    plugins = {folder.name for folder in (ROOT / "plugins").glob("drkit_*")}
    assert len(plugins) > len(PAPERS) + 2
    for path in files("drkit", "cli"):
        assert not {*imports(path)} & plugins, path
    for plugin in plugins:
        for path in files(f"plugins/{plugin}"):
            assert not {*imports(path)} & (plugins - {plugin}), path


def test_without_the_default_collection_another_one_is_composed_as_before():
    left = without("pydocs")
    assert {*ALL.registry} - {*left.registry} == {*own("pydocs").registry}
    for name in (None, *left.recipes):
        request = evolve(asked(name, "small"), collection="beir:folder")
        assert compose(request, left) == compose(request, ALL)
    with pytest.raises(ProblemsError, match="no collection named 'pydocs'; known: beir, "):
        compose(asked(None, "small"), left)


def test_names_that_plugins_hold_are_found_where_they_were():
    moved = entry_points(group="drkit.names")
    assert {entry.name for entry in moved} >= {"drkit.data.PydocsCollection", "drkit.miners.HardNegatives"}
    for entry in moved:
        module, _, name = entry.name.rpartition(".")
        assert getattr(import_module(module), name) is entry.load()
        assert name in exports(entry.module), "and are listed among the names of the plugin's package"
        assert name not in exports(module)


def test_a_name_that_nobody_has_is_missing():
    with pytest.raises(AttributeError, match=r"'drkit.data' has no attribute 'HardNegatives'"):
        drkit.data.HardNegatives  # noqa: B018


def test_papers_import_public_names_as_any_plugin_does():
    for path in files(*(f"plugins/{entry.value}" for entry in ENTRIES if entry.name in PAPERS)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (module := node.module or "").split(".")[0] == "drkit":
                public = {*exports(module)} if module in PACKAGES else {*vars(drkit.core.citations)}
                assert module in (*PACKAGES, "drkit.core.citations"), f"{path} imports {module}"
                assert {alias.name for alias in node.names} <= public, f"{path} imports from {module}"


def test_the_core_knows_no_part_of_a_paper():
    names = {spec.name for paper in PAPERS for spec in own(paper).registry} - {*CAPABILITIES}
    assert {"condenser", "js-contrastive", "replaced-lm"} <= names
    for path in files("drkit", "cli"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        assert not names & {node.value for node in nodes if isinstance(node, ast.Constant)}, path


def test_the_page_lists_what_each_paper_owns():
    page = (ROOT / "docs" / "reference" / "architecture.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(" `"): cells for line in page.splitlines() if len(cells := line.split("|")) == 5}
    for paper in PAPERS:
        _, _, parts, recipes, _ = rows[next(entry.value for entry in ENTRIES if entry.name == paper)]
        assert {*re.findall(r"`([\w-]+)`", parts)} == {spec.name for spec in own(paper).registry}
        named = {*re.findall(r"`([\w-]+)`", recipes)}
        assert {*own(paper).recipes} <= named
        borrowed = {other for other, borrowing in BORROWING.items() if borrowing & {*own(paper).recipes}}
        assert named - {*own(paper).recipes} <= {spec.name for other in borrowed for spec in own(other).registry}
