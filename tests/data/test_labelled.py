"""Texts and labels as people have them: what a label names, by id, path, title or text, and what is refused."""

from __future__ import annotations

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drkit.data.labelled import LabelledCollection
from drkit.data.pairs import text_id
from drkit.data.specs import LabelledConfig
from drkit.errors import DrkitError

ARTICLES = [
    {"article_id": "a-1", "subject": "Reset your password", "content": "Open the settings and choose a new password."},
    {"article_id": "a-2", "subject": "Cancel an order", "content": "Orders are cancelled from the page of orders."},
    {"article_id": "a-3", "subject": "Track a parcel", "content": "The number of the parcel is in the second mail."},
    {"article_id": "a-4", "subject": "Return a parcel", "content": "Print the label and take the parcel to a shop."},
]
QUESTIONS = ["how do I change my password?", "stop my order", "where is my parcel", "send it back, please"]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows[0]], delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


@pytest.fixture
def texts(tmp_path):
    return write(tmp_path / "articles.csv", ARTICLES)


@pytest.fixture
def folder(tmp_path):
    articles = tmp_path / "articles"
    (articles / "orders").mkdir(parents=True)
    for row, name in zip(ARTICLES, ("password.md", "orders/cancel.md", "track.txt", "return.md"), strict=True):
        (articles / name).write_text(f"# {row['subject']}\n\n{row['content']}\n")
    return str(articles)


def collection(texts, *labels, **settings):
    return LabelledCollection(LabelledConfig(path=texts, labels=labels, **settings))


def judged(found):
    texts = {query.query_id: query.text for query in found.queries("train")}
    return [(texts[one.query_id], one.doc_id, one.relevance) for one in found.judgements("train")]


EXPECTED = [(question, row["article_id"], 1) for question, row in zip(QUESTIONS, ARTICLES, strict=True)]
TABLES = {
    "by id": ("id", lambda q, row: {"query": q, "article_id": row["article_id"]}),
    "columns swapped": ("id", lambda q, row: {"Article": row["article_id"], "Question": q}),
    "by title": ("title", lambda q, row: {"Query": q, "Title": row["subject"].upper()}),
    "by text": ("text", lambda q, row: {"Question": q, "Answer": row["content"].replace(" ", "\n", 1)}),
    "with relevance": ("id", lambda q, row: {"q": q, "docid": row["article_id"], "Relevance": 1}),
    "an id of the row": ("title", lambda q, row: {"id": f"row-{q}", "query": q, "article": row["subject"]}),
    "a search term": ("id", lambda q, row: {"id": row["article_id"], "search term": q}),
}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("name", TABLES)
def test_labels_name_articles_by_what_resolves_them(name, suffix, texts, tmp_path):
    way, row_of = TABLES[name]
    rows = [row_of(question, row) for question, row in zip(QUESTIONS, ARTICLES, strict=True)]
    if suffix == ".tsv":
        rows = [{key: str(value).replace("\n", " ") for key, value in row.items()} for row in rows]
    found = collection(texts, write(tmp_path / f"labels{suffix}", rows))
    assert judged(found) == EXPECTED
    assert [passage.doc_id for passage in found.passages()] == ["a-1", "a-2", "a-3", "a-4"]
    assert any(f"is the {way} of the article (4 of 4 labels found)" in note for note in found.notes())


@pytest.mark.parametrize(
    "names",
    [
        ["password.md", "orders/cancel.md", "track.txt", "return.md"],
        ["password", "orders/cancel", "track", "return"],
        ["articles/password.md", "articles/orders/cancel.md", "./track.txt", "cancel/../RETURN.md"[10:]],
        ["password.md", "cancel.md", "track.txt", "return.md"],
    ],
)
def test_labels_name_documents_by_their_paths(names, folder, tmp_path):
    rows = [{"query": question, "path": name} for question, name in zip(QUESTIONS, names, strict=True)]
    found = collection(folder, write(tmp_path / "labels.csv", rows))
    assert [doc_id for _, doc_id, _ in judged(found)] == [
        "password.md#1", "orders/cancel.md#1", "track.txt#1", "return.md#1",
    ]  # fmt: skip


def test_a_name_that_several_documents_have_is_no_answer(folder, tmp_path):
    """`cancel.md` is in two folders: neither is taken, and the row is named."""
    (tmp_path / "articles" / "cancel.md").write_text("# Cancel a subscription\n\nCall us.\n")
    rows = [{"query": q, "path": p} for q, p in zip(QUESTIONS[:3], ["password", "old/cancel.md", "track"], strict=True)]
    found = collection(folder, write(tmp_path / "labels.csv", rows))
    assert [doc_id for _, doc_id, _ in judged(found)] == ["password.md#1", "cancel.md#1", "track.txt#1"]
    rows[1]["path"] = "x/orders-old/cancel"
    (tmp_path / "articles" / "cancel.md").rename(tmp_path / "articles" / "orders" / "cancel.txt")
    found = collection(folder, write(tmp_path / "labels.csv", rows))
    assert judged(found)[1][1] == "x/orders-old/cancel"


def test_every_passage_of_an_article_is_relevant(tmp_path, folder):
    long = tmp_path / "articles" / "long.md"
    long.write_text("# Long\n\n" + "\n\n".join(["word " * 150] * 3))
    labels = write(tmp_path / "labels.csv", [{"query": "the long one", "article": "long.md"}])
    found = collection(folder, labels)
    assert [doc_id for _, doc_id, _ in judged(found)] == ["long.md#1", "long.md#2", "long.md#3"]
    assert any("1 labels name an article of several passages" in note for note in found.notes())


def test_a_table_of_questions_and_answers_is_both(tmp_path):
    rows = [{"Question": q, "Answer": row["content"]} for q, row in zip(QUESTIONS, ARTICLES, strict=True)]
    faq = write(tmp_path / "faq.csv", rows)
    found = collection(faq, faq, columns={"text": "Answer"})
    assert [(query, doc_id) for query, doc_id, _ in judged(found)] == [
        (question, str(number)) for number, question in enumerate(QUESTIONS, start=2)
    ]


def test_several_files_of_texts_and_labels(texts, folder, tmp_path):
    more = write(tmp_path / "more.jsonl", [{"id": "m", "text": "Opening hours are nine to five."}])
    labels = [
        write(tmp_path / "one.csv", [{"query": QUESTIONS[0], "article_id": "a-1"}]),
        write(tmp_path / "two.jsonl", [{"question": "when are you open", "doc": "m"}, {"question": "x y", "doc": "m"}]),
        write(tmp_path / "three.csv", [{"query": QUESTIONS[1], "path": "orders/cancel.md"}]),
    ]
    found = LabelledCollection(LabelledConfig(path=texts, more_texts=(more, folder), labels=tuple(labels)))
    assert [doc_id for _, doc_id, _ in judged(found)] == ["a-1", "m", "m", "orders/cancel.md#1"]
    assert len(list(found.passages())) == 9


def test_a_repeated_query_is_one_and_a_repeated_label_counts_once(texts, tmp_path):
    rows = [("a", "a-1"), ("b", "a-2"), ("a", "a-3"), ("a", "a-1")]
    labels = write(tmp_path / "labels.csv", [{"query": q, "id": d} for q, d in rows])
    found = collection(texts, labels)
    assert [query.query_id for query in found.queries("train")] == [text_id("a"), text_id("b")]
    assert judged(found) == [("a", "a-1", 1), ("b", "a-2", 1), ("a", "a-3", 1)]


def test_shares_of_the_labels_are_other_splits(texts, tmp_path):
    rows = [{"query": f"query {n}", "id": "a-1"} for n in range(50)]
    found = collection(texts, write(tmp_path / "labels.csv", rows), dev_share=0.2, test_share=0.2)
    assert found.splits() == ("train", "dev", "test")
    counts = [len(list(found.queries(split))) for split in found.splits()]
    assert sum(counts) == 50
    assert min(counts) > 1
    assert collection(texts).splits() == ()


def rows_of(*names):
    return [dict(zip(names, (q, row["article_id"]), strict=True)) for q, row in zip(QUESTIONS, ARTICLES, strict=True)]


REFUSED = {
    "an unknown header": (rows_of("frage", "antwort"), ("expected one of 'anchor', 'query'", "frage, antwort")),
    "no article": (rows_of("query", "remark"), ("expected one of", "columns: query, remark", "column of the article")),
    "ids as queries": (
        [{"query": f"q{n}", "article": "a-1"} for n in range(4)],
        ("'query' has ids or numbers ('q0')", "--columns query=COLUMN,article=COLUMN"),
    ),
    "unknown articles": (
        [{"query": q, "article": f"kb/{n}"} for n, q in enumerate(QUESTIONS)],
        ("no column names", "'article' (such as 'kb/0'): id 0, path 0, title 0, text 0", "'a-1', 'a-2', 'a-3'"),
    ),
    "an empty cell": ([{"query": " ", "article": "a-1"}], ("'query' is empty", "labels.csv:2")),
    "another relevance": (
        [{"query": "a b", "article": "a-1", "score": 0.7}],
        ("'score' must be a relevance, a whole number from 0, got '0.7'", "--columns score=none"),
    ),
    "two relevances": (
        [{"query": "a b", "article": "a-1", "score": 1}, {"query": "a b", "article": "a-1", "score": 0}],
        ("with the relevance 0, and with 1 at", "labels.csv:3"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_misread_is_refused_with_the_columns(name, texts, tmp_path):
    rows, parts = REFUSED[name]
    found = collection(texts, write(tmp_path / "labels.csv", rows))
    with pytest.raises(DrkitError) as error:
        list(found.judgements("train"))
    for part in parts:
        assert part in str(error.value)


def test_a_table_without_a_header_is_refused_and_read_by_numbers(texts, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(
        "".join(f"{q.replace(',', '')},{row['article_id']}\n" for q, row in zip(QUESTIONS, ARTICLES, strict=True))
    )
    with pytest.raises(DrkitError, match="header"):
        list(collection(texts, str(path)).queries("train"))
    found = collection(texts, str(path), columns={"query": 1, "article": 2})
    assert [doc_id for _, doc_id, _ in judged(found)] == ["a-1", "a-2", "a-3", "a-4"]


def test_a_column_that_means_two_things_is_refused_until_it_is_said(tmp_path):
    texts = write(tmp_path / "texts.jsonl", [
        {"id": "one", "title": "two", "text": "first text"}, {"id": "two", "title": "one", "text": "second text"},
    ])  # fmt: skip
    labels = write(
        tmp_path / "labels.csv", [{"query": "first", "article": "one"}, {"query": "other", "article": "two"}]
    )
    with pytest.raises(DrkitError, match="'article' as id or 'article' as title may be meant"):
        list(collection(texts, labels).judgements("train"))
    assert [d for _, d, _ in judged(collection(texts, labels, refers_to="title"))] == ["two", "one"]


def test_texts_that_are_missing_or_of_two_kinds_are_refused(folder, texts, tmp_path):
    for path, message in (
        (str(tmp_path / "none"), "does not exist"),
        ("", "no texts given"),
        (f"{folder}/password.md", "is a single document; name its folder"),
        (str(tmp_path), "has documents"),
    ):
        with pytest.raises(DrkitError, match=message):
            collection(path)
    with pytest.raises(DrkitError, match="is given twice"):
        LabelledCollection(LabelledConfig(path=texts, more_texts=(texts,)))


def test_texts_without_a_row_are_named(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    labels = write(tmp_path / "labels.csv", [{"query": QUESTIONS[0], "article id": "a-1"}])
    config = LabelledConfig(path=str(tmp_path / "empty.jsonl"), labels=(labels,))
    with pytest.raises(DrkitError, match=r"empty\.jsonl has no text"):
        list(LabelledCollection(config).judgements("train"))


def test_labels_in_the_folder_of_the_texts_are_no_texts(tmp_path):
    (tmp_path / "kb").mkdir()
    write(tmp_path / "kb" / "articles.csv", ARTICLES)
    labels = write(tmp_path / "kb" / "asked.csv", [{"query": "a b", "article_id": "a-1"}])
    found = collection(str(tmp_path / "kb"), labels)
    assert len(list(found.passages())) == 4
    assert any("asked.csv is in a folder of texts, and is read as labels alone" in note for note in found.notes())
