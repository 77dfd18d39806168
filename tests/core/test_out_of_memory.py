"""Too little memory is one message and exit code 2, wherever a library notices it."""

from __future__ import annotations

import errno

import pytest
import torch

from drkit.core.loading import explain_load_errors
from drkit.errors import DrkitError, is_out_of_memory
from drkit_cli import main

SHORT = [
    MemoryError(),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ImportError("libgomp.so.1: cannot allocate memory in static TLS block"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory: you tried to .."),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("can't start new thread"),
]
OTHER = [ValueError("the memory of elephants"), OSError(errno.ENOSPC, "No space left on device"), KeyError("memory")]


@pytest.mark.parametrize("error", SHORT, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_a_command_says_so_in_one_line(error, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(main.cli, "main", fail)
    assert main._status() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: not enough memory (")
    assert "raise the limit" in line


@pytest.mark.parametrize("error", SHORT, ids=lambda error: f"{type(error).__name__} {error}"[:40])
def test_files_are_not_blamed_for_it(error, tmp_path):
    with pytest.raises(DrkitError, match=r"cannot load the encoder in .*: not enough memory"):  # noqa: SIM117
        with explain_load_errors(str(tmp_path), "load the encoder in"):
            raise error


@pytest.mark.parametrize("error", OTHER, ids=lambda error: type(error).__name__)
def test_other_errors_are_none_of_memory(error):
    assert not is_out_of_memory(error)


def test_what_an_error_is_due_to_counts():
    error = RuntimeError("cannot read the table")
    error.__cause__ = MemoryError()
    assert is_out_of_memory(error)
