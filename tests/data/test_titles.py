"""Title and text are read as one: `Passage.content` is the only place that joins them, `Titles` that separates them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

import drkit
from drkit.core.types import BuildContext, Judgement, Mined, MiningRequest, Passage, Query
from drkit.data import open_collection, write_collection
from drkit.data.formats import BeirCollection, JsonlCollection
from drkit.data.preview import preview
from drkit.data.spans import NamedTexts
from drkit.data.specs import BeirConfig, JsonlConfig
from drkit.miners.filters import CrossEncoderFilter
from drkit.miners.specs import CrossEncoderFilterConfig
from drkit.search import Bm25Retriever
from drkit.search.reranking import rerank

PASSAGES = [Passage("1", "soup of the day", "zebra"), Passage("2", "zebras eat grass", ""), Passage("3", "", "moose")]
CONTENTS = ["zebra soup of the day", "zebras eat grass", "moose"]


class Zoo:
    """Three passages, one of them known by its title alone, another all title."""

    name = "zoo"

    def passages(self):
        return iter(PASSAGES)

    def splits(self):
        return ("train",)

    def queries(self, split):
        return iter([Query("q", "moose")])

    def judgements(self, split):
        return iter([Judgement("q", "3", 1)])

    def describe(self):
        return {}


class Recorder:
    """A re-ranker that remembers what it was given to read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def score(self, pairs):
        self.read += [passage for _, passage in pairs]
        return np.zeros(len(pairs), dtype=np.float32)


@pytest.fixture
def corpus(tmp_path):
    write_collection(Zoo(), tmp_path)
    return open_collection(tmp_path).corpus


def test_bm25_finds_by_title(corpus):
    (hits,) = Bm25Retriever().index(corpus).search(["moose"], 3)
    assert hits.doc_ids == ("3",)


def test_a_re_ranker_reads_titles(corpus):
    reader = Recorder()
    list(rerank([("q", [("1", 3.0), ("2", 2.0), ("3", 1.0)])], reader, queries={"q": "?"}, corpus=corpus))
    assert sorted(reader.read) == sorted(CONTENTS)


def test_a_filter_of_negatives_reads_titles(corpus):
    reader = Recorder()
    request = MiningRequest("q", "?", frozenset({"3"}))
    chosen = CrossEncoderFilter(CrossEncoderFilterConfig(), BuildContext(reranker=reader))
    list(chosen.keep([(request, Mined("q", ("1", "2"), (2.0, 1.0)))], corpus))
    assert sorted(reader.read) == sorted(CONTENTS)


def test_pre_training_reads_titles(corpus):
    assert [text for _, text in NamedTexts(corpus)] == CONTENTS


def test_no_other_module_reads_a_passages_title_or_text_alone():
    """Who does may join them otherwise: only the type itself, those who store them, and titles as queries do.

    starter_recipe looks for queries that are a passage's own text; labels name articles by either; a file of titles
    adds them to passages; `Titles` reads passages for encoders.
    """
    allowed = {"data/writing.py", "data/tevatron.py", "data/queries.py", "commands/starter_recipe.py"}
    allowed |= {"data/labelled.py", "data/collection.py", "data/titles.py"}
    folder = Path(drkit.__file__).parent
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("title", "text")
        and getattr(node.value, "id", "") in ("passage", "doc", "document")
    }
    assert "data/writing.py" in found
    assert found <= allowed


@pytest.mark.parametrize(("twice", "noted"), [(0, False), (1, False), (3, True)])
def test_texts_that_begin_with_their_title_are_noted_with_their_number(tmp_path, twice, noted):
    rows = [
        {"_id": str(n), "title": "A  Wing", "text": ("a wing " if n < twice else "the ") + "lifts"} for n in range(4)
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    collection = JsonlCollection(JsonlConfig(path=str(tmp_path / "corpus.jsonl")))
    notes = [note for note in preview(collection) if "begin with their own title" in note]
    assert notes == ([notes[0]] if noted else [])
    if noted:
        assert notes[0].startswith("3 of the first 4 texts")


def test_titles_are_left_out_by_a_setting(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "title": "A wing", "text": "A wing lifts"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "lift"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    for columns, content in (({}, "A wing A wing lifts"), ({"title": "none"}, "A wing lifts")):
        for collection in (
            BeirCollection(BeirConfig(path=str(tmp_path), columns=columns)),
            JsonlCollection(JsonlConfig(path=str(tmp_path / "corpus.jsonl"), columns=columns)),
        ):
            assert [passage.content for passage in collection.passages()] == [content]
            twice = [note for note in preview(collection) if "--columns title=none" in note]
            assert bool(twice) == (not columns)
