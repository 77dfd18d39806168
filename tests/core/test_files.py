"""Atomic files: whole, or not there."""

from pathlib import Path

import pytest

from drkit.core.files import make_folder, remove_temporaries, replacing, replacing_folder, write_text
from drkit.errors import DrkitError


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_takes_the_place_of_its_own_kind_alone(tmp_path):
    def put(name):
        with replacing_folder(tmp_path / name, "index.json") as temporary:
            (temporary / "index.json").write_text("new")

    for name, files in {"old": ["index.json", "litter"], "other": ["corpus.jsonl"], "stage": ["index.json"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("old")
    (tmp_path / "stage" / "manifest.json").write_text("{}")
    (tmp_path / "file").write_text("old")
    (tmp_path / "empty").mkdir()
    for name in ("new", "deep/new", "old", "empty"):
        put(name)
        assert [p.name for p in (tmp_path / name).iterdir()] == ["index.json"]
    for name, said in [("other", "contains other files"), ("stage", "belongs to a run"), ("file", "is a file")]:
        with pytest.raises(DrkitError, match=said):
            put(name)
    assert (tmp_path / "other" / "corpus.jsonl").read_text() == (tmp_path / "file").read_text() == "old"
    with pytest.raises(DrkitError, match=r"cannot create the folder"):
        put("file/below")


def test_a_file_is_not_written_over_a_folder(tmp_path):
    with pytest.raises(DrkitError, match="is a folder"):
        write_text(tmp_path, "text")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder here that nobody can write to")
def test_a_folder_that_takes_no_files_is_an_error_of_the_user():
    with pytest.raises(DrkitError, match=r"cannot write to the folder /proc: .*; choose another location"):
        write_text(Path("/proc/values.tsv"), "text")
    with (
        pytest.raises(DrkitError, match=r"cannot write to the folder /proc: .*; choose another location"),
        replacing_folder(Path("/proc/index"), "index.json"),
    ):
        pass
    with pytest.raises(DrkitError, match=r"cannot create the folder /proc/vectors: .*; choose another location"):
        make_folder(Path("/proc/vectors"))


def test_what_a_kill_left_half_written_is_removed_and_nothing_else(tmp_path):
    kept = [".hidden", "a.tmp", ".a.tmp", ".a.12.tmp.txt"]
    for name in (*kept, ".a.12.tmp", "inner/.b.c.7.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "..index.9.tmp").mkdir()
    (tmp_path / "..index.9.tmp" / ".a.12.tmp").touch()
    (tmp_path / ".index.9.old").mkdir()
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "inner"])
    assert not list((tmp_path / "inner").iterdir())
