"""Each extra may be missing: light commands and a run without it work, and what needs it says how to install it."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from drkit.core.spec import ComponentSpec, Kind, NoSettings
from drkit.errors import EXTRAS, MissingExtraError, import_extra
from drkit.recipe.toml import read_table
from tests.refusals import says
from tests.runs.conftest import TINY
from tests.warm import warm_process

ROOT = Path(__file__).resolve().parents[2]
# drkit is imported again by a child of the warm process, which hides some modules from it.
WITHOUT = """
import sys
hidden, sys.argv = sys.argv[1].split(","), ["drkit", *sys.argv[2:]]
for name in [*sys.modules]:
    if name.startswith("drkit") or name.partition(".")[0] in hidden:
        del sys.modules[name]
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *where):
        return None if name in hidden else self.finder.find_spec(name, *where)
sys.meta_path[:] = map(Hiding, sys.meta_path)
from drkit_cli.main import main
main()
"""
PLAIN = ("--miner", "random", "--set=evaluation.bm25=false")
BASE = [one for one in TINY if not one.startswith("--pipeline")]
FEWER = ("--pipeline=dpr", "--set=collection.packages=['asyncio', 'email']", "--set=finetune.baselines=[]")
NEEDS = {
    "bm25": (
        ["compose", "--dry-run"],
        "the stage 'bm25' needs the packages 'bm25s', 'PyStemmer': pip install 'drkit[bm25]'",
    ),
    "data": (
        ["compose", *PLAIN, "--collection", "irds:vaswani", "--dry-run"],
        "collection 'irds' needs the packages 'datasets', 'ir-datasets': pip install 'drkit[data]'",
    ),
    "nltk": (
        ["compose", *PLAIN, "--paper", "cocondenser", "--dry-run"],
        "the stage 'spans' needs the package 'nltk': pip install 'drkit[nltk]'",
    ),
}


@pytest.fixture
def drkit_without(tmp_path):
    """(exit code, output, errors) of a command in a process in which the packages of some extras cannot be imported."""
    script = tmp_path / "without.py"
    script.write_text(WITHOUT)

    def run(extras, *arguments):
        hidden = ",".join(module for extra in extras for module in EXTRAS[extra])
        done = warm_process().drkit(hidden, *arguments, script=script, folder=tmp_path)
        return done["code"], done["out"], done["err"]

    return run


@pytest.mark.parametrize("extra", NEEDS)
def test_the_plan_names_a_missing_extra(extra, drkit_without):
    arguments, message = NEEDS[extra]
    code, _, err = drkit_without([extra], *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    _, _, err = drkit_without([other for other in NEEDS if other != extra], *arguments)
    assert f"drkit[{extra}]" not in err


def test_a_run_without_any_extra(tmp_path, drkit_without):
    run = tmp_path / "run"
    code, _, err = drkit_without(EXTRAS, "compose", "--masker", "pmi", *BASE, *PLAIN, *FEWER, "--run-dir", run)
    assert code == 0, err
    _, out, err = drkit_without(EXTRAS, "search", run, "remove a suffix", "--json")
    assert json.loads(out), err
    commands = {
        "plots": ["report", run],
        "bm25,serve": ["serve", run],
        "bm25": ["inspect", "mask", "the first word", "--run", run],
    }
    for extra, arguments in commands.items():
        code, _, err = drkit_without(EXTRAS, *arguments)
        assert (code, f"pip install 'drkit[{extra}]'" in err) == (2, True), err


@pytest.mark.parametrize(
    ("extra", "module", "package"),
    [(extra, module, package) for extra, named in EXTRAS.items() for module, package in named.items()],
)
def test_a_missing_module_is_named_with_its_extra(monkeypatch, extra, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        import_extra(module, "This")
    assert (caught.value.what, caught.value.packages) == ("This", {package: extra})
    assert says(str(caught.value), "This", repr(package), f"pip install 'drkit[{extra}]'")


def test_every_extra_is_declared():
    declared = read_table(ROOT / "pyproject.toml")["project"]["optional-dependencies"]
    packages = {extra: " ".join(declared[extra]) for extra in EXTRAS}
    assert all(name in packages[extra] for extra, modules in EXTRAS.items() for name in modules.values())
    assert all(extra in declared["all"][0] for extra in EXTRAS if extra != "ray")


def test_every_import_is_declared():
    project = read_table(ROOT / "pyproject.toml")["project"]
    core = {re.split(r"[<>=]", one)[0].lower().replace("-", "_") for one in project["dependencies"]}
    extras = {module for named in EXTRAS.values() for module in named}
    found = set()
    for path in (path for folder in ("drkit", "cli", "plugins") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    others = {name for name in found - sys.stdlib_module_names if not name.startswith("drkit")}
    assert {"torch", "click", "matplotlib"} < others
    assert others - core - extras == {"openvino", "nncf"}  # a plugin names these itself


def test_an_unknown_extra_is_refused():
    with pytest.raises(ValueError, match=r"'bm52' .*'bm25'"):
        ComponentSpec(Kind.MINER, "words", "here:Miner", NoSettings, "Mines.", extras=("bm52",))
