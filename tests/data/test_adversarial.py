"""Input as bad as it comes: it is read whole, or refused with file and line; never half, never with a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drkit.data import (
    BeirCollection,
    BeirConfig,
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
from drkit.data.qrels import read_qrels
from drkit.data.topics import read_topics
from drkit.errors import DrkitError
from drkit.search import read_run
from tests.refusals import refused

STRANGE = ["a b", "tab\there", "ümlaut", "文書", "\u2028line", "a%20b", "0", " lead", "-1", "nul\0", "👍🏽", "a\u0301"]
WHOLE = {"dev_share": 0.0, "test_share": 0.0}


def lines(path: Path, rows) -> None:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8", newline="")


def test_ids_of_any_kind_survive(tmp_path):
    rows = [
        {
            "query_id": f"q{name}",
            "query": f"about {name}",
            "positive_passages": [{"docid": name, "text": f"text {name}"}],
            "negative_passages": [{"docid": STRANGE[(index + 1) % len(STRANGE)], "text": None}],
        }
        for index, name in enumerate(STRANGE)
    ]
    lines(tmp_path / "train.jsonl", rows)
    lines(tmp_path / "corpus.jsonl", [{"docid": name, "text": f"text {name}"} for name in STRANGE])
    config = TevatronConfig(path=str(tmp_path), **WHOLE)
    write_collection(TevatronCollection(config), tmp_path / "out")
    stored = open_collection(tmp_path / "out")
    assert [*stored.corpus.ids()] == STRANGE
    assert stored.positives("train") == {f"q{name}": {name: 1} for name in STRANGE}
    assert list(stored.negatives("train").values()) == [[name] for name in [*STRANGE[1:], STRANGE[0]]]
    assert [p.text for p in stored.corpus.get_many(STRANGE)] == [f"text {name}" for name in STRANGE]


def test_ids_with_spaces_in_judgements_parted_by_tabs(tmp_path):
    (tmp_path / "corpus.tsv").write_text("d 1\tone\nd 2\ttwo\n")
    (tmp_path / "topics.tsv").write_text("q 1\tquery\n")
    (tmp_path / "qrels.txt").write_text("q 1\t0\td 2\t1\n")
    write_collection(TrecCollection(TrecConfig(path=str(tmp_path))), tmp_path / "out")
    assert open_collection(tmp_path / "out").positives("test") == {"q 1": {"d 2": 1}}
    (tmp_path / "qrels.txt").write_text("q 1 0 d 2 1\n")
    with refused("tabs or spaces", "'q 1 0 d 2 1'", where="qrels.txt:1"):
        list(TrecCollection(TrecConfig(path=str(tmp_path))).judgements("test"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "END"])
def test_line_ends_marks_and_a_missing_last_end_change_nothing(tmp_path, end, mark, last):
    def write(name: str, *rows: str) -> None:
        text = mark + end.join(rows) + (end if last else "")
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")

    write("corpus.tsv", "d1\tone", "d2\ttwo")
    write("topics.tsv", "query_id\tquery", "q\tfirst")
    write("qrels.tsv", "q\t0\td2\t1", "q\t0\td1\t-1")
    write_collection(TrecCollection(TrecConfig(path=str(tmp_path))), tmp_path / "out")
    stored = open_collection(tmp_path / "out")
    assert [(p.doc_id, p.text) for p in stored.corpus] == [("d1", "one"), ("d2", "two")]
    assert [(q.query_id, q.text) for q in stored.queries("test")] == [("q", "first")]
    assert stored.positives("test") == {"q": {"d2": 1}}
    assert stored.negatives("test") == {"q": ["d1"]}


def beir(folder: Path, corpus, qrels: str) -> Path:
    lines(folder / "corpus.jsonl", corpus)
    lines(folder / "queries.jsonl", [{"_id": "q", "text": "query"}, {"_id": "unjudged", "text": "other"}])
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return folder


def test_empty_texts_and_titles_are_kept_and_counted(tmp_path):
    corpus = [
        {"_id": "1"},
        {"_id": "2", "title": "", "text": ""},
        {"_id": "3", "title": "T", "text": None},
        {"_id": "4", "text": " "},
    ]
    counts = write_collection(BeirCollection(BeirConfig(path=str(beir(tmp_path, corpus, "q\t3\t1\n")))), tmp_path / "o")
    assert (counts["passages"], counts["empty_passages"]) == (4, 3)
    assert [p.content for p in open_collection(tmp_path / "o").corpus] == ["", "", "T", " "]
    without = BeirCollection(
        BeirConfig(path=str(beir(tmp_path, [row for row in corpus if row["_id"] != "3"], "q\t4\t1\n")))
    )
    with refused("none of the 3 passages has a text"):
        write_collection(without, tmp_path / "none")


def test_queries_without_judgements_are_left_out_and_negative_relevance_is_no_positive(tmp_path):
    folder = beir(tmp_path, [{"_id": "1", "text": "a"}, {"_id": "2", "text": "b"}], "q\t1\t-3\nq\t2\t1\n")
    write_collection(BeirCollection(BeirConfig(path=str(folder))), tmp_path / "o")
    stored = open_collection(tmp_path / "o")
    assert [q.query_id for q in stored.queries("test")] == ["q"]
    assert stored.positives("test") == {"q": {"2": 1}}
    assert [j.relevance for j in stored.judgements("test")] == [-3, 1]


@pytest.mark.parametrize(
    ("qrels", "named"),
    [
        ("q\t1\t1\nq\t1\t0\n", ("'1'", "'q'", "relevance 1 and 0", "test")),
        ("q\t1\t99999999999\n", ("test.tsv:2: ", "'99999999999'")),
        ("q\t1\tnan\n", ("test.tsv:2: ", "'nan'")),
        ("q\t1\t-1\n", ("no judgement", "test", "above 0")),
        ("q\tnine\t1\nnobody\t1\t1\n", ("unknown passage", "'nine'", "test.tsv:2")),
    ],
)
def test_bad_judgements_are_refused(tmp_path, qrels, named):
    folder = beir(tmp_path, [{"_id": "1", "text": "a"}], qrels)
    with refused(*named):
        write_collection(BeirCollection(BeirConfig(path=str(folder))), tmp_path / "o")


def test_a_judgement_given_twice_alike_is_no_contradiction(tmp_path):
    folder = beir(tmp_path, [{"_id": "1", "text": "a"}], "q\t1\t1\nq\t1\t1\n")
    write_collection(BeirCollection(BeirConfig(path=str(folder))), tmp_path / "o")
    assert open_collection(tmp_path / "o").positives("test") == {"q": {"1": 1}}


def test_a_line_of_many_megabytes_is_read(tmp_path):
    text = "word " * 2_000_000
    lines(tmp_path / "a.jsonl", [{"_id": "1", "text": text}])
    (tmp_path / "a.tsv").write_text(f"1\t{text}\n")
    for name in ("a.jsonl", "a.tsv"):
        (passage,) = JsonlCollection(JsonlConfig(path=str(tmp_path / name))).passages()
        assert len(passage.text) == len(text)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.tsv.gz", "a.csv.gz"])
@pytest.mark.parametrize("kind", ["cut", "no gzip", "corrupt"])
def test_a_broken_archive_is_named(tmp_path, name, kind):
    rows = {"a.jsonl.gz": '{"_id": "%d", "text": "x"}\n', "a.tsv.gz": "%d\tx\n", "a.csv.gz": "%d,x\n"}[name]
    whole = gzip.compress("".join(rows % number for number in range(5000)).encode())
    middle = bytearray(whole)
    middle[len(whole) // 2] ^= 0xFF
    (tmp_path / name).write_bytes({"cut": whole[:-20], "no gzip": b"plain", "corrupt": bytes(middle)}[kind])
    with pytest.raises(DrkitError, match=rf"{name}"):
        list(JsonlCollection(JsonlConfig(path=str(tmp_path / name))).passages())


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 not a table PAR1"])
def test_a_broken_parquet_is_named(tmp_path, content):
    (tmp_path / "a.parquet").write_bytes(content)
    with refused("Parquet", where="a.parquet"):
        list(PairsCollection(PairsConfig(path=str(tmp_path / "a.parquet"))).passages())


def test_files_without_rows_say_so(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(DrkitError, match=r"jsonl:a\.jsonl .*passages"):
        write_collection(JsonlCollection(JsonlConfig(path=str(tmp_path / "a.jsonl"))), tmp_path / "o")
    with pytest.raises(DrkitError, match=r"pairs:a\.jsonl .*passages"):
        write_collection(PairsCollection(PairsConfig(path=str(tmp_path / "a.jsonl"))), tmp_path / "o")


def refusal(collection, folder: Path, otherwise: str) -> str:
    """What is said against a collection; `otherwise` where it is written."""
    try:
        write_collection(collection, folder)
    except DrkitError as error:
        return str(error)
    return otherwise


def test_a_number_too_long_for_python_is_no_traceback(tmp_path):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x", "n": {"9" * 5000}}}\n')
    with refused("malformed", "JSON", where="a.jsonl:1"):
        list(JsonlCollection(JsonlConfig(path=str(tmp_path / "a.jsonl"))).passages())


NAMES = ("a.jsonl", "a.json", "a.tsv", "a.csv", "a.jsonl.gz", "a.parquet")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)), name=st.sampled_from(NAMES))
def test_any_bytes_are_read_or_refused(tmp_path, content, name):
    """Whatever a file contains, the only error is one that names the file."""
    path = tmp_path / name
    path.write_bytes(content)
    for found in (
        JsonlCollection(JsonlConfig(path=str(path))),
        PairsCollection(PairsConfig(path=str(path), **WHOLE)),
    ):
        assert name in refusal(found, tmp_path / "out", name)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topics=st.text("<top>/numile:desc \n1", max_size=80).map(lambda text: f"<top>{text}"),
    qrels=st.text("q d01\t\n-.", max_size=40),
)
def test_any_topics_and_judgements_are_read_or_refused(tmp_path, topics, qrels):
    (tmp_path / "corpus.tsv").write_text("d\ttext\n")
    (tmp_path / "topics.txt").write_text(topics)
    (tmp_path / "qrels.txt").write_text(qrels)
    found = TrecCollection(TrecConfig(path=str(tmp_path)))
    assert tmp_path.name in refusal(found, tmp_path / "out", tmp_path.name)


def passages_of(path: Path) -> list[tuple[str, str]]:
    return [(p.doc_id, p.content) for p in JsonlCollection(JsonlConfig(path=str(path))).passages()]


def topics_of(path: Path) -> list[tuple[str, str]]:
    return [(query.query_id, query.text) for _, query in read_topics(path)]


def qrels_of(path: Path) -> list[tuple[str, str, int]]:
    return [(j.query_id, j.doc_id, j.relevance) for j in read_qrels(path)]


def run_of(path: Path) -> list[tuple[str, list[tuple[str, float]]]]:
    return list(read_run(path))


READERS = {"corpus": passages_of, "topics": topics_of, "qrels": qrels_of, "run": run_of}
# Files as people have them: what is read, or a pattern of the one message, which names the file and mostly the line.
UNUSUAL = [
    ("run.txt", b"\xef\xbb\xbfq Q0 d 1 0.5 t\r\n", [("q", [("d", 0.5)])]),
    ("run.txt", "q 0 d 1 -25e-2 t\n", [("q", [("d", -0.25)])]),
    ("run.txt", "q Q0 d 0 0.5 t \t\nq Q0 e 1 1.5 t\n", [("q", [("d", 0.5), ("e", 1.5)])]),
    ("run.txt", "q Q0 d\u00a0x 1 0.5 t\n", [("q", [("d\u00a0x", 0.5)])]),
    ("run.txt", "q\td\t1\nq\te\t4\n", [("q", [("d", 1.0), ("e", 0.25)])]),
    ("run.txt", "q\td\t0\nq\te\t1\n", (1, "rank", "'0'")),
    ("run.txt", "q\td\t1.5\n", (1, "rank", "'1.5'")),
    ("run.txt", "qid\tpid\trank\nq\td\t1\n", (1, "rank must", "'rank'")),
    ("run.txt", "q\td\t1\nq Q0 e 2 0.5 t\n", (2, "3 columns", "got 6")),
    ("run.txt", "qid Q0 docno rank score tag\nq Q0 d 1 0.5 t\n", (1, "score must", "'score'")),
    ("run.txt", "q Q0 d 1 0.5 t\n\n", (2, "6 columns", "got 0")),
    ("run.txt", "q Q0 d 1 NaN t\n", (1, "score", "'NaN'")),
    ("run.txt", "q Q0 d 1 0,5 t\n", (1, "score", "'0,5'")),
    ("run.txt", "q Q0 d 1 0.5 my tag\n", [("q", [("d", 0.5)])]),
    ("run.txt", "q Q0 my d 1 0.5 tag\n", (1, "6 columns", "got 7")),
    ("run.txt", "q 0 d 1\n", (1, "6 columns", "got 4", "'q 0 d 1'")),
    ("run.txt", "q Q0 d 1 0.5 t\n".encode("utf-16"), (1, "UTF-8")),
    ("qrels.txt", "q Q0 d 1\n", [("q", "d", 1)]),
    ("qrels.txt", "q d 1\n", [("q", "d", 1)]),
    ("qrels.txt", "q\td 1\t2\n", [("q", "d 1", 2)]),
    ("qrels.txt", "q 0 d\u00a0x 1.0\n", [("q", "d\u00a0x", 1)]),
    ("qrels.txt", "q\t0\td\t1\t\nq\t0\te\t-2 \n", [("q", "d", 1), ("q", "e", -2)]),
    ("qrels.txt", "query_id iteration doc_id relevance\nq 0 d 1\n", [("q", "d", 1)]),
    ("qrels.txt", "q 0 d 1\nq 0 d 1\n", [("q", "d", 1), ("q", "d", 1)]),
    ("qrels.txt", "q 0 d 1\nq 0 d 0\n", (2, "'d'", "twice", "qrels.txt:1", "as 0")),
    ("qrels.txt", "q 0 d 0.5\n", (1, "relevance", "'0.5'")),
    ("qrels.txt", "q 0 d true\n", (1, "relevance", "'true'")),
    ("qrels.txt", "q 0 d 1\n\n", (2, "got ''")),
    ("qrels.txt", "q 0 d 1 x\n", (1, "got 'q 0 d 1 x'")),
    ("qrels.txt", "q,0,d,1\n", (1, "got 'q,0,d,1'")),
    ("qrels.txt", "query-id\tcorpus-id\tscore\n", (1, "no judgement")),
    ("topics.tsv", "QID\tQuery\n1\twhat\n", [("1", "what")]),
    ("topics.json", '{"id": 1, "query": "what"}', [("1", "what")]),
    ("topics.json", '[{"id": 1, "query": "what"}]', [("1", "what")]),
    ("topics.json", '[\n{"id": 1, "query": "what"}\n]', [("1", "what")]),
    ("topics.json", '[\n{"id": 1, "query": "what"}\n', (3, "malformed JSON", "']'")),
    ("topics.json", '[\n{"id": 1, "query": "what"},\n7]', (3, "JSON object", "got int")),
    ("topics.jsonl", '[{"id": 1, "query": "what"}]', (1, "got list", "jq -c")),
    ("topics.txt", "1\twhat\n", [("1", "what")]),
    ("topics.txt", "1 what\n", (1, "topics", ".tsv")),
    ("topics.txt", "<TOP><NUM>1<TITLE>a</TOP><TOP><NUM>2<TITLE>b</TOP>\n", [("1", "a"), ("2", "b")]),
    ("topics.txt", '<topics><topic number="1"><query>a</query></topic></topics>\n', [("1", "a")]),
    ("corpus.tsv", "D1\thttp://a\tTitle\tBody\nD2\thttp://b\t\tBody\n", [("D1", "Title Body"), ("D2", "Body")]),
    ("corpus.tsv", "ID\tText\n1\ta\n", [("1", "a")]),
    ("corpus.csv", "id;text\n1;a\n", [("1", "a")]),
    ("corpus.tsv", "id,text\n1,a\n", [("1", "a")]),
    ("corpus.csv", 'ID;Body\n1;"a;\nb"\n', [("1", "a;\nb")]),
    ("corpus.csv", "Frage;Antwort\nwas ist das?;ein Ding\n", (1, "separated by ';'", "`text`")),
    ("corpus.csv", "7;ein Ding\n8;noch ein Ding\n", (1, "separated by ';'")),
    ("corpus.csv", "question\tanswer\nwhat, then?\tan animal\n", (2, "columns: question, answer")),
    ("corpus.tsv", "question,answer\nwhat is it?,an animal\n", (2, "columns: question, answer")),
    (
        "corpus.tsv",
        "Yes, it is a text.\nNo, it is another.\n",
        [("1", "Yes, it is a text."), ("2", "No, it is another.")],
    ),
    ("corpus.csv", "text\na;b\nc;d\n", [("2", "a;b"), ("3", "c;d")]),
    ("corpus.tsv", "text\na;b\nc;d\n", [("2", "a;b"), ("3", "c;d")]),
    ("corpus.tsv", "1\ta\n2\tb\tc\n", (2, "2 cells")),
    ("corpus.tsv", "1\ta\tb\tc\td\n", (1, "3 cells", "got 5")),
    ("corpus.jsonl", b'\xef\xbb\xbf{"id": 7, "contents": "a"}\r\n', [("7", "a")]),
    ("corpus.jsonl", '{"_id": "é", "text": "a"}\n{"_id": "e\u0301", "text": "b"}\n', [("é", "a"), ("e\u0301", "b")]),
    ("corpus.jsonl", '{"_id": 1.0, "text": "a"}\n', (1, "'_id'", "float")),
    ("corpus.jsonl", '{"_id": null, "text": "a"}\n', (1, "'_id'", "NoneType")),
    ("corpus.jsonl", '{"_id": "1", "text": null}\n', (1, "'text'")),
    ("corpus.jsonl", '{"_id": "1", "text": "a", "title": {"x": 1}}\n', (1, "'title'", "dict")),
    ("corpus.jsonl", '{"_id": "1", "text": ["a"]}\n', (1, "'text'", "list")),
    ("corpus.jsonl", '{\n "_id": "1"\n}\n', (1, "malformed JSON")),
    ("corpus.jsonl", '{"_id": "1", "text": "a"}\n\n', (2, "empty line")),
]


@pytest.mark.parametrize(("name", "content", "expected"), UNUSUAL)
def test_a_file_as_people_have_it_is_read_or_refused_with_its_line(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    read = READERS[path.stem]
    if isinstance(expected, list):
        assert read(path) == expected
    else:
        line, *named = expected
        with refused(*named, where=f"{path}:{line}"):
            read(path)


def document(number: int) -> bytes:
    return b'{"id": "doc%d", "contents": "text %d"}\n' % (number, number)


@pytest.mark.parametrize("source", ["jsonl", "trec-setting", "trec-folder", "tevatron"])
def test_a_folder_of_shards_is_one_corpus(tmp_path, source):
    """As Anserini keeps them: plain, gzipped and in zst, with the keys id and contents."""
    shards = tmp_path / "corpus"
    shards.mkdir()
    (shards / "README.md").write_text("what this is")
    (shards / ".hidden.jsonl").write_text("{}")
    (shards / "a.jsonl").write_bytes(document(0) + document(1))
    (shards / "b.jsonl.gz").write_bytes(gzip.compress(document(2)))
    (shards / "c.jsonl.zst").write_bytes(pa.compress(document(3), "zstd", asbytes=True))
    (tmp_path / "topics.tsv").write_text("q\twhat\n")
    (tmp_path / "qrels.txt").write_text("q 0 doc3 1\n")
    lines(tmp_path / "train.jsonl", [{"query_id": "q", "query": "what", "positive_passages": [{"docid": "doc3"}]}])
    training = TevatronConfig(path=str(tmp_path / "train.jsonl"), corpus=str(shards), **WHOLE)
    found = {
        "jsonl": lambda: JsonlCollection(JsonlConfig(path=str(shards))),
        "trec-folder": lambda: TrecCollection(TrecConfig(path=str(tmp_path))),
        "trec-setting": lambda: TrecCollection(TrecConfig(path=str(tmp_path), corpus=str(shards))),
        "tevatron": lambda: TevatronCollection(training),
    }[source]()
    write_collection(found, tmp_path / "out")
    expected = [(f"doc{number}", f"text {number}") for number in range(4)]
    assert [(p.doc_id, p.text) for p in open_collection(tmp_path / "out").corpus] == expected
    assert all(name in str(found.describe()) for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"))
    (shards / "b.jsonl.gz").write_bytes(gzip.compress(document(1)))
    with refused("duplicate", "'doc1'", "a.jsonl:2", "b.jsonl.gz:1"):
        write_collection(found, tmp_path / "out")


def test_a_folder_of_texts_without_ids_names_them_by_file_and_line(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert [doc_id for doc_id, _ in passages_of(tmp_path)] == ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2"]


def test_a_folder_of_a_whole_collection_is_not_one_of_passages(tmp_path):
    beir(tmp_path, [{"_id": "1", "text": "a"}], "q\t1\t1\n")
    with refused("queries.jsonl", "beir:"):
        passages_of(tmp_path)


@pytest.mark.parametrize("name", ["dev", "validation", "valid", "val"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_dev_judgements_of_a_beir_folder_under_each_of_their_names(tmp_path, name, ending):
    folder = beir(tmp_path, [{"_id": "1", "text": "a"}], "q\t1\t1\n")
    content = b"query-id\tcorpus-id\tscore\nunjudged\t1\t1\n"
    (folder / "qrels" / f"{name}.tsv{ending}").write_bytes(gzip.compress(content) if ending else content)
    found = BeirCollection(BeirConfig(path=str(folder)))
    assert found.splits() == ("dev", "test")
    assert [query.query_id for query in found.queries("dev")] == ["unjudged"]
    other = "val" if name == "dev" else "dev"
    (folder / "qrels" / f"{other}.tsv").write_bytes(content)
    with pytest.raises(DrkitError, match=rf"/qrels: (.*{name}.* and {other}|{other}.* and .*{name}).* dev;"):
        BeirCollection(BeirConfig(path=str(folder)))
