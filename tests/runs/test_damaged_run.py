"""A finished run with changed bytes: each command that reads a changed file names it, and the run mends it."""

import json
import shutil

import pytest

from drkit.core.files import IDENTITY, write_json
from drkit.runs.execute import UNFINISHED
from drkit.runs.manifest import load_manifest
from tests.refusals import says
from tests.runs.conftest import drkit
from tests.runs.damages import flip_byte, halve

SEARCH = ("search", "RUN", "Initialize a filter.")
# What reads a file of a run, by the file.
READERS = [
    ("runs/retriever-1.arrow", ("evaluate", "RUN")),
    ("runs/bm25.arrow", ("compare", "RUN:bm25", "RUN:retriever-1")),
    ("runs/bm25.arrow", ("export", "RUN", "--trec", "OUT")),
    ("runs/bm25.arrow", ("fuse", "RUN/runs/bm25.arrow", "RUN/runs/retriever-1.arrow", "-o", "OUT")),
    ("runs/initial.arrow", ("report", "RUN", "-o", "OUT")),
    ("evaluation/scores.json", ("report", "RUN", "-o", "OUT")),
    ("retriever-1/log.jsonl", ("report", "RUN", "-o", "OUT")),
    ("index/vectors.npy", SEARCH),
    ("index/ids.arrow", SEARCH),
    ("encoder/model.safetensors", SEARCH),
    ("encoder/config.json", SEARCH),
    ("retriever-1/tokenizer.json", ("export", "RUN/retriever-1", "-o", "OUT")),
    ("bm25/data.csc.index.npy", (*SEARCH, "--system", "hybrid")),
    ("hybrid/weight.json", (*SEARCH, "--system", "hybrid")),
    ("collection/passages/texts.arrow", ("mine", "--collection", "RUN", "--miner", "bm25", "-o", "OUT")),
    ("collection/test/judgements.arrow", ("evaluate", "--encoder", "RUN", "--collection", "RUN", "-o", "OUT")),
    ("signal-importance/fitted/counts/1.arrow", ("inspect", "mask", "--run", "RUN", "Initialize a filter.")),
    ("vocabulary/tokenizer.json", ("inspect", "mask", "--run", "RUN", "Initialize a filter.")),
]


@pytest.fixture(scope="module")
def copied(tiny_run, tmp_path_factory):
    run = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(tiny_run[0], run)
    return run


def damaged(run, name, damage):
    """Damage a file of a run; returns its content before."""
    before = (run / name).read_bytes()
    damage(run / name)
    return before


def call(run, command, out, **options):
    shutil.rmtree(out, ignore_errors=True)
    given = [part.replace("RUN", str(run)).replace("OUT", str(out)) for part in command]
    return drkit(*given, check=False, **options)


@pytest.mark.parametrize(("name", "command"), READERS, ids=[f"{name} {command[0]}" for name, command in READERS])
def test_a_command_names_a_changed_file_and_how_to_make_it_again(copied, tmp_path, name, command):
    before = damaged(copied, name, flip_byte)
    try:
        done = call(copied, command, tmp_path / "out")
    finally:
        (copied / name).write_bytes(before)
    assert done.returncode == 2, done.stdout
    error = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    stage = name.split("/")[0]
    assert says(error, f"{copied / name}: ", "changed since drkit wrote it", f"remove the folder {copied / stage}")
    assert f"drkit run {copied}" in error
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("damage", [flip_byte, halve])
def test_a_damaged_manifest_is_no_manifest(copied, damage):
    before = damaged(copied, "evaluation/manifest.json", damage)
    try:
        status = drkit("status", copied, "--json", check=False)
        evaluated = drkit("evaluate", copied, check=False)
    finally:
        (copied / "evaluation/manifest.json").write_bytes(before)
    stages = {one["stage"]: one for one in json.loads(status.stdout)["stages"]}
    assert stages["evaluation"]["reasons"] == ["its manifest.json is damaged"]
    assert (evaluated.returncode, "Traceback" in evaluated.stderr) == (2, False)
    assert says(evaluated.stderr, "error: ", str(copied))


def test_half_of_an_index_changed_and_a_later_stage_repeated_gives_the_numbers_of_before(copied):
    """The stage that made the index makes it again, as its reader compares it with its hash first."""
    index, table = copied / "index-retriever-1/vectors.npy", (copied / "evaluation/table.md").read_text()
    content = bytearray(index.read_bytes())
    content[len(content) // 2 :] = bytes(byte ^ 0x35 for byte in content[len(content) // 2 :])
    index.write_bytes(content)
    shutil.rmtree(copied / "runs")
    done = drkit("run", copied)
    assert says(done.stderr, "index-retriever-1", "again because vectors.npy was changed, and runs reads it")
    assert (copied / "evaluation/table.md").read_text() == table
    verified = drkit("status", copied, "--verify", check=False)
    assert verified.returncode == 0, verified.stdout


def test_rankings_of_an_interrupted_search_are_used_only_if_they_are_whole(copied):
    attempt, before = (
        copied / UNFINISHED / "runs",
        {path.name: path.read_bytes() for path in copied.glob("runs/*.arrow")},
    )
    manifest = load_manifest(copied / "runs")
    attempt.parent.mkdir(exist_ok=True)
    (copied / "runs").rename(attempt)
    (attempt / "manifest.json").unlink()
    write_json(attempt / IDENTITY, manifest.identity())
    kept = (attempt / "initial.arrow").stat().st_ino
    flip_byte(attempt / "bm25.arrow")
    halve(attempt / "retriever-1.arrow")
    drkit("run", copied)
    assert {path.name: path.read_bytes() for path in copied.glob("runs/*.arrow")} == before
    assert (copied / "runs/initial.arrow").stat().st_ino == kept, "the others are not made again"


def test_a_copy_without_hidden_files_is_the_same_run(copied, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(copied, copy, ignore=shutil.ignore_patterns(".*"))
    done = drkit("run", copy, "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert document["run"] == str(copy)
    assert {stage["state"] for stage in document["stages"]} == {"kept"}


def test_a_removed_stage_is_made_again_as_the_message_says(copied):
    before = damaged(copied, "encoder/model.safetensors", flip_byte)
    assert drkit(*(part.replace("RUN", str(copied)) for part in SEARCH), check=False).returncode == 2
    shutil.rmtree(copied / "encoder")
    drkit("run", copied)
    assert (copied / "encoder/model.safetensors").read_bytes() == before
    assert drkit(*(part.replace("RUN", str(copied)) for part in SEARCH)).returncode == 0


def test_an_index_that_a_kill_left_half_written_is_written_again_over_it(copied):
    index = copied / "index-retriever-1"
    attempt, manifest = copied / UNFINISHED / index.name, load_manifest(index)
    before = {path.name: path.read_bytes() for path in index.iterdir() if path.name != "manifest.json"}
    attempt.parent.mkdir(exist_ok=True)
    index.rename(attempt)
    (attempt / "manifest.json").unlink()
    (attempt / "index.json").unlink()
    halve(attempt / "vectors.npy")
    write_json(attempt / IDENTITY, manifest.identity())
    assert says(drkit("run", copied).stderr, index.name)
    assert {path.name: path.read_bytes() for path in index.iterdir() if path.name != "manifest.json"} == before
