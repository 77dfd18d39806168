"""BEIR's folders one after the other: the numbers, the average, groups, and what is done is not done again."""

import json

import pytest

from drkit.commands import evaluation as module
from drkit.commands.evaluation import data_sets, evaluate_beir
from drkit.core.progress import Silent
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.search import Bm25Retriever, TextEncoder
from tests.runs.test_probes import Topics, tokenizer


def write_data_set(folder, *, split="test", shift=0):
    """The topics in BEIR's layout; `shift` judges other passages; one query is a passage too."""
    (folder / "qrels").mkdir(parents=True)
    made = Topics()
    passages = [{"_id": p.doc_id, "title": "", "text": p.text} for p in made.passages()]
    queries = [{"_id": q.query_id, "text": q.text} for q in made.queries(split)]
    passages.append({"_id": f"{split}0", "title": "", "text": queries[0]["text"]})
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, passages)))
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    lines = [f"{j.query_id}\td{(int(j.doc_id[1:]) + shift) % 60}\t{j.relevance}" for j in made.judgements(split)]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("beir")
    write_data_set(path / "one")
    write_data_set(path / "two", split="dev", shift=1)
    for name, shift in (("a", 2), ("b", 20)):
        write_data_set(path / "group" / name, shift=shift)
    (path / "notes").mkdir()
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with a random encoder."""
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.encoders.export import export_encoder

    sizes = BertSizes(hidden=16, layers=1, heads=2, intermediate=32, max_positions=32, dropout=0.0)
    made = MaskedLmEncoder.from_scratch(sizes, tokenizer(), pooling="mean", seed=1)
    path = tmp_path_factory.mktemp("encoder") / "e"
    settings = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 16}
    export_encoder(made.model, tokenizer(), path, **settings, provenance={})
    return path


class RecordedProgress(Silent):
    def __init__(self):
        self.begun, self.skipped = [], []

    def begin(self, stage, summary, reason=""):
        self.begun.append(stage)

    def skip(self, stage, summary):
        self.skipped.append(stage)


def test_groups_count_once_and_the_average_is_over_data_sets(folder, tmp_path):
    assert {name: len(paths) for name, paths in data_sets(folder).items()} == {"group": 2, "one": 1, "two": 1}
    found = evaluate_beir(None, folder, tmp_path, measures=("nDCG@10", "R@100"), bm25=True)
    single = [
        evaluate_beir(None, folder / "group" / name, tmp_path, bm25=True).average("BM25", "nDCG@10") for name in "ab"
    ]
    group = found.means["group"]["BM25"]["nDCG@10"]
    assert group == pytest.approx(sum(single) / 2)
    values = [found.means[name]["BM25"]["nDCG@10"] for name in ("group", "one", "two")]
    assert found.average("BM25", "nDCG@10") == pytest.approx(sum(values) / 3)
    assert found.rows("nDCG@10")[-1] == ["average", f"{sum(values) / 3:.3f}"]
    assert 0 < found.as_json()["average"]["BM25"]["R@100"] <= 1


def test_the_numbers_are_those_of_searching_and_measuring(folder, encoder, tmp_path):
    found = evaluate_beir(str(encoder), folder / "one", tmp_path, bm25=True)
    made, topics = TextEncoder.load(encoder), Topics()
    queries = list(topics.queries("test"))
    passages = [*((p.doc_id, p.text) for p in topics.passages()), ("test0", queries[0].text)]
    scores = made.encode_queries([q.text for q in queries]) @ made.encode_passages([text for _, text in passages]).T
    run = [
        (q.query_id, [(name, float(s)) for (name, _), s in zip(passages, row, strict=True) if name != q.query_id])
        for q, row in zip(queries, scores, strict=True)
    ]
    expected = evaluate(run, topics.judgements("test"), ["nDCG@10"]).mean("nDCG@10")
    assert found.means["one"][str(encoder)]["nDCG@10"] == pytest.approx(expected, abs=1e-3)
    assert found.systems == ("BM25", str(encoder))


def test_what_is_done_is_not_done_again_but_for_another_encoder_or_collection(folder, encoder, tmp_path):
    progress, again, changed = RecordedProgress(), RecordedProgress(), RecordedProgress()
    first = evaluate_beir(str(encoder), folder, tmp_path / "out", progress=progress)
    assert len(progress.begun) == 4
    assert evaluate_beir(str(encoder), folder, tmp_path / "out", measures=("AP",), progress=again).measures == ("AP",)
    assert (again.begun, len(again.skipped)) == ([], 4)
    assert not list((tmp_path / "out").glob("*.work"))
    text = (folder / "one" / "corpus.jsonl").read_text()
    (folder / "one" / "corpus.jsonl").write_text(text + "\n" + json.dumps({"_id": "new", "title": "", "text": "w0-0"}))
    try:
        second = evaluate_beir(str(encoder), folder, tmp_path / "out", progress=changed)
    finally:
        (folder / "one" / "corpus.jsonl").write_text(text)
    assert [name.rpartition("/")[2] for name in changed.begun] == ["one"]
    assert second.means["group"] == first.means["group"]


def test_a_data_set_that_was_cut_off_is_gone_on_with(folder, encoder, tmp_path, monkeypatch):
    whole = evaluate_beir(str(encoder), folder / "one", tmp_path / "whole")
    search = module.search_to_run
    monkeypatch.setattr(module, "search_to_run", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluate_beir(str(encoder), folder / "one", tmp_path / "cut")
    monkeypatch.setattr(module, "search_to_run", search)
    assert evaluate_beir(str(encoder), folder / "one", tmp_path / "cut") == whole


def test_what_cannot_be_evaluated_is_told(folder, tmp_path):
    for given, said in ((tmp_path / "none", "folder not found"), (folder / "notes", "contains no data set")):
        with pytest.raises(DrkitError, match=said):
            evaluate_beir(None, given, tmp_path, bm25=True)
    with pytest.raises(DrkitError, match="nothing to evaluate"):
        evaluate_beir(None, folder, tmp_path)
    with pytest.raises(DrkitError, match="unknown measure"):
        evaluate_beir(None, folder, tmp_path, bm25=True, measures=("mrr",))
    assert len(Bm25Retriever().index(Topics().passages())) == 60
