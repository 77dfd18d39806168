"""`drkit fuse` as users call it, on files; and what its output is good for."""

import json

import pytest

from drkit.core.types import Judgement
from drkit.search import align, convex, read_run, reciprocal_ranks, write_qrels, write_run
from tests.refusals import says
from tests.warm import drkit


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two rankings with one query of their own each, judgements, and a BEIR folder with queries and texts."""
    folder = tmp_path_factory.mktemp("files")
    names = [f"q {i}" for i in range(6)]
    write_run(folder / "a.trec", [(q, [("d 0", 9.0), ("d 1", 8.0), ("d 2", 1.0)]) for q in names[:5]], "a")
    write_run(folder / "b.trec", [(q, [("d 3", 0.9), ("d 1", 0.8), ("d 0", 0.1)]) for q in names[1:]], "b")
    write_run(folder / "other.trec", [("x", [("d 0", 1.0)])], "other")
    write_qrels(folder / "qrels.txt", [Judgement(q, "d 1", 1) for q in names])
    (folder / "beir" / "qrels").mkdir(parents=True)
    texts = [json.dumps({"_id": f"d {i}", "title": "", "text": f"about word{i}"}) for i in range(4)]
    (folder / "beir" / "corpus.jsonl").write_text("\n".join(texts), encoding="utf-8")
    queries = [json.dumps({"_id": q, "text": f"what is {q}?"}) for q in names]
    (folder / "beir" / "queries.jsonl").write_text("\n".join(queries), encoding="utf-8")
    lines = ["query-id\tcorpus-id\tscore", *(f"{q}\td 1\t1" for q in names)]
    (folder / "beir" / "qrels" / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def runs(files):
    return read_run(files / "a.trec"), read_run(files / "b.trec")


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ([], lambda a, b: convex(align(a, b))),
        (["--weight", 0.3, "-k", 2], lambda a, b: convex(align(a, b), 0.3, 2)),
        (["--method", "rrf"], reciprocal_ranks),
        (["--method", "rrf", "--rrf-k", 5], lambda a, b: reciprocal_ranks(a, b, 5)),
    ],
)
def test_the_command_writes_what_the_function_returns(files, tmp_path, options, fused):
    code, out, err = drkit("fuse", files / "a.trec", files / "b.trec", *options, "-o", tmp_path / "f.trec")
    assert code == 0, err
    assert "6 queries" in out
    assert says(err, "2 of the queries")
    assert list(read_run(tmp_path / "f.trec")) == list(fused(*runs(files)))


def test_the_tuned_weight_is_printed_and_used(files, tmp_path):
    given = [files / "a.trec", files / "b.trec"]
    code, out, err = drkit(
        "fuse", *given, "--tune", files / "qrels.txt", "--measure", "RR@1", "-o", tmp_path / "t.trec"
    )
    assert code == 0, err
    assert "weight   0.5 for B, tuned on 6 queries: RR@1 A 0.000, B 0.000, fused 0.667" in out
    assert says(err, "tuned", "--weight 0.5")
    assert list(read_run(tmp_path / "t.trec")) == list(convex(align(*runs(files)), 0.5))


def test_a_run_as_a_json_dictionary_is_mined(files, tmp_path):
    run = {query: dict(hits) for query, hits in read_run(files / "a.trec")}
    (tmp_path / "a.json").write_text(json.dumps(run), encoding="utf-8")
    for name in (files / "a.trec", tmp_path / "a.json"):
        given = ["--collection", f"beir:{files / 'beir'}", "--miner", f"run-file:{name}", "--format", "ids"]
        code, _, err = drkit("mine", *given, "-o", tmp_path / f"{name.name}.jsonl")
        assert code == 0, err
    assert (tmp_path / "a.json.jsonl").read_bytes() == (tmp_path / "a.trec.jsonl").read_bytes()


def test_a_fused_run_is_mined_and_evaluated(files, tmp_path):
    drkit("fuse", files / "a.trec", files / "b.trec", "-o", tmp_path / "f.trec")
    mined = tmp_path / "n.jsonl"
    given = ["--collection", f"beir:{files / 'beir'}", "--miner", f"run-file:{tmp_path / 'f.trec'}", "--format", "ids"]
    code, _, err = drkit("mine", *given, "-o", mined)
    assert code == 0, err
    found = {row["query_id"]: row["negatives"] for row in map(json.loads, mined.read_text().splitlines())}
    assert found == {q: [d for d, _ in hits if d != "d 1"] for q, hits in read_run(tmp_path / "f.trec")}
    sources = [files / "a.trec", tmp_path / "f.trec"]
    code, out, err = drkit("compare", *sources, "--qrels", files / "qrels.txt", "-m", "RR@10")
    assert code == 0, err
    assert "| RR@10 | f (0.833) | a (0.417) |" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.trec"], "Missing argument 'B'"),
        (["a.trec", "none.trec"], "none.trec: "),
        (["a.trec", "qrels.txt"], "qrels.txt:1: expected 6 columns"),
        (["a.trec", "other.trec"], "a.trec (5 queries) and other.trec (1) "),
        (["a.trec", "b.trec", "--weight", "1.5"], "--weight': 1.5 "),
        (["a.trec", "b.trec", "--weight", "0.5", "--tune", "qrels.txt"], "give --weight or --tune, not both"),
        (["a.trec", "b.trec", "--method", "rrf", "--weight", "0.5"], "'--weight' has no effect with --method rrf"),
        (["a.trec", "b.trec", "--rrf-k", "6"], "'--rrf-k' has no effect with --method convex"),
        (["a.trec", "b.trec", "--tune", "none.txt"], "none.txt: "),
        (["a.trec", "b.trec", "--tune", "qrels.txt", "--measure", "mrr"], "unknown measure 'mrr'"),
        (["other.trec", "other.trec", "--tune", "qrels.txt"], "judged query"),
    ],
)
def test_mistakes_end_with_two_and_a_word_and_write_nothing(files, tmp_path, arguments, said):
    code, _, err = drkit("fuse", *arguments, "-o", tmp_path / "f.trec", cwd=files)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "f.trec").exists()
