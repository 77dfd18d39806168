"""MS MARCO with titles, in the layouts of RocketQA (coCondenser, RetroMAE), SimLM and Tevatron, read by name."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.core.types import Judgement, Passage
from drkit.data.collection import with_titles
from drkit.data.preview import title_note
from drkit.data.rows import FileRow
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.start import find_collection

PARTS = installed()
TEXTS = {
    "0": ("The Manhattan Project", 'The presence of "communication" amid scientific minds was equally important'),
    "1": ("-", "The Manhattan Project and its atomic bomb helped bring an end to World War II."),
    "2": ("", "Essay on The Manhattan Project: by 1945"),
    "10": ('"A-bomb', "It was used\tnever".replace("\t", " ")),
}
QUERIES = {"train": {"7": "what was the manhattan project"}, "dev": {"8": "when did it end"}}
QRELS = {"train": ("7", "0"), "dev": ("8", "10")}
EXPECTED = [Passage(doc_id, text, title) for doc_id, (title, text) in TEXTS.items()]


def lines(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def rocketqa(folder):
    lines(folder / "para.txt", ((doc_id, text) for doc_id, (_, text) in TEXTS.items()))
    lines(folder / "para.title.txt", ((doc_id, title) for doc_id, (title, _) in TEXTS.items() if title))
    for split, queries in QUERIES.items():
        lines(folder / f"{split}.query.txt", queries.items())
    query, doc = QRELS["train"]
    lines(folder / "qrels.train.tsv", [(query, "0", doc, "1")])
    query, doc = QRELS["dev"]
    lines(folder / "qrels.dev.tsv", [(query, "0", doc, "1")])
    return f"trec:{folder}"


def simlm(folder):
    with gzip.open(folder / "passages.jsonl.gz", "wt", encoding="utf-8") as file:
        for doc_id, (title, text) in TEXTS.items():
            file.write(json.dumps({"id": doc_id, "title": title, "contents": text}) + "\n")
    for split, queries in QUERIES.items():
        lines(folder / f"{split}_queries.tsv", queries.items())
        query, doc = QRELS[split]
        (folder / f"{split}_qrels.txt").write_text(f"{query} 0 {doc} 1\n")
    return f"trec:{folder}"


def tevatron(folder):
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        for doc_id, (title, text) in TEXTS.items():
            file.write(json.dumps({"docid": doc_id, "title": title, "text": text}) + "\n")
    for split, queries in QUERIES.items():
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            for query_id, query in queries.items():
                doc = QRELS[split][1]
                positive = {"docid": doc, "title": TEXTS[doc][0], "text": TEXTS[doc][1]}
                row = {"query_id": query_id, "query": query, "positive_passages": [positive], "negative_passages": []}
                file.write(json.dumps(row) + "\n")
    return f"tevatron:{folder}"


@pytest.mark.parametrize("layout", [rocketqa, simlm, tevatron])
def test_titles_and_texts_are_two_fields(tmp_path, layout):
    name, _, path = layout(tmp_path).partition(":")
    spec = PARTS.registry.get(Kind.COLLECTION, name)
    source = PARTS.registry.build(Kind.COLLECTION, name, spec.config(**{spec.shorthand: path}))
    assert list(source.passages()) == EXPECTED
    for split, queries in QUERIES.items():
        assert {query.query_id: query.text for query in source.queries(split)} == queries
        assert [*source.judgements(split)] == [Judgement(*QRELS[split], 1)]


@pytest.mark.parametrize("layout", [rocketqa, simlm, tevatron])
def test_the_layout_is_found_by_its_names(tmp_path, layout):
    expected = layout(tmp_path)
    assert find_collection(str(tmp_path), PARTS) == expected


def test_files_are_named_one_by_one(tmp_path):
    rocketqa(tmp_path)
    spec = PARTS.registry.get(Kind.COLLECTION, "trec")
    config = spec.config(
        path=str(tmp_path / "para.txt"),
        titles=str(tmp_path / "para.title.txt"),
        test_topics=str(tmp_path / "dev.query.txt"),
        test_qrels=str(tmp_path / "qrels.dev.tsv"),
    )
    source = PARTS.registry.build(Kind.COLLECTION, "trec", config)
    assert list(source.passages()) == EXPECTED
    assert tmp_path / "para.title.txt" in source.files()


def test_titles_without_passages_are_refused(tmp_path):
    rocketqa(tmp_path)
    (tmp_path / "para.txt").unlink()
    spec = PARTS.registry.get(Kind.COLLECTION, "trec")
    with pytest.raises(ProblemsError, match="no corpus"):
        PARTS.registry.build(Kind.COLLECTION, "trec", spec.config(path=str(tmp_path)))


def passages(ids):
    return ((FileRow("para.txt", n, {}), Passage(doc_id, f"text {doc_id}")) for n, doc_id in enumerate(ids, start=1))


@given(st.lists(st.integers(0, 50), unique=True, min_size=1), st.data())
def test_any_passages_may_lack_titles(tmp_path_factory, ids, data):
    titled = [doc_id for doc_id in ids if data.draw(st.booleans())]
    path = tmp_path_factory.mktemp("titles") / "para.title.txt"
    lines(path, ((str(doc_id), f"title {doc_id}") for doc_id in titled))
    found = [passage for _, passage in with_titles(passages(map(str, ids)), path)]
    assert [passage.doc_id for passage in found] == [*map(str, ids)]
    assert all(one.title == (f"title {one.doc_id}" if int(one.doc_id) in titled else "") for one in found)


def test_another_order_is_refused(tmp_path):
    path, ids = tmp_path / "para.title.txt", [str(number) for number in range(20)]
    shuffled = random.Random(0).sample(ids, len(ids))
    lines(path, ((doc_id, "a title") for doc_id in shuffled))
    with pytest.raises(DrkitError, match=r"para.title.txt:\d+: .* another order than passages; sort both files"):
        list(with_titles(passages(ids), path))


def test_two_titles_are_refused(tmp_path):
    path = tmp_path / "para.title.txt"
    lines(path, [("1", "another")])
    with pytest.raises(DrkitError, match=r"para.txt:1: the passage '1' has a title, and .*para.title.txt:1 gives it"):
        list(with_titles(iter([(FileRow("para.txt", 1, {}), Passage("1", "text", "its own"))]), path))


def test_the_file_of_titles_is_named(tmp_path):
    rocketqa(tmp_path)
    spec = PARTS.registry.get(Kind.COLLECTION, "trec")
    source = PARTS.registry.build(Kind.COLLECTION, "trec", spec.config(path=str(tmp_path)))
    assert f"{tmp_path / 'para.title.txt'} has the titles of para.txt" in [*source.notes()]
    assert [*title_note(source, "pair")] == []


def test_a_collection_without_titles_says_so(tmp_path):
    rocketqa(tmp_path)
    (tmp_path / "para.title.txt").unlink()
    (tmp_path / "para.txt").rename(tmp_path / "collection.tsv")
    spec = PARTS.registry.get(Kind.COLLECTION, "trec")
    source = PARTS.registry.build(Kind.COLLECTION, "trec", spec.config(path=str(tmp_path)))
    (note,) = title_note(source, "pair")
    assert note.startswith("trec:")
    assert note.endswith("the first 4 passages have no title, so encoder.titles = 'pair' has no effect on them")
    assert [*title_note(source, "joined")] == []


@pytest.mark.parametrize(
    ("dataset", "has_titles"), [("msmarco-passage", False), ("msmarco-document", False), ("beir/scifact", True)]
)
def test_titles_of_ir_datasets_are_known_by_their_type(dataset, has_titles):
    spec = PARTS.registry.get(Kind.COLLECTION, "irds")
    source = PARTS.registry.build(Kind.COLLECTION, "irds", spec.config(dataset=dataset))
    assert bool([*title_note(source, "separated")]) is not has_titles


def test_titles_that_a_setting_names_belong_to_the_passages_of_the_folder(tmp_path):
    rocketqa(tmp_path)
    (tmp_path / "para.title.txt").rename(tmp_path / "others.tsv")
    spec = PARTS.registry.get(Kind.COLLECTION, "trec")
    config = spec.config(path=str(tmp_path), titles=str(tmp_path / "others.tsv"))
    assert [*PARTS.registry.build(Kind.COLLECTION, "trec", config).passages()] == EXPECTED
