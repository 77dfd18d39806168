"""Code of strangers that ends the program, prints, or changes the process is named, and results stay whole."""

import json
import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from drkit.core.process_state import restored_process_state
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from tests.plugins.packages import installed_with, write_package
from tests.refusals import says

MASKER = """
import logging, os, signal, sys
from drkit.maskers.specs import UniformConfig

class Odd:
    def __init__(self, config, context):
        from drkit.maskers import UniformMasker
        self.inner = UniformMasker(config, context)

    def __call__(self, tokens, rng, rows=0, nested=None):
        BODY
        return self.inner(tokens, rng, rows, nested)

@hookimpl
def drkit_components():
    return [part("masker", "odd", "odd:Odd", config=UniformConfig, provides=("view", "rows"))]
"""
COLLECTION = """
import os, sys
from drkit.core.types import Passage

class Odd:
    name = "odd"

    def __init__(self, config, context):
        pass

    def passages(self):
        BODY
        return iter([Passage(f"d{i}", f"a text about thing {i}") for i in range(9)])

    def splits(self):
        return ()

    def queries(self, split):
        return iter(())

    def judgements(self, split):
        return iter(())

    def describe(self):
        return {}

@hookimpl
def drkit_components():
    return [part("collection", "odd", "odd:Odd", provides=("texts",))]
"""
TRIAL = ("compose", "--masker", "odd", "--scale", "quick", "--dry-run", "--trial")


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit()", "sys.exit(3)", "sys.exit('a reason')", "os._exit(0)"])
def test_a_part_that_exits_on_a_toy_batch_is_named(site, command, end):
    write_package(site, "odd", MASKER.replace("BODY", end))
    rc, out, err = command(*TRIAL)
    assert (rc, out) == (2, "")
    assert says(err, "error: masker 'odd' (odd 1.0)", "SystemExit", "odd.py:")
    assert "Traceback" not in err


@pytest.mark.parametrize("end", ["sys.exit()", "os._exit(0)"])
def test_a_part_that_exits_in_a_stage_is_named(site, command, tmp_path, end):
    write_package(site, "odd", COLLECTION.replace("BODY", end))
    rc, out, err = command("compose", "--collection", "odd", "--scale", "quick", "--run-dir", tmp_path / "run")
    assert (rc, out) == (2, "")
    assert says(err, "error: collection 'odd' (odd 1.0)", "odd.py:", "ends the program")
    assert "Traceback" not in err


def test_a_part_that_exits_when_it_is_imported_is_named(site, command):
    write_package(site, "odd", MASKER.replace("odd:Odd", "leaver:Odd"))
    for end in ("raise SystemExit(0)", "import os; os._exit(0)"):
        (site / "leaver.py").write_text(end)
        rc, out, err = command(*TRIAL)
        assert (rc, out) == (2, "")
        assert says(err, "masker 'odd' (odd 1.0)", "leaver:Odd", "SystemExit")


def test_a_command_of_a_stranger_chooses_its_exit_code_but_not_for_others(site, command):
    source = """
import click, sys
from drkit.plugin import Extension

@click.command()
def leave():
    sys.exit(5)

@hookimpl
def drkit_commands():
    return [Extension("leave", "odd:leave", "Leaves"), Extension("lost", "leaver:lost", "Is lost")]
"""
    write_package(site, "odd", source)
    (site / "leaver.py").write_text("raise SystemExit(0)")
    assert command("leave")[0] == 5
    rc, _, err = command("lost")
    assert (rc, err.count("\n")) == (2, 1)
    assert says(err, "'lost'", "odd 1.0", "SystemExit")
    assert command("--help")[0] == 0


@pytest.mark.parametrize("error", ["GeneratorExit", "BaseException('odd')"])
def test_a_part_that_raises_what_is_no_exception_is_named(site, command, error):
    write_package(site, "odd", MASKER.replace("BODY", f"raise {error}"))
    rc, out, err = command(*TRIAL)
    assert (rc, out) == (2, "")
    assert says(err, "error: masker 'odd' (odd 1.0) failed on a toy batch", "odd.py:")
    assert "Traceback" not in err


PRINTS = {
    "print": "print('hello from a masker')",
    "descriptor": "os.write(1, b'hello from a masker')",
    "program": "import subprocess; subprocess.run(['echo', 'hello from a masker'])",
    "first stream": "print('hello from a masker', file=sys.__stdout__, flush=True)",
}


@pytest.mark.parametrize("how", PRINTS)
def test_what_a_part_prints_is_no_result(site, command, how):
    write_package(site, "odd", MASKER.replace("BODY", PRINTS[how]))
    rc, out, err = command(*TRIAL, "--json")
    assert rc == 0, err
    assert json.loads(out)["stages"]
    assert "hello from a masker" in err


def test_a_collection_that_prints_in_a_stage_leaves_the_result_whole(site, command, tmp_path):
    write_package(site, "odd", COLLECTION.replace("BODY", "print('hello from a collection')"))
    done = command("compose", "--collection", "odd", "--scale", "quick", "--run-dir", tmp_path / "run", "--json", "-q")
    assert "hello from a collection" in done[2]
    assert "hello" not in done[1]


CHANGES = {
    "the current folder": "os.chdir('/')",
    "the handler of Ctrl-C": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "the handler of SIGTERM": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "what logging.disable has set": "logging.disable(logging.CRITICAL)",
    "drkit's loggers": "import logging.config; logging.config.dictConfig({'version': 1})",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_part_that_changes_the_process_is_refused_before_the_run(site, what):
    write_package(site, "odd", MASKER.replace("BODY", CHANGES[what]))
    here = installed_with(site)
    before = Path.cwd(), signal.getsignal(signal.SIGINT), logging.root.manager.disable
    logger = logging.getLogger("drkit.data.corpus")
    with pytest.raises(DrkitError, match=rf"^masker 'odd' \(odd 1\.0\) changed {what}, .*leave the process as it is"):
        try_parts(compose(ComposeRequest(masker="odd"), here), here.registry)
    assert (Path.cwd(), signal.getsignal(signal.SIGINT), logging.root.manager.disable) == before
    assert not logger.disabled


@pytest.mark.parametrize("what", CHANGES)
def test_a_plugin_that_changes_the_process_when_it_is_loaded_is_said(site, command, what):
    write_package(site, "odd", MASKER.replace("BODY", "pass") + f"\n{CHANGES[what]}\n")
    rc, out, _ = command("plugins")
    assert rc == 0
    assert says(out, "odd (odd 1.0)", f"changed {what} when it was loaded", "restored")
    rc, out, _ = command(*TRIAL[:-1])
    assert rc == 0
    assert says(out, "the plugin 'odd'", f"changed {what}")


def test_a_stage_whose_part_changes_the_folder_still_writes_into_the_run(site, command, tmp_path, monkeypatch):
    write_package(site, "odd", COLLECTION.replace("BODY", "os.chdir('/')"))
    monkeypatch.chdir(tmp_path)
    _, _, err = command("compose", "--collection", "odd", "--scale", "quick", "--run-dir", "relative")
    assert says(err, "note: a part in collection changed the current folder")
    assert (tmp_path / "relative/collection/manifest.json").is_file()


def test_a_folder_that_is_gone_cannot_be_restored_and_ends_nothing(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with restored_process_state() as changed:
        os.chdir("/")
        (tmp_path / "gone").rmdir()
    assert changed == ["the current folder"]


# Versions and time


def test_two_installed_versions_of_a_plugin_are_said_and_named_when_it_is_used(site, command):
    write_package(site, "odd", MASKER.replace("BODY", "pass"))
    write_package(site, "odd", MASKER.replace("BODY", "pass"), version="2.0")
    rc, out, _ = command("plugins")
    assert rc == 0
    assert says(out, "odd (odd ", "is installed in 2 versions, 1.0", "and 2.0", "uninstall")
    rc, out, _ = command(*TRIAL[:-1])
    assert rc == 0
    assert says(out, "the plugin 'odd' is installed in 2 versions")
    assert "2 versions" not in command("compose", "--scale", "quick", "--dry-run")[1], "a recipe that does not use it"


def test_one_version_is_no_note(site):
    write_package(site, "odd", MASKER.replace("BODY", "pass"))
    assert not any(report.notes for report in installed_with(site).plugins)


def test_a_plugin_that_takes_long_to_load_is_named(site, command):
    write_package(site, "odd", "import time\ntime.sleep(2.2)" + MASKER.replace("BODY", "pass"))
    _, out, err = command("plugins")
    assert says(out, "odd (odd 1.0): takes 2.", " s to load")
    assert says(err, "note: the plugin 'odd' of odd 1.0 takes 2.")
    assert command("plugins", "-q")[2] == ""


def test_how_long_a_plugin_takes_is_a_detail(site, command):
    write_package(site, "odd", MASKER.replace("BODY", "pass"))
    assert says(command("plugins", "-v")[2], "info: plugin odd of odd 1.0: loaded in 0.")
    assert "plugin odd" not in command("plugins")[2]


def test_the_modules_of_this_test_are_not_kept():
    assert "odd" not in sys.modules
    assert "odd" not in {report.name for report in installed().plugins}
