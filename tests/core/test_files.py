"""Atomic files: whole, or not there."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from drkit.core.files import (
    IDENTITY,
    WRITTEN,
    make_folder,
    remove_folder,
    remove_temporaries,
    replacing,
    replacing_folder,
    write_text,
)
from drkit.errors import DrkitError, storage_failure


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


def test_a_folder_is_removed_whole_or_becomes_a_temporary_one(tmp_path, monkeypatch):
    folder = tmp_path / "vectors"
    remove_folder(folder)  # may be missing
    (folder / "inner").mkdir(parents=True)

    def stop(path, **_):
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(folder)
    assert not folder.exists()
    remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == []


def put(folder):
    with replacing_folder(folder) as temporary:
        (temporary / "index.json").write_text("new")
        (temporary / "inner").mkdir()
        (temporary / "inner" / "vectors").write_text("new")


def test_a_folder_is_replaced_only_as_it_was_written(tmp_path):
    for name in ("new", "deep/new", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        put(tmp_path / name)
        put(tmp_path / name)
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == [WRITTEN, "index.json", "inner"]
    (tmp_path / "new" / "index.json").unlink()  # what is missing is not lost
    put(tmp_path / "new")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda folder: (folder / ".env").write_text("secret"), ".env"),
        (lambda folder: (folder / "inner" / "NOTES.txt").write_text("mine"), "inner/NOTES.txt"),
        (lambda folder: (folder / "index.json").write_text("NEW"), "index.json"),
        (lambda folder: (folder / "inner" / "link").symlink_to("/nowhere"), "inner/link"),
        (lambda folder: (folder / WRITTEN).unlink(), "index.json"),
        (lambda folder: (folder / WRITTEN).write_text("[" * 100_000), "index.json"),
        (lambda folder: (folder / WRITTEN).write_text('{"index.json": {"bytes": "3"}}'), "index.json"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), " run "),
    ],
)
def test_what_somebody_added_or_changed_is_named_and_kept(tmp_path, change, named):
    folder = tmp_path / "folder"
    put(folder)
    change(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(DrkitError, match=named):
        put(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_an_unfinished_stage_is_filled_in_place_over_what_a_kill_left(tmp_path):
    stage = tmp_path / "stage"
    (stage / "checkpoints").mkdir(parents=True)
    for name in (IDENTITY, "checkpoints/shard", "index.json"):
        (stage / name).write_text("before")
    put(stage)
    found = {path.relative_to(stage).as_posix(): path.read_text() for path in stage.rglob("*") if path.is_file()}
    kept = dict.fromkeys((IDENTITY, "checkpoints/shard"), "before")
    assert found == {**kept, "index.json": "new", "inner/vectors": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["stage"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    put(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "index.json").is_file()
    (tmp_path / "text").symlink_to("there/text")
    write_text(tmp_path / "text", "content")
    assert (tmp_path / "text").is_symlink()
    assert (tmp_path / "there" / "text").read_text() == "content"


@pytest.mark.parametrize("name", [".", "..", "/", "file", "file/below"])
def test_places_that_cannot_be_replaced(tmp_path, monkeypatch, name):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("file").write_text("old")
    with pytest.raises(DrkitError, match=r"current folder|a file|folder .*/here/file"):
        put(Path(name))
    assert Path("file").read_text() == "old"


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_whoever_may_read_a_folder_may_read_the_tensors_in_it(tmp_path, umask):
    before = os.umask(umask)
    try:
        with replacing_folder(tmp_path / "model") as folder:
            save_file({"weights": np.zeros(2)}, folder / "model.safetensors")
            (folder / "inner").mkdir()
            save_file({"weights": np.zeros(2)}, folder / "inner" / "model.safetensors")
            assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o600  # else nothing is left to do here
        everyones = tmp_path / "everyones"
        everyones.mkdir()
        everyones.chmod(0o777)  # such as /tmp: whoever may write there must not write this file
        with replacing(everyones / "vectors.safetensors") as file:
            save_file({"weights": np.zeros(2)}, file)
        (tmp_path / "plain").touch()
    finally:
        os.umask(before)
    allowed = (tmp_path / "plain").stat().st_mode
    written = sorted(tmp_path.rglob("*.safetensors"))
    assert [file.stat().st_mode for file in written] == [allowed] * 3


def test_a_file_is_not_written_over_a_folder(tmp_path):
    with pytest.raises(DrkitError, match="a folder;"):
        write_text(tmp_path, "text")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no folder here that nobody can write to")
def test_a_folder_that_takes_no_files_is_an_error_of_the_user():
    with pytest.raises(DrkitError, match=r"folder /proc: No such file .*another location"):
        write_text(Path("/proc/values.tsv"), "text")
    with (
        pytest.raises(DrkitError, match=r"folder /proc: No such file .*another location"),
        replacing_folder(Path("/proc/index")),
    ):
        pass
    with pytest.raises(DrkitError, match=r"folder /proc/vectors: No such file .*another location"):
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


def test_a_device_is_written_to_and_not_replaced():
    for device in (Path("/dev/null"), Path("/dev/full")):
        if not device.is_char_device():
            pytest.skip(f"no {device} here")
    write_text(Path("/dev/null"), "text")
    with pytest.raises(OSError, match="No space left on device"):
        write_text(Path("/dev/full"), "text")
    assert Path("/dev/null").is_char_device()
    assert Path("/dev/full").is_char_device()
    assert not list(Path("/dev").glob(".*.tmp"))


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join()
    assert read == ["text"]
    assert pipe.is_fifo()


def test_standard_output_continues_after_what_is_written_to_it(tmp_path):
    script = (
        "from pathlib import Path; from drkit.core.files import write_text; print('before'); "
        "write_text(Path('/dev/stdout'), 'written\\n'); print('after')"
    )
    if not Path("/dev/stdout").exists():
        pytest.skip("no /dev/stdout here")
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nwritten\nafter\n"
    piped = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert piped.stdout == "before\nwritten\nafter\n"
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "full"),
        (RuntimeError("I/O error: File too large (os error 27)"), "full"),
        (OSError("40 requested and 0 written"), "full"),
        (RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/0"), "full"),
        (RuntimeError("basic_ios::clear: iostream error"), "full"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 12"), "full"),
        (OSError(errno.EIO, "Input/output error", "a.bin"), " a.bin: Input/output error"),
        (RuntimeError("write error in a.index: 0 != 8 (Input/output error)"), ": write error in a"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), " a: Permission denied"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a"), None),
        (ValueError("40 rows"), None),
    ],
)
def test_what_the_disk_caused_is_told_from_bugs(error, said):
    for seen in (error, caused_by(error)):
        found = storage_failure(seen)
        assert (found is None) if said is None else said in found[0]


def caused_by(error):
    wrapped = RuntimeError("could not save")
    wrapped.__cause__ = error
    return wrapped
