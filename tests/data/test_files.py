"""Collections read from files: what they give, and what they say of bad input."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drkit.data import (
    BeirCollection,
    BeirConfig,
    IrdsCollection,
    IrdsConfig,
    JsonlCollection,
    JsonlConfig,
    open_collection,
    write_collection,
)
from drkit.errors import DrkitError
from tests.refusals import refused, unknown

HEADER = "query-id\tcorpus-id\tscore\n"


def beir(folder: Path, *, corpus=None, queries=None, **qrels: str) -> Path:
    corpus = corpus if corpus is not None else [{"_id": f"d{i}", "title": "t", "text": f"text {i}"} for i in range(5)]
    queries = queries if queries is not None else [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (folder / "qrels").mkdir()
    for split, rows in (qrels or {"test": "q0\td0\t1\nq1\td1\t0\nq1\td2\t2\n"}).items():
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + rows, encoding="utf-8")
    return folder


def collection(folder: Path, **settings) -> BeirCollection:
    return BeirCollection(BeirConfig(path=str(folder), **settings))


def test_beir_gives_passages_and_only_judged_queries(tmp_path):
    found = collection(beir(tmp_path))
    assert [p.content for p in found.passages()] == [f"t text {i}" for i in range(5)]
    assert found.splits() == ("test",)
    assert [q.query_id for q in found.queries("test")] == ["q0", "q1"]
    assert [(j.query_id, j.doc_id, j.relevance) for j in found.judgements("test")] == [
        ("q0", "d0", 1),
        ("q1", "d1", 0),
        ("q1", "d2", 2),
    ]


def test_gzipped_files_read_as_plain_ones(tmp_path):
    folder = beir(tmp_path)
    plain = list(collection(folder).passages())
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes()))
    (folder / "corpus.jsonl").unlink()
    assert list(collection(folder).passages()) == plain


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("", ("empty line",)),
        ('{"_id": "x", "text": ', ("malformed", "JSON")),
        ('["x"]', ("JSON object", "list")),
        ('{"text": "no id"}', ("'_id'", "missing")),
        ('{"_id": "", "text": "x"}', ("'_id'", "empty")),
        ('{"_id": true, "text": "x"}', ("'_id'", "bool")),
        ('{"_id": "x", "text": 5}', ("'text'", "int")),
        ('{"_id": "x", "title": ["a"], "text": "x"}', ("'title'", "list")),
    ],
)
def test_a_bad_corpus_line_is_named(tmp_path, line, named):
    folder = beir(tmp_path, corpus=[{"_id": "d0", "text": "fine"}, line])
    with refused(*named, where=f"{folder}/corpus.jsonl:2"):
        list(collection(folder).passages())


def test_bytes_that_are_no_text_and_a_torn_archive_are_named(tmp_path):
    folder = beir(tmp_path)
    (folder / "corpus.jsonl").write_bytes(b'{"_id": "d0", "text": "x"}\n{"_id": "d1", "text": "\xff"}\n')
    with refused("UTF-8", where="corpus.jsonl:2"):
        list(collection(folder).passages())
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(b'{"text": "x"}\n' * 5000)[:-20])
    with refused("cannot be read", where="torn.jsonl.gz"):
        list(JsonlCollection(JsonlConfig(path=str(torn))).passages())


def test_an_empty_query_is_named(tmp_path):
    folder = beir(tmp_path, queries=[{"_id": "q0", "text": "a"}, {"_id": "q1", "text": "  "}])
    with refused("'q1'", "empty", where="queries.jsonl:2"):
        list(collection(folder).queries("test"))


@pytest.mark.parametrize(
    ("rows", "line", "named"),
    [
        ("q0 d0 1\n", 2, ("'query-id<TAB>corpus-id<TAB>score'", "'q0 d0 1'")),
        ("q0\td0\tmuch\n", 2, ("relevance", "'much'")),
        ("q0\td0\t1\n\n", 3, ("'query-id<TAB>corpus-id<TAB>score'", "''")),
    ],
)
def test_a_bad_judgement_line_is_named(tmp_path, rows, line, named):
    with refused(*named, where=f"test.tsv:{line}"):
        list(collection(beir(tmp_path, test=rows)).judgements("test"))


def test_a_missing_header_is_named(tmp_path):
    folder = beir(tmp_path)
    (folder / "qrels" / "test.tsv").write_text("q0\td0\t1\n")
    with refused("header", where="test.tsv:1"):
        list(collection(folder).judgements("test"))


def test_missing_paths_say_what_is_expected(tmp_path):
    with pytest.raises(DrkitError, match=r"collection beir: .*`beir:PATH`"):
        BeirCollection(BeirConfig())
    with refused("does not exist", "corpus.jsonl"):
        collection(tmp_path / "nowhere")
    with refused("corpus.jsonl is missing", "queries.jsonl is missing"):
        collection(tmp_path)
    folder = beir(tmp_path)
    shutil.rmtree(folder / "qrels")
    with pytest.raises(DrkitError, match=r"/qrels .*train\.tsv, dev\.tsv, test\.tsv"):
        collection(folder)


def test_an_unknown_split_says_which_there_are(tmp_path):
    with unknown("split", "train", "test"):
        list(collection(beir(tmp_path)).queries("train"))


def many(folder: Path, **settings) -> BeirCollection:
    queries = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(400)]
    return collection(beir(folder, queries=queries, test="".join(f"q{i}\td0\t1\n" for i in range(400))), **settings)


def test_test_queries_never_train_unless_asked(tmp_path):
    assert many(tmp_path).splits() == ("test",)


def test_a_share_of_the_test_queries_trains(tmp_path):
    found = many(tmp_path, train_share=0.5)
    ids = {split: [q.query_id for q in found.queries(split)] for split in found.splits()}
    assert sum(map(len, ids.values())) == len(set().union(*ids.values())) == 400
    assert 140 < len(ids["train"]) < 220
    assert 5 < len(ids["dev"]) < 40
    for split in ids:
        assert {j.query_id for j in found.judgements(split)} == set(ids[split])


def test_a_share_is_ignored_where_there_is_a_train_split(tmp_path):
    found = collection(beir(tmp_path, train="q0\td0\t1\n", test="q1\td1\t1\n"), train_share=0.5)
    assert found.splits() == ("train", "test")
    assert [q.query_id for q in found.queries("test")] == ["q1"]


def test_written_and_opened_again(tmp_path):
    source = collection(beir(tmp_path))
    counts = write_collection(source, tmp_path / "out")
    stored = open_collection(tmp_path / "out")
    assert (counts["passages"], counts["queries"], counts["positives"]) == (5, {"test": 2}, {"test": 2})
    assert list(stored.corpus) == list(source.passages())
    assert [*stored.corpus.ids()] == [f"d{i}" for i in range(5)]
    assert stored.corpus.positions(["d3", "d0"]).tolist() == [3, 0]
    assert [p.doc_id for p in stored.corpus.get_many(["d4", "d1", "d4"])] == ["d4", "d1", "d4"]
    assert stored.corpus.positions([]).tolist() == []
    assert list(stored.queries("test")) == list(source.queries("test"))
    assert list(stored.judgements("test")) == list(source.judgements("test"))
    assert stored.positives("test") == {"q0": {"d0": 1}, "q1": {"d2": 2}}
    assert stored.splits() == ("test",)
    assert not stored.positives("train")
    with refused("'d9'", where=str(stored.corpus.folder)):
        stored.corpus.get_many(["d9"])


def test_passages_of_many_batches_are_found_by_place_and_id(tmp_path):
    rows = [{"_id": f"passage {i}", "text": str(i)} for i in range(9000)]
    write_collection(collection(beir(tmp_path, corpus=rows, test="q0\tpassage 8999\t1\n")), tmp_path / "out")
    corpus = open_collection(tmp_path / "out").corpus
    asked = [8999, 0, 4096, 4095, 8191, 8192, 17]
    assert [p.text for p in corpus.at(asked)] == [str(i) for i in asked]
    assert corpus.positions([f"passage {i}" for i in asked]).tolist() == asked


def test_ids_with_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("drkit.data.corpus.id_hash", lambda _: 7)
    monkeypatch.setattr("drkit.data.writing.id_hash", lambda _: 7)
    write_collection(collection(beir(tmp_path)), tmp_path / "out")
    corpus = open_collection(tmp_path / "out").corpus
    assert corpus.positions(["d4", "d0", "d2"]).tolist() == [4, 0, 2]
    assert corpus.find(["d5"]).tolist() == [-1]


def test_duplicate_ids_are_named_with_both_lines(tmp_path):
    folder = beir(tmp_path, corpus=[{"_id": i, "text": i} for i in ("d0", "d1", "d0", "d2")])
    with refused("duplicate", "'d0'", f"{folder}/corpus.jsonl:1", f"{folder}/corpus.jsonl:3"):
        write_collection(collection(folder), tmp_path / "out")


def test_a_query_id_given_twice_is_named(tmp_path):
    twice = [{"_id": "q0", "text": "a"}, {"_id": "q1", "text": "b"}, {"_id": "q0", "text": "c"}]
    with refused("duplicate", "'q0'", "queries.jsonl:1", "queries.jsonl:3"):
        write_collection(collection(beir(tmp_path, queries=twice)), tmp_path / "out")


def test_a_query_in_two_splits_is_refused(tmp_path):
    folder = beir(tmp_path, train="q0\td0\t1\n", test="q0\td1\t1\n")
    with refused("duplicate", "in train @", "in test @", "queries.jsonl:1"):
        write_collection(collection(folder), tmp_path / "out")


def test_judgements_of_unknown_ids_are_counted_and_the_first_named(tmp_path):
    rows = "q0\td0\t1\nq9\td1\t1\n" + "".join(f"q0\tx{i}\t1\n" for i in range(7))
    with pytest.raises(DrkitError) as error:
        write_collection(collection(beir(tmp_path, test=rows)), tmp_path / "out")
    message = str(error.value)
    assert "unknown query 'q9' @" in message
    assert "qrels/test.tsv:3" in message
    assert "unknown passage 'x0' @" in message
    assert "qrels/test.tsv:4" in message
    assert ".. and 3 more" in message


def test_a_split_without_positives_is_refused(tmp_path):
    with pytest.raises(DrkitError, match=r"beir:.* test .* 0;"):
        write_collection(collection(beir(tmp_path, test="q0\td0\t0\n")), tmp_path / "out")


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(DrkitError, match=r"beir:.* passages"):
        write_collection(collection(beir(tmp_path, corpus=[])), tmp_path / "out")


def test_empty_passages_are_kept_and_counted(tmp_path):
    folder = beir(tmp_path, corpus=[{"_id": "d0", "text": "a"}, {"_id": "d1"}, {"_id": "d2", "text": None}])
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q0\td0\t1\n")
    counts = write_collection(collection(folder), tmp_path / "out")
    assert (counts["passages"], counts["empty_passages"]) == (3, 2)


def test_a_missing_table_says_so(tmp_path):
    with refused("Arrow", where="passages/texts.arrow"):
        open_collection(tmp_path)


def test_the_content_hash_follows_the_content(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = collection(beir(tmp_path / "a"))
    other = collection(beir(tmp_path / "b", queries=[{"_id": f"q{i}", "text": f"other {i}"} for i in range(3)]))
    hashes = [write_collection(c, tmp_path / str(i))["content_sha256"] for i, c in enumerate((one, one, other))]
    assert hashes[0] == hashes[1] != hashes[2]
    assert one.describe() == one.describe() != other.describe()


def test_jsonl_numbers_lines_without_ids(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a"}\n{"_id": "x", "text": "b"}\n{"_id": 7, "text": "c"}\n')
    found = JsonlCollection(JsonlConfig(path=str(path)))
    assert [(p.doc_id, p.text) for p in found.passages()] == [("1", "a"), ("x", "b"), ("7", "c")]
    assert found.splits() == ()
    counts = write_collection(found, tmp_path / "out")
    assert (counts["passages"], counts["queries"], counts["judgements"]) == (3, {}, {})
    assert open_collection(tmp_path / "out").splits() == ()
    with refused("'test'", "only texts"):
        found.queries("test")


def test_jsonl_names_bad_paths_and_lines(tmp_path):
    with pytest.raises(DrkitError, match=r"collection jsonl: .*`jsonl:PATH`"):
        JsonlCollection(JsonlConfig())
    with pytest.raises(DrkitError, match=r"collection jsonl: .*\.jsonl, \.json, \.tsv"):
        JsonlCollection(JsonlConfig(path=str(tmp_path)))
    with pytest.raises(DrkitError, match=r"collection jsonl: .*/none\.jsonl "):
        JsonlCollection(JsonlConfig(path=str(tmp_path / "none.jsonl")))
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a"}\n{"words": "b"}\n')
    with refused("'text'", "columns: words", where="texts.jsonl:2"):
        list(JsonlCollection(JsonlConfig(path=str(path))).passages())
    path.write_text('{"_id": "a", "text": "a"}\n{"_id": "a", "text": "b"}\n')
    with refused("duplicate", "'a'", "texts.jsonl:1", "texts.jsonl:2"):
        write_collection(JsonlCollection(JsonlConfig(path=str(path))), tmp_path / "out")


def test_sample_collections_are_written_whole(shared, tmp_path):
    for name, passages, queries in (("cranfield", 1400, 225), ("tldr", 6657, 28957)):
        counts = write_collection(collection(shared / "collections" / name), tmp_path / name)
        assert (counts["passages"], sum(counts["queries"].values())) == (passages, queries)


def test_a_sample_whose_judgements_name_unknown_passages_is_refused(shared, tmp_path):
    with refused("55", "unknown passage", "'CACM-756'", "qrels/test.tsv:28", "unknown_judgements=drop"):
        write_collection(collection(shared / "collections" / "cacm"), tmp_path / "out")
    config = BeirConfig(path=str(shared / "collections" / "cacm"), unknown_judgements="drop")
    counts = write_collection(BeirCollection(config), tmp_path / "dropped")
    assert counts["dropped_judgements"] == 55
    assert counts["judgements"] == {"test": 796 - 55}
    assert len(list(open_collection(tmp_path / "dropped").judgements("test"))) == 796 - 55


IRDS = """
import sys
from pathlib import Path
from drkit.data import IrdsCollection, IrdsConfig, open_collection, write_collection
from tests.refusals import refused
counts = write_collection(IrdsCollection(IrdsConfig(dataset=sys.argv[1], train_share=0.4)), Path(sys.argv[2]))
print(counts["passages"], sorted(counts["queries"]), sum(counts["queries"].values()))
"""


def test_irds_reads_vaswani_without_a_network(shared, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(shared / "ir_datasets_home", home, copy_function=shutil.copyfile)
    for path in (home, *home.rglob("*")):
        path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", IRDS, "vaswani", str(tmp_path / "out")],
        env={"IR_DATASETS_HOME": str(home), "PATH": "", "IR_DATASETS_TMP": str(tmp_path / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["11429", "['dev',", "'test',", "'train']", "93"], done.stderr
    stored = open_collection(tmp_path / "out")
    assert stored.corpus.get_many(["1"])[0].text.startswith("compact memories have flexible capacities")


def test_irds_suggests_ids():
    with refused("'vaswanni'", "did you mean 'vaswani'"):
        IrdsCollection(IrdsConfig(dataset="vaswanni"))
    with pytest.raises(DrkitError, match=r"collection irds: .*`irds:vaswani`"):
        IrdsCollection(IrdsConfig())
    with pytest.raises(DrkitError, match=r"'beir' .*queries .*judgements"):
        IrdsCollection(IrdsConfig(dataset="vaswani", train_dataset="beir"))
    with pytest.raises(DrkitError, match=r"'beir' .*documents;"):
        IrdsCollection(IrdsConfig(dataset="beir"))


class _Unreachable:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str):
        if name.startswith("has_"):
            return lambda: True

        def fail():
            raise self.error

        return fail


@pytest.mark.parametrize("error", [RuntimeError("sources failed"), OSError("offline"), ValueError("bad hash")])
def test_a_failed_download_says_what_to_do(monkeypatch, error):
    import ir_datasets

    monkeypatch.setattr(ir_datasets, "load", lambda _: _Unreachable(error))
    found = IrdsCollection(IrdsConfig(dataset="far/away"))
    with pytest.raises(DrkitError, match=rf"{error}.*IR_DATASETS_HOME"):
        list(found.passages())
