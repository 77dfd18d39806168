"""The files people have: Tevatron's, sentence-transformers', TREC's, tables; what they give, and what they refuse."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drkit.data import (
    JsonlCollection,
    JsonlConfig,
    PairsCollection,
    PairsConfig,
    TevatronCollection,
    TevatronConfig,
    TrecCollection,
    TrecConfig,
    open_collection,
    write_collection,
)
from drkit.data.pairs import text_id
from drkit.errors import DrkitError
from tests.refusals import refused, says

WHOLE = {"dev_share": 0.0, "test_share": 0.0}


def jsonl(path: Path, rows) -> Path:
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def passage(name: str, text: str = "", title: str = "") -> dict[str, str]:
    return {"docid": name, "title": title, "text": text or f"text of {name}"}


TEVATRON = [
    {
        "query_id": "q 1",
        "query": "first",
        "positive_passages": [passage("d1", title="T")],
        "negative_passages": [passage("d2"), passage("d3")],
    },
    {
        "query_id": 2,
        "query": "second",
        "positive_passages": [passage("d3")],
        "negative_passages": [passage("d1", title="T")],
    },
]


class TestTevatron:
    @pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
    def test_queries_positives_and_negatives_in_their_order(self, tmp_path, name):
        config = TevatronConfig(path=str(jsonl(tmp_path / name, TEVATRON)), **WHOLE)
        counts = write_collection(TevatronCollection(config), tmp_path / "out")
        assert counts["passages"] == 3
        stored = open_collection(tmp_path / "out")
        assert stored.splits() == ("train",)
        assert [(q.query_id, q.text) for q in stored.queries("train")] == [("q 1", "first"), ("2", "second")]
        assert stored.positives("train") == {"q 1": {"d1": 1}, "2": {"d3": 1}}
        assert stored.negatives("train") == {"q 1": ["d2", "d3"], "2": ["d1"]}
        assert stored.corpus.get_many(["d1"])[0].content == "T text of d1"

    def test_a_folder_with_corpus_and_judgements(self, tmp_path):
        jsonl(tmp_path / "nq-train.jsonl.gz", [{**row, "positive_passages": [{"docid": "d1"}]} for row in TEVATRON])
        jsonl(tmp_path / "corpus.jsonl", [passage(f"d{i}") for i in range(9)])
        jsonl(tmp_path / "nq-dev.jsonl", [{"query_id": f"v{i}", "query": "x", "answers": ["y"]} for i in range(3)])
        (tmp_path / "dev.qrels").write_text("v0 0 d8 1\nv2 0 d7 -1\n")
        config = TevatronConfig(path=str(tmp_path), dev_qrels=str(tmp_path / "dev.qrels"), test_share=0.0)
        counts = write_collection(TevatronCollection(config), tmp_path / "out")
        assert (counts["passages"], counts["queries"]) == (9, {"train": 2, "dev": 2})
        assert open_collection(tmp_path / "out").positives("dev") == {"v0": {"d8": 1}}

    def test_ids_alone_name_passages_of_the_corpus(self, tmp_path):
        row = {
            "query_id": "q",
            "query_text": "a",
            "positive_document_ids": ["d1"],
            "negative_document_ids": ["d0", "d2"],
        }
        train, corpus = (
            jsonl(tmp_path / "train.jsonl", [row]),
            jsonl(tmp_path / "c.jsonl", [passage(f"d{i}") for i in range(3)]),
        )
        config = TevatronConfig(path=str(train), corpus=str(corpus), **WHOLE)
        write_collection(TevatronCollection(config), tmp_path / "out")
        assert open_collection(tmp_path / "out").negatives("train") == {"q": ["d0", "d2"]}
        with refused("--set collection.corpus=FILE", where="train.jsonl:1"):
            list(TevatronCollection(TevatronConfig(path=str(train))).passages())

    def test_shares_of_the_training_queries_are_held_out(self, tmp_path):
        rows = [{**TEVATRON[0], "query_id": f"q{i}"} for i in range(200)]
        found = TevatronCollection(TevatronConfig(path=str(jsonl(tmp_path / "train.jsonl", rows))))
        assert found.splits() == ("train", "dev", "test")
        parts = [{q.query_id for q in found.queries(split)} for split in found.splits()]
        assert set.union(*parts) == {f"q{i}" for i in range(200)}
        assert sum(map(len, parts)) == 200
        assert all(parts)
        assert {j.query_id for j in found.judgements("test")} == parts[2]

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"query": " "}, ("the query 'x'", "empty")),
            ({"query_id": ""}, ("'query_id'", "empty")),
            ({"positive_passages": {}}, ("'positive_passages'", "list", "dict")),
            ({"positive_passages": [{"text": "x"}]}, ("positive_passages", "item 1", "'docid'", "missing")),
            ({"negative_passages": [passage("d1", "other")]}, ("'d1'", "different")),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path, change, named):
        path = jsonl(tmp_path / "train.jsonl", [TEVATRON[0], {**TEVATRON[1], "query_id": "x", **change}])
        with refused(*named, "train.jsonl:2"):
            write_collection(TevatronCollection(TevatronConfig(path=str(path), **WHOLE)), tmp_path / "out")

    def test_ids_that_the_corpus_does_not_have_are_named_by_line(self, tmp_path):
        train, corpus = jsonl(tmp_path / "train.jsonl", TEVATRON), jsonl(tmp_path / "c.jsonl", [passage("d1")])
        config = TevatronConfig(path=str(train), corpus=str(corpus), **WHOLE)
        with refused("unknown passage", "'d3'", f"{train}:2"):
            write_collection(TevatronCollection(config), tmp_path / "out")


ROWS = [
    {"anchor": "how, so?", "positive": 'like "this"', "negative_1": "wrong", "negative_2": "worse"},
    {"anchor": "why", "positive": "because", "negative_1": "worse", "negative_2": 'like "this"'},
    {"anchor": "why", "positive": "therefore", "negative_1": "wrong", "negative_2": "because"},
]


def written(path: Path) -> Path:
    """The rows in the format of the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif {".json", ".jsonl"} & {*path.suffixes}:
        jsonl(path, ROWS)
    else:
        separator, quoting = ("\t", csv.QUOTE_NONE) if ".tsv" in path.suffixes else (",", csv.QUOTE_MINIMAL)
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8-sig", newline="") as file:
            table = csv.writer(file, delimiter=separator, quoting=quoting, quotechar=None if quoting else '"')
            table.writerows([ROWS[0].keys(), *(row.values() for row in ROWS)])
    return path


class TestPairs:
    @pytest.mark.parametrize(
        "name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.csv.gz", "a.tsv", "a.tsv.gz", "a.parquet"]
    )
    def test_every_format_gives_the_same_collection(self, tmp_path, name):
        config = PairsConfig(path=str(written(tmp_path / name)), **WHOLE)
        counts = write_collection(PairsCollection(config), tmp_path / "out")
        stored = open_collection(tmp_path / "out")
        texts = {passage.doc_id: passage.text for passage in stored.corpus}
        assert list(texts.values()) == ['like "this"', "wrong", "worse", "because", "therefore"]
        queries = {query.query_id: query.text for query in stored.queries("train")}
        assert list(queries.values()) == ["how, so?", "why"]
        found = {queries[q]: [texts[d] for d in docs] for q, docs in stored.negatives("train").items()}
        assert found == {"how, so?": ["wrong", "worse"], "why": ["worse", 'like "this"', "wrong"]}
        positives = {queries[q]: [texts[d] for d in docs] for q, docs in stored.positives("train").items()}
        assert positives == {"how, so?": ['like "this"'], "why": ["because", "therefore"]}
        assert counts["negatives"] == {"train": 6}

    def test_lists_of_texts_as_flagembedding_has_them(self, tmp_path):
        path = jsonl(tmp_path / "t.jsonl", [{"query": "a", "pos": ["b", "c"], "neg": ["d", "e"]}])
        found = PairsCollection(PairsConfig(path=str(path), **WHOLE))
        assert [p.text for p in found.passages()] == ["b", "c", "d", "e"]
        assert list(found.negatives("train")) == [(text_id("a"), text_id("d")), (text_id("a"), text_id("e"))]

    def test_a_table_without_header(self, tmp_path):
        (tmp_path / "t.tsv").write_text("a\tb\tc\td\n")
        found = PairsCollection(PairsConfig(path=str(tmp_path / "t.tsv"), **WHOLE))
        assert [p.text for p in found.passages()] == ["b", "c", "d"]

    def test_a_low_score_makes_a_pair_a_negative(self, tmp_path):
        rows = [("a", "b", 0.9), ("a", "c", 0.1), ("d", "b", 1)]
        path = jsonl(tmp_path / "t.jsonl", [{"sentence1": a, "sentence2": b, "score": s} for a, b, s in rows])
        write_collection(PairsCollection(PairsConfig(path=str(path), **WHOLE)), tmp_path / "out")
        assert open_collection(tmp_path / "out").negatives("train") == {text_id("a"): [text_id("c")]}
        strict = PairsCollection(PairsConfig(path=str(path), min_score=0.95, **WHOLE))
        assert [j.relevance for j in strict.judgements("train")] == [0, 0, 1]
        unread = PairsCollection(PairsConfig(path=str(path), score="none", **WHOLE))
        assert [j.relevance for j in unread.judgements("train")] == [1, 1, 1]

    @pytest.mark.parametrize(
        ("rows", "settings", "grades"),
        [
            ([True, False], {}, [1, 0]),
            (["1", "0", "0.5"], {}, [1, 0, 1]),
            ([5, 3.9, 0], {"min_score": 4.0}, [1, 0, 0]),
            ([1, -1], {"min_score": 0.0}, [1, 0]),
            ([3, None, "x"], {"score": "none"}, [1, 1, 1]),
        ],
    )
    @pytest.mark.parametrize("columns", [("sentence1", "sentence2", "score"), ("premise", "hypothesis", "label")])
    def test_scores_mean_what_the_settings_say(self, tmp_path, rows, settings, grades, columns):
        if columns[0] == "premise" and not settings:
            settings = {"min_score": 0.5}
        path = jsonl(
            tmp_path / "t.jsonl",
            [dict(zip(columns, (f"query {n}", f"passage {n}", value), strict=True)) for n, value in enumerate(rows)],
        )
        found = PairsCollection(PairsConfig(path=str(path), **settings, **WHOLE))
        assert [j.relevance for j in found.judgements("train")] == grades
        assert len(list(found.queries("train"))) == len(grades)
        assert len(list(found.passages())) == len(rows)

    @pytest.mark.parametrize(
        ("columns", "rows", "line"),
        [
            (("sentence1", "sentence2", "score"), [1.0, 0.2, 4.6], 3),
            (("sentence1", "sentence2", "label"), [1, 0, -1], 3),
            (("sentence1", "sentence2", "label"), ["entailment"], 1),
            (("premise", "hypothesis", "label"), [1], 1),
            (("sentence1", "sentence2", "label"), [1, None], 2),
            (("sentence1", "sentence2", "label"), [[1]], 1),
        ],
    )
    def test_scores_that_may_mean_something_else_are_refused_with_what_to_set(self, tmp_path, columns, rows, line):
        path = jsonl(
            tmp_path / "t.jsonl",
            [dict(zip(columns, (f"query {n}", f"passage {n}", value), strict=True)) for n, value in enumerate(rows)],
        )
        with refused(f"'{columns[2]}'", "--set collection.score=none", where=f"t.jsonl:{line}") as error:
            write_collection(PairsCollection(PairsConfig(path=str(path), **WHOLE)), tmp_path / "out")
        if rows[-1] is not None:
            assert "--set collection.min_score=4" in str(error.value)

    def test_a_least_score_without_scores_is_refused(self, tmp_path):
        path = str(jsonl(tmp_path / "t.jsonl", ROWS))
        with refused("'score' or 'label'", "--set collection.score=COL", where="jsonl:1"):
            list(PairsCollection(PairsConfig(path=path, min_score=0.0)).judgements("train"))

    @pytest.mark.parametrize(
        ("name", "text", "notes"),
        [
            (
                "t.csv",
                "sentence1,sentence2,score\na,b,.7\n",
                [("'score'", "0.5")],
            ),
            (
                "t.tsv",
                "what is a\tan answer\nb\tc\n",
                [("'what is a'", "anchor", "'an answer'", "positive", "--columns")],
            ),
            ("t.csv", "Question,Answer\na,b\n", [("'Question' is the query", "'Answer' is the positive", "--columns")]),
            ("t.csv", "query,positive\na,b\n", []),
            ("t.csv", "sentence1,sentence2,gold_label,id\na,b,neutral,1\n", [("gold_label, id",)]),
        ],
    )
    def test_what_is_assumed_of_a_file_is_said(self, tmp_path, name, text, notes):
        (tmp_path / name).write_text(text)
        found = list(PairsCollection(PairsConfig(path=str(tmp_path / name), **WHOLE)).tables.notes())
        assert len(found) == len(notes)
        assert all(says(line, *named) for named, line in zip(notes, found, strict=True))

    def test_a_folder_with_a_file_a_split_and_shares_for_the_others(self, tmp_path):
        for name, number in (("train-00000-of-00002", 0), ("train-00001-of-00002", 100), ("validation", 500)):
            rows = [{"anchor": f"query {i}", "positive": f"passage {i}"} for i in range(number, number + 100)]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
        found = PairsCollection(PairsConfig(path=str(tmp_path)))
        sizes = {split: len(list(found.queries(split))) for split in found.splits()}
        assert sizes["dev"] == 100
        assert sizes["train"] + sizes["test"] == 200
        assert 1 <= sizes["test"] <= 30
        assert len(list(found.passages())) == 300
        assert found.describe()["shares"] == {"test": 0.05}

    @pytest.mark.parametrize(
        ("row", "named"),
        [
            ({"positive": "b"}, ("no column", "'anchor'", "'query'")),
            ({"anchor": "", "positive": "b"}, ("the query", "empty")),
            ({"anchor": "a", "positive": " "}, ("the positive passage", "empty")),
            ({"anchor": "a", "positive": 4}, ("'positive'", "text", "got 4")),
            ({"anchor": "a", "positive": "b", "score": "much"}, ("'score'", "number from 0 to 1", "'much'")),
            ({"anchor": "a", "positive": "b", "negative": "c", "score": 1}, ("'score'", "ambiguous")),
            ({"anchor": "a", "positive": "\ud83d"}, ("'positive'", r"\ud83d")),
        ],
    )
    def test_a_bad_row_is_named(self, tmp_path, row, named):
        path = tmp_path / "t.jsonl"
        path.write_text(f"{json.dumps({'anchor': 'x', 'positive': 'y'})}\n{json.dumps(row)}\n")
        with refused(*named, where=f"{path}:2"):
            list(PairsCollection(PairsConfig(path=str(path))).passages())

    def test_columns_by_name(self, tmp_path):
        path = jsonl(tmp_path / "t.jsonl", [{"q": "a", "p": "b", "bad": "c"}])
        settings = {"anchor": "q", "positive": "p", "negatives": ("bad",)}
        found = PairsCollection(PairsConfig(path=str(path), **settings, **WHOLE))
        assert [p.text for p in found.passages()] == ["b", "c"]
        with refused("'q'", "columns: anchor, positive"):
            list(PairsCollection(PairsConfig(path=str(written(tmp_path / "a.parquet")), anchor="q")).passages())

    def test_a_query_in_two_splits_is_refused(self, tmp_path):
        for name in ("train", "test"):
            jsonl(tmp_path / f"{name}.jsonl", ROWS)
        with refused("duplicate", "in train @", "train.jsonl:1", "in test @", "test.jsonl:1"):
            write_collection(PairsCollection(PairsConfig(path=str(tmp_path))), tmp_path / "out")


TOPICS = """<top>

<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations that participate
in international criminal activity.
</top>
<top><num>302</num><title>Poliomyelitis and Post-Polio</title>
</top>
"""


READ = {  # rows of other tools: query, positives and negatives that they give
    "triplet": ({"anchor": "a", "positive": "b", "negative": "c"}, ["b"], ["c"]),
    "numbered": (
        {"query": "a", "positive": "b", "negative_1": "c", "neg_2": "d", "hard_negative_3": "e"},
        ["b"],
        [*"cde"],
    ),
    "lists": ({"query": "a", "pos": ["b", "c"], "neg": ["d", "d"], "prompt": "p"}, ["b", "c"], ["d"]),
    "null negatives": ({"query": "a", "pos": ["b"], "neg": None}, ["b"], []),
    "no negatives": ({"query": "a", "pos": ["b"], "neg": []}, ["b"], []),
    "empty negative": ({"query": "a", "pos": "b", "neg": ["", "c"]}, ["b"], ["c"]),
    "positive is the query": ({"query": "a", "pos": ["a"], "neg": ["b"]}, ["a"], ["b"]),
    "positive among negatives": ({"query": "a", "pos": ["b"], "neg": ["b", "c"]}, ["b"], ["c"]),
    "null beside a value": ({"anchor": None, "query": "a", "positive": None, "pos": ["b"]}, ["b"], []),
    "blanks": ({"query": " a ", "pos": [" b"], "neg": ["b ", "c"]}, ["b"], ["c"]),
}
REFUSED = {
    "passages with ids": ({"query": "a", "pos": [{"docid": "1", "text": "b"}]}, "read by tevatron:PATH"),
    "null in a list": ({"query": "a", "pos": ["b", None]}, "'pos' must be a text or a list of texts"),
    "null query": ({"query": None, "pos": ["b"]}, "'query' is null"),
    "null positive": ({"query": "a", "pos": None}, "'pos' is null"),
    "no positive": ({"query": "a", "pos": [], "neg": ["b"]}, "the positive passage is empty"),
    "answers": ({"question": "a", "answers": ["b"]}, "--set collection.positive=COLUMN"),
    "other names": ({"texts": ["a", "b"]}, "--set collection.anchor=COLUMN"),
    "contradiction": ({"query": "x", "pos": "y", "label": 0}, "has relevance 1 and 0, in train @ "),
}
REFUSED_TABLES = {
    "half a header": ("query,remark\na,b\n", "Name the column of the positive"),
    "names that are not known": ("text1,text2\na,b\n", "columns: text1, text2"),
    "labels without header": ("a,b,1\nc,d,0\n", "t.csv:1: the negative '1' is a number"),
    "unknown columns and labels": ("text1,text2,label\na,b,1\n", "Name the column of the anchor"),
    "cells": ("query,positive\na,b\nc\n", "t.csv:3: expected 2 cells"),
}


class TestRowsOfOtherTools:
    @pytest.mark.parametrize(("row", "positives", "negatives"), READ.values(), ids=READ)
    def test_are_read(self, tmp_path, row, positives, negatives):
        path = jsonl(tmp_path / "t.jsonl", [row])
        write_collection(PairsCollection(PairsConfig(path=str(path), **WHOLE)), tmp_path / "out")
        stored = open_collection(tmp_path / "out")
        assert [query.text for query in stored.queries("train")] == ["a"]
        assert list(stored.positives("train")[text_id("a")]) == [*map(text_id, positives)]
        assert stored.negatives("train").get(text_id("a"), []) == [*map(text_id, negatives)]

    @pytest.mark.parametrize(("row", "message"), REFUSED.values(), ids=REFUSED)
    def test_or_refused_with_the_row(self, tmp_path, row, message):
        path = jsonl(tmp_path / "t.jsonl", [{"query": "x", "pos": "y"}, row])
        with pytest.raises(DrkitError) as error:
            write_collection(PairsCollection(PairsConfig(path=str(path), **WHOLE)), tmp_path / "out")
        assert message in str(error.value)
        assert f"{path}:2" in str(error.value)

    @pytest.mark.parametrize(("text", "message"), REFUSED_TABLES.values(), ids=REFUSED_TABLES)
    def test_tables_are_refused_with_the_line(self, tmp_path, text, message):
        (tmp_path / "t.csv").write_text(text)
        with pytest.raises(DrkitError) as error:
            write_collection(PairsCollection(PairsConfig(path=str(tmp_path / "t.csv"), **WHOLE)), tmp_path / "out")
        assert message in str(error.value)


class TestTrec:
    def folder(self, folder: Path) -> Path:
        (folder / "collection.tsv").write_text("".join(f"d{i}\ttext {i}\n" for i in range(5)))
        (folder / "queries.dev.tsv").write_text("1\tone\n2\ttwo\n3\tunjudged\n")
        (folder / "qrels.dev.tsv").write_text("1\t0\td0\t1\n2\t0\td1\t2\n2\t0\td2\t-2\n")
        (folder / "topics.txt").write_text(TOPICS)
        (folder / "qrels.test.txt").write_text("301 0 d3 1\n302 Q0 d4 1\n302 0 d0 0\n")
        return folder

    def test_a_folder_under_ms_marcos_names_and_trecs(self, tmp_path):
        found = TrecCollection(TrecConfig(path=str(self.folder(tmp_path))))
        assert found.splits() == ("dev", "test")
        counts = write_collection(found, tmp_path / "out")
        assert counts["queries"] == {"dev": 2, "test": 2}
        stored = open_collection(tmp_path / "out")
        assert [q.text for q in stored.queries("test")] == [
            "International Organized Crime",
            "Poliomyelitis and Post-Polio",
        ]
        assert stored.positives("dev") == {"1": {"d0": 1}, "2": {"d1": 2}}
        assert stored.negatives("dev") == {"2": ["d2"]}

    def test_files_by_settings_and_another_part_of_a_topic(self, tmp_path):
        self.folder(tmp_path)
        config = TrecConfig(
            path=str(tmp_path / "collection.tsv"),
            test_topics=str(tmp_path / "topics.txt"),
            test_qrels=str(tmp_path / "qrels.test.txt"),
            topic_field="desc",
        )
        with refused("'302'", "<desc>", "num, title", where="topics.txt:10"):
            list(TrecCollection(config).queries("test"))
        (tmp_path / "topics.txt").write_text(TOPICS.split("<top><num>302")[0])
        (query,) = TrecCollection(config).queries("test")
        assert query.text == "Identify organizations that participate in international criminal activity."

    def test_a_share_of_the_test_topics_trains(self, tmp_path):
        (tmp_path / "docs.csv").write_text('id,title,text\nd,"a, b",c\n')
        jsonl(tmp_path / "topics.jsonl", [{"query_id": i, "query": f"q {i}"} for i in range(300)])
        (tmp_path / "qrels.tsv").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(f"{i}\td\t1\n" for i in range(300))
        )
        found = TrecCollection(TrecConfig(path=str(tmp_path), train_share=0.5))
        assert found.splits() == ("train", "dev", "test")
        parts = [{q.query_id for q in found.queries(split)} for split in found.splits()]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 300
        assert [p.content for p in found.passages()] == ["a, b c"]

    @pytest.mark.parametrize(
        ("file", "text", "named"),
        [
            ("qrels.test.txt", "301 0 d3\n301 d0\n", (".txt:2: ", "'301 d0'")),
            ("qrels.test.txt", "301 0 d3 1\n301 0 d3 0.5\n", (".txt:2: ", "relevance", "'0.5'")),
            ("qrels.test.txt", "301 0 d3 1\n301 0 d3 1e30\n", (".txt:2: ", "relevance", "'1e30'")),
            ("qrels.test.txt", "301 0 d3 1\n301 0 d9 1\n", ("unknown passage", "'d9'", ".txt:2")),
            ("qrels.test.txt", "301 0 d3 1\n400 0 d1 1\n", ("unknown query", "'400'", ".txt:2")),
            ("qrels.test.txt", "301 0 d3 1\n301 0 d3 2\n", ("'d3'", "'301'", "relevance 1 and 2")),
            ("topics.txt", TOPICS.replace("</top>\n<top>", "<top>"), (".txt:9: ", "<top>", "line 1")),
            ("topics.txt", TOPICS[:-8], (".txt:10: ", "<top>", "never closed")),
            ("topics.txt", TOPICS.replace("302", ""), (".txt:10: ", "<num>")),
            ("collection.tsv", "d0\ttext\nd1\n", (".tsv:2: ", "2 cells (_id, text)", "got 1")),
            ("collection.tsv", "d0\ttext\n\n", (".tsv:2: ", "empty line")),
            ("collection.tsv", "d0\ttext\nd0\ttext\n", ("duplicate", ".tsv:1", ".tsv:2")),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path, file, text, named):
        (self.folder(tmp_path) / file).write_text(text)
        with refused(*named, file):
            write_collection(TrecCollection(TrecConfig(path=str(tmp_path))), tmp_path / "out")

    def test_what_is_missing_is_listed(self, tmp_path):
        (tmp_path / "qrels.test.txt").write_text("a 0 b 1\n")
        with refused("--set collection.corpus=FILE", "--set collection.test_topics=FILE") as error:
            TrecCollection(TrecConfig(path=str(tmp_path)))
        assert len(error.value.problems) == 2

    def test_two_files_that_may_be_meant_are_named(self, tmp_path):
        self.folder(tmp_path)
        (tmp_path / "corpus.tsv").write_text("d0\ttext\n")
        with refused("collection.tsv", "corpus.tsv", where=str(tmp_path)):
            TrecCollection(TrecConfig(path=str(tmp_path)))


class TestTexts:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.tsv", "1\tone\tT\n2\ttwo\t\n"),
            ("a.tsv", "text\tid\ttitle\r\none\t1\tT\r\ntwo\t2\t\r\n"),
            ("a.csv", 'id,text,title\n1,"one",T\n2,two,\n'),
            ("a.jsonl", '\ufeff{"id": 1, "text": "one", "title": "T"}\n{"docid": "2", "contents": "two"}\n'),
            ("a.json", '{"_id": "1", "text": "one", "title": "T"}\n{"_id": "2", "text": "two", "title": null}\n'),
        ],
    )
    def test_every_format_gives_ids_texts_and_titles(self, tmp_path, name, text):
        (tmp_path / name).write_bytes(text.encode())
        found = JsonlCollection(JsonlConfig(path=str(tmp_path / name)))
        assert [(p.doc_id, p.content) for p in found.passages()] == [("1", "T one"), ("2", "two")]

    def test_one_column_is_the_text_and_rows_are_numbered(self, tmp_path):
        (tmp_path / "a.tsv").write_text("one, two\nthree\n")
        found = JsonlCollection(JsonlConfig(path=str(tmp_path / "a.tsv")))
        assert [(p.doc_id, p.text) for p in found.passages()] == [("1", "one, two"), ("2", "three")]

    def test_a_cell_longer_than_pythons_limit_and_a_broken_quote(self, tmp_path):
        (tmp_path / "a.csv").write_text(f'id,text\n1,"{"word " * 60_000}"\n')
        (passage_,) = JsonlCollection(JsonlConfig(path=str(tmp_path / "a.csv"))).passages()
        assert len(passage_.text) == 300_000
        (tmp_path / "a.csv").write_text('id,text\n1,"a" b\n')
        with refused("quoted", where="a.csv:2"):
            list(JsonlCollection(JsonlConfig(path=str(tmp_path / "a.csv"))).passages())

    def test_a_name_twice_in_a_header_and_a_file_of_another_kind(self, tmp_path):
        (tmp_path / "a.csv").write_text("id,text,text\n1,a,b\n")
        with refused("'text'", "twice", where="a.csv:1"):
            list(JsonlCollection(JsonlConfig(path=str(tmp_path / "a.csv"))).passages())
        (tmp_path / "a.docx").write_text("x")
        with pytest.raises(DrkitError, match=r"/a\.docx .*supported: \.jsonl"):
            JsonlCollection(JsonlConfig(path=str(tmp_path / "a.docx")))
