"""The pages' Python, run as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from tests.search.toys import WORDS

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return [block for block in BLOCK.findall(text) if not block.startswith(">>>")]


def execute(page, names):
    """All blocks of a page, one after the other, in one namespace."""
    for number, block in enumerate(blocks(page), start=1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    return names


@pytest.fixture
def place(folder, tmp_path, monkeypatch):
    """A folder to work in, with a collection and an encoder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "encoder").symlink_to(folder)
    home = tmp_path / "collection"
    (home / "qrels").mkdir(parents=True)
    passages = [
        {"_id": f"d {i}", "title": WORDS[i % 7], "text": f"{WORDS[i % 5]} {'abcdefgh'[i % 8]}"} for i in range(40)
    ]
    queries = [{"_id": f"q {i}", "text": f"{WORDS[i % 7]} {WORDS[i % 5]}"} for i in range(30)]
    (home / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    (home / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    for split, numbers in {"train": range(20), "test": range(20, 30)}.items():
        rows = ["query-id\tcorpus-id\tscore", *(f"q {i}\td {i}\t1" for i in numbers)]
        (home / "qrels" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_the_whole_pipeline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = execute("guide/python.md", {})
    assert {"anchor", "positive", "negative_3", "label"} <= set(names["data"].column_names)
    assert len(names["doc_ids"]) == 10
    assert [name for name, _ in names["results"]] == ["dense", "again"]
    assert names["vectors"].shape == (2, 16)
    assert len(names["finished"].search("copy a list", k=2)) == 2
    assert all(0 <= scores.mean("RR@10") <= 1 for _, scores in names["results"])
    out = capsys.readouterr().out
    assert "'dropped'" in out
    assert "reranked" in out
    assert (tmp_path / "mined.jsonl").read_text(encoding="utf-8").count("\n") == 20


def test_the_trainer_changes_the_model(place):
    texts = [f"{word} {letter}" for word in WORDS for letter in "ab"]
    rows = {"anchor": texts[:8], "positive": texts[2:10], "negative_1": texts[4:12]}
    names = {"data": Dataset.from_dict(rows)}
    (block,) = [block for block in blocks("guide/python.md") if "ContrastiveLoss(" in block]
    *head, last = block.strip().splitlines()
    exec("\n".join(head), names)
    before = names["model"].encode(texts)
    exec(last, names)
    assert abs(names["model"].eval().encode(texts) - before).max() > 1e-4


def test_the_readme(place):
    run = place / "runs" / "pydocs-pmi-enhanced"
    run.mkdir(parents=True)
    (run / "encoder").symlink_to(place / "encoder")
    names = execute("../README.md", {})
    assert len(names["vectors"]) == 1


def test_the_readme_is_read_in_minutes_and_on_a_phone():
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 700
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    # What a page of 390 pixels shows of a line.
    assert [line for line in commands.splitlines() if len(line) > 39] == []


PACKAGES = ["commands", "data", "encoders", "evaluate", "losses", "maskers", "miners", "search", "train"]


def test_packages_load_no_torch_before_a_name_is_used():
    code = f"""
import sys
for name in {PACKAGES}:
    __import__("drkit." + name)
    dir(sys.modules["drkit." + name])
heavy = {{"torch", "transformers", "datasets", "sentence_transformers", "faiss"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_exports_is_there_and_told(package):
    module = __import__(f"drkit.{package}", fromlist=["x"])
    for name in module.__all__:
        found = getattr(module, name)
        if callable(found) and name not in ("AnyIndex",):
            assert (found.__doc__ or "").strip(), f"drkit.{package}.{name} has no docstring"


def test_what_the_pages_name_is_there():
    import importlib

    for page in DOCS.rglob("*.md"):
        for name in set(re.findall(r"`(drkit(?:\.\w+)+)", page.read_text(encoding="utf-8"))):
            parts = name.split(".")
            if parts[-1] in ("json", "toml"):
                continue
            found = importlib.import_module("drkit")
            for part in parts[1:]:
                if not hasattr(found, part):
                    importlib.import_module(f"{found.__name__}.{part}")
                found = getattr(found, part)
