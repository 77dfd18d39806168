"""How users' files are read: by the names of their columns, else refused with what to type; nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.files import path_state
from drkit.core.registry import installed
from drkit.data import (
    DprCollection,
    DprConfig,
    HfCollection,
    HfConfig,
    JsonlCollection,
    JsonlConfig,
    PairsCollection,
    PairsConfig,
    TrecCollection,
    TrecConfig,
    open_collection,
    write_collection,
)
from drkit.data.columns import looks_like_ids
from drkit.data.json_lists import read_json_list
from drkit.data.preview import preview
from drkit.data.rows import read_jsonl
from drkit.data.splits import FEWEST, Splits
from drkit.data.topics import read_topic_file, read_topics, topic_notes
from drkit.errors import DrkitError
from drkit.miners.chain import mining_requests
from drkit.recipe import find_collection
from tests.refusals import refused

PARTS = installed()
LONG = "a text of some words that nobody takes for a name"
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


def table(path: Path, rows: list[dict[str, str]]) -> Path:
    """The rows in the format of the path."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        lines = [separator.join(rows[0]), *(separator.join(row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def texts_of(path: Path, **settings: object) -> list[tuple[str, str, str]]:
    found = JsonlCollection(JsonlConfig(path=str(path), **settings))
    return [(one.doc_id, one.title, one.text) for one in found.passages()]


def pairs_of(path: Path, **settings: object) -> list[tuple[str, str]]:
    found = PairsCollection(PairsConfig(path=str(path), dev_share=0.0, test_share=0.0, **settings))
    return [(pair.anchor, pair.positives[0]) for _, _, pair in found.tables._pairs("train")]


@pytest.mark.parametrize("suffix", FORMATS)
class TestColumns:
    @pytest.mark.parametrize(
        "names",
        [
            ("id", "text", "title"),
            ("article_id", "content", "subject"),
            ("Doc-ID", "Body", "TITLE"),
            ("pid", "Passage Text", "Headline"),
        ],
    )
    def test_passages_are_read_by_the_names_of_their_columns(self, tmp_path, suffix, names):
        rows = [dict(zip(names, (str(number), f"{LONG} {number}", "Wings"), strict=True)) for number in (1, 2)]
        path = table(tmp_path / f"a{suffix}", rows)
        assert texts_of(path) == [("1", "Wings", f"{LONG} 1"), ("2", "Wings", f"{LONG} 2")]
        assert find_collection(str(path), PARTS) == f"jsonl:{path}"

    @pytest.mark.parametrize("names", [("Question", "Answer"), ("QUERY", "Positive"), ("Sentence A", "sentence_b")])
    def test_pairs_are_read_without_case(self, tmp_path, suffix, names):
        path = table(tmp_path / f"a{suffix}", [dict(zip(names, ("why is it so", LONG), strict=True))])
        assert pairs_of(path) == [("why is it so", LONG)]
        assert find_collection(str(path), PARTS) == f"pairs:{path}"

    @pytest.mark.parametrize("names", [("Frage", "Antwort"), ("Nr", "Absatz"), ("left", "right"), ("Title", "Body")])
    def test_unknown_names_are_refused_with_the_columns_and_what_to_type(self, tmp_path, suffix, names):
        rows = [dict(zip(names, (f"what is it {n}", f"{LONG} {n}"), strict=True)) for n in range(4)]
        path = table(tmp_path / f"a{suffix}", rows)
        with refused(f"columns: {', '.join(names)}", "--columns query=COLUMN,text=COLUMN"):
            pairs_of(path)
        columns = {"query": names[0], "text": names[1]}
        assert pairs_of(path, columns=columns)[0] == ("what is it 0", f"{LONG} 0")
        if names != ("Title", "Body"):
            with refused(f"columns: {', '.join(names)}", "--columns text=COLUMN,id=COLUMN"):
                texts_of(path)
            assert texts_of(path, columns={"text": names[1]})[1] == (
                "3" if suffix in (".csv", ".tsv") else "2",
                "",
                f"{LONG} 1",
            )

    @pytest.mark.parametrize("ids", [("1", "7"), ("q{}", "a{}"), ("{}-ab", "doc/{}#2"), ("PLAIN-{}", "MED-{}")])
    def test_ids_are_not_texts(self, tmp_path, suffix, ids):
        rows = [{"query": ids[0].format(n), "article": ids[1].format(n + 3)} for n in range(4)]
        path = table(tmp_path / f"a{suffix}", rows)
        with refused("'query' has ids", "columns: query, article", "--columns"):
            list(PairsCollection(PairsConfig(path=str(path), columns={"positive": "article"})).passages())
        with refused("'query' seems to have queries", "'article' ids", "columns: query, article", "labelled:TEXTS"):
            texts_of(path)
        with pytest.raises(DrkitError, match="labelled:TEXTS"):
            find_collection(str(path), PARTS)
        assert pairs_of(path, columns={"query": "query", "text": "article"})[0] == tuple(rows[0].values())


class TestTablesWithoutHeader:
    def test_ms_marcos_passages_are_read_and_it_is_said(self, tmp_path):
        path = tmp_path / "collection.tsv"
        path.write_text("0\tThe presence of communication\n1\tThe Manhattan Project\n")
        assert texts_of(path)[0] == ("0", "", "The presence of communication")
        (note,) = JsonlCollection(JsonlConfig(path=str(path))).notes()
        assert "has no header" in note
        assert "MS MARCO's passages" in note
        assert "--columns id=COLUMN,text=COLUMN" in note

    def test_columns_by_number(self, tmp_path):
        path = tmp_path / "a.tsv"
        path.write_text(f"1\tAaron\t{LONG} {LONG}\n2\tMoses\t{LONG} {LONG}\n")
        with refused("column 3 is longer", "--columns id=1,title=2,text=3", where="a.tsv:1"):
            texts_of(path)
        assert texts_of(path, columns={"id": 1, "title": 2, "text": 3})[1] == ("2", "Moses", f"{LONG} {LONG}")
        assert pairs_of(path, columns={"query": 2, "text": 3})[0] == ("Aaron", f"{LONG} {LONG}")
        with refused("names the column 4", "there are 3"):
            texts_of(path, columns={"text": 4})
        with refused("names and numbers"):
            texts_of(path, columns={"text": 2, "id": "id"})

    def test_a_header_of_unknown_names_is_not_a_row(self, tmp_path):
        path = tmp_path / "a.tsv"
        path.write_text("Nr\tAbsatz\n1\tein Text aus Worten\n2\tnoch ein Text\n")
        with refused("columns: Nr, Absatz", where="a.tsv:2"):
            texts_of(path)

    @pytest.mark.parametrize("first", ["d0\tone", "7\ttext", "x1\tWhy?"])
    def test_a_first_row_is_not_a_header(self, tmp_path, first):
        path = tmp_path / "a.tsv"
        path.write_text(f"{first}\n" + "".join(f"{first.split(chr(9))[0][:1]}{n}\tmore of it\n" for n in range(1, 5)))
        assert len(texts_of(path)) == 5


@given(st.lists(st.text(st.characters(codec="utf-8", categories=("L", "Z", "P")), min_size=1), min_size=3))
def test_texts_without_digits_are_never_ids(values):
    assert not looks_like_ids(values)


class TestHf:
    def test_cells_of_csv_stay_texts(self, tmp_path):
        cells = [("007", "true"), ("1e5", "NA"), ("NaN", "null"), ("2020-01-01", "a b")]
        (tmp_path / "train.csv").write_text("query,positive\n" + "".join(f"{a},{b}\n" for a, b in cells))
        config = HfConfig(
            path=str(tmp_path), dev_share=0.0, test_share=0.0, columns={"query": "query", "text": "positive"}
        )
        found = HfCollection(config)
        assert [query.text for query in found.queries("train")] == [a for a, _ in cells]
        assert [passage.text for passage in found.passages()] == [b for _, b in cells]

    @pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
    def test_a_first_file_of_nulls_is_read(self, tmp_path, suffix):
        for number, negative in enumerate((None, "wrong")):
            rows = [{"query": f"what is {number}", "positive": f"it is {number}", "negative": negative}]
            table(tmp_path / f"train-{number}{suffix}", rows)
        found = HfCollection(HfConfig(path=str(tmp_path), dev_share=0.0, test_share=0.0))
        assert [passage.text for passage in found.passages()] == ["it is 0", "it is 1", "wrong"]

    def test_ids_of_a_corpus_stay_texts(self, tmp_path):
        for name, text in (
            ("corpus/corpus.csv", "_id,text\n007,some words\n"),
            ("queries/queries.csv", "_id,text\n001,what\n"),
            ("qrels/test.csv", "query-id,corpus-id,score\n001,007,1\n"),
        ):
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text(text)
        found = HfCollection(HfConfig(path=str(tmp_path)))
        write_collection(found, tmp_path / "out")
        assert open_collection(tmp_path / "out").positives("test") == {"001": {"007": 1}}


TIPSTER = """<top>
<head> Tipster Topic Description

<num> Number:  051

<dom> Domain:  International Economics

<title> Topic:  Airbus Subsidies

<desc> Description:

Mentions a <i>trade</i> dispute of Airbus & Boeing.

<smry> Summary:
x
<con> Concept(s):
1. A
<fac> Factor(s):
<nat> Nationality: U.S.
</fac>
<def> Definition(s):
</top>
"""
LAYOUTS = {  # of TREC, CLEF and NTCIR: text, element, the id and the query
    "tipster": (TIPSTER, "title", ("051", "Airbus Subsidies")),
    "tipster description": (TIPSTER, "desc", ("051", "Mentions a trade dispute of Airbus & Boeing.")),
    "tipster domain": (TIPSTER, "dom", ("051", "International Economics")),
    "201-250": ("<top>\n\n<num> Number: 201\n<desc> Description:\nWhat?\n\n</top>\n", "desc", ("201", "What?")),
    "closed": ("<top>\n<num>701</num>\n<title>oil industry</title>\n</top>\n", "title", ("701", "oil industry")),
    "web": (
        '<?xml version="1.0"?>\n<webtrack>\n<topic number="1" type="faceted">\n <query>obama &amp; family</query>\n'
        '<description> Find\n it. </description><subtopic number="1">A</subtopic>\n</topic></webtrack>',
        "title",
        ("1", "obama & family"),
    ),
    "covid": (
        "<topics><topic number='2'><query>a</query><question>b?</question></topic></topics>",
        "desc",
        ("2", "b?"),
    ),
    "clinical": ('<topics>\n<topic number="3">\n A man of 45\n</topic>\n</topics>', "title", ("3", "A man of 45")),
    "clef": ("<top>\n<num> C041 </num>\n<EN-title> Baby Food </EN-title>\n</top>", "title", ("C041", "Baby Food")),
    "chinese": ("<top>\n<num> CH1\n<E-title> Trade\n<C-title> x\n</top>", "C-title", ("CH1", "x")),
    "ntcir": ("<TOPIC>\n<NUM>013</NUM>\n<TITLE>NBA</TITLE><NARR><BACK>b</BACK></NARR>\n</TOPIC>", "narr", ("013", "b")),
    "identifier": ("<t><topic><identifier>4-AH</identifier><title>A</title></topic></t>", "title", ("4-AH", "A")),
    "indri": ("<p><query><number>7</number><text>oil</text></query></p>", "title", ("7", "oil")),
    "cdata": ("<t><topic id='5'><title><![CDATA[a < b &amp; c]]></title></topic></t>", "title", ("5", "a < b &amp; c")),
    "comment": ("<!-- <top> -->\n<top>\n<num> 1\n<title> a\n</top>", "title", ("1", "a")),
}


class TestTopics:
    @pytest.mark.parametrize(("text", "element", "expected"), LAYOUTS.values(), ids=LAYOUTS)
    @pytest.mark.parametrize("name", ["topics.txt", "topics.xml"])
    def test_every_layout(self, tmp_path, name, text, element, expected):
        (tmp_path / name).write_text(text)
        assert [(query.query_id, query.text) for _, query in read_topics(tmp_path / name, element)] == [expected]

    def test_several_languages_are_refused_with_what_to_set(self, tmp_path):
        (tmp_path / "t.txt").write_text(LAYOUTS["chinese"][0])
        with refused("<e-title> and <c-title>", "--set collection.topic_field=e-title", where="t.txt:1"):
            list(read_topics(tmp_path / "t.txt"))

    def test_a_missing_element_is_refused_with_the_others(self, tmp_path):
        (tmp_path / "t.txt").write_text(LAYOUTS["201-250"][0])
        with refused("no <title>", "num, desc", "--set collection.topic_field=desc", where="t.txt:1"):
            list(read_topics(tmp_path / "t.txt"))
        assert [query.text for query in read_topic_file(tmp_path / "t.txt")] == ["What?"]

    def test_another_element_is_said(self, tmp_path):
        (tmp_path / "t.xml").write_text(LAYOUTS["web"][0])
        (note,) = topic_notes(tmp_path / "t.xml")
        assert "<query>" in note


def trec(folder: Path, **files: str) -> TrecCollection:
    """A collection in TREC's layout; files: content by name, `__` for a dot."""
    for name, text in {"corpus__tsv": "".join(f"d{n}\tpassage {n}\n" for n in range(6)), **files}.items():
        (folder / name.replace("__", ".")).write_text(text)
    return TrecCollection(TrecConfig(path=str(folder)))


class TestPreview:
    def test_a_query_judged_in_train_and_test_is_refused_in_the_plan(self, tmp_path):
        found = trec(
            tmp_path, topics__tsv="q1\twhat\nq2\twhy\n", qrels__train__tsv="q1 0 d1 1\n", qrels__test__tsv="q1 0 d2 1\n"
        )
        with refused("'q1'", "in train @", "in test @", "topics.tsv:1", "no test query is trained on"):
            list(preview(found))

    def test_a_judged_query_without_a_text_is_refused_with_its_line(self, tmp_path):
        found = trec(tmp_path, topics__tsv="051\twhat\n", qrels__test__tsv="051 0 d1 1\n51 0 d2 1\n")
        with refused(
            "unknown query '51'", "qrels.test.tsv:2", "the texts have '051' for '51'", "unknown_judgements=drop"
        ):
            list(preview(found))

    def test_a_text_in_two_splits_is_said(self, tmp_path):
        topics = "q1\twhat  is it\nq2\twhat is it\nq3\twhy\n"
        found = trec(tmp_path, topics__tsv=topics, qrels__train__tsv="q1 0 d1 1\n", qrels__test__tsv="q2 0 d2 1\n")
        assert any("1 test query has the text of a training query ('q2' that of 'q1')" in one for one in preview(found))
        counts = write_collection(found, tmp_path / "out")
        assert counts["repeated_queries"]

    def test_a_split_without_positives_is_refused(self, tmp_path):
        found = trec(tmp_path, topics__tsv="q1\twhat\n", qrels__test__tsv="q1 0 d1 0\n")
        with refused("no judgement of test has a relevance above 0"):
            list(preview(found))

    @pytest.mark.parametrize("number", [1, 3, FEWEST, 10, 30])
    def test_shares_of_few_queries_get_one(self, tmp_path, number):
        rows = [{"query": f"what is thing {n}", "pos": f"thing {n} is"} for n in range(number)]
        found = PairsCollection(PairsConfig(path=str(table(tmp_path / "a.jsonl", rows))))
        notes = list(preview(found))
        counts = write_collection(found, tmp_path / "out")
        assert [*counts["queries"]] == (["train"] if number < FEWEST else ["train", "dev", "test"])
        assert sum(counts["queries"].values()) == number
        assert bool(notes) == (number < 30)


@given(st.sets(st.text(min_size=1), max_size=40), st.floats(0, 0.45), st.floats(0, 0.45))
def test_every_query_is_in_one_split_and_training_has_one(ids, dev, test):
    rules = Splits.of("c", ["train"], dev_share=dev, test_share=test).filled(lambda: iter(sorted(ids)))
    members = {split: {one for one in ids if rules.membership(split)(one)} for split in rules.names()}
    assert sum(map(len, members.values())) == len(ids)
    assert set().union(*members.values()) == ids if members else not ids
    assert all(members.values()) or not ids
    assert not ids or "train" in members


def test_what_is_relevant_to_a_text_is_no_negative_under_another_id(tmp_path):
    found = trec(
        tmp_path,
        topics__tsv="q1\twhat\nq2\twhat \nq3\twhy\n",
        qrels__train__tsv="q1 0 d1 1\nq2 0 d2 1\nq3 0 d3 1\nq1 0 d2 0\n",
    )
    write_collection(found, tmp_path / "out")
    stored = open_collection(tmp_path / "out")
    requests = {one.query_id: one for one in mining_requests(stored)}
    assert requests["q1"].positives == {"d1"}
    assert requests["q1"].excluded == {"d2"}
    assert requests["q2"].excluded == {"d1"}
    assert requests["q3"].excluded == frozenset()
    assert stored.negatives("train") == {}
    assert {name: sorted(one.tolist()) for name, one in stored.indices_by_text("train").items()} == {
        "q1": [1, 2],
        "q2": [1, 2],
        "q3": [3],
    }


def context(name: str, **more: object) -> dict[str, object]:
    return {"title": f"T{name}", "text": f"text of {name}", **more}


class TestDpr:
    def rows(self):
        return [
            {
                "question": f"who is {n}",
                "answers": ["x"],
                "positive_ctxs": [context(f"p{n}", passage_id=str(n))],
                "negative_ctxs": [context(f"n{n}")],
                "hard_negative_ctxs": [context(f"h{n}", psg_id=100 + n)],
            }
            for n in (1, 2, 1)
        ]

    def test_questions_with_their_passages(self, tmp_path):
        path = tmp_path / "biencoder-nq-train.json"
        path.write_text(json.dumps(self.rows(), indent=4))
        assert find_collection(str(path), PARTS) == f"dpr:{path}"
        found = DprCollection(DprConfig(path=str(path), dev_share=0.0, test_share=0.0))
        counts = write_collection(found, tmp_path / "out")
        assert (counts["passages"], counts["queries"]) == (6, {"train": 2})
        stored = open_collection(tmp_path / "out")
        query_id = next(iter(stored.queries("train"))).query_id
        assert stored.positives("train")[query_id] == {"1": 1}
        assert stored.negatives("train")[query_id][0] == "101"
        assert stored.answers("train")[query_id] == ("x",)
        assert stored.corpus.get_many(["1"])[0].title == "Tp1"

    def test_other_rows_are_refused_with_their_line(self, tmp_path):
        (tmp_path / "a.json").write_text('[\n{"question": "a", "positive_ctxs": []},\n{"question": "b"}\n]')
        with refused("no 'positive_ctxs'", "keys: question", where="a.json:3"):
            DprCollection(DprConfig(path=str(tmp_path / "a.json"))).splits()


class TestNegativesById:
    TOPICS = "1\twhat is it\n2\twhy is it\n"

    def test_hard_negatives_of_several_systems(self, tmp_path):
        lines = [
            {"qid": 1, "pos": ["d1"], "neg": {"bm25": ["d2", "d3"], "tas": ["d4", "d2"]}},
            {"qid": 2, "pos": ["d5"]},
        ]
        lines[1]["neg"] = {"tas": ["d0"]}
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        found = trec(tmp_path, queries__train__tsv=self.TOPICS, **{"msmarco-hard-negatives__jsonl": text})
        assert any("bm25, tas are interleaved" in note for note in found.notes())
        write_collection(found, tmp_path / "out")
        stored = open_collection(tmp_path / "out")
        assert stored.positives("train") == {"1": {"d1": 1}, "2": {"d5": 1}}
        assert stored.negatives("train") == {"1": ["d2", "d4", "d3"], "2": ["d0"]}
        one = TrecCollection(TrecConfig(path=str(tmp_path), negative_systems=("tas",)))
        assert [doc for _, doc in one.negatives("train")] == ["d4", "d2", "d0"]

    def test_triples_beside_judgements(self, tmp_path):
        triples = "1\td1\td2\n1\td1\td3\n2\td5\td0\n"
        files = {"queries__train__tsv": self.TOPICS, "qrels__train__tsv": "1 0 d1 1\n2 0 d4 1\n"}
        found = trec(tmp_path, **files, qidpidtriples__train__tsv=triples)
        assert [(j.query_id, j.doc_id) for j in found.judgements("train")] == [("1", "d1"), ("2", "d4")]
        assert list(found.negatives("train")) == [("1", "d2"), ("1", "d3"), ("2", "d0")]

    def test_unknown_ids_are_refused_with_their_line(self, tmp_path):
        found = trec(tmp_path, queries__train__tsv=self.TOPICS, qidpidtriples__train__tsv="1\td1\td2\n1\td1\td99\n")
        with refused("unknown passage 'd99'", "qidpidtriples.train.tsv:2"):
            write_collection(found, tmp_path / "out")

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("1\td1\td2\td3\n", ["expected 3 cells", "got 4"]),
            ("what is it\ta text\tanother\n", ["1 negative(s) with unknown ids", "unknown query 'what is it'"]),
        ],
    )
    def test_other_lines_are_refused_in_the_plan(self, tmp_path, line, said):
        files = {"queries__train__tsv": self.TOPICS, "qrels__train__tsv": "1 0 d1 1\n2 0 d4 1\n"}
        found = trec(tmp_path, **files, qidpidtriples__train__tsv=line)
        with refused(*said, "qidpidtriples.train.tsv:1"):
            list(preview(found))


@given(
    st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()))), st.sampled_from([None, 2])
)
def test_a_json_list_is_read_as_json_does(tmp_path_factory, rows, indent):
    path = tmp_path_factory.mktemp("lists") / "a.json"
    path.write_text(json.dumps([{"": 0}, *rows], indent=indent), encoding="utf-8")
    assert [row.values for row in read_jsonl(path)] == [{"": 0}, *rows]
    with path.open("rb") as file:
        assert [item for _, item in read_json_list(path, file, longest=1000)] == [{"": 0}, *rows]


def test_the_state_of_a_folder_has_the_names_of_the_folders_in_it(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.md").write_text("text")
    before = path_state(tmp_path)
    (tmp_path / "a").rename(tmp_path / "aa")
    assert path_state(tmp_path) != before
    (tmp_path / "aa").rename(tmp_path / "a")
    assert path_state(tmp_path) == before
