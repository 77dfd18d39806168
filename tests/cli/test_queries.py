"""`drkit queries`: one process or two of torchrun's make the same file, and a run reads it."""

import json
import subprocess

import pytest

from drkit.data import read_queries
from tests import warm
from tests.data.seq2seq import write_t5

TEXTS = ["A wing in a slipstream.", "", "Boundary layers over flat plates.", "Heat in composite slabs.", "Flutter."]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries")
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    write_t5(folder / "t5", TEXTS)
    options = ["--model", folder / "t5", "--collection", f"jsonl:{folder / 'texts.jsonl'}"]
    return [*options, "--max-new-tokens", 4, "--batch-size", 2, "--count", 3]


def drkit(*given, **environment):
    code, out, err = warm.drkit("queries", *given, **environment)
    return subprocess.CompletedProcess(given, code, out, err)


def test_one_process_or_two_make_the_same_file(arguments, tmp_path):
    done = drkit(*arguments, "-o", tmp_path / "one.jsonl")
    assert done.returncode == 0, done.stderr
    for setting in ("pretrain.decoders.main.context.queries", "pseudo_queries.sources"):
        assert f"{setting}=file:{tmp_path / 'one.jsonl'}" in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert [line["doc_id"] for line in lines] == ["1", "2", "3", "4", "5"]
    assert [len(line["queries"]) for line in lines] == [3, 0, 3, 3, 3]
    assert len(list(read_queries(tmp_path / "one.jsonl"))) == 12
    first = drkit(*arguments, "-o", tmp_path / "two.jsonl", RANK="1", WORLD_SIZE="2")
    assert first.returncode == 0, first.stderr
    assert first.stdout == ""
    assert "process 2 of 2" in first.stderr
    second = drkit(*arguments, "-o", tmp_path / "two.jsonl", RANK="0", WORLD_SIZE="2")
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "two.jsonl").read_text() == (tmp_path / "one.jsonl").read_text()


def test_what_is_wrong_is_said(arguments, tmp_path):
    done = drkit(*arguments, "-o", tmp_path / "queries.txt")
    assert done.returncode == 2
    assert " queries.jsonl" in done.stderr
    done = drkit("--model", tmp_path, "--collection", "jsonl:nowhere.jsonl", "-o", tmp_path / "queries.jsonl")
    assert done.returncode == 2
    assert "nowhere.jsonl" in done.stderr
