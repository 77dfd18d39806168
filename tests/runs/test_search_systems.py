"""Which system a run is searched with: the best by its dev queries, or the one that is named; on the command line and
in Python."""

import json
import shutil
from itertools import islice

import attrs
import numpy as np
import pytest

import drkit
from drkit.commands import best_system, find_system, open_system, search_systems
from drkit.core.files import FileEntry
from drkit.data.corpus import open_collection
from drkit.errors import DrkitError
from drkit.runs.manifest import load_manifest, read_manifest, write_manifest
from drkit.search import Bm25Retriever, HybridRetriever, Retriever, TextEncoder, read_run
from drkit.search.reranking import RerankedRetriever
from tests.refusals import unknown
from tests.runs.conftest import drkit as command

QUERY = "Initialize a filter."


@pytest.fixture
def run(tiny_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(tiny_run[0], folder)
    return folder


def forge(stage, name, value):
    """Write a JSON file of a stage, and its record in the manifest."""
    (stage / name).write_text(json.dumps(value))
    manifest = load_manifest(stage)
    write_manifest(attrs.evolve(manifest, files={**manifest.files, name: FileEntry.of(stage / name)}), stage)


def set_weight(run, weight):
    facts = json.loads((run / "hybrid" / "weight.json").read_text())
    forge(run / "hybrid", "weight.json", {**facts, "weight": weight})
    return facts["retriever"]


def set_recommended(run, name):
    manifest = load_manifest(run / "evaluation")
    write_manifest(
        attrs.evolve(manifest, metrics={**manifest.metrics, "gains": {"recommended": name}}), run / "evaluation"
    )


def test_the_systems_are_those_of_the_table(run):
    systems = search_systems(run)
    rows = [row["system"] for row in read_manifest(run / "evaluation").metrics["rows"]]
    assert list(systems) == rows
    assert systems["hybrid"].description.startswith("hybrid: BM25 + ")
    assert systems["initial"].description == "the encoder as it starts"
    for name, system in systems.items():
        (hits,) = open_system(run, name).search([QUERY], 5)
        assert len(hits.doc_ids) == 5, name
        assert find_system(run, name) == system


def test_every_retriever_searches_as_it_was_evaluated(run):
    queries = list(open_collection(run / "collection").queries("test"))[:5]
    for name in set(search_systems(run)) - {"hybrid"}:
        found = open_system(run, name).search([query.text for query in queries], 20)
        ranked = dict(read_run(run / "runs" / f"{name}.arrow"))
        for query, hits in zip(queries, found, strict=True):
            np.testing.assert_allclose(hits.scores, [s for _, s in ranked[query.query_id]][:20], atol=2e-5)


def test_the_weight_that_dev_queries_chose_decides(run):
    retriever = set_weight(run, 0.4)
    assert best_system(run) == "hybrid"
    set_weight(run, 0.0)
    assert best_system(run) == "bm25"
    assert command("search", run, QUERY).stdout.startswith("BM25\n")
    set_weight(run, 1.0)
    assert best_system(run) == retriever


def test_a_recommended_system_comes_first_and_an_unknown_one_is_not_taken(run):
    set_weight(run, 0.4)
    set_recommended(run, "labels-only")
    assert best_system(run) == "labels-only"
    assert command("search", run, QUERY).stdout.startswith("labels only\n")
    assert command("search", run, QUERY, "--system", "bm25").stdout.startswith("BM25\n")
    set_recommended(run, "no-such-system")
    assert best_system(run) == "hybrid"


def test_values_on_test_queries_do_not_decide(run):
    set_weight(run, 0.4)
    manifest = load_manifest(run / "evaluation")
    rows = [{**row, "values": dict.fromkeys(row["values"], 0.0)} for row in manifest.metrics["rows"]]
    rows[0]["values"] = dict.fromkeys(rows[0]["values"], 1.0)
    write_manifest(attrs.evolve(manifest, metrics={**manifest.metrics, "rows": rows}), run / "evaluation")
    assert best_system(run) == "hybrid"


def test_without_a_hybrid_it_is_the_exported_retriever(run):
    shutil.rmtree(run / "hybrid")
    assert best_system(run) == read_manifest(run / "encoder").metrics["from"]
    assert "hybrid" not in search_systems(run)
    with unknown("system", "hybrid", "bm25"):
        open_system(run, "hybrid")
    shutil.rmtree(run / "index")
    with pytest.raises(DrkitError, match="no finished index"):
        best_system(run)


def test_a_pruned_run_has_the_systems_that_are_left(run):
    before = set(search_systems(run))
    command("prune", run)
    exported = read_manifest(run / "encoder").metrics["from"]
    left = set(search_systems(run))
    assert {"bm25", "hybrid", exported} <= left < before
    (hits,) = open_system(run, exported).search([QUERY], 3)
    assert len(hits.doc_ids) == 3


def test_the_hybrid_and_bm25_need_no_other_way(run):
    set_weight(run, 0.4)
    expected = HybridRetriever.load(run).search([QUERY], 4)
    assert open_system(run).search([QUERY], 4) == expected
    assert open_system(run, "bm25").search([QUERY], 4) == Bm25Retriever.load(run / "bm25").search([QUERY], 4)
    exported = read_manifest(run / "encoder").metrics["from"]
    assert open_system(run, exported).search([QUERY], 4) == Retriever.load(run).search([QUERY], 4)


def test_a_reranker_orders_the_first_hits(run):
    class Shortest:
        def score(self, pairs):
            return np.float32([-len(passage) for _, passage in pairs])

    first, corpus = Bm25Retriever.load(run / "bm25"), open_collection(run / "collection").corpus
    (before,) = first.search([QUERY], 10)
    (after,) = RerankedRetriever(first, Shortest(), corpus, 4).search([QUERY], 10)
    lengths = {one.doc_id: len(one.content) for one in corpus.get_many(before.doc_ids)}
    assert sorted(after.doc_ids[:4]) == sorted(before.doc_ids[:4])
    assert [lengths[name] for name in after.doc_ids[:4]] == sorted(lengths[name] for name in before.doc_ids[:4])
    assert after.doc_ids[4:] == before.doc_ids[4:]
    (few,) = RerankedRetriever(first, Shortest(), corpus, 4).search([QUERY], 1)
    assert few.doc_ids == after.doc_ids[:1]


def test_a_run_from_python(run):
    set_weight(run, 0.4)
    loaded = drkit.load(run)
    assert loaded.best == "hybrid"
    assert loaded.systems == tuple(search_systems(run))
    hits = loaded.search(QUERY, k=3)
    assert [(hit.id, hit.score) for hit in hits] == list(HybridRetriever.load(run).search([QUERY], 3)[0].pairs())
    (passage,) = open_collection(run / "collection").corpus.get_many([hits[0].id])
    assert (hits[0].title, hits[0].text) == (passage.title, passage.text)
    assert (
        loaded.search(QUERY, k=1, system="bm25")[0].id == Bm25Retriever.load(run / "bm25").search([QUERY], 1)[0][0][0]
    )
    encoder = TextEncoder.load(run / "encoder")
    np.testing.assert_array_equal(loaded.encode(["a text"]), encoder.encode_passages(["a text"]))
    np.testing.assert_array_equal(loaded.encode("a text", kind="query"), encoder.encode_queries(["a text"]))
    rows = loaded.table()
    assert [row["system"] for row in rows][:2] == ["BM25", "as it starts"]
    assert rows[0]["RR@10"] == pytest.approx(loaded.record.scores["bm25"].mean("RR@10"))
    assert str(rows).splitlines()[0].split() == ["system", *loaded.record.results.measures]
    assert len(str(rows).splitlines()) == 1 + len(rows)
    with unknown("system", "nope", "hybrid"):
        loaded.search(QUERY, system="nope")
    with unknown("kind of text", "text", "passage"):
        loaded.encode(["a"], kind="text")
    with pytest.raises(DrkitError, match="is not a run"):
        drkit.load(run / "index")


def judged_elsewhere(folder, passages, judged):
    """A collection in BEIR's layout with two queries, of which the first is judged."""
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": doc_id, "text": text}) for doc_id, text in passages.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    queries = [{"_id": "x1", "text": "initialize a filter"}, {"_id": "x2", "text": "close a file"}]
    (folder / "queries.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in queries))
    rows = "".join(f"x1\t{doc_id}\t1\n" for doc_id in judged)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return f"beir:{folder}"


def test_the_index_of_a_run_serves_queries_of_another_collection(run, tmp_path):
    """As TREC DL's tracks ask for the passages of MS MARCO: nothing is encoded but the queries."""
    corpus = open_collection(run / "collection").corpus
    passages = {one.doc_id: one.content for one in islice(corpus, 3)}
    shutil.rmtree(run / "tokens")
    found, given = tmp_path / "x.trec", ("--system", "retriever-1", "-k", 20, "-o", tmp_path / "x.trec")
    same = judged_elsewhere(tmp_path / "same", passages, passages)
    done = command("search", run, "--collection", same, *given)
    assert "lacks" not in done.stderr
    ((query_id, hits),) = read_run(found)  # the other query is not judged
    (expected,) = open_system(run, "retriever-1").search(["initialize a filter"], 20)
    assert (query_id, dict(hits)) == ("x1", pytest.approx(dict(expected.pairs()), abs=1e-5))
    shown = json.loads(command("evaluate", found, "--collection", same, "-m", "R@20", "--json").stdout)
    assert shown["rows"][0]["queries"] == 1
    some = judged_elsewhere(tmp_path / "some", {**passages, "new": "a text"}, [*passages, "new"])
    assert "lacks 1 of the 4 passages" in " ".join(command("search", run, "--collection", some, *given).stderr.split())
    other = judged_elsewhere(tmp_path / "other", {"new": "a text"}, ["new"])
    refused = command("search", run, "--collection", other, *given, check=False)
    assert refused.returncode == 2
    assert f"drkit evaluate --encoder {run} --collection {other}" in " ".join(refused.stderr.split())
