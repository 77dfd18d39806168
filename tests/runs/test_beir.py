"""BEIR's folders one after the other: the numbers, the average, groups, and what is done is not done again."""

import json
import shutil

import pytest

from drkit.commands import encoder_evaluation as module
from drkit.commands.collections import NamedCollection
from drkit.commands.encoder_evaluation import EncoderEvaluation, data_sets
from drkit.core.progress import Silent
from drkit.core.types import Judgement, Passage
from drkit.data import DocumentsCollection, DocumentsConfig
from drkit.data.formats import BeirCollection
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.evaluate.tuning import tune_weight
from drkit.search import Bm25Retriever, TextEncoder, align, convex, read_run
from tests.refusals import says, unknown
from tests.runs.test_probes import Topics, tokenizer

LUCENE = ((1.2, 0.75),)


def evaluate_beir(encoder, folder, output, **how):
    return EncoderEvaluation(encoder, output, **how).on_beir(folder)


def evaluate_encoder(encoder, collection, output, split=None, **how):
    return [*EncoderEvaluation(encoder, output, **how).on_collection(collection, split).items()]


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
        self.begun, self.skipped, self.summaries, self.notes = [], [], [], []

    def begin(self, stage, summary, reason=""):
        self.begun.append(stage)
        self.summaries.append((stage, summary))

    def note(self, text):
        self.notes.append(text)

    def skip(self, stage, summary):
        self.skipped.append(stage)


def test_groups_count_once_and_the_average_is_over_data_sets(folder, tmp_path):
    assert {name: len(paths) for name, paths in data_sets(folder).items()} == {"group": 2, "one": 1, "two": 1}
    found = evaluate_beir(None, folder, tmp_path, measures=("nDCG@10", "R@100"), bm25=LUCENE)
    single = [
        evaluate_beir(None, folder / "group" / name, tmp_path, bm25=LUCENE).average("BM25", "nDCG@10") for name in "ab"
    ]
    group = found.means["group"]["BM25"]["nDCG@10"]
    assert group == pytest.approx(sum(single) / 2)
    values = [found.means[name]["BM25"]["nDCG@10"] for name in ("group", "one", "two")]
    assert found.average("BM25", "nDCG@10") == pytest.approx(sum(values) / 3)
    assert found.rows("nDCG@10")[-1] == ["average", f"{sum(values) / 3:.3f}"]
    assert 0 < found.as_json()["average"]["BM25"]["R@100"] <= 1


@pytest.mark.parametrize("exclude_self", [True, False])
def test_the_numbers_are_those_of_searching_and_measuring(folder, encoder, tmp_path, exclude_self):
    progress = RecordedProgress()
    found = evaluate_beir(
        str(encoder), folder / "one", tmp_path, bm25=LUCENE, exclude_self=exclude_self, progress=progress
    )
    made, topics = TextEncoder.load(encoder), Topics()
    queries = list(topics.queries("test"))
    passages = [*((p.doc_id, p.text) for p in topics.passages()), ("test0", queries[0].text)]
    scores = made.encode_queries([q.text for q in queries]) @ made.encode_passages([text for _, text in passages]).T
    run = [
        (
            q.query_id,
            [
                (name, float(s))
                for (name, _), s in zip(passages, row, strict=True)
                if not exclude_self or name != q.query_id
            ],
        )
        for q, row in zip(queries, scores, strict=True)
    ]
    expected = evaluate(run, topics.judgements("test"), ["nDCG@10"]).mean("nDCG@10")
    assert found.means["one"]["e"]["nDCG@10"] == pytest.approx(expected, abs=1e-3)
    assert found.systems == ("BM25", "e", "hybrid")
    bm25 = Bm25Retriever().index([Passage(*passage) for passage in passages])
    lexical = [
        (q.query_id, list((hits.without([q.query_id]) if exclude_self else hits).pairs()))
        for q, hits in zip(queries, bm25.search([q.text for q in queries], 1001), strict=True)
    ]
    fused = evaluate(convex(align(lexical, run)), topics.judgements("test"), ["nDCG@10"]).mean("nDCG@10")
    assert found.means["one"]["hybrid"]["nDCG@10"] == pytest.approx(fused, abs=1e-3)
    assert [summary for _, summary in progress.summaries] == ["BM25, test queries", "e, test queries"]
    said = "and are ignored (--exclude-self)" if exclude_self else "ignore them with --exclude-self"
    *own, weight = progress.notes
    for note, system in zip(own, ("BM25", "e"), strict=True):
        assert note.startswith(f"one, {system}: 1 hits have the id of their query")
        assert said in note
    assert says(weight, "one: ", "hybrid", "0.5 for e", "default", "dev queries")


def test_the_encoder_of_a_run_is_fused_with_the_weight_of_its_run(folder, encoder, tmp_path):
    run = tmp_path / "R"
    shutil.copytree(encoder, run / "encoder")
    (run / "hybrid").mkdir()
    (run / "recipe.toml").touch()  # what makes the folder a run
    (run / "hybrid" / "weight.json").write_text('{"weight": 0.9, "depth": 1000}')
    named = NamedCollection(f"beir:{folder / 'one'}")
    found = {}
    for given, reason in ((run / "encoder", "0.9 for R"), (encoder, "0.5 for e")):
        progress, output = RecordedProgress(), tmp_path / given.name
        scores = dict(evaluate_encoder(str(given), named, output, bm25=LUCENE, progress=progress))
        assert says(progress.notes[-1], "one: ", "hybrid", reason)
        found[given] = scores["hybrid"].mean("nDCG@10")
    words, vectors = (read_run(one) for one in sorted((tmp_path / "e").glob("*.trec"), key=is_dense))
    fused = evaluate(convex(align(words, vectors), 0.9, 1000), [*Topics().judgements("test")], ["nDCG@10"])
    assert found[run / "encoder"] == pytest.approx(fused.mean("nDCG@10")) != found[encoder]
    for damaged in ("{}", "[]", '{"weight": "much", "depth": 1}', "{"):
        (run / "hybrid" / "weight.json").write_text(damaged)
        with pytest.raises(DrkitError, match=r"/R .*/hybrid/weight\.json.*evaluation\.bm25 .*evaluation\.hybrid"):
            evaluate_encoder(str(run / "encoder"), named, tmp_path / "out", bm25=LUCENE)


def is_dense(run):
    """Whether a run's scores are cosines; BM25's are larger."""
    return max(score for _, hits in read_run(run) for _, score in hits) <= 1.01


def test_an_encoder_on_a_collection_has_the_numbers_of_its_folder(folder, encoder, tmp_path):
    measures = ("nDCG@10", "R@100")
    for exclude_self in (True, False):
        given = {"measures": measures, "bm25": LUCENE, "exclude_self": exclude_self}
        table = evaluate_beir(str(encoder), folder / "one", tmp_path / "a", **given)
        named = NamedCollection(f"beir:{folder / 'one'}")
        scores = evaluate_encoder(str(encoder), named, tmp_path / "b", **given)
        assert [(name, {m: one.mean(m) for m in measures}) for name, one in scores] == [*table.means["one"].items()]
    again = RecordedProgress()
    evaluate_encoder(str(encoder), NamedCollection(f"beir:{folder / 'one'}"), tmp_path / "b", progress=again)
    assert (again.begun, again.skipped) == ([], ["one"])
    with unknown("split", "dev", "test"):
        evaluate_encoder(str(encoder), NamedCollection(f"beir:{folder / 'one'}"), tmp_path / "b", split="dev")


def with_dev(data, judged):
    """Add the dev queries of the topics, and these judgements, to a data set."""
    queries = [json.dumps({"_id": query.query_id, "text": query.text}) for query in Topics().queries("dev")]
    (data / "queries.jsonl").write_text("\n".join([(data / "queries.jsonl").read_text(), *queries]))
    rows = [f"{j.query_id}\t{j.doc_id}\t1" for j in judged]
    (data / "qrels" / "dev.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))


def test_the_best_k1_and_b_on_dev_queries_rank_the_others(tmp_path):
    data, topics = write_data_set(tmp_path / "both"), Topics()
    passages, tried = [*BeirCollection(BeirConfig(path=str(data))).passages()], [(1.2, 0.75), (0.9, 0.0), (3.0, 1.0)]
    retrievers = [Bm25Retriever(k1=k1, b=b).index(passages) for k1, b in tried]

    def ranked(retriever, split):
        queries = list(topics.queries(split))
        hits = retriever.search([query.text for query in queries], 1001)
        return [(query.query_id, list(found.pairs())) for query, found in zip(queries, hits, strict=True)]

    # dev queries whose answers the last pair finds first
    first = [max(hits, key=lambda hit: (hit[1], hit[0])) for _, hits in ranked(retrievers[2], "dev")]
    judged = [Judgement(query.query_id, hit[0], 1) for query, hit in zip(topics.queries("dev"), first, strict=True)]
    means = [evaluate(ranked(one, "dev"), judged, ["RR@10"]).mean("RR@10") for one in retrievers]
    assert means[2] == 1.0 > max(means[:2]), "otherwise this test is too weak"
    said = RecordedProgress()
    without = evaluate_beir(None, data, tmp_path / "none", measures=("RR@10",), bm25=tried, progress=said)
    assert any(says(note, "both: BM25: k1 1.2, b 0.75", "dev queries") for note in said.notes)
    assert without.means == evaluate_beir(None, data, tmp_path / "one", measures=("RR@10",), bm25=LUCENE).means
    with_dev(data, judged)
    wanted = evaluate(ranked(retrievers[2], "test"), list(topics.judgements("test")), ["RR@10"]).mean("RR@10")
    for _ in range(2):  # the second time from the rankings that are kept
        progress = RecordedProgress()
        found = evaluate_beir(None, data, tmp_path / "out", measures=("RR@10",), bm25=tried, progress=progress)
        assert found.means["both"]["BM25"]["RR@10"] == pytest.approx(wanted, abs=1e-6)
        best, given = f"{len(judged)} dev queries (RR@10 1.000;", f"{means[0]:.3f} with k1 1.2, b 0.75)"
        assert says(progress.notes[0], "both: BM25: k1 3, b 1", best, given)
    assert progress.begun == []
    (kept,) = (tmp_path / "out").glob("*.json")
    for broken in ("[]", "{}", '{"means": {}, "k1": "a"}', "nothing"):
        kept.write_text(broken)
        with pytest.raises(DrkitError, match=r"/both-.*\.json .*\.trec "):
            evaluate_beir(None, data, tmp_path / "out", measures=("RR@10",), bm25=tried)
    # Dev queries that are evaluated choose nothing.
    named, seen = NamedCollection(f"beir:{data}"), RecordedProgress()
    options = {"split": "dev", "measures": ("RR@10",), "progress": seen}
    ((_, scores),) = evaluate_encoder(None, named, tmp_path / "out", bm25=tried, **options)
    assert scores.mean("RR@10") == pytest.approx(means[0], abs=1e-6)
    (note,) = [note for note in seen.notes if "BM25" in note]
    assert says(note, "both: BM25: k1 1.2, b 0.75", "dev queries")


def test_the_fusion_is_tuned_on_dev_queries_where_there_are_some(encoder, tmp_path, monkeypatch):
    data, topics, made = write_data_set(tmp_path / "both"), Topics(), TextEncoder.load(encoder)
    passages = [*BeirCollection(BeirConfig(path=str(data))).passages()]
    vectors, bm25 = made.encode_passages([p.content for p in passages]), Bm25Retriever().index(passages)

    def rankings(split):
        queries = list(topics.queries(split))
        texts = [query.text for query in queries]
        dense = [
            (query.query_id, [(p.doc_id, float(s)) for p, s in zip(passages, row, strict=True)])
            for query, row in zip(queries, made.encode_queries(texts) @ vectors.T, strict=True)
        ]
        lexical = [
            (query.query_id, list(hits.pairs())) for query, hits in zip(queries, bm25.search(texts, 1001), strict=True)
        ]
        return lexical, dense

    # dev queries whose answers the encoder finds first, so that a high weight is best
    judged = [Judgement(q, max(hits, key=lambda hit: hit[1])[0], 1) for q, hits in rankings("dev")[1]]
    with_dev(data, judged)
    tuned = tune_weight(*rankings("dev"), judged, "RR@10")
    assert tuned.weight > 0.5
    encoded, encode = [], module.encode_corpus
    monkeypatch.setattr(module, "encode_corpus", lambda *given, **named: encoded.append(1) or encode(*given, **named))
    given, progress = {"measures": ("RR@10", "nDCG@10"), "bm25": LUCENE}, RecordedProgress()
    found = evaluate_beir(str(encoder), data, tmp_path / "out", progress=progress, **given)
    assert encoded == [1], "passages are encoded once for both splits"
    assert progress.summaries == [("both", "BM25, test and dev queries"), ("both", "e, test and dev queries")]
    said = f"both: hybrid has weight {tuned.weight:g} for e, tuned on {len(judged)} dev queries by RR@10"
    assert said in progress.notes
    fused = evaluate(convex(align(*rankings("test")), tuned.weight), topics.judgements("test"), ["RR@10"])
    assert found.means["both"]["hybrid"]["RR@10"] == pytest.approx(fused.mean("RR@10"), abs=1e-3)
    named, own = NamedCollection(f"beir:{data}"), RecordedProgress()
    scores = dict(evaluate_encoder(str(encoder), named, tmp_path / "named", **given))
    assert scores["hybrid"].mean("RR@10") == found.means["both"]["hybrid"]["RR@10"]
    evaluate_encoder(str(encoder), named, tmp_path / "named", split="dev", progress=own, **given)
    assert any("weight 0.5 for e, the default" in note for note in own.notes), "never on the evaluated queries"


def test_judgements_of_unknown_passages_are_not_counted_and_other_splits_are_not_read(tmp_path):
    data = write_data_set(tmp_path / "whole")
    whole = evaluate_beir(None, data, tmp_path / "out", bm25=LUCENE)
    with (data / "qrels" / "test.tsv").open("a") as file:
        file.write("\ntest0\tunknown\t1\ntest1\tunknown\t1\n")
    (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nnobody\tunknown\tmuch\n")
    progress = RecordedProgress()
    assert evaluate_beir(None, data, tmp_path / "out", bm25=LUCENE, progress=progress).means == whole.means
    assert progress.begun == [], "the passages and the queries are the same"
    assert says(progress.notes[0], "whole: 2 judgements", "passages", "collection.unknown_judgements=drop")


def test_an_encoder_is_named_after_its_folder_or_its_run(encoder, tmp_path):
    (tmp_path / "R" / "encoder").mkdir(parents=True)
    (tmp_path / "R" / "retriever-1").mkdir()
    (tmp_path / "R" / "recipe.toml").touch()
    names = [module._short_name(str(tmp_path / "R" / path)) for path in ("", "encoder", "retriever-1")]
    assert names == ["R", "R", "R:retriever-1"]
    assert module._short_name(f"{encoder}/") == "e"
    assert module._short_name("some/model") == "some/model"


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
    for given, said in (
        (tmp_path / "none", "not found: .*/none;"),
        (folder / "notes", r"/notes .*corpus\.jsonl, queries\.jsonl .*qrels/test\.tsv"),
    ):
        with pytest.raises(DrkitError, match=said):
            evaluate_beir(None, given, tmp_path, bm25=LUCENE)
    with pytest.raises(DrkitError, match=r"encoder, bm25"):
        evaluate_beir(None, folder, tmp_path)
    with pytest.raises(DrkitError, match="unknown measure"):
        evaluate_beir(None, folder, tmp_path, bm25=LUCENE, measures=("mrr",))
    assert len(Bm25Retriever().index(Topics().passages())) == 60


def test_any_function_of_texts_is_evaluated_as_an_encoder_is(folder, encoder, tmp_path):
    opened = TextEncoder.load(encoder)
    ((name, expected),) = evaluate_encoder(str(encoder), NamedCollection(f"beir:{folder / 'one'}"), tmp_path)
    how = {"encode_queries": opened.encode_queries, "measures": ["nDCG@10"], "batch": 7}
    found = module.evaluate_encoder(opened.encode_passages, f"beir:{folder / 'one'}", **how)
    assert found == expected, name
    same = module.evaluate_encoder(opened.encode_passages, BeirCollection(BeirConfig(path=str(folder / "one"))), **how)
    assert same == expected
    with pytest.raises(DrkitError, match=r"'dev'"):
        module.evaluate_encoder(opened.encode_passages, f"beir:{folder / 'one'}", split="dev")
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.md").write_text("")
    empty = DocumentsCollection(DocumentsConfig(path=str(tmp_path / "documents")))
    with pytest.raises(DrkitError, match=r"documents:documents .*'test' queries"):
        module.evaluate_encoder(opened.encode_passages, empty)
    one_less = {"encode_queries": lambda texts: opened.encode_queries(texts)[1:]}
    with pytest.raises(DrkitError, match=r"19 vectors .*20 queries"):
        module.evaluate_encoder(opened.encode_passages, f"beir:{folder / 'one'}", **one_less)
    with pytest.raises(DrkitError, match="not finite"):
        module.evaluate_encoder(lambda texts: [[float("nan")]] * len(texts), f"beir:{folder / 'one'}")
