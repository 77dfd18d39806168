"""TREC files: what is written is read back, in trec_eval's order; wrong lines are named."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.types import Judgement
from drkit.data.formats import TrecCollection
from drkit.data.qrels import decode_id, encode_id, read_qrels, write_qrels
from drkit.data.specs import TrecConfig
from drkit.errors import DrkitError
from drkit.search.run_files import read_run, write_run
from tests.refusals import refused

IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SCORES = st.floats(width=32, allow_nan=False, allow_infinity=False)
RUNS = st.dictionaries(IDS, st.dictionaries(IDS, SCORES, min_size=1, max_size=6), max_size=5)


@given(RUNS, IDS)
def test_a_run_comes_back_with_its_ids_scores_and_order(tmp_path_factory, run, tag):
    path = tmp_path_factory.mktemp("trec") / "run.trec"
    write_run(path, ((query, hits.items()) for query, hits in run.items()), tag)
    back = list(read_run(path))
    assert [query for query, _ in back] == list(run)
    for query, hits in back:
        assert dict(hits) == run[query]
        scores = [score for _, score in hits]
        assert scores == sorted(scores, reverse=True)


# Percent signs with and without meaning, and the mark, far more often than in any text.
ESCAPES = st.lists(st.sampled_from(["%22", "%20", "%25", "%drkit", "%", "%E9", "%C2%A0", " ", "a"]), min_size=1).map(
    "".join
)


@given(IDS | ESCAPES)
def test_an_encoded_id_is_one_word_in_one_line(name):
    assert decode_id(encode_id(name)) == name
    assert encode_id(name).split() == [encode_id(name)]
    assert encode_id(name).splitlines() == [encode_id(name)]


@given(query=IDS | ESCAPES, names=st.sets(IDS | ESCAPES, min_size=1, max_size=5), tag=st.sampled_from(["drkit", "x"]))
def test_any_id_is_the_same_in_runs_judgements_and_collections(tmp_path_factory, query, names, tag):
    """What drkit writes is read back: as a run, as judgements, and as those of a collection of the same ids."""
    folder = tmp_path_factory.mktemp("ids")
    judgements = [Judgement(query, name, 1) for name in sorted(names)]
    write_run(folder / "r", [(query, [(name, 1.0) for name in names])], tag)
    write_qrels(folder / "qrels.txt", judgements)
    for name, rows in (
        ("corpus.jsonl", [{"_id": name, "text": "t"} for name in names]),
        ("topics.jsonl", [{"_id": query, "text": "t"}]),
    ):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ((found, hits),) = read_run(folder / "r")
    assert (found, {doc for doc, _ in hits}) == (query, names)
    assert list(read_qrels(folder / "qrels.txt")) == judgements
    collection = TrecCollection(TrecConfig(path=str(folder)))
    assert {passage.doc_id for passage in collection.passages()} == names
    assert [one.query_id for one in collection.queries("test")] == [query]
    assert list(collection.judgements("test")) == judgements


FOREIGN = st.lists(st.sampled_from(["%22", "%20", "%25", "%2F", "%", "%E9", "<dbpedia:X>", "a"]), min_size=1).map(
    "".join
)


@given(query=FOREIGN, document=FOREIGN, separator=st.sampled_from([" ", "\t"]))
def test_an_id_of_another_tool_stands_as_it_is(tmp_path_factory, query, document, separator):
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "r").write_text(separator.join([query, "Q0", document, "1", "2.0", "tool\n"]))
    (folder / "q").write_text(separator.join([query, "0", document, "1\n"]))
    assert list(read_run(folder / "r")) == [(query, [(document, 2.0)])]
    assert list(read_qrels(folder / "q")) == [Judgement(query, document, 1)]


RUN = "q\tQ0\td\t1\t2.0\tt\nq\tQ0\te\t2\t1.0\tt\n"


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_run_is_read(tmp_path, ending):
    whole = gzip.compress(RUN.encode()) if ending == ".gz" else pa.compress(RUN.encode(), "zstd", asbytes=True)
    (tmp_path / f"r{ending}").write_bytes(whole)
    assert list(read_run(tmp_path / f"r{ending}")) == [("q", [("d", 2.0), ("e", 1.0)])]
    for broken in (whole[:-9], b"plain"):
        (tmp_path / f"r{ending}").write_bytes(broken)
        with refused("line 0", where=f"/r{ending}"):
            list(read_run(tmp_path / f"r{ending}"))


@pytest.mark.parametrize("separator", ["\t", " ", "  "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_run_of_three_columns_is_ranked_by_them(tmp_path, separator, end):
    """As MS MARCO's own evaluation reads query, passage, rank."""
    (tmp_path / "r").write_bytes(
        "".join(separator.join(("q", d, f"{n}{end}")) for n, d in ((2, "e"), (1, "d"))).encode()
    )
    assert list(read_run(tmp_path / "r")) == [("q", [("e", 0.5), ("d", 1.0)])]


def test_the_columns_are_those_of_trec(tmp_path):
    write_run(tmp_path / "r", [("q 1", [("a", 0.1), ("b c", 2.0), ("d", 0.1)])], "my tag")
    assert (tmp_path / "r").read_text().splitlines() == [
        "q%201%drkit\tQ0\tb%20c%drkit\t1\t2.0\tmy%20tag%drkit",
        "q%201%drkit\tQ0\td\t2\t0.1\tmy%20tag%drkit",
        "q%201%drkit\tQ0\ta\t3\t0.1\tmy%20tag%drkit",
    ]


def test_neighbouring_float32_scores_stay_apart(tmp_path):
    low = np.float32(0.7)
    high = np.nextafter(low, np.float32(1))
    write_run(tmp_path / "r", [("q", [("low", float(low)), ("high", float(high))])], "t")
    ((_, hits),) = read_run(tmp_path / "r")
    assert [doc for doc, _ in hits] == ["high", "low"]
    assert [np.float32(score) for _, score in hits] == [high, low]


def test_judgements_come_back(tmp_path):
    judgements = [Judgement("q 1", "d\t1", 2), Judgement("q 1", "ü%", 0), Judgement("q2", "x", -1)]
    write_qrels(tmp_path / "qrels", judgements)
    assert list(read_qrels(tmp_path / "qrels")) == judgements


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("q", [("", 1.0)])], "empty id"),
        ([("", [("d", 1.0)])], "empty id"),
        ([("q", [("d", float("nan"))])], "'d'.*finite"),
        ([("q", [("d", 1.0), ("d", 2.0)])], "'q'.*duplicate document"),
        ([("q", [("d", 1.0)]), ("q", [("e", 1.0)])], "duplicate query 'q'"),
        ([("q\ud800", [("d", 1.0)])], "not valid Unicode"),
    ],
)
def test_what_cannot_be_written_leaves_no_file(tmp_path, rows, message):
    with pytest.raises(DrkitError, match=message):
        write_run(tmp_path / "r", rows, "t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lines", "number", "named"),
    [
        ("q Q0 d 1 0.5", 2, ("6 columns", "got 5")),
        ("", 2, ("6 columns", "got 0")),
        ("q Q0 e 1 high t", 2, ("score", "'high'")),
        ("q Q0 e 1 nan t", 2, ("score", "'nan'")),
        ("q Q0 d 1 0.5 t", 2, ("duplicate", "'d'", "'q'")),
        ("p Q0 d 1 0.5 t\nq Q0 d 1 0.5 t", 3, ("duplicate", "'d'", "'q'")),
        ("# a note\nq Q0 e 1 0.5 t\n# another\nq Q0 d 1 0.5 t", 5, ("duplicate", "'d'")),
        ("q Q0 a word 1 0.5 t", 2, ("6 columns", "got 7")),
        ("#metoo Q0 d 1 0.5 t", 2, ("comment", "'#metoo'", "%23metoo%drkit")),
        ("q e 1", 2, ("6 columns", "got 3", "'q e 1'")),
    ],
)
def test_a_wrong_line_is_named(tmp_path, lines, number, named):
    (tmp_path / "r").write_text(f"q Q0 d 1 0.5 t\n{lines}\n")
    with refused(*named, where=f"r:{number}"):
        list(read_run(tmp_path / "r"))


def test_files_of_other_tools_are_read(tmp_path):
    (tmp_path / "r").write_bytes(b"1 Q0   d1 1 12.5 tool\r\n1\tQ0\td2\t2\t25e-2\ttool\r\n")
    assert list(read_run(tmp_path / "r")) == [("1", [("d1", 12.5), ("d2", 0.25)])]


def test_a_byte_order_mark_is_no_part_of_the_first_id(tmp_path):
    (tmp_path / "r").write_bytes(b"\xef\xbb\xbfq Q0 d 1 0.5 t\r\n")
    (tmp_path / "q").write_bytes(b"\xef\xbb\xbfq 0 d 1\r\n")
    assert list(read_run(tmp_path / "r")) == [("q", [("d", 0.5)])]
    assert list(read_qrels(tmp_path / "q")) == [Judgement("q", "d", 1)]


def test_a_percent_sign_that_encodes_no_text_stands_as_it_is(tmp_path):
    (tmp_path / "r").write_text("q Q0 caf%E9 1 0.5 t\nq Q0 50%off 2 0.4 t\n")
    (tmp_path / "q").write_text("q 0 caf%E9 1\n")
    assert list(read_run(tmp_path / "r")) == [("q", [("caf%E9", 0.5), ("50%off", 0.4000000059604645)])]
    assert list(read_qrels(tmp_path / "q")) == [Judgement("q", "caf%E9", 1)]


def test_a_missing_or_binary_file_is_an_error_of_the_user(tmp_path):
    with refused("cannot be read", where="none"):
        list(read_run(tmp_path / "none"))
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with refused("UTF-8", where="b:1"):
        list(read_run(tmp_path / "b"))
    (tmp_path / "q").write_text("q 0 d high\n")
    with refused("relevance", "'high'", where="q:1"):
        list(read_qrels(tmp_path / "q"))


def test_a_run_is_read_as_trec_eval_reads_it(tmp_path):
    """Comments, words behind column 6, and the lines of a query anywhere: its own test files have all of these."""
    lines = [
        "# made by hand",
        "q2 Q0 a 1 0.5 t",
        "q1 Q0 a 1 3 t and more words",
        "# 2 Q0 d 1 0.5 t",
        "q2 Q0 #b 2 0.9 t",
    ]
    (tmp_path / "r").write_text("\n".join([*lines, "q1 Q0 c 2 4 t"]))
    assert list(read_run(tmp_path / "r")) == [
        ("q2", [("a", 0.5), ("#b", pytest.approx(0.9))]),
        ("q1", [("a", 3.0), ("c", 4.0)]),
    ]
    (tmp_path / "only").write_text("# nothing\n")
    assert list(read_run(tmp_path / "only")) == []


@given(RUNS, st.randoms())
def test_the_lines_of_a_run_may_be_in_any_order(tmp_path_factory, run, random):
    folder = tmp_path_factory.mktemp("trec")
    write_run(folder / "r", ((query, hits.items()) for query, hits in run.items()), "t")
    lines = (folder / "r").read_bytes().splitlines(keepends=True)
    random.shuffle(lines)
    (folder / "r").write_bytes(b"".join(lines))
    assert {query: dict(hits) for query, hits in read_run(folder / "r")} == run


def test_judgements_are_read_as_trec_eval_reads_them(tmp_path):
    (tmp_path / "q").write_text("# of TREC-6\n301 0 a 1\n# 3 of 4\n301 2 #b -1\n")
    assert list(read_qrels(tmp_path / "q")) == [Judgement("301", "a", 1), Judgement("301", "#b", -1, "2")]
    (tmp_path / "q").write_text("301 0 a 1\n#302 0 a 1\n")
    with refused("comment", "'#302'", "%23302%drkit", where="q:2"):
        list(read_qrels(tmp_path / "q"))


def test_no_line_that_drkit_writes_is_a_comment(tmp_path):
    write_run(tmp_path / "r", [("#q", [("#d", 1.0)])], "#t")
    write_qrels(tmp_path / "q", [Judgement("#q", "#d", 1)])
    assert (tmp_path / "r").read_text() == "%23q%drkit\tQ0\t#d\t1\t1.0\t#t\n"
    assert list(read_run(tmp_path / "r")) == [("#q", [("#d", 1.0)])]
    assert list(read_qrels(tmp_path / "q")) == [Judgement("#q", "#d", 1)]


def test_subtopics_come_back(tmp_path):
    judgements = [Judgement("51", "d", 1, "1"), Judgement("51", "d", 0, "2"), Judgement("51", "e", 1, "a b")]
    write_qrels(tmp_path / "q", judgements)
    assert list(read_qrels(tmp_path / "q")) == judgements
    (tmp_path / "q").write_text("51 1 d 1\n51 1 d 0\n")
    with refused("judged twice", where="q:2"):
        list(read_qrels(tmp_path / "q"))


@given(RUNS, st.sampled_from(["r.json", "r.txt", "r"]), st.sampled_from([None, 2]))
def test_a_json_dictionary_is_a_run_and_judgements(tmp_path_factory, run, name, indent):
    """As ranx and pytrec_eval have them."""
    path = tmp_path_factory.mktemp("json") / name
    path.write_text(json.dumps(run, indent=indent), encoding="utf-8")
    assert {query: dict(hits) for query, hits in read_run(path)} == run
    grades = {query: dict.fromkeys(hits, 2) for query, hits in run.items()}
    path.write_text(json.dumps(grades, indent=indent), encoding="utf-8")
    assert list(read_qrels(path)) == [Judgement(q, d, 2) for q, hits in grades.items() for d in hits]


def test_a_compressed_dictionary_is_read(tmp_path):
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(b'{"q": {"d": 2}}'))
    assert list(read_run(tmp_path / "r.json.gz")) == [("q", [("d", 2.0)])]
    assert list(read_qrels(tmp_path / "r.json.gz")) == [Judgement("q", "d", 2)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"q": {"d": 1, "d": 2}}', ("'d'", "twice")),
        ('{"q": {"d": 1}, "q": {}}', ("'q'", "twice")),
        ('{"q": {"d": "high"}}', ("'d'", "'high'")),
        ('{"q": {"d": NaN}}', ("'d'", "nan")),
        ('{"q": {"d": true}}', ("'d'", "True")),
        ('{"q": {"": 1}}', ("empty id",)),
        ('{"": {"d": 1}}', ("empty id",)),
        ('{"q": {"\\ud800": 1}}', ("Unicode",)),
        ('{"q": {"d": 1}', ("malformed JSON",)),
        ('{"q": {"d": 1}, "p": ["d"]}', ("'p'", "list")),
        ('[{"q": 1}]', ("list",)),
        ('{"query": "q"}', ("'query'", "str")),
    ],
)
@pytest.mark.parametrize("read", [read_run, lambda path: list(read_qrels(path))])
def test_a_dictionary_of_anything_else_is_refused(tmp_path, text, named, read):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(DrkitError, match=r"r\.json|empty id|Unicode") as caught:
        read(tmp_path / "r.json")
    assert all(name in str(caught.value) for name in named)


def test_grades_in_a_dictionary_are_whole_numbers(tmp_path):
    (tmp_path / "q.json").write_text('{"q": {"d": 1.0, "e": 0.5}}')
    with refused("'0.5'", where="q.json: query 'q'"):
        list(read_qrels(tmp_path / "q.json"))


def test_an_id_that_begins_with_a_brace_is_no_dictionary(tmp_path):
    (tmp_path / "r").write_text("{q} Q0 d 1 0.5 t\n")
    (tmp_path / "q").write_text("{q} 0 d 1\n")
    assert list(read_run(tmp_path / "r")) == [("{q}", [("d", 0.5)])]
    assert list(read_qrels(tmp_path / "q")) == [Judgement("{q}", "d", 1)]
