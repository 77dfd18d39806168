"""Plugins that cannot be loaded, in whole or in part: each is named, and takes nobody down."""

import json
import signal
from importlib.metadata import EntryPoint, entry_points

import pytest

from drkit.core.registry import GROUP, discover, installed
from drkit.errors import DrkitError, UnknownNameError
from drkit.recipe.compose import ComposeRequest, compose
from tests.plugins.packages import installed_with, path_with, write_package
from tests.warm import drkit

LOST_RECIPE = """
@hookimpl
def drkit_components():
    return [part("masker", "sound", provides=("view", "rows"))]

@hookimpl
def drkit_recipes():
    here = Path(__file__).parent
    return {"lost": here / "lost.toml", "found": here / "found.toml", "number": 3}
"""
LOOSE = """
@define
class Loose:
    ratio: float = 0.1

@frozen
class Asking:
    ratio: float

@hookimpl
def drkit_components():
    return [part("masker", "loose", config=Loose), part("masker", "asking", config=Asking), part("masker", "sound")]
"""
BROKEN = {
    "import-error": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    "misspelled": ("@hookimpl\ndef drkit_componets():\n    return []", "did you mean 'drkit_components'"),
    "extra-argument": ("@hookimpl\ndef drkit_components(what):\n    return []", "PluginValidationError"),
    "raises-in-hook": ("@hookimpl\ndef drkit_components():\n    return 1 / 0", "ZeroDivisionError"),
    "of-tomorrow": ("DRKIT_API = 2", "version 2 of drkit's API, and this drkit has 1; update drkit"),
    "not-a-spec": ("@hookimpl\ndef drkit_components():\n    return ['pmi']", "must return ComponentSpecs, got 'pmi'"),
    "not-an-extension": ("@hookimpl\ndef drkit_backends():\n    return [3]", "must return Extensions, got 3"),
    "interrupting": ("raise KeyboardInterrupt('theirs')", "KeyboardInterrupt: theirs"),
    "exiting": ("raise SystemExit(3)", "SystemExit: 3"),
    "skipping": ("import pytest\npytest.skip('theirs', allow_module_level=True)", "Skipped: theirs"),
    "many-lines": ("raise RuntimeError('first line\\nsecond line')", "RuntimeError: first line"),
}


GOOD = """
def make(config, context):
    return ("made", config)

@hookimpl
def drkit_components():
    return [part("masker", "stranger", "good:make")]
"""


def report_of(here, name):
    return next(report for report in here.plugins if report.name == name)


@pytest.mark.parametrize("name", BROKEN)
def test_an_unknown_name_lists_the_plugins_that_failed(name, site):
    source, said = BROKEN[name]
    write_package(site, name, source)
    here = installed_with(site)
    assert said in report_of(here, name).error
    with pytest.raises(UnknownNameError) as caught:
        here.registry.get("masker", "theirs")
    assert f"Not loaded: {name} (" in str(caught.value)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UnknownNameError, match="Not loaded"):
        compose(ComposeRequest(paper="theirs"), here)
    assert compose(ComposeRequest(), here).name == "pydocs-pmi-enhanced"


def test_all_of_them_leave_a_good_one_working_in_any_order(site):
    for name, (source, _) in BROKEN.items():
        write_package(site, name, source)
    write_package(site, "good", GOOD)
    found = [*entry_points(group=GROUP), EntryPoint("missing", "no_such_module", GROUP)]
    for here in (discover(found), discover(reversed(found))):
        assert here.registry.build("masker", "stranger")[0] == "made"
        failed = {report.name: report for report in here.plugins if report.error}
        assert {*failed} == {*BROKEN, "missing"}
        assert not any(report.specs for report in failed.values())
    assert [r.name for r in here.plugins] == [r.name for r in discover(found).plugins]


def test_a_missing_recipe_file_takes_nothing_else_away(site):
    (site / "found.toml").write_text(installed().recipe("retromae").text())
    write_package(site, "lost-recipe", LOST_RECIPE)
    here = installed_with(site)
    report = report_of(here, "lost-recipe")
    assert not report.error
    assert [spec.name for spec in report.specs] == ["sound"]
    assert compose(ComposeRequest(paper="found", masker="sound"), here).pretrain.decoders["main"].masker.use == "sound"
    with pytest.raises(DrkitError, match=r"the recipe 'lost' of lost-recipe 1.0 is broken: .*lost.toml does not exist"):
        compose(ComposeRequest(paper="lost"), here)
    with pytest.raises(DrkitError, match=r"'number' of lost-recipe 1.0 is broken: 3 is not a path"):
        here.recipe("number")
    code, out, _ = drkit("plugins", PYTHONPATH=path_with(site))
    assert code == 0
    assert "lost-recipe (lost-recipe 1.0): recipe 'lost':" in out
    code, out, err = drkit("list", PYTHONPATH=path_with(site))
    assert code == 0, err
    code, _, err = drkit("show", "recipe", "lost", PYTHONPATH=path_with(site))
    assert (code, len(err.splitlines())) == (2, 1)


def test_settings_that_are_not_frozen_or_lack_defaults_are_refused_at_load(site):
    write_package(site, "loose", LOOSE)
    here = installed_with(site)
    report = report_of(here, "loose")
    assert [spec.name for spec in report.specs] == ["sound"]
    assert "masker 'loose': settings class Loose is not frozen (use attrs.frozen)" in report.problems
    assert "masker 'asking': settings without a default: 'ratio'" in report.problems
    with pytest.raises(UnknownNameError, match=r"Not loaded: .*settings class Loose is not frozen"):
        here.registry.get("masker", "loose")


def test_what_a_plugin_prints_is_no_result_of_a_command(site):
    write_package(site, "talking", "print('hello from a plugin')\n\n@hookimpl\ndef drkit_components():\n    return []")
    _, out, err = drkit("plugins", "--json", PYTHONPATH=path_with(site))
    assert "talking" in {plugin["name"] for plugin in json.loads(out)["plugins"]}
    assert "hello from a plugin" in err


def test_ctrl_c_while_plugins_are_loaded_ends_the_program(site):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    write_package(site, "slow", "import signal\nsignal.raise_signal(signal.SIGINT)")
    try:
        with pytest.raises(KeyboardInterrupt):
            installed_with(site)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
