"""Editing a plugin's part repeats the stages that run it, and no others; `drkit status` names the file."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from textwrap import dedent

import pytest

from drkit.core.plugin_code import plugin_code, refuse_edited_code
from drkit.errors import DrkitError
from tests.plugins.packages import path_with
from tests.runs.conftest import write_lines
from tests.warm import drkit

# What each module of the package `ideas` contains. Its masker reads a module beside it, a file, and one of another
# folder; its filter is in another module.
PACKAGE = {
    "__init__.py": """
        from attrs import frozen
        from drkit.plugin import ComponentSpec, NoSettings, hookimpl, setting

        @frozen
        class Share:
            ratio: float = setting(0.3, None, "share of the tokens that is hidden")

        @hookimpl
        def drkit_components():
            return [
                ComponentSpec(
                    kind="masker", name="shares", target="ideas.masker:Shares", config=Share, summary="a share",
                    provides=("view", "rows"),
                ),
                ComponentSpec(
                    kind="miner", name="even", target="ideas.filter:Even", config=NoSettings, summary="even passages",
                    receives=("candidates",),
                ),
            ]
    """,
    "masker.py": """
        from pathlib import Path

        import torch

        from drkit.plugin import make_view
        from labtools import FACTOR
        from . import shares

        class Shares:
            def __init__(self, config, context):
                self.ratio, self.context = config.ratio * shares.OF_ALL * FACTOR, context
                self.words = Path(__file__).with_name("words.txt").read_text()

            def __call__(self, tokens, rng, *, rows=0, nested=None):
                hidden = torch.from_numpy(rng.uniform(tokens.ids.shape[1])) < self.ratio
                return make_view(tokens, hidden & tokens.maskable, rng, self.context, rows=rows, nested=nested)
    """,
    "shares.py": "OF_ALL = 1.0\nTEXTS = ('no/such/../file', '\\0', '" + "\u2460" * 190 + "', '/', '.')",
    "filter.py": """
        from attrs import evolve

        class Even:
            def __init__(self, config, context):
                pass

            def __call__(self, queries, resources, previous):
                return evolve(previous, kept=previous.kept & (previous.passages % 2 == 0))
    """,
    "words.txt": "the of",
    "README.md": "What the package is for.",
}


def write_ideas(site):
    (site / "ideas").mkdir()
    for name, source in PACKAGE.items():
        (site / "ideas" / name).write_text(dedent(source))
    (site / "labtools.py").write_text("FACTOR = 1.0\n")
    metadata = site / "ideas-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ideas\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[drkit]\nideas = ideas\n")


def composed(site, folder, run, *further):
    """The options of a tiny run whose pre-training masks by `shares`."""
    sizes = ("encoder.vocab_size=120", "encoder.hidden=16", "encoder.intermediate=32", "pretrain.max_steps=4")
    settings = [option for one in sizes for option in ("--set", one)]
    parts = ("--masker", "shares", "--decoder", "enhanced", "--collection", f"beir:{folder}")
    return drkit("compose", *parts, "--run-dir", run, *settings, *further, PYTHONPATH=path_with(site))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of the package, as written above: (the folder of the package, the collection, the run)."""
    site, texts, run = (tmp_path_factory.mktemp("edited") / name for name in ("site", "texts", "run"))
    site.mkdir()
    write_ideas(site)
    (texts / "qrels").mkdir(parents=True)
    write_lines(
        texts / "corpus.jsonl", [{"_id": f"d{i}", "text": f"about topic{i % 9} and word{i}"} for i in range(40)]
    )
    write_lines(texts / "queries.jsonl", [{"_id": f"q{t}", "text": f"what is topic{t}"} for t in range(9)])
    rows = "".join(f"q{t}\td{t}\t1\n" for t in range(9))
    (texts / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    code, _, err = composed(site, texts, run)
    assert code == 0, err
    return site, texts, run


@pytest.fixture
def ideas(made, tmp_path):
    """(a copy of the package to edit, the collection, a copy of the run)."""
    site, texts, run = made
    shutil.copytree(site, tmp_path / "site")
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "site", texts, tmp_path / "run"


def states(site, run):
    """The state of each stage and the reasons, as `drkit status` has them."""
    code, out, err = drkit("status", run, "--json", PYTHONPATH=path_with(site))
    assert code == 0, err
    return {one["stage"]: (one["state"], one["reasons"]) for one in json.loads(out)["stages"]}


def edit(path, before, after):
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def is_kept(found):
    return all(state == "kept" for state, _ in found.values())


def test_a_run_is_kept_where_nothing_was_edited(ideas):
    site, _, run = ideas
    assert is_kept(states(site, run))


EDITS = {
    "the part": (lambda site: edit(site / "ideas/masker.py", "rows=0", "rows=0 "), "ideas/masker.py changed"),
    "a module beside it": (lambda site: edit(site / "ideas/shares.py", "1.0", "0.5"), "ideas/shares.py changed"),
    "a module of another folder": (lambda site: edit(site / "labtools.py", "1.0", "0.5"), "labtools.py changed"),
    "a file that it reads": (lambda site: edit(site / "ideas/words.txt", "the", "The"), "ideas/words.txt changed"),
    "its settings' class": (lambda site: edit(site / "ideas/__init__.py", "share of", "part of"), "ideas/__init__.py"),
    "a new import": (
        lambda site: edit(site / "ideas/shares.py", "OF_ALL", "from ideas.filter import Even\nOF_ALL"),
        "ideas/filter.py is new",
    ),
    "a module becomes a package": (
        lambda site: (
            (site / "ideas/shares").mkdir(),
            (site / "ideas/shares.py").rename(site / "ideas/shares/__init__.py"),
        ),
        "ideas/shares.py is gone",
    ),
    "a file is gone": (lambda site: (site / "ideas/words.txt").unlink(), "ideas/words.txt is gone"),
    "the version": (
        lambda site: edit(site / "ideas-1.0.dist-info/METADATA", "Version: 1.0", "Version: 1.1"),
        "ideas: 1.0 -> 1.1",
    ),
    "a line's end": (
        lambda site: edit(site / "ideas/masker.py", "import torch\n", "import torch  # a\n"),
        "masker.py changed",
    ),
}


@pytest.mark.parametrize("change", EDITS)
def test_an_edit_repeats_the_stages_that_run_the_part_and_says_which_file(change, ideas):
    site, _, run = ideas
    make, reason = EDITS[change]
    make(site)
    found = states(site, run)
    state, reasons = found["pretrained"]
    assert state == "again"
    assert any(reason in one for one in reasons), reasons
    assert {name for name, (one, _) in found.items() if one == "kept"} >= {
        "collection",
        "vocabulary",
        "tokens",
        "initial",
    }


@pytest.mark.parametrize("file", ["ideas/filter.py", "ideas/README.md", "ideas/notes.md"])
def test_an_edit_of_what_no_stage_runs_repeats_nothing(file, ideas):
    site, _, run = ideas
    (site / file).write_text("# other words\n" + PACKAGE.get(file.removeprefix("ideas/"), ""))
    assert is_kept(states(site, run))


def test_a_module_imported_by_a_computed_name_counts(ideas, made):
    site, texts, run = ideas
    edit(
        site / "ideas/masker.py",
        "from . import shares",
        "import importlib\nshares = importlib.import_module('ideas.' + 'shares')",
    )
    assert composed(site, texts, run)[0] == 0
    assert is_kept(states(site, run))
    edit(site / "ideas/shares.py", "1.0", "0.5")
    assert "ideas/shares.py changed" in states(site, run)["pretrained"][1]


def test_the_stage_is_made_again_with_the_new_code(ideas):
    site, texts, run = ideas
    before = json.loads((run / "pretrained/manifest.json").read_text())
    edit(site / "ideas/shares.py", "1.0", "0.1")
    code, out, err = composed(site, texts, run)
    assert code == 0, err
    assert "again because ideas/shares.py changed" in out + err
    after = json.loads((run / "pretrained/manifest.json").read_text())
    assert after["code"] != before["code"]
    assert after["files"] != before["files"]
    assert is_kept(states(site, run))


def test_a_stage_is_kept_for_who_knows_better_and_the_record_says_so(ideas):
    site, texts, run = ideas
    weights = (run / "pretrained/model.safetensors").read_bytes()
    edit(site / "ideas/masker.py", "import torch\n", "import torch  # fast\n")
    code, out, _ = composed(site, texts, run, "--keep-stale", "pretrained", "--dry-run")
    assert (code, "nothing to do" in out, "in all" in out) == (0, True, False)
    assert states(site, run)["pretrained"][0] == "again"  # a dry run writes nothing
    assert composed(site, texts, run, "--keep-stale", "pre*")[0] == 0
    assert is_kept(states(site, run))
    assert (run / "pretrained/model.safetensors").read_bytes() == weights
    out = drkit("status", run, PYTHONPATH=path_with(site))[1]
    assert "although ideas/masker.py changed" in " ".join(out.split())
    code, _, err = composed(site, texts, run, "--keep-stale", "pretraind", "--dry-run")
    assert code == 2
    assert "did you mean 'pretrained'" in err
    # Another run does not take it over: its code made something else.
    other = run.with_name("other")
    out = "".join(composed(site, texts, other, "--reuse", run)[1:])
    assert "pre-train with masker shares" in out
    assert (other / "pretrained/model.safetensors").stat().st_ino != (
        run / "pretrained/model.safetensors"
    ).stat().st_ino


def test_keeping_stale_code_keeps_no_other_change(ideas):
    site, texts, run = ideas
    edit(site / "ideas/shares.py", "1.0", "0.1")
    changed = ("--redo", "--set", "pretrain.learning_rate=1e-4")
    code, out, err = composed(site, texts, run, *changed, "--keep-stale", "pretrained")
    assert code == 0
    assert "again because pretrain.learning_rate" in out + err


def test_a_library_counts_by_its_version_and_drkits_own_are_recorded_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "reads_libraries.py").write_text("import json, numpy, torch, nltk, drkit.maskers, no_such_library")
    monkeypatch.syspath_prepend(tmp_path)
    found = plugin_code("reads_libraries", "my-ideas 0.3")
    assert list(found.files) == ["reads_libraries.py"]
    assert found.packages == {"my-ideas": "0.3", "nltk": version("nltk")}


# What an installed package that a plugin imports was installed from, and whether its owner edits it here.
ORIGINS = {
    "an index": ({}, False),
    "another plugin": ({"entry_points.txt": "[drkit]\nbase = base\n"}, True),
    "a folder": ({"direct_url.json": '{"url": "file://FOLDER", "dir_info": {}}'}, True),
    "a folder of the machine that built it": (
        {"direct_url.json": '{"url": "file:///no/such/folder", "dir_info": {}}'},
        False,
    ),
    "a wheel": ({"direct_url.json": '{"url": "file://FOLDER/a.whl", "archive_info": {}}'}, False),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_installed_package_is_read_if_its_owner_edits_it_here(origin, tmp_path):
    folder, site = tmp_path / "mine", tmp_path / "site-packages"
    files, is_read = ORIGINS[origin]
    metadata = site / "base-1.0.dist-info"
    for one in (folder, metadata, site / "base"):
        one.mkdir(parents=True)
    (folder / "mine.py").write_text("from base.masker import Base\nclass Mine(Base): pass\n")
    (site / "base" / "__init__.py").write_text("def drkit_recipes(): return {}\n")
    (site / "base" / "masker.py").write_text("class Base: pass\n")
    texts = {"METADATA": "Metadata-Version: 2.1\nName: base\nVersion: 1.0\n", "top_level.txt": "base", **files}
    for file, text in texts.items():
        (metadata / file).write_text(text.replace("FOLDER", str(folder)))
    code = "from drkit.core.plugin_code import plugin_code as c; f = c('mine'); print(*f.files, *f.packages)"
    path = {"PYTHONPATH": f"{folder}:{path_with(site)}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **path})
    assert done.stdout.split() == (
        ["base/__init__.py", "base/masker.py", "mine.py"] if is_read else ["mine.py", "base"]
    )


def test_a_process_that_read_a_part_refuses_to_run_after_an_edit(tmp_path, monkeypatch):
    module = tmp_path / "edited_within_a_process.py"
    module.write_text("RATIO = 0.3\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = plugin_code("edited_within_a_process")
    refuse_edited_code()
    module.write_text("RATIO = 0.7\n")
    with pytest.raises(DrkitError, match=r"edited_within_a_process\.py changed since .* restart Python"):
        refuse_edited_code()
    module.write_text("RATIO = 0.3\n")
    refuse_edited_code()
    assert plugin_code("edited_within_a_process") == before


def test_a_module_that_is_missing_or_of_drkit_has_no_code():
    assert plugin_code("no_such_module.part").files == {}
    assert plugin_code("drkit.maskers.uniform", "drkit 0.1.0").files == {}
    assert plugin_code("drkit_retromae").files == {}
