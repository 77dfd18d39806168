"""Discovery survives whatever a stranger's plugin does."""

import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest

from drkit.core.registry import discover

GOOD = """
from attrs import frozen
from drkit.plugin import ComponentSpec, Kind, hookimpl

@frozen
class Config:
    ratio: float = 0.2

def make(config, context):
    return ("made", config.ratio)

@hookimpl
def drkit_components():
    return [ComponentSpec(Kind.MASKER, "stranger", "good_plugin:make", Config, "A stranger's masker.")]
"""

BROKEN = {
    "raises_on_import": "raise RuntimeError('no luck')",
    "exits_on_import": "raise SystemExit(3)",
    "misspelled_hook": "from drkit.plugin import hookimpl\n\n@hookimpl\ndef drkit_componets():\n    return []\n",
    "extra_argument": "from drkit.plugin import hookimpl\n\n@hookimpl\ndef drkit_components(what):\n    return []\n",
    "not_a_spec": "from drkit.plugin import hookimpl\n\n@hookimpl\ndef drkit_components():\n    return ['pmi']\n",
    "raises_in_hook": "from drkit.plugin import hookimpl\n\n@hookimpl\ndef drkit_components():\n    return 1 / 0\n",
    "of_tomorrow": "DRKIT_API = 2\n",
    "lost_recipe": (
        "from pathlib import Path\nfrom drkit.plugin import hookimpl\n\n@hookimpl\ndef drkit_recipes():\n"
        "    return {'r': Path('/nowhere/r.toml')}\n"
    ),
}


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "good_plugin.py").write_text(textwrap.dedent(GOOD))
    for name, source in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source)
    yield [EntryPoint(name, name, "drkit") for name in ["good_plugin", "no_such_module", *BROKEN]]
    for name in ["good_plugin", *BROKEN]:
        sys.modules.pop(name, None)


def test_broken_plugins_are_listed_and_the_good_one_works(plugins):
    found = discover(plugins)
    reports = {report.name: report for report in found.plugins}
    assert not reports["good_plugin"].error
    assert found.registry.build("masker", "stranger") == ("made", 0.2)
    for name in ["no_such_module", *BROKEN]:
        assert reports[name].error or name == "lost_recipe", name
        assert not reports[name].specs
    assert "version 2 of drkit's API, and this drkit has 1; update drkit" in reports["of_tomorrow"].error
    assert reports["lost_recipe"].problems == ("recipe 'r': /nowhere/r.toml does not exist",)
    assert "no luck" in reports["raises_on_import"].error
    assert "drkit_componets" in reports["misspelled_hook"].error


def test_order_does_not_matter(plugins):
    forwards, backwards = discover(plugins), discover(reversed(plugins))
    assert [r.name for r in forwards.plugins] == [r.name for r in backwards.plugins]
