"""Scored negatives from tasks and from a cluster: the file of one process, and finished parts are kept."""

import pytest

from drkit.commands import NamedCollection, distill, open_reranker
from drkit.commands import training_data as module
from drkit.core.engine import Loaded, LocalEngine
from tests.engine.engines import Pickling
from tests.rerank.test_commands import files  # noqa: F401


@pytest.fixture
def asked(files, tmp_path, monkeypatch):  # noqa: F811
    """Arguments of `distill`, and what it writes without an engine; a part has two lines."""
    monkeypatch.setattr(module, "LINES_PER_BATCH", 2)
    monkeypatch.setattr(module, "LINES_PER_PART", 2)
    teacher = Loaded(open_reranker, str(files / "model"), "cpu")
    given = files / "mined.jsonl", teacher, NamedCollection(f"beir:{files / 'beir'}")
    done = distill(*given, tmp_path / "whole.jsonl")
    return given, (tmp_path / "whole.jsonl").read_bytes(), done


def test_tasks_write_the_file_and_the_agreement_of_one_process(asked, tmp_path):
    given, expected, whole = asked
    done = distill(*given, tmp_path / "parts.jsonl", engine=Pickling())
    assert (tmp_path / "parts.jsonl").read_bytes() == expected
    assert done == whole
    assert not (tmp_path / ".parts.jsonl.parts").exists()


def test_the_local_engine_goes_on_with_the_parts_that_are_there(asked, tmp_path):
    given, expected, whole = asked
    out = tmp_path / "parts.jsonl"
    with pytest.raises(KeyboardInterrupt):
        distill(*given, out, engine=Pickling(after=1))
    assert len(list((tmp_path / ".parts.jsonl.parts").iterdir())) == 1
    assert distill(*given, out, engine=LocalEngine()) == whole
    assert out.read_bytes() == expected
    assert not (tmp_path / ".parts.jsonl.parts").exists()


@pytest.mark.slow
def test_the_command_writes_the_file_of_the_local_engine(nodes, files, tmp_path, run_drkit):  # noqa: F811
    base = ["distill", "--teacher", files / "model", "--negatives", files / "mined.jsonl", "--device", "cpu"]
    base += ["--collection", f"beir:{files / 'beir'}"]
    assert run_drkit(*base, "-o", tmp_path / "local.jsonl")[0] == 0
    code, _, err = run_drkit(*base, "-o", tmp_path / "ray.jsonl", "--engine", nodes.engine)
    assert code == 0, err
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
