"""`drkit new-plugin` writes packages that pass their own tests, and the guide to plugins works to the letter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drkit.commands.new_plugin import NOT_PARTS, SUMMARIES, write_plugin
from drkit.errors import DrkitError
from tests.cli.following import MYPY, install, run, run_warm
from tests.cli.test_strangers_data import beside
from tests.warm import drkit, warm_process

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "plugins.md"
# A step of the guide: a file by its path, or commands.
STEP = re.compile(r"(?:`(?P<path>[\w/.-]+)`:\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A plugin with a part of every kind, written by the command; its folder, and the path that finds it."""
    folder = tmp_path_factory.mktemp("new") / "my-parts"
    kinds = [argument for kind in SUMMARIES for argument in ("--kind", kind)]
    code, out, err = drkit("new-plugin", "my-parts", *kinds, "-o", folder)
    assert code == 0, err
    written = {path for path in folder.rglob("*") if path.is_file()}
    assert {Path(line) for line in out.splitlines()} == written - {folder / ".drkit-files.json"}
    return folder, install(folder, folder.parent / "site")


def test_a_part_of_every_kind_passes_the_tests_that_are_written_with_it(everything):
    folder, path = everything
    options, environment = ("-q", "-p", "no:cacheprovider"), {"PYTHONPATH": beside(path)}
    done = warm_process().drkit(*options, "tests", module="pytest", folder=folder, environment=environment)
    assert done["code"] == 0, done["out"]
    assert f"{len(SUMMARIES) + 1} passed" in done["out"]


def test_the_parts_are_listed_composed_and_tried(everything, tmp_path):
    _, path = everything
    _, listed, _ = drkit("list", "masker", PYTHONPATH=beside(path))
    assert "my-parts-masker" in listed
    questions = tmp_path / "questions.tsv"
    questions.write_text("".join(f"what is {n}\tit is {n} times {n}\n" for n in range(80)))
    collection = ("--collection", f"my-parts-collection:{questions}")
    plan = ("compose", "--paper", "my-parts", *collection, "--dry-run", "--trial", "-v")
    code, out, err = drkit(*plan, cwd=tmp_path, PYTHONPATH=beside(path))
    assert code == 0, err
    assert "trial: " in " ".join(out.split())
    for part in ("masker", "decoder", "signal", "miner"):
        assert f"my-parts-{part}" in out


@pytest.mark.parametrize("kind", SUMMARIES)
def test_a_part_alone_has_the_name_of_the_plugin_and_only_what_it_needs(kind, tmp_path):
    files = write_plugin("alone", [kind], tmp_path / "alone")
    assert Path(f"alone/{kind}.py") in files
    assert (Path("alone/recipe.toml") in files) == (
        kind not in ("signal", "column", "queries", "batches", "stage", "collection", "command", "architecture")
    )
    declared = (tmp_path / "alone" / "alone" / "__init__.py").read_text()
    assert 'name="alone"' in declared or f'Extension("{NOT_PARTS.get(kind) or "alone"}"' in declared
    compile(declared, "declared", "exec")


def test_no_package_has_a_finding_of_a_linter(tmp_path):
    for kind in SUMMARIES:
        write_plugin("alone", [kind], tmp_path / kind)
    lint = ["ruff", "check", "-q", "--isolated", "--select", "E,F,W,D1,ANN", "--ignore", "D10,E501,ANN401", "."]
    done = subprocess.run([sys.executable, "-m", *lint], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def check_types(folder):
    """Check a package strictly, by its own configuration."""
    # Warned as drkit's own configuration does: with other options, mypy would read torch again.
    command, environment = [sys.executable, "-m", "mypy", "--warn-unreachable"], {**os.environ, **MYPY}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_types_are_checked_strictly(everything):
    folder, _ = everything
    check_types(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_works_to_the_letter(environment, tmp_path):
    """The package is made, installed and listed in a new environment; what takes longer runs in warm children."""
    (site,) = Path(environment["PATH"].split(os.pathsep)[0]).parent.glob("lib/python*/site-packages")
    installed = beside(os.pathsep.join((str(tmp_path / "entities"), str(site))))
    fewer = "--quick --set pretrain.max_steps=8 --set finetune.max_steps=4"
    steps = list(STEP.finditer(GUIDE.read_text(encoding="utf-8").replace("--quick\n", f"{fewer}\n")))
    written = [step["path"] for step in steps if step["path"]]
    assert len(written) == 4
    outputs = {}
    for step in steps:
        if step["path"]:
            target = tmp_path / step["path"]
            beside_it = ("notes.py", "shorter_code.py")
            assert target.exists() or target.name in beside_it, f"{step['path']} is not a file of the new package"
            target.write_text(step["text"])
        elif step["language"] == "shell":
            for command in step["text"].splitlines():
                if command.startswith(("drkit new-plugin", "pip ", "drkit list ")):
                    outputs[command] = run(command, tmp_path, environment)
                else:
                    outputs[command] = run_warm(command, tmp_path, PYTHONPATH=installed)
    assert "3 passed" in outputs["pytest -q entities/tests"]
    assert "entities-signal" in outputs["drkit list signal"]
    assert "by how much names come before other tokens" in outputs["drkit show masker entities-masker"]
    (trained,) = (output for command, output in outputs.items() if fewer in command)
    assert "retriever-1" in trained
    (made,) = (tmp_path / "runs").iterdir()
    assert (made / "pretrained" / "decoder-main.safetensors").is_file()
    assert (made / "signal-entities-signal").is_dir()
    check_types(tmp_path / "entities")


@pytest.mark.parametrize(
    ("name", "kinds", "message"),
    [
        ("My_Masker", ["masker"], "hyphens"),
        ("../escape", ["masker"], "hyphens"),
        ("json", ["masker"], "'json'"),
        ("drkit-more", ["masker"], "'drkit-more'"),
        ("class", ["masker"], "'class'"),
        ("mine", ["maskr"], "kind named 'maskr'"),
        ("mine", [], "kinds"),
        ("mine", ["masker", "masker"], "each once"),
        ("there", ["masker"], "exists"),
    ],
)
def test_what_cannot_be_written_is_refused(name, kinds, message, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(DrkitError, match=message):
        write_plugin(name, kinds, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_command_refuses_in_one_line(tmp_path):
    code, out, err = drkit("new-plugin", "mine", "--kind", "optimizer", cwd=tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        "masker, decoder, loss, miner, filter, signal, pooling, column, queries, batches, stage, collection, "
        "command, architecture" in err
    )
