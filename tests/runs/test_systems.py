"""Rankings in files: a run's systems again, TREC files against judgements of any kind, and what cannot be measured."""

import gzip
import os
import threading

import pytest

from drkit.commands.evaluation import System, evaluate_files, find_judgements, find_systems
from drkit.commands.inputs import find_index
from drkit.core.types import Judgement
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.evaluate import average, evaluate
from drkit.runs.manifest import LAYOUT, Manifest, describe_files, write_manifest
from drkit.search import read_qrels, read_run, write_qrels, write_run
from tests.refusals import refused, says, unknown
from tests.runs.test_probes import Topics

MEASURES = ["RR@10", "AP"]


def finished(folder, metrics):
    """Write the manifest that makes a folder a finished stage."""
    folder.mkdir(exist_ok=True)
    about = {"settings": {}, "inputs": {}, "sources": {}, "origins": {}, "versions": {}, "finished": "2026-01-01"}
    own = {"files": describe_files(folder), "metrics": metrics, "seconds": 1.0}
    write_manifest(Manifest(LAYOUT, folder.name, 1, "f", **about, **own), folder)


def ranking(shift):
    """Every test query of the topics, with its passages at ranks that `shift` moves."""
    return [(f"test{i}", [(f"d{(i + k + shift) % 60}", 10.0 - k) for k in range(10)]) for i in range(20)]


def make_run(folder, **changes):
    """What a run leaves for evaluating: its collection, rankings of three systems, and the evaluation's metrics."""
    write_collection(Topics(), folder / "collection")
    finished(folder / "collection", {})
    (folder / "runs").mkdir()
    for name, shift in (("bm25", 59), ("first", 58), ("low-1", 59), ("low-2", 57)):
        write_run(folder / "runs" / f"{name}.arrow", ranking(shift), name)
    systems = {"bm25": ["bm25"], "first": ["first"], "low": ["low-1", "low-2"]}
    found = {"measures": MEASURES, "split": "test", "runs": systems, "exclude_self": False, **changes}
    finished(folder / "evaluation", found)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("systems") / "r")


def test_a_runs_own_systems_measured_again(run):
    systems = find_systems([str(run)])
    judged = find_judgements(systems)
    assert judged.texts["test3"] == "w3-0 w3-1"
    found = dict(evaluate_files(systems, judged))
    assert list(found) == ["bm25", "first", "low"]
    qrels = list(Topics().judgements("test"))
    for name in ("bm25", "first"):
        assert found[name] == evaluate(read_run(run / "runs" / f"{name}.arrow"), qrels, MEASURES)
    draws = [evaluate(read_run(run / "runs" / f"low-{i}.arrow"), qrels, MEASURES) for i in (1, 2)]
    assert found["low"] == average(draws)
    ((name, other),) = evaluate_files(find_systems([f"{run}:first"]), judged, ["P@5"])
    assert (name, other.measures) == ("r:first", ("P@5",))


def test_a_trec_file_against_qrels_of_trec_of_beir_and_of_a_collection(run, tmp_path):
    systems = find_systems([str(run / "runs" / "first.arrow")])
    qrels = list(Topics().judgements("test"))
    write_qrels(tmp_path / "qrels.txt", qrels)
    lines = ["query-id\tcorpus-id\tscore", *(f"{j.query_id}\t{j.doc_id}\t{j.relevance}" for j in qrels)]
    (tmp_path / "test.tsv").write_text("\n".join(lines))
    ways = [{"qrels": tmp_path / "qrels.txt"}, {"qrels": tmp_path / "test.tsv"}, {"collection": str(run)}]
    one, two, three = (evaluate_files(systems, find_judgements(systems, **way), MEASURES) for way in ways)
    assert one == two == three
    assert one[0][1] == evaluate(ranking(58), qrels, MEASURES)
    with pytest.raises(DrkitError, match="give --qrels FILE or --collection NAME"):
        find_judgements(systems)
    with unknown("split", "dev2", "dev", "test"):
        find_judgements(systems, collection=str(run), split="dev2")


def test_ids_with_spaces_come_back_from_both_kinds_of_qrels(tmp_path):
    qrels = [Judgement("q 1", "a b", 1), Judgement("q 1", "ü%", -1)]
    write_qrels(tmp_path / "trec", qrels)
    assert list(read_qrels(tmp_path / "trec")) == qrels
    (tmp_path / "beir.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\ta b\t1\nq 1\tü%\t-1\n", encoding="utf-8")
    assert list(read_qrels(tmp_path / "beir.tsv")) == qrels


@pytest.mark.parametrize("text", ["q 0 a%20b%drkit 1\n", "query-id\tcorpus-id\tscore\nq\ta b\t1\n", "q\ta b\t1\n"])
def test_qrels_may_come_through_a_pipe_or_gzipped(tmp_path, text):
    """As `--qrels <(zcat qrels.gz)` gives them."""
    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(text))
    thread.start()
    assert list(read_qrels(tmp_path / "pipe")) == [Judgement("q", "a b", 1)]
    thread.join()
    (tmp_path / "qrels.gz").write_bytes(gzip.compress(text.encode()))
    assert list(read_qrels(tmp_path / "qrels.gz")) == [Judgement("q", "a b", 1)]


def test_a_querys_own_passage_is_left_out_where_the_run_says_so(tmp_path):
    run = make_run(tmp_path / "own", exclude_self=True)
    rows = [("test1", [("test1", 9.0), ("d1", 1.0)])]
    write_run(run / "runs" / "first.arrow", rows, "t")
    systems = find_systems([f"{run}:first"])
    judged = find_judgements(systems)
    assert evaluate_files(systems, judged)[0][1].per_query["RR@10"]["test1"] == 1.0
    alone = [System("file", (run / "runs" / "first.arrow",))]
    assert evaluate_files(alone, judged)[0][1].per_query["RR@10"]["test1"] == 0.5
    assert evaluate_files(alone, judged, exclude_self=True)[0][1].per_query["RR@10"]["test1"] == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "run.trec is empty"),
        ("other Q0 d1 1 1.0 t\n", "1 query of .*judged"),
        ("test1 Q0 d1 1 nan t\n", r"run\.trec:1: score .*number, got 'nan'"),
        ("test1 Q0 d1 1 1.0 t\ntest1 Q0 d1 2 0.5 t\n", r"run\.trec:2: duplicate document 'd1' for query 'test1'"),
        ("test1 Q0 d1 1.0 t\n", r"run\.trec:1: expected 6 columns .*, got 5"),
    ],
)
def test_a_run_that_cannot_be_measured_is_told(run, tmp_path, text, said):
    (tmp_path / "run.trec").write_text(text)
    systems = find_systems([str(tmp_path / "run.trec")])
    with pytest.raises(DrkitError, match=said):
        evaluate_files(systems, find_judgements(systems, collection=str(run)))


def test_judgements_that_cannot_be_used_are_told(run, tmp_path):
    systems = find_systems([str(run / "runs" / "first.arrow")])
    for text, said in (
        ("", "no judgements"),
        ("test1 0 d1 1\ntest1 0 d1 2\n", "judged twice"),
        ("test1 0 d1 x\n", r"qrels:1: .*'x' .*32-bit integer"),
    ):
        (tmp_path / "qrels").write_text(text)
        with pytest.raises(DrkitError, match=said):
            evaluate_files(systems, find_judgements(systems, qrels=tmp_path / "qrels"))
    with refused("No such file", where="/none"):
        find_judgements(systems, qrels=tmp_path / "none")


def test_queries_without_a_ranking_are_told(run, tmp_path):
    (tmp_path / "some.trec").write_text("test1 Q0 d1 1 2.0 x\n")
    (tmp_path / "qrels").write_text("test1 0 d1 1\ntest2 0 d1 1\ntest3 0 d1 0\n")
    systems, notes = find_systems([str(tmp_path / "some.trec")]), []
    judged = find_judgements(systems, qrels=tmp_path / "qrels")
    evaluate_files(systems, judged, ["RR@10"], note=notes.append)
    (note,) = notes
    assert says(note, str(tmp_path / "some.trec"), "1 of the 2 queries", "0")


def test_systems_of_one_name_are_told_apart_by_their_folders(tmp_path):
    made = [tmp_path / one / "bm25.trec" for one in ("a/runs", "b/runs", "c")]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("q Q0 d 1 1.0 x\n")
    found = find_systems([*map(str, made), str(make_run(tmp_path / "d" / "r")), str(make_run(tmp_path / "e" / "r"))])
    apart = ["a/runs/bm25", "b/runs/bm25", f"{tmp_path.name}/c/bm25"]
    assert [system.name for system in found[:3]] == apart
    assert [found[3].name, found[3].run] == ["d/r:bm25", tmp_path / "d" / "r"]
    assert len({system.name for system in found}) == len(found)
    assert [system.name for system in find_systems([str(made[0])])] == ["bm25"]


def test_what_is_no_system_is_told(run, tmp_path):
    cut_off = tmp_path / "cut-off"
    cut_off.mkdir()
    (cut_off / "recipe.toml").write_text("")
    for given, said in (
        (["/no/such"], "not found: /no/such"),
        ([f"{run}:firts"], "'firts'; .*'first'"),
        ([str(tmp_path)], r"missing recipe\.toml"),
        ([str(cut_off)], "/cut-off .*evaluation.*`drkit run "),
        ([f"{run}:first", f"{run}:first"], "'r:first' .*twice"),
    ):
        with pytest.raises(DrkitError, match=said):
            find_systems(given)
    other = make_run(tmp_path / "other", split="dev")
    with pytest.raises(DrkitError, match="different judgements"):
        find_judgements(find_systems([str(run), str(other)]))


def test_a_run_without_queries_has_no_evaluation_to_resume(tmp_path):
    for name in ("with", "without"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "recipe.toml").write_text("")
        finished(folder / "collection", {"queries": {"test": 20} if name == "with" else {}})
    with refused("has no finished evaluation", f"drkit run {tmp_path / 'with'}"):
        find_systems([str(tmp_path / "with")])
    with refused("collection has no queries", f"drkit evaluate --encoder {tmp_path / 'without'}"):
        find_systems([str(tmp_path / "without")])
    with refused("has no finished index", f"drkit run {tmp_path / 'with'}"):
        find_index(tmp_path / "with")
    with refused("collection has no queries", f"drkit encode --encoder {tmp_path / 'without'}"):
        find_index(tmp_path / "without")
