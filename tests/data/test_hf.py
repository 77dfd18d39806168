"""Hugging Face data sets from folders: saved, as files, with a README; nothing is fetched."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest

from drkit.data import HfCollection, HfConfig, open_collection, write_collection
from drkit.errors import DrkitError
from tests.refusals import says

CORPUS = [{"_id": f"d{i}", "title": f"T{i}", "text": f"text {i}"} for i in range(6)]
QUERIES = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(4)]
QRELS = {
    "train": [{"query-id": "q0", "corpus-id": "d0", "score": 1}, {"query-id": "q0", "corpus-id": "d1", "score": 0}],
    "test": [{"query-id": "q1", "corpus-id": "d2", "score": 2}],
}
PAIRS = [{"anchor": f"question {i}", "positive": f"answer {i}", "negative": f"answer {i + 1}"} for i in range(60)]


def write(rows, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = datasets.Dataset.from_list(rows)
    if path.suffix == ".parquet":
        table.to_parquet(str(path))
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        table.save_to_disk(str(path))


def retrieval(folder: Path, suffix: str) -> Path:
    if suffix == "saved":
        write(CORPUS, folder / "corpus")
        write(QUERIES, folder / "queries")
        rows = {split: datasets.Dataset.from_list(found) for split, found in QRELS.items()}
        datasets.DatasetDict(rows).save_to_disk(str(folder / "qrels"))
    elif suffix == "readme":
        configs = ["configs:"]
        parts = {"corpus": {"corpus": CORPUS}, "queries": {"queries": QUERIES}, "default": QRELS}
        for part, splits in parts.items():
            configs += [f"- config_name: {part}", "  data_files:"]
            for split, rows in splits.items():
                write(rows, folder / part / f"{split}.parquet")
                configs += [f"  - split: {split}", f"    path: {part}/{split}.parquet"]
        (folder / "README.md").write_text("\n".join(["---", *configs, "---", "# Data"]))
    else:
        write(CORPUS, folder / "corpus" / f"corpus{suffix}")
        write(QUERIES, folder / "queries" / f"queries{suffix}")
        for split, rows in QRELS.items():
            write(rows, folder / "qrels" / f"{split}{suffix}")
    return folder


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", "saved", "readme"])
def test_corpus_queries_and_judgements(tmp_path, suffix):
    found = HfCollection(HfConfig(path=str(retrieval(tmp_path / "data", suffix))))
    assert found.splits() == ("train", "test")
    counts = write_collection(found, tmp_path / "out")
    assert counts["passages"] == 6
    stored = open_collection(tmp_path / "out")
    assert stored.positives("train") == {"q0": {"d0": 1}}
    assert stored.negatives("train") == {"q0": ["d1"]}
    assert [q.text for q in stored.queries("test")] == ["query 1"]
    assert next(iter(stored.corpus)).content == "T0 text 0"


def test_judgements_may_be_another_data_set(tmp_path):
    folder = retrieval(tmp_path / "data", ".parquet")
    (folder / "qrels").rename(tmp_path / "judged")
    found = HfCollection(HfConfig(path=str(folder), qrels=str(tmp_path / "judged")))
    assert [(j.query_id, j.relevance) for j in found.judgements("test")] == [("q1", 2)]


@pytest.mark.parametrize(
    "name", ["train.parquet", "data/train-00000-of-00001.parquet", "train.jsonl", "saved", "arrow"]
)
def test_pairs_in_named_columns(tmp_path, name):
    folder = tmp_path / "data"
    if name == "arrow":
        write(PAIRS, tmp_path / "saved")
        folder.mkdir()
        next((tmp_path / "saved").glob("*.arrow")).rename(folder / "train.arrow")
    else:
        write(PAIRS, folder if name == "saved" else folder / name)
    found = HfCollection(HfConfig(path=str(folder), dev_share=0.0, test_share=0.2))
    write_collection(found, tmp_path / "out")
    stored = open_collection(tmp_path / "out")
    assert stored.splits() == ("train", "test")
    assert len(stored.corpus) == 61
    assert sum(len(list(stored.queries(split))) for split in stored.splits()) == 60
    assert all(len(docs) == 1 for docs in stored.negatives("train").values())


def test_rows_are_named_in_errors(tmp_path):
    write([*PAIRS, {"anchor": "x", "positive": None, "negative": "y"}], tmp_path / "data")
    with pytest.raises(DrkitError, match=rf"{tmp_path}/data \[train\]: row 61: 'positive' is null"):
        list(HfCollection(HfConfig(path=str(tmp_path / "data"))).passages())
    folder = retrieval(tmp_path / "beir", "saved")
    write([*CORPUS, CORPUS[0]], folder / "corpus")
    with pytest.raises(DrkitError, match=r"'d0' @ .*corpus \[train\]: row 1 and .*corpus \[train\]: row 7"):
        write_collection(HfCollection(HfConfig(path=str(folder))), tmp_path / "out")


def test_what_cannot_be_had_says_so(tmp_path):
    with pytest.raises(DrkitError, match=r"collection hf: .*`hf:BeIR/scifact`"):
        HfCollection(HfConfig())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DrkitError, match=r"/empty .*\.arrow"):
        HfCollection(HfConfig(path=str(tmp_path / "empty"))).splits()
    for part in ("corpus", "queries"):
        write([{"_id": "a", "text": "b"}], tmp_path / part / f"{part}.jsonl")
    with pytest.raises(DrkitError, match="no 'default'"):
        HfCollection(HfConfig(path=str(tmp_path))).splits()


def compose(path: str, tmp_path: Path, **environment: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The end of `drkit compose` on a data set, and its seconds."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "drkit_cli.main", "compose", "--collection", f"hf:{path}", "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0", **environment},
    )
    return done, time.monotonic() - start


@pytest.fixture
def silent():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_hub_that_does_not_answer_is_said_at_once_and_soon_an_error(tmp_path, silent):
    done, started = compose("some/where", tmp_path, HF_ENDPOINT=silent, HF_HUB_OFFLINE="1")
    assert_offline(done)
    for address in (silent, "http://127.0.0.1:9"):  # the second refuses connections
        done, seconds = compose("some/where", tmp_path, HF_ENDPOINT=address)
        assert done.returncode == 2
        first, second = done.stderr.splitlines()
        assert says(first, "'some/where'", address)
        assert says(second, "error: ", "'some/where'", address)
        assert seconds < started + 6


def assert_offline(done):
    """The command ends with one message and asks nobody."""
    assert done.returncode == 2
    (message,) = done.stderr.splitlines()
    assert says(message, "error: ", "'some/where'", "HF_HUB_OFFLINE", "folder")


def test_offline_for_data_sets_alone_nobody_is_asked(tmp_path, silent):
    assert_offline(compose("some/where", tmp_path, HF_ENDPOINT=silent, HF_DATASETS_OFFLINE="1")[0])


@pytest.mark.parametrize("path", ["a/b/c", "./a", "/a/b", "x.parquet"])
def test_what_is_no_folder_and_no_hub_id_is_not_looked_up(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    Path("x.parquet").write_bytes(b"")
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda _: pytest.fail("asked"))
    with pytest.raises(DrkitError, match=r"NAME or OWNER/NAME|x\.parquet .*`pairs:x\.parquet`"):
        HfCollection(HfConfig(path=path)).splits()


def test_a_folder_is_read_without_asking_anybody(tmp_path, silent):
    done, _ = compose(str(retrieval(tmp_path / "data", "readme")), tmp_path, HF_ENDPOINT=silent)
    assert done.returncode == 0, done.stderr
    assert "looking up" not in done.stderr
