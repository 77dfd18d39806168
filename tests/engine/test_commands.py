"""Commands with `--engine ray`: the files of the local engine, exit code 2 and a name for a shard that fails."""

import json
import subprocess
import sys

import pytest
import torch

from tests.faults.conftest import beir  # noqa: F401
from tests.faults.test_faults import compose, contents
from tests.refusals import says
from tests.search.made import export_made
from tests.search.test_encoding import files
from tests.search.toys import VOCABULARY, masked_lm, tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An encoder whose word `cafe` has no finite vector, and ten passages, one of them with that word."""
    folder = tmp_path_factory.mktemp("toys")
    model = masked_lm().base_model
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[VOCABULARY.index("##h")] = float("nan")
    export_made(
        model, tokenizer(), folder / "encoder", pooling="mean", similarity="dot", query_length=8, passage_length=24
    )
    texts = ["remove suffix " * (n % 3 + 1) for n in range(10)]
    for name, rows in (("good", texts), ("bad", [*texts[:5], "ah", *texts[6:]])):
        lines = [json.dumps({"id": f"d{n}", "text": text}) for n, text in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def encode(folders, collection, out, *more):
    base = ["encode", "--encoder", folders / "encoder", "--collection", f"jsonl:{folders / collection}.jsonl"]
    return [*base, "--shard-size", 2, "-o", out, *more]


def test_encode_writes_the_files_of_the_local_engine(nodes, folders, tmp_path, run_drkit, monkeypatch):
    assert run_drkit(*encode(folders, "good", tmp_path / "local"))[0] == 0
    monkeypatch.chdir(tmp_path)  # a relative path is meant on every machine
    code, out, err = run_drkit(*encode(folders, "good", "ray", "--engine", nodes.engine, "--json"))
    assert (code, json.loads(out)["vectors"]) == (0, 10), err
    assert files(tmp_path / "ray") == files(tmp_path / "local")


def test_a_poisoned_shard_is_named_with_exit_code_2(nodes, folders, tmp_path, run_drkit):
    code, out, err = run_drkit(*encode(folders, "bad", tmp_path / "v", "--engine", nodes.engine))
    assert (code, out) == (2, "")
    assert says(err, "1 of 5 tasks", "3 attempts")
    assert says(err, f"shard 00002 of {tmp_path / 'v'}: ", "'d5'", "finite")
    assert "Traceback" not in err
    assert len(list((tmp_path / "v").glob("*.npy"))) == 4


def test_a_cluster_of_this_machine_is_started_and_stopped(nodes, folders, tmp_path):
    import psutil

    done = subprocess.run(
        [sys.executable, "-m", "drkit_cli.main", *map(str, encode(folders, "good", tmp_path / "v", "--engine", "ray"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list((tmp_path / "v").glob("*.npy"))) == 5
    left = [each for each in psutil.Process().children(recursive=True) if str(tmp_path) in " ".join(each.cmdline())]
    assert not left


@pytest.mark.parametrize("recipe", ["ance", "three-stage"])
def test_a_run_has_the_same_bytes_and_fingerprints(nodes, beir, tmp_path, run_drkit, recipe):  # noqa: F811
    assert run_drkit(*compose(recipe, beir, tmp_path / "local"))[0] == 0
    code, _, err = run_drkit(*compose(recipe, beir, tmp_path / "ray"), "--engine", nodes.engine)
    assert code == 0, err
    ours, theirs = contents(tmp_path / "ray"), contents(tmp_path / "local")
    assert {*ours} ^ {*theirs} == set()
    assert [path for path in ours if ours[path] != theirs[path]] == []
    stages = {path.split("/")[0] for path in ours}
    assert any(stage.startswith("index") for stage in stages)
    assert any(stage.startswith("teacher") for stage in stages) == (recipe == "three-stage"), stages


def test_search_writes_the_file_of_the_local_engine(nodes, folders, tmp_path, run_drkit):
    vectors, index = tmp_path / "v", tmp_path / "index"
    assert run_drkit(*encode(folders, "good", vectors))[0] == 0
    assert run_drkit("index", vectors, "-o", index)[0] == 0
    queries = tmp_path / "queries.tsv"
    queries.write_text("".join(f"q{n}\tremove the suffix {n}\n" for n in range(5)))
    search = ["search", index, "--encoder", folders / "encoder", "--queries", queries, "-k", 3]
    assert run_drkit(*search, "-o", tmp_path / "local.trec")[0] == 0
    code, out, err = run_drkit(*search, "-o", tmp_path / "ray.trec", "--engine", nodes.engine, "--json")
    assert (code, json.loads(out)["queries"]) == (0, 5), err
    assert (tmp_path / "ray.trec").read_bytes() == (tmp_path / "local.trec").read_bytes()
    code, _, err = run_drkit("search", index, "one query", "--encoder", folders / "encoder", "--engine", nodes.engine)
    assert (code, "--engine" in err) == (2, True)
