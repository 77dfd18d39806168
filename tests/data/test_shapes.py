"""Tables of many shapes: each is read right with a note, or refused with lines to type, and these lines work."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drkit.commands.collections import NamedCollection
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe import find_collection
from drkit_cli.options import column_settings

PARTS = installed()
QUESTIONS = [
    "How do I change my password?", "Stop my order", "Where is my parcel?", "Can I send it back, please?",
    "What are your opening hours?", "Do you ship to Spain",
]  # fmt: skip
TEXTS = [
    "Open the settings, choose Security and enter a new password twice.",
    "Orders are cancelled from the page of orders, within an hour.",
    "The number of the parcel is in the second mail that we sent.",
    "Print the label and take the parcel to a shop near you.",
    "We are open from nine to five, Monday to Friday.",
    "Yes, and to most other countries in Europe.",
]
TITLES = ["Passwords", "Cancelling", "Tracking", "Returns", "Hours", "Shipping"]
IDS = [f"kb-{n}" for n in range(6)]
NUMBERS = [*range(100, 106)]


def written(path, header, *columns, separator=None, begin="", quoting=csv.QUOTE_MINIMAL):
    """The path of a table of these columns."""
    if path.suffix == ".parquet":
        pq.write_table(
            pa.Table.from_pylist([dict(zip(header, row, strict=True)) for row in zip(*columns, strict=True)]), path
        )
    elif path.suffix == ".jsonl":
        rows = [dict(zip(header, row, strict=True)) for row in zip(*columns, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        out = io.StringIO()
        separator = separator or ("\t" if path.suffix == ".tsv" else ",")
        writer = csv.writer(out, delimiter=separator, lineterminator="\n", quoting=quoting)
        writer.writerows([*([header] if header else []), *zip(*columns, strict=True)])
        path.write_text(begin + out.getvalue(), encoding="utf-8")
    return path


QA = (("Question", "Answer"), QUESTIONS, TEXTS)
BROKEN = [text.replace(" ", "\n", 1) for text in TEXTS]
# Name of the file; its table; how it is written; the queries and texts that are read, and what a note says.
READ = {
    "header in other case": ("a.csv", (("QUESTION", "ANSWER"), QUESTIONS, TEXTS), {}, "'QUESTION' is the query"),
    "named": ("a.csv", QA, {}, "'Question' is the query, 'Answer' is the positive"),
    "named jsonl": ("a.jsonl", QA, {}, "'Question' is the query"),
    "named parquet": ("a.parquet", QA, {}, "'Question' is the query"),
    "named tsv": ("a.tsv", QA, {}, "'Question' is the query"),
    "swapped": ("a.csv", (("Answer", "Question"), TEXTS, QUESTIONS), {}, "'Question' is the query"),
    "semicolons": ("a.csv", QA, {"separator": ";"}, "separated by ';'"),
    "semicolons quoted": ("a.csv", QA, {"separator": ";", "quoting": csv.QUOTE_ALL}, "separated by ';'"),
    "tabs in a csv": ("a.csv", QA, {"separator": "\t"}, "separated by '\\t'"),
    "commas in a tsv": ("a.tsv", QA, {"separator": ","}, "separated by ','"),
    "a BOM": ("a.csv", QA, {"begin": "\ufeff", "quoting": csv.QUOTE_ALL}, "'Question' is the query"),
    "an id first": ("a.csv", (("id", "question", "answer"), NUMBERS, QUESTIONS, TEXTS), {}, "not read: id"),
    "an index first": ("a.csv", (("", "question", "answer"), NUMBERS, QUESTIONS, TEXTS), {}, "one without a name"),
    "an article": ("a.csv", (("query", "article"), QUESTIONS, TEXTS), {}, "'article' is the positive"),
    "a text": ("a.csv", (("query_id", "query", "doc_id", "text"), IDS, QUESTIONS, NUMBERS, TEXTS), {}, "'text' is the"),
    "no header": ("a.csv", (None, QUESTIONS, TEXTS), {}, "has no header"),
}


@pytest.mark.parametrize("name", READ)
def test_pairs_are_read_with_a_note(name, tmp_path):
    file, table, how, note = READ[name]
    found = collection(str(written(tmp_path / file, *table, **how)))
    assert pairs(found) == [*zip(QUESTIONS, TEXTS, strict=True)]
    assert any(note in one for one in found.notes())


def collection(name, *settings):
    return NamedCollection(find_collection(name, PARTS, settings), settings).source


def pairs(found):
    """The queries and their texts, in the order of `QUESTIONS`."""
    texts = {passage.doc_id: passage.text for passage in found.passages()}
    queries = {query.query_id: query.text for split in found.splits() for query in found.queries(split)}
    answers = [(queries[j.query_id], texts[j.doc_id]) for split in found.splits() for j in found.judgements(split)]
    return sorted(answers, key=lambda pair: QUESTIONS.index(pair[0]))


TEXTS_READ = {
    "article_id, subject, content": ("a.csv", (("article_id", "subject", "content"), IDS, TITLES, TEXTS), {}, IDS),
    "numeric ids of parquet": ("a.parquet", (("id", "title", "body"), NUMBERS, TITLES, TEXTS), {}, NUMBERS),
    "numeric ids of jsonl": ("a.jsonl", (("id", "title", "body"), NUMBERS, TITLES, TEXTS), {}, NUMBERS),
    "Title, Body": ("a.csv", (("Title", "Body"), TITLES, TEXTS), {}, range(2, 8)),
    "Title; Body": ("a.csv", (("Title", "Body"), TITLES, TEXTS), {"separator": ";"}, range(2, 8)),
    "in capitals": ("a.tsv", (("ID", "TITLE", "TEXT"), IDS, TITLES, TEXTS), {}, IDS),
}


@pytest.mark.parametrize("name", TEXTS_READ)
def test_texts_are_read_with_their_titles_and_ids(name, tmp_path):
    file, table, how, ids = TEXTS_READ[name]
    found = collection(str(written(tmp_path / file, *table, **how)))
    expected = [*zip(map(str, ids), TITLES, TEXTS, strict=True)]
    assert [(one.doc_id, one.title, one.text) for one in found.passages()] == expected
    assert found.splits() == ()


def test_line_breaks_within_cells_and_repeated_queries_are_kept(tmp_path):
    path = written(tmp_path / "a.csv", ("question", "answer"), [QUESTIONS[0], QUESTIONS[0], QUESTIONS[2]], BROKEN[:3])
    found = collection(str(path))
    assert pairs(found) == [(QUESTIONS[0], BROKEN[0]), (QUESTIONS[0], BROKEN[1]), (QUESTIONS[2], BROKEN[2])]
    assert len(list(found.queries("train"))) == 2


def test_a_relevance_of_zero_is_no_answer(tmp_path):
    path = written(tmp_path / "a.csv", ("query", "document", "relevance"), QUESTIONS, TEXTS, [1, 1, 0, 1, 1, 1])
    found = collection(str(path))
    relevances = {j.relevance for split in found.splits() for j in found.judgements(split)}
    assert relevances == {0, 1}
    assert any("'relevance' of at least 0.5" in note for note in found.notes())


PATHS = [f"{title.lower()}.md" for title in TITLES]
QUERY_IDS = [f"q{n}" for n in range(6)]
# The table, what the refusal says, how many lines it offers, and the ids of the texts that labels mean (None: paths).
REFUSED = {
    "article by id": (("query", "article"), QUESTIONS, IDS, "'article' has ids", 1, IDS),
    "article by number": (("query", "doc_id"), QUESTIONS, NUMBERS, "columns: query, doc_id", 2, NUMBERS),
    "article by path": (("query", "article"), QUESTIONS, PATHS, "'article' has ids", 1, None),
    "document by path": (("query", "document"), QUESTIONS, PATHS, "'document' has ids", 1, None),
    "article by title": (("query", "article"), QUESTIONS, TITLES, "columns: query, article", 3, IDS),
    "ids as queries": (("query", "answer"), QUERY_IDS, TEXTS, "'query' has ids", 1, QUERY_IDS),
    "unknown names": (("Frage", "Antwort"), QUESTIONS, TEXTS, "columns: Frage, Antwort", 3, IDS),
    "names with blanks": (("Our Users", "Our Text"), QUESTIONS, TEXTS, "columns: Our Users, Our Text", 3, IDS),
    "swapped unknown names": (("Antwort", "Frage"), TEXTS, QUESTIONS, "columns: Antwort, Frage", 3, IDS),
    "unknown name of the article": (("Frage", "Nr"), QUESTIONS, NUMBERS, "columns: Frage, Nr", 2, NUMBERS),
    "one column": (("question",), TITLES, "columns: question", 1, IDS),
}


@pytest.mark.parametrize("file", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "semicolon.csv"])
@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_lines_that_work(name, file, tmp_path):
    *table, said, least, ids = REFUSED[name]
    path = written(tmp_path / file, *table, separator=";" if file.startswith("semicolon") else None)
    with pytest.raises(DrkitError) as error:
        collection(str(path))
    message = str(error.value)
    assert said in message
    assert "header" not in message.replace("without a header", "")
    offered = lines_of(message, path, tmp_path, ids)
    assert len(offered) >= least, message
    for named, settings in offered:
        found = collection(named, *settings)
        assert len(list(found.passages())) == 6
        queries = {query.text for split in found.splits() for query in found.queries(split)}
        assert queries in (set(), {*QUESTIONS}, {*TEXTS})
        assert bool(queries) == any("query=" in one for one in settings)
        assert all(len(list(found.judgements(split))) for split in found.splits())


def lines_of(message, path, folder, ids):
    """The collections and settings that a message offers, with texts of its labels."""
    if ids is None:
        texts = folder / "articles"
        texts.mkdir()
        for name, title, text in zip(PATHS, TITLES, TEXTS, strict=True):
            (texts / name).write_text(f"# {title}\n\n{text}\n")
    else:
        texts = written(folder / "texts.parquet", ("id", "title", "text"), ids, TITLES, TEXTS)
    found = []
    quoted = r"('[^']+'|[^\s.;,]+(?:,[^\s.;,]+)*)"
    collections = re.sub(rf"drkit improve [^\n]*? --columns {quoted}", "", message)
    pattern = rf"(?:(jsonl:\S+ |labelled:TEXTS )(?:--set {quoted} )?)?--columns {quoted}"
    for named, setting, columns in re.findall(pattern, collections):
        if "COLUMN" not in columns:
            given = column_settings(None, None, shlex.split(columns))
            where = named.strip().replace("TEXTS", str(texts)) or str(path)
            found.append((where, (*given, *shlex.split(setting))))
    return found
