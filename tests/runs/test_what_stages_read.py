"""What a stage reads is what its fingerprint covers: every file, package and variable of the environment.

A whole run is listened to (`tests.runs.listening`). Whatever a stage opens must be one of its inputs, a file that its
fingerprint has the state of, the code of a plugin that it names, its own folder, or code that is installed.
"""

import ast
import json
import site
import sys
import sysconfig
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import tomli_w
from attrs import evolve

import drkit
from drkit.core.files import MANIFEST
from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_table
from drkit.runs.manifest import PACKAGES
from tests.plugins.packages import path_with
from tests.plugins.test_edited_parts import write_ideas
from tests.runs.test_stale import RECIPES, TINY
from tests.warm import warm_process

CODE = Path(drkit.__file__).parents[1]
# Code of libraries and of Python, which the manifest has the versions of; what the machine is, which changes no result.
INSTALLED = (
    *(
        Path(path).resolve()
        for path in (sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"), *site.getsitepackages())
    ),
    *map(Path, ("/proc", "/sys", "/dev", "/etc", "/usr/lib", "/lib", "/usr/share/zoneinfo")),
)
# How many processes share a run, and threads a tokenizer.
HARMLESS = {"$WORLD_SIZE", "$RANK", "$LOCAL_RANK", "$LOCAL_WORLD_SIZE", "$TOKENIZERS_PARALLELISM"}


def is_below(path, folders):
    return any(path.is_relative_to(folder) for folder in folders)


def unexplained(stage, found, run, texts, plugin):
    """What a stage opened that its fingerprint does not cover."""
    own = [run / ".unfinished" / stage, run / stage, run / ".unfinished"]
    manifests = [run / Path(one).relative_to(run).parts[0] / MANIFEST for one in found["inputs"]]  # an input's hash
    covered = [*own, *manifests, *map(Path, found["inputs"]), *(plugin / name for name in found["code"])]
    if found["sources"]:
        covered.append(texts)
    for name in found["opened"]:
        path = Path(name)
        if path in (run, plugin) or "__pycache__" in path.parts:  # a rename is made durable there, a module is found
            continue
        if name.startswith("$"):
            if name not in HARMLESS:
                yield name
        elif not is_below(path, covered) and not is_below(
            path.resolve(), (*INSTALLED, CODE / "drkit", CODE / "plugins")
        ):
            yield name


def listen(name, folder, texts, plugin):
    """What each stage of a recipe opened and covers, in a run below `folder`; `ideas`: with a plugin's masker."""
    wanted = ComposeRequest(decoder=("enhanced",), pipeline="two-stage") if name == "ideas" else RECIPES[name]
    settings = (*TINY, *wanted.settings)
    table = recipe_table(compose(evolve(wanted, collection=f"beir:{texts}", settings=settings), installed()))
    if name == "ideas":
        table["pretrain"]["decoders"]["main"]["masker"] = {"use": "shares"}
    (folder / "recipe.toml").write_text(tomli_w.dumps(table))
    done = warm_process().drkit(
        *(folder / one for one in ("recipe.toml", "run", "record.json")),
        module="tests.runs.listening",
        environment={"PYTHONPATH": path_with(plugin)},
    )
    assert done["code"] == 0, done["err"]
    return json.loads((folder / "record.json").read_text())


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "site").mkdir()
    write_ideas(tmp_path / "site")
    return tmp_path / "site"


def left(found, run, texts, plugin):
    """What the fingerprints do not cover, by stage."""
    names = {stage: list(unexplained(stage, one, run, texts, plugin)) for stage, one in found.items()}
    return {stage: opened for stage, opened in names.items() if opened}


@pytest.mark.parametrize("name", ["ideas", "generator", "contexts", "three-stage", "texts"])
def test_every_stage_opens_only_what_its_fingerprint_covers(name, beir, tmp_path, plugin):
    found = listen(name, tmp_path, beir, plugin)
    assert len(found) > 10
    assert any(beir in Path(path).parents for path in found["collection"]["opened"])
    assert left(found, tmp_path / "run", beir, plugin) == {}


def test_a_file_that_a_part_opens_without_a_word_is_found(beir, tmp_path, plugin):
    (tmp_path / "elsewhere.txt").write_text("words")
    path = plugin / "ideas" / "masker.py"
    path.write_text(
        path.read_text().replace(
            "self.words = ", f"Path({str(tmp_path / 'elsewhere.txt')!r}).read_text()\n        self.words = "
        )
    )
    found = left(listen("ideas", tmp_path, beir, plugin), tmp_path / "run", beir, plugin)
    assert found == {"pretrained": [str(tmp_path / "elsewhere.txt")]}


# Packages that draw, print, parse commands, lock or serve: no result of a stage depends on them.
CHANGES_NO_RESULT = {
    *("attrs", "cattrs", "click", "filelock", "huggingface-hub", "Jinja2", "MarkupSafe", "matplotlib", "pluggy"),
    *("psutil", "rich", "tomli", "tomli_w", "tomli-w", "ray", "starlette", "uvicorn", "openvino", "nncf"),
}


def imported(path):
    """Top-level names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_extra":
            yield ast.literal_eval(node.args[0]).partition(".")[0] if isinstance(node.args[0], ast.Constant) else ""


def test_every_package_that_computes_is_recorded_in_manifests():
    names = {
        name for folder in ("drkit", "plugins") for path in (CODE / folder).rglob("*.py") for name in imported(path)
    }
    distributions = packages_distributions()
    used = {one for name in names - sys.stdlib_module_names for one in distributions.get(name, ())}
    assert len(used) > 15
    recorded = {name.lower().replace("_", "-") for name in (*PACKAGES, *CHANGES_NO_RESULT)}
    assert {name for name in used if name.lower().replace("_", "-") not in recorded} == set()
