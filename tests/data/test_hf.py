"""Hugging Face data sets from folders: saved, as files, with a README; nothing is fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from drkit.data import HfCollection, HfConfig, open_collection, write_collection
from drkit.errors import DrkitError

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
        write(CORPUS, folder / f"corpus{suffix}")
        write(QUERIES, folder / f"queries{suffix}")
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
    with pytest.raises(DrkitError, match=rf"{tmp_path}/data \[train\]: row 61: no column 'positive' or"):
        list(HfCollection(HfConfig(path=str(tmp_path / "data"))).passages())
    folder = retrieval(tmp_path / "beir", "saved")
    write([*CORPUS, CORPUS[0]], folder / "corpus")
    with pytest.raises(DrkitError, match=r"'d0' @ .*corpus \[train\]: row 1 and .*corpus \[train\]: row 7"):
        write_collection(HfCollection(HfConfig(path=str(folder))), tmp_path / "out")


def test_what_cannot_be_had_says_so(tmp_path):
    with pytest.raises(DrkitError, match="no dataset given"):
        HfCollection(HfConfig())
    (tmp_path / "empty").mkdir()
    with pytest.raises(DrkitError, match="has no data; expected"):
        HfCollection(HfConfig(path=str(tmp_path / "empty"))).splits()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    with pytest.raises(DrkitError, match="no part 'default'"):
        HfCollection(HfConfig(path=str(tmp_path))).splits()


OFFLINE = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network in this test")
socket.socket.connect = socket.create_connection = refuse
from drkit.data import HfCollection, HfConfig
print(len(list(HfCollection(HfConfig(path=sys.argv[1])).passages())))
try:
    HfCollection(HfConfig(path="some/where")).splits()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_folder_is_read_without_network_and_an_id_without_one_says_so(tmp_path):
    folder = retrieval(tmp_path / "data", "readme")
    code = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(folder)], capture_output=True, text=True, check=True, env=_home(tmp_path)
    )
    first, second = code.stdout.splitlines()[:2]
    assert first == "6"
    assert second.startswith("DrkitError datasets cannot read 'some/where'")


def _home(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
