"""`drkit evaluate` and `drkit compare` as users call them, on files."""

import gzip
import json
import os
import subprocess
import sys

import pytest

from drkit.core.types import Judgement
from drkit.search import read_qrels, read_run, write_qrels, write_run
from tests.refusals import says
from tests.runs.test_systems import make_run
from tests.warm import drkit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two TREC runs, judgements, and a BEIR folder with the queries' texts."""
    folder = tmp_path_factory.mktemp("files")
    names = [f"q {i}" for i in range(6)]
    write_run(folder / "one.trec", [(q, [("a b", 2.0), ("ü", 1.0)]) for q in names], "one")
    write_run(folder / "two.trec", [(q, [("ü", 2.0), ("a b", 1.0)]) for q in names[:5]], "two")
    qrels = [Judgement(q, "ü" if i < 4 else "a b", 1) for i, q in enumerate(names)]
    write_qrels(folder / "qrels.txt", qrels)
    (folder / "beir" / "qrels").mkdir(parents=True)
    texts = [json.dumps({"_id": d, "title": "", "text": f"about {d}"}) for d in ("a b", "ü")]
    (folder / "beir" / "corpus.jsonl").write_text("\n".join(texts), encoding="utf-8")
    queries = [json.dumps({"_id": q, "text": f"what is {q}?"}) for q in names]
    (folder / "beir" / "queries.jsonl").write_text("\n".join(queries), encoding="utf-8")
    lines = ["query-id\tcorpus-id\tscore", *(f"{j.query_id}\t{j.doc_id}\t1" for j in qrels)]
    (folder / "beir" / "qrels" / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_a_trec_file_is_measured_and_its_values_are_written(files, tmp_path):
    values = tmp_path / "v.tsv"
    arguments = ["--qrels", files / "qrels.txt", "--measures", "RR@10,P@1", "--per-query", values]
    code, out, err = drkit("evaluate", files / "one.trec", *arguments)
    assert code == 0, err
    assert "6 queries" in out
    assert "0.667" in out
    assert values.read_text(encoding="utf-8").startswith("system\tquery_id\tRR@10\tP@1\none\tq 0\t0.5\t0.0\n")
    _, document, _ = drkit("evaluate", files / "one.trec", *arguments, "--json")
    assert json.loads(document)["rows"][0]["values"]["RR@10"] == pytest.approx(4 / 6)
    _, same, _ = drkit("evaluate", files / "one.trec", "--collection", f"beir:{files / 'beir'}", "-m", "RR@10 P@1")
    assert same == out


def test_a_runs_table_says_which_rows_are_means_of_draws(tmp_path):
    run = make_run(tmp_path / "r")
    code, out, err = drkit("evaluate", run, "-m", "RR@10")
    assert code == 0, err
    assert "low (2)." in " ".join(out.split())


def test_two_files_are_compared(files):
    sources = [files / "one.trec", files / "two.trec"]
    code, out, err = drkit("compare", *sources, "--collection", f"beir:{files / 'beir'}", "-m", "RR@10")
    assert code == 0, err
    assert "| RR@10 | two (0.750) | one (0.667) | +0.083 |" in out
    assert "| 4 | 0 | 2 |" in out
    assert "+0.500 (0.500 -> 1.000) q 0: what is q 0?" in out
    assert "-1.000 (1.000 -> 0.000) q 5: what is q 5?" in out
    given = [*sources, "--qrels", files / "qrels.txt", "-m", "RR@10 AP", "--json"]
    code, out, _ = drkit("compare", *given)
    found = json.loads(out)["comparisons"]
    assert [(one["measure"], one["wins"], one["losses"]) for one in found] == [("RR@10", 4, 2), ("AP", 4, 2)]
    assert found[0]["corrected"] == pytest.approx(min(1.0, 2 * found[0]["test"]["p"]))


def test_json_dictionaries_are_read_where_trec_files_are(files, tmp_path):
    """As ranx and pytrec_eval have them, whatever their names."""
    for name in ("one", "two"):
        run = {query: dict(hits) for query, hits in read_run(files / f"{name}.trec")}
        (tmp_path / f"{name}.json").write_text(json.dumps(run), encoding="utf-8")
    grades: dict[str, dict[str, int]] = {}
    for one in read_qrels(files / "qrels.txt"):
        grades.setdefault(one.query_id, {})[one.doc_id] = one.relevance
    (tmp_path / "qrels").write_text(json.dumps(grades, indent=1), encoding="utf-8")
    of_trec = [files / "one.trec", files / "two.trec", "--qrels", files / "qrels.txt"]
    of_json = [tmp_path / "one.json", tmp_path / "two.json", "--qrels", tmp_path / "qrels"]
    assert drkit("compare", *of_json, "-m", "RR@10")[:2] == drkit("compare", *of_trec, "-m", "RR@10")[:2]
    code, out, err = drkit("evaluate", tmp_path / "one.json", *of_json[2:], "-m", "RR@10")
    assert code == 0, err
    assert out == drkit("evaluate", files / "one.trec", *of_trec[2:], "-m", "RR@10")[1]
    fused = [tmp_path / "f.trec", tmp_path / "g.trec"]
    for given, output in ((of_json, fused[0]), (of_trec, fused[1])):
        code, out, err = drkit("fuse", *given[:2], "--tune", given[3], "-o", output)
        assert code == 0, err
    assert list(read_run(fused[0])) == list(read_run(fused[1]))


def test_the_same_gain_of_every_query_is_not_tested(tmp_path):
    documents = [f"d{i}" for i in range(10)]
    for name, gain in (("a", 0), ("b", 1)):
        relevant = [[f"r{i}" for i in range(3 + query % 3 + gain)] for query in range(4)]
        hits = [[*found, *documents[len(found) :]] for found in relevant]
        write_run(
            tmp_path / f"{name}.trec",
            [(f"q{q}", [(d, -float(i)) for i, d in enumerate(h)]) for q, h in enumerate(hits)],
            "t",
        )
    write_qrels(tmp_path / "qrels", [Judgement(f"q{q}", f"r{i}", 1) for q in range(4) for i in range(9)])
    code, out, err = drkit(
        "compare", tmp_path / "a.trec", tmp_path / "b.trec", "--qrels", tmp_path / "qrels", "-m", "P@10"
    )
    assert (code, err) == (0, "")
    assert "| +0.100 |  | not tested | not tested | 4 | 0 | 0 |" in out
    assert says(out, "Not tested:", "same difference for every query")


def test_counts_are_sums(files):
    given = [files / "two.trec", "--qrels", files / "qrels.txt", "-m", "NumQ NumRel NumRet P@1", "--json"]
    code, out, err = drkit("evaluate", *given)
    assert code == 0, err
    assert json.loads(out)["rows"][0]["values"] == pytest.approx({"NumQ": 6, "NumRel": 6, "NumRet": 10, "P@1": 4 / 6})


def test_hits_with_the_id_of_their_query_are_counted(files, tmp_path):
    write_run(tmp_path / "own.trec", [("q 0", [("q 0", 3.0), ("ü", 2.0)]), ("q 1", [("ü", 2.0)])], "own")
    given = (tmp_path / "own.trec", "--qrels", files / "qrels.txt", "-m", "RR@10", "--json")
    code, out, err = drkit("evaluate", *given)
    assert code == 0, err
    assert says(err, "1 hit", "query", "--exclude-self")
    counted = json.loads(out)["rows"][0]["values"]["RR@10"]
    code, out, err = drkit("evaluate", *given, "--exclude-self")
    assert says(err, "1 hit", "ignored")
    assert json.loads(out)["rows"][0]["values"]["RR@10"] > counted


def test_a_judged_answer_with_the_id_of_its_query_is_no_copy_of_it(tmp_path):
    """As in `pydocs`: to ignore such hits would lose every answer, so nobody is told to."""
    write_run(tmp_path / "own.trec", [("q", [("q", 3.0), ("d", 2.0)])], "own")
    (tmp_path / "qrels.txt").write_text("q 0 q 1\n")
    given = (tmp_path / "own.trec", "--qrels", tmp_path / "qrels.txt", "-m", "RR@10")
    code, _, err = drkit("evaluate", *given)
    assert (code, "--exclude-self" in err) == (0, False)
    code, _, err = drkit("evaluate", *given, "--exclude-self")
    assert says(err, "1 ", "judged relevant", "--exclude-self")


def test_numbers_of_queries_and_passages_are_no_copies(tmp_path):
    """Query 17 and passage 17 are counted apart: nobody is told to ignore the passage."""
    write_run(tmp_path / "own.trec", [("17", [("17", 3.0), ("4", 2.0)])], "own")
    (tmp_path / "qrels.txt").write_text("17 0 4 1\n")
    code, _, err = drkit("evaluate", tmp_path / "own.trec", "--qrels", tmp_path / "qrels.txt", "-m", "RR@10")
    assert (code, "--exclude-self" in err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate"], "run's folder"),
        (["evaluate", "--encoder", "e"], "--encoder goes with --collection NAME or --beir FOLDER"),
        (["evaluate", "one.trec", "--encoder", "e", "--collection", "beir:beir"], "RUN_OR_TREC_FILE"),
        (["evaluate", "--beir", ".", "--encoder", "e", "--split", "dev"], "'--split' has no effect with --beir"),
        (["evaluate", "--encoder", "e", "--collection", "beir:beir", "--split", "dev"], "split named 'dev'"),
        (["evaluate", "/no/such.trec"], "not found: /no/such.trec"),
        (["evaluate", "one.trec"], "--qrels FILE or --collection"),
        (["evaluate", "one.trec", "--qrels", "qrels.txt", "-m", "mrr"], "unknown measure 'mrr'"),
        (["evaluate", "one.trec", "--qrels", "qrels.txt", "--per-query", "v.csv"], " v.tsv"),
        (["evaluate", "one.trec", "--beir", "."], "--encoder"),
        (["evaluate", "--beir", "."], "--encoder"),
        (["compare", "one.trec", "--qrels", "qrels.txt"], "compare 1 "),
        (["compare", "one.trec", "one.trec", "--qrels", "qrels.txt"], "'one'"),
    ],
)
def test_mistakes_end_with_two_and_a_word(files, arguments, said):
    code, _, err = drkit(*arguments, cwd=files)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


PERCENT = ("<dbpedia:%22X%22>", "a%20b", "100%25", "caf%C3%A9", "plain")


@pytest.fixture
def foreign(tmp_path):
    """A BEIR folder whose ids have percent escapes, and the perfect run and judgements of another tool."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": d, "text": "t"} for d in PERCENT]
    rows = {"corpus": passages, "queries": [{"_id": f"q{d}", "text": d} for d in PERCENT]}
    for name, items in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))
    judged = "".join(f"q{d}\t{d}\t1\n" for d in PERCENT)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    (folder / "qrels.txt").write_text("".join(f"q{d} 0 {d} 1\n" for d in PERCENT))
    lines = [f"q{d} Q0 {e} {n} {9 - n} tool\n" for d in PERCENT for n, e in enumerate((d, "other"), start=1)]
    (folder / "run.trec").write_text("".join(lines))
    return folder


def last_value(out):
    return out.split()[-1]


@pytest.mark.parametrize("judgements", ["--collection", "--qrels"])
def test_ids_with_percent_signs_are_compared_as_they_stand(foreign, judgements):
    value = f"beir:{foreign}" if judgements == "--collection" else foreign / "qrels.txt"
    code, out, err = drkit("evaluate", foreign / "run.trec", judgements, value, "-m", "P@1")
    assert (code, last_value(out)) == (0, "1.000"), err + out
    fused = foreign / "fused.trec"
    assert drkit("fuse", foreign / "run.trec", foreign / "run.trec", "-o", fused)[0] == 0
    code, out, err = drkit("evaluate", fused, judgements, value, "-m", "P@1")
    assert (code, last_value(out)) == (0, "1.000"), err + out


def test_runs_and_judgements_come_compressed_and_through_pipes(foreign):
    run, qrels = foreign / "run.trec", foreign / "qrels.txt"
    for path in (run, qrels):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    code, out, err = drkit("evaluate", f"{run}.gz", "--qrels", f"{qrels}.gz", "-m", "P@1")
    assert (code, last_value(out)) == (0, "1.000"), err
    for command in (
        "zcat run.trec.gz | drkit evaluate - --qrels <(zcat qrels.txt.gz) -m P@1",
        "cat qrels.txt | drkit evaluate run.trec --qrels - -m P@1",
        "drkit evaluate /dev/stdin --qrels qrels.txt -m P@1 < run.trec",
    ):
        done = shell(command, foreign)
        assert (done.returncode, last_value(done.stdout)) == (0, "1.000"), done.stderr
    assert shell("cat run.trec | drkit fuse - run.trec -o fused.trec", foreign).returncode == 0
    code, out, err = drkit("evaluate", foreign / "fused.trec", "--qrels", qrels, "-m", "P@1")
    assert (code, last_value(out)) == (0, "1.000"), err
    done = shell("cat run.trec | drkit fuse - run.trec --tune qrels.txt --measure P@1 -o x.trec", foreign)
    assert done.returncode == 0, done.stderr
    code, out, err = drkit("evaluate", foreign / "x.trec", "--qrels", qrels, "-m", "P@1")
    assert (code, last_value(out)) == (0, "1.000"), err


def shell(command, folder):
    drkit_here = f'drkit() {{ "{sys.executable}" -m drkit_cli.main "$@"; }}; '
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = ["bash", "-c", drkit_here + command]
    return subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_duplicate_id_is_refused_with_both_lines_before_any_work(foreign):
    for name, first in (("corpus", f"{PERCENT[0]!r} @ "), ("queries", f"'q{PERCENT[0]}', in test @ ")):
        path = foreign / f"{name}.jsonl"
        whole = path.read_text()
        path.write_text(whole + whole.splitlines()[0] + "\n")
        code, _, err = drkit(
            "mine", "--miner", "bm25", "--collection", f"beir:{foreign}", "-o", foreign / "mined.jsonl"
        )
        assert code == 2
        assert f"{first}{path}:1 and " in err
        assert f"{path}:6" in err
        path.write_text(whole)
    assert not (foreign / "mined.jsonl").exists()


@pytest.mark.parametrize("grade", [0, -1])
@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_judgements_without_a_relevant_passage_are_refused(files, tmp_path, command, grade):
    rankings = [files / "one.trec", files / "two.trec"][: 2 if command == "compare" else 1]
    write_qrels(tmp_path / "qrels.txt", [Judgement(f"q {i}", "ü", grade) for i in range(6)])
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (beir / name).write_bytes((files / "beir" / name).read_bytes())
    lines = ["query-id\tcorpus-id\tscore", *(f"q {i}\tü\t{grade}" for i in range(6))]
    (beir / "qrels" / "test.tsv").write_text("\n".join(lines), encoding="utf-8")
    for given in (("--qrels", tmp_path / "qrels.txt"), ("--collection", f"beir:{beir}")):
        code, out, err = drkit(command, *rankings, *given)
        assert (code, out) == (2, "")
        assert says(err, given[1].name if given[0] == "--qrels" else "beir (test)", "relevance above 0")
