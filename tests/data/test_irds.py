"""Several data sets of ir_datasets as one collection, on the raw files of vaswani and cranfield; and the recipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drkit.data import IrdsCollection, IrdsConfig
from drkit.errors import DrkitError
from tests.refusals import says

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes"

# As ir_datasets makes msmarco-passage/train/judged: the same documents, and some of the queries.
PARTS = """
import ir_datasets
from ir_datasets.datasets.base import Dataset, FilteredQrels, FilteredQueries

def part(name, of, first, last):
    whole = ir_datasets.load(of)
    ids = lambda: {str(number) for number in range(first, last)}
    queries, qrels = whole.queries_handler(), whole.qrels_handler()
    made = Dataset(whole.docs_handler(), FilteredQueries(queries, ids), FilteredQrels(qrels, ids))
    ir_datasets.registry.register(name, made)

for name, first, last in (("train", 1, 61), ("dev", 61, 71), ("test-a", 71, 81), ("test-b", 81, 94)):
    part(f"vaswani/{name}", "vaswani", first, last)
part("cranfield/train", "cranfield", 1, 100)
docs = Dataset(ir_datasets.load("vaswani").docs_handler())
ir_datasets.registry.register("vaswani/documents", docs)
"""

JOIN = """
import json, sys
from pathlib import Path
from drkit.data import IrdsCollection, IrdsConfig, open_collection, write_collection
from drkit.errors import DrkitError
try:
    found = IrdsCollection(IrdsConfig(**json.loads(sys.argv[1])))
    counts = write_collection(found, Path(sys.argv[2]))
    print(json.dumps({"counts": counts, "about": dict(found.describe())}))
except DrkitError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture(scope="module")
def home(shared, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("irds") / "home"
    shutil.copytree(shared / "ir_datasets_home", folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return folder


def join(home: Path, out: Path, **settings):
    done = subprocess.run(
        [sys.executable, "-c", PARTS + JOIN, json.dumps(settings), str(out)],
        env={**os.environ, "IR_DATASETS_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_train_dev_and_two_tests_that_share_a_corpus(home, tmp_path):
    settings = {"train_dataset": "vaswani/train", "dev_dataset": "vaswani/dev"}
    tests = ["vaswani/test-a", "vaswani/test-b"]
    found = join(home, tmp_path / "out", dataset="vaswani/documents", test_datasets=tests, **settings)
    assert found["counts"]["passages"] == 11429
    assert found["counts"]["queries"] == {"train": 60, "dev": 10, "test": 23}
    assert found["about"]["test_datasets"] == tests


def test_named_tests_stand_for_the_data_sets_own(home, tmp_path):
    found = join(home, tmp_path / "out", dataset="vaswani", test_datasets=["vaswani/test-a"])
    assert found["counts"]["queries"] == {"test": 10}


def test_a_share_of_the_training_queries_is_dev(home, tmp_path):
    named = {"dataset": "vaswani/documents", "train_dataset": "vaswani/train", "test_datasets": ["vaswani/test-a"]}
    queries = join(home, tmp_path / "out", dev_share=0.3, **named)["counts"]["queries"]
    assert queries["train"] + queries["dev"] == 60
    assert queries["dev"] >= 5


def test_another_corpus_and_a_query_in_two_splits_are_refused(home, tmp_path):
    other = join(home, tmp_path / "out", dataset="vaswani", train_dataset="cranfield/train")
    assert says(other["error"], "'cranfield/train'", "'CranfieldDocs'")
    twice = join(home, tmp_path / "out", dataset="vaswani", train_dataset="vaswani/train")
    assert says(twice["error"], "duplicate", "query id")
    assert says(twice["error"], "train queries row 1", "test queries row 1")


def test_cranfield_has_titles_and_judgements_of_every_grade(home, tmp_path):
    found = join(home, tmp_path / "out", dataset="cranfield", train_share=0.5, unknown_judgements="drop")
    assert found["counts"]["passages"] == 1400
    assert sum(found["counts"]["queries"].values()) == 225


PLAN = """
import socket, sys
def refuse(*args, **kwargs):
    raise OSError("no network in this test")
socket.socket.connect = socket.create_connection = refuse
from pathlib import Path
from drkit.recipe.check import check
from drkit.core.registry import installed
from drkit.recipe.toml import read_recipe
from drkit.runs.plan import plan
parts = installed()
recipe = read_recipe(Path(sys.argv[1]), parts.registry)
check(recipe, parts.registry)
print(recipe.encoder.pretrained, *plan(recipe, parts.registry).stages[-1:][0].name.split())
print(*[stage.name for stage in plan(recipe, parts.registry).stages])
print(*parts.registry.build("collection", "irds", recipe.collection.config).splits())
assert not {"torch", "datasets", "transformers"} & set(sys.modules)
"""


@pytest.mark.parametrize("name", ["msmarco", "nq"])
def test_the_documented_recipes_are_planned_without_a_download(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PLAN, str(RECIPES / f"{name}.toml")],
        env={**os.environ, "IR_DATASETS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, stages, splits = done.stdout.splitlines()
    assert first == "google-bert/bert-base-uncased evaluation"
    assert {"generator", "pretrained", "retriever-1", "retriever-2", "reranker", "retriever-distilled"} <= {
        *stages.split()
    }
    assert splits == "train dev test"
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"irds_version.txt"}


def test_data_sets_of_ms_marco_share_its_documents():
    named = {"train_dataset": "msmarco-passage/train/judged", "dev_dataset": "msmarco-passage/dev/small"}
    found = IrdsCollection(IrdsConfig(dataset="msmarco-passage", **named))
    assert found.splits() == ("train", "dev")
    with pytest.raises(DrkitError, match=r"'beir/nq' .*'msmarco-passage'"):
        IrdsCollection(IrdsConfig(dataset="msmarco-passage", train_dataset="beir/nq"))
