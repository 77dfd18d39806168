"""A run whose documents are cut into passages: all it searches are documents, by their best passages."""

from __future__ import annotations

import json

import numpy as np
import pytest

from drkit.commands.inputs import open_encoder
from drkit.data.corpus import open_collection
from drkit.runs.manifest import read_manifest
from drkit.search import read_run
from drkit.search.encode import cut_documents
from tests.refusals import says
from tests.runs.conftest import TINY, drkit, write_lines

DOCUMENTS, MOST, LENGTH = 60, 3, 12
CUT = f"--set=encoder.passages_per_document={MOST}"
TRAINED = "retriever-2"


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Documents that name their topic in the last sentence alone, and queries of three splits."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "qrels").mkdir()
    fill = "common words stand at the beginning of every document here"
    rows = [{"_id": f"d{i}", "text": f"{fill}. It ends with topic{i % 20} and word{i}."} for i in range(DOCUMENTS)]
    splits = {"train": range(12), "dev": range(12, 16), "test": range(16, 20)}
    write_lines(folder / "corpus.jsonl", rows)
    write_lines(folder / "queries.jsonl", [{"_id": f"q{t}", "text": f"topic{t}"} for ts in splits.values() for t in ts])
    for split, topics in splits.items():
        judged = [f"q{t}\td{t + 20 * n}\t1" for t in topics for n in range(3)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(collection, tmp_path_factory):
    """A finished run of two rounds, the second of which mines again: (folder, its options, what it printed)."""
    folder = tmp_path_factory.mktemp("run") / "run"
    options = (
        "--collection",
        f"beir:{collection}",
        *TINY[2:],
        f"--set=encoder.passage_length={LENGTH}",
        "--set=encoder.query_length=8",
        "--set=encoder.init_embeddings=random",
        "--set=evaluation.measures=['RR@10']",
        "--pipeline=ance",
        "--run-dir",
        folder,
    )
    plan = drkit("compose", *options, CUT, "--dry-run", "-v")
    assert says(plan.stdout, f" {MOST} passages", "document", TRAINED)
    return folder, options, drkit("compose", *options, CUT).stdout


def naive(folder, stage, queries):
    """Ids of the documents of each query, by the best of all products with their passages."""
    encoder, corpus = (
        open_encoder(folder / stage).evolve(passages_per_document=MOST),
        open_collection(folder / "collection").corpus,
    )
    passages = list(cut_documents(encoder, ((doc.doc_id, doc.content) for doc in corpus)))
    products = (
        encoder.encode_queries([query.text for query in queries])
        @ encoder.encode_passages([text for _, text in passages]).T
    )
    owners = np.array([name.rpartition("#")[0] for name, _ in passages])
    ids = list(corpus.ids())
    return ids, np.stack([products[:, owners == doc_id].max(1) for doc_id in ids], 1)


def test_every_ranking_of_the_run_is_one_of_documents_by_their_best_passages(run):
    folder, _, printed = run
    queries = list(open_collection(folder / "collection").queries("test"))
    for stage in ("retriever-1", TRAINED):
        ids, expected = naive(folder, stage, queries)
        found = dict(read_run(folder / "runs" / f"{stage}.arrow"))
        for query, scores in zip(queries, expected, strict=True):
            ranked = dict(found[query.query_id])
            assert len(ranked) == DOCUMENTS
            np.testing.assert_allclose([ranked[doc_id] for doc_id in ids], scores, atol=2e-6)
    assert {doc_id for _, hits in read_run(folder / "hybrid" / "hybrid.arrow") for doc_id, _ in hits} <= {*ids}
    assert TRAINED in printed
    assert read_manifest(folder / f"index-{TRAINED}").metrics["vectors"] > DOCUMENTS


def test_the_run_is_searched_by_documents(run, tmp_path):
    folder, _, _ = run
    exported = read_manifest(folder / "encoder").metrics["from"]
    drkit("search", folder, "--system", exported, "--split", "test", "-k", "100", "-o", tmp_path / "found.trec")
    expected = {query: dict(hits) for query, hits in read_run(folder / "runs" / f"{exported}.arrow")}
    for query, hits in read_run(tmp_path / "found.trec"):
        assert {doc_id for doc_id, _ in hits} == {*expected[query]}
        np.testing.assert_allclose([score for _, score in hits], [expected[query][name] for name, _ in hits], atol=2e-6)


def test_the_setting_repeats_no_training_that_does_not_mine_again(run):
    _, options, _ = run
    stages = json.loads(drkit("compose", *options, "--dry-run", "--json").stdout)["stages"]
    states = {stage["stage"]: stage["state"] for stage in stages}
    assert {states[name] for name in ("tokens", "pretrained", "labels-only", "retriever-1")} == {"kept"}
    assert "kept" not in {states[name] for name in ("index-retriever-1", TRAINED, "encoder", "evaluation")}
