"""`drkit doctor`: what is off, what to do about it, and when drkit cannot work."""

import json
import shutil
import sys
from collections import namedtuple
from importlib.metadata import PackageNotFoundError, version

import psutil
import pytest

from drkit.commands import can_work, doctor, examine
from drkit.core.registry import Installed, PluginReport, installed
from drkit_cli.main import _status


def found(name, parts=None, runs=None):
    """The check of a name."""
    given = {"runs": runs} if runs else {}
    return next(check for check in examine(parts or installed(), **given) if check.name == name)


def pretend_version(monkeypatch, package, pretended):
    """Let a package have another version, or none."""

    def fake(name):
        if name != package:
            return version(name)
        if pretended is None:
            raise PackageNotFoundError(name)
        return pretended

    monkeypatch.setattr(doctor, "version", fake)


def test_drkit_can_work_here(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    checks = examine(installed())
    assert can_work(checks), checks
    names = [check.name for check in checks]
    assert len({*names}) == len(names)
    assert {"Python", "torch", "devices", "faiss", "threads", "memory", "folder of runs", "temporary folder"} < {*names}
    assert {"ir_datasets", "hub cache", "plugin builtin", "plugin retromae"} < {*names}
    assert all(bool(check.advice) == (check.state != "ok") for check in checks)


@pytest.mark.parametrize(("package", "pretended"), [("torch", "1.13.0"), ("attrs", None), ("cattrs", None)])
def test_a_missing_or_old_package_is_an_error(monkeypatch, package, pretended):
    pretend_version(monkeypatch, package, pretended)
    broken = [check for check in examine(installed()) if check.state == "error"]
    assert [check.name for check in broken] == [package]
    assert (pretended or "missing") in broken[0].found
    assert f"pip install '{package}>=" in broken[0].advice


def test_a_torch_that_cannot_be_imported_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert found("devices").state == "error"


def test_faiss_may_be_missing(monkeypatch):
    pretend_version(monkeypatch, "faiss-cpu", None)
    check = found("faiss")
    if check.found == "not installed":
        assert check.state == "warning"
        assert "drkit[cpu]" in check.advice


def test_missing_extras_are_listed(monkeypatch):
    assert found("extras").state == "ok"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    check = found("extras")
    assert (check.state, check.found) == ("warning", "not installed: bm25, plots")
    assert check.advice.endswith("pip install 'drkit[bm25,plots]'")


def test_threads_are_compared_with_cores(monkeypatch):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: range(4), raising=False)
    monkeypatch.setattr(doctor, "free_cores", lambda: 4.0)
    for given, state in (("1", "warning"), ("4", "ok"), ("9", "warning")):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert found("threads").state == state
    assert "OMP_NUM_THREADS=4" in found("threads").advice
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setattr(doctor, "free_cores", lambda: 1.0)
    assert "other programs leave only about 1.0 of 4 cores free" in found("threads").advice


def test_little_memory_and_little_space_are_warnings(monkeypatch, tmp_path):
    memory = namedtuple("Memory", ["available", "total"])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(1 << 30, 8 << 30))
    assert found("memory").state == "warning"
    usage = namedtuple("Usage", ["free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30))
    check = found("folder of runs", runs=tmp_path / "not" / "yet" / "there")
    assert check.state == "warning"
    assert "1.0 GB free" in check.found


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    check = found("folder of runs", runs=file / "runs")
    assert (check.state, check.advice) == ("warning", "choose another folder with --run-dir")
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(file))
    assert found("temporary folder").state == "error"


def test_broken_and_slow_plugins():
    reports = (
        PluginReport("broken", "theirs 1.0", error="ImportError: x"),
        PluginReport("slow", "theirs 1.0", seconds=2.0, imported_torch=True),
        PluginReport("own", "drkit 0.1.0", error="ImportError: x"),
    )
    parts = Installed(installed().registry, plugins=reports)
    states = {check.name: check.state for check in examine(parts) if check.name.startswith("plugin")}
    assert states == {"plugin broken": "warning", "plugin slow": "warning", "plugin own": "error"}
    assert "uninstall theirs" in found("plugin broken", parts).advice


@pytest.mark.parametrize("broken", [False, True])
def test_the_exit_code(monkeypatch, capsys, broken):
    if broken:
        pretend_version(monkeypatch, "torch", "1.0")
    monkeypatch.setattr(sys, "argv", ["drkit", "doctor", "--json"])
    assert _status() == int(broken)
    document = json.loads(capsys.readouterr().out)
    assert document["can_work"] is not broken
    assert {*document["checks"][0]} == {"name", "state", "found", "advice"}
    monkeypatch.setattr(sys, "argv", ["drkit", "doctor", "-q"])
    assert _status() == int(broken)
    shown = capsys.readouterr().out
    assert ("cannot work" in shown) is broken
    assert "ok " not in shown


def test_what_was_found_stands_in_one_column(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["drkit", "doctor"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")  # a warning, with advice
    assert _status() == 0
    lines = capsys.readouterr().out.splitlines()
    checks = [line for line in lines if not line.startswith(" ")]
    (long,) = (line for line in checks if "plugin query-as-context" in line)
    (short,) = (line for line in checks if "plugin seed" in line)
    assert long.index("drkit 0.") == short.index("drkit 0.")
    assert any(line.startswith("        -> ") for line in lines)
    assert not [line for line in lines if line != line.rstrip()]


def test_gpus_are_listed_with_their_memory(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (10 << 30, 80 << 30))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    check = found("devices")
    assert check.state == "ok"
    assert check.found == "GPU 0 (10 of 80 GB free), GPU 1 (10 of 80 GB free); CUDA 12.8"


def test_a_gpu_that_torch_cannot_use(monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    exists = doctor.Path.exists
    monkeypatch.setattr(doctor.Path, "exists", lambda path: str(path) == "/dev/nvidiactl" or exists(path))
    check = found("devices")
    assert check.state == "warning"
    assert "install a torch with CUDA" in check.advice
