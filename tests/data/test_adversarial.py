"""Input as bad as it comes: it is read whole, or refused with file and line; never half, never with a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

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
from drkit.errors import DrkitError

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
    with pytest.raises(DrkitError, match=r"qrels\.txt:1: expected .* separated by tabs or spaces, got 'q 1 0 d 2 1'"):
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


def test_queries_without_judgements_are_left_out_and_negative_relevance_is_no_positive(tmp_path):
    folder = beir(tmp_path, [{"_id": "1", "text": "a"}, {"_id": "2", "text": "b"}], "q\t1\t-3\nq\t2\t1\n")
    write_collection(BeirCollection(BeirConfig(path=str(folder))), tmp_path / "o")
    stored = open_collection(tmp_path / "o")
    assert [q.query_id for q in stored.queries("test")] == ["q"]
    assert stored.positives("test") == {"q": {"2": 1}}
    assert [j.relevance for j in stored.judgements("test")] == [-3, 1]


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q\t1\t1\nq\t1\t0\n", "passage '1' of query 'q' has relevance 1 and 0, in test"),
        ("q\t1\t99999999999\n", r"test\.tsv:2: the score '99999999999' is not a 32-bit integer"),
        ("q\t1\tnan\n", r"test\.tsv:2: the score 'nan'"),
        ("q\t1\t-1\n", "no judgement of test has a relevance above 0"),
        ("q\tnine\t1\nnobody\t1\t1\n", r"unknown passage 'nine' @ .*test\.tsv:2"),
    ],
)
def test_bad_judgements_are_refused(tmp_path, qrels, message):
    folder = beir(tmp_path, [{"_id": "1", "text": "a"}], qrels)
    with pytest.raises(DrkitError, match=message):
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
    with pytest.raises(DrkitError, match=r"a\.parquet: cannot be read as Parquet"):
        list(PairsCollection(PairsConfig(path=str(tmp_path / "a.parquet"))).passages())


def test_files_without_rows_say_so(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(DrkitError, match="has no passages"):
        write_collection(JsonlCollection(JsonlConfig(path=str(tmp_path / "a.jsonl"))), tmp_path / "o")
    with pytest.raises(DrkitError, match="has no passages"):
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
    with pytest.raises(DrkitError, match=r"a\.jsonl:1: malformed JSON"):
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
