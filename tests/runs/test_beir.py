"""BEIR's folders one after the other: the numbers, the average, groups, and what is done is not done again."""

import json

import pytest

from drkit.commands import encoder_evaluation as module
from drkit.commands.collections import NamedCollection
from drkit.commands.encoder_evaluation import EncoderEvaluation, data_sets
from drkit.commands.encoder_evaluation import evaluate_encoder as evaluate_function
from drkit.commands.evaluation import System, evaluate_files, find_judgements
from drkit.core.progress import Silent
from drkit.data import DocumentsCollection, DocumentsConfig
from drkit.data.formats import BeirCollection
from drkit.data.specs import BeirConfig
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.search import TextEncoder
from tests.refusals import says, unknown
from tests.runs.test_probes import Topics, tokenizer
from tests.search.made import export_made


def evaluate_beir(encoder, folder, output, **how):
    return EncoderEvaluation(encoder, output, **how).on_beir(folder)


def evaluate_encoder(encoder, collection, output, split=None, **how):
    return EncoderEvaluation(encoder, output, **how).on_collection(collection, split)


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

    sizes = BertSizes(hidden=16, layers=1, heads=2, intermediate=32, max_positions=32, dropout=0.0)
    made = MaskedLmEncoder.from_scratch(sizes, tokenizer(), pooling="mean", seed=1)
    path = tmp_path_factory.mktemp("encoder") / "e"
    settings = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 16}
    export_made(made.model, tokenizer(), path, **settings, provenance={})
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


def test_groups_count_once_and_the_average_is_over_data_sets(folder, encoder, tmp_path):
    assert {name: len(paths) for name, paths in data_sets(folder).items()} == {"group": 2, "one": 1, "two": 1}
    found = evaluate_beir(str(encoder), folder, tmp_path, measures=("nDCG@10", "R@20"))
    single = [evaluate_beir(str(encoder), folder / "group" / name, tmp_path).averages()["nDCG@10"] for name in "ab"]
    group = found.means["group"]["nDCG@10"]
    assert group == pytest.approx(sum(single) / 2)
    values = [found.means[name]["nDCG@10"] for name in ("group", "one", "two")]
    averages = found.averages()
    assert averages["nDCG@10"] == pytest.approx(sum(values) / 3)
    assert found.rows()[-1] == ["average", f"{sum(values) / 3:.3f}", f"{averages['R@20']:.3f}"]
    assert 0 < found.as_json()["average"]["R@20"] < 1


@pytest.mark.parametrize("exclude_self", [True, False])
def test_the_numbers_are_those_of_searching_and_measuring(folder, encoder, tmp_path, exclude_self):
    progress = RecordedProgress()
    found = evaluate_beir(str(encoder), folder / "one", tmp_path, exclude_self=exclude_self, progress=progress)
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
    assert found.means["one"]["nDCG@10"] == pytest.approx(expected, abs=1e-3)
    assert progress.summaries == [("one", "e, test queries")]
    (note,) = progress.notes
    assert says(note, "one: 1 hit", "--exclude-self")
    assert says(note, "ignored") is exclude_self


def test_an_encoder_on_a_collection_has_the_numbers_of_its_folder(folder, encoder, tmp_path):
    measures = ("nDCG@10", "R@100")
    for exclude_self in (True, False):
        given = {"measures": measures, "exclude_self": exclude_self}
        table = evaluate_beir(str(encoder), folder / "one", tmp_path / "a", **given)
        named = NamedCollection(f"beir:{folder / 'one'}")
        scores = evaluate_encoder(str(encoder), named, tmp_path / "b", **given)
        assert scores.means() == table.means["one"]
    again = RecordedProgress()
    evaluate_encoder(str(encoder), NamedCollection(f"beir:{folder / 'one'}"), tmp_path / "b", progress=again)
    assert (again.begun, again.skipped) == ([], ["one"])
    with unknown("split", "dev", "test"):
        evaluate_encoder(str(encoder), NamedCollection(f"beir:{folder / 'one'}"), tmp_path / "b", split="dev")


def test_all_judgements_count_as_for_the_file_that_was_written(encoder, tmp_path):
    """A judged query without a text counts 0, and a judged passage that the collection lacks is not found."""
    data, measures = write_data_set(tmp_path / "whole"), ("R@100", "nDCG@10")
    whole = evaluate_beir(str(encoder), data, tmp_path / "out", measures=measures)
    with (data / "qrels" / "test.tsv").open("a") as file:
        file.write("\ntest0\tunknown\t1\ntest1\tunknown\t1\nlost\td1\t1\n")
    (data / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nnobody\tunknown\tmuch\n")
    progress, named = RecordedProgress(), NamedCollection(f"beir:{data}")
    found = evaluate_encoder(str(encoder), named, tmp_path / "out", measures=measures, progress=progress)
    assert progress.begun == [], "the passages and the queries are the same"
    assert says(progress.notes[0], "whole: 1 judged query", "text", "'lost'", "counted as 0")
    assert says(progress.notes[1], "whole: 2 judgements", "passages", "collection.unknown_judgements=drop")
    (run,) = (tmp_path / "out").glob("*.trec")
    ((_, file),) = evaluate_files([System("run", (run,))], find_judgements([], collection=f"beir:{data}"), measures)
    assert file == found
    assert found.queries == len({j.query_id for j in Topics().judgements("test")}) + 1
    vectors = TextEncoder.load(encoder)
    by_function = evaluate_function(
        vectors.encode_passages, f"beir:{data}", encode_queries=vectors.encode_queries, measures=measures
    )
    assert by_function.means() == pytest.approx(found.means(), abs=1e-3)
    dropped = NamedCollection(f"beir:{data}", ("collection.unknown_judgements=drop",))
    progress = RecordedProgress()
    left = evaluate_encoder(str(encoder), dropped, tmp_path / "out", measures=measures, progress=progress)
    assert left.means() == whole.means["whole"]
    judged = find_judgements([], collection=dropped.name, settings=dropped.settings)
    ((_, file),) = evaluate_files([System("run", (run,))], judged, measures)
    assert file == left
    assert says(progress.notes[0], "whole: 3 judgements", "not counted")


def test_an_encoder_is_named_after_its_folder_or_its_run(encoder, tmp_path):
    (tmp_path / "R" / "encoder").mkdir(parents=True)
    (tmp_path / "R" / "retriever-1").mkdir()
    (tmp_path / "R" / "recipe.toml").touch()
    names = [module.short_name(str(tmp_path / "R" / path)) for path in ("", "encoder", "retriever-1")]
    assert names == ["R", "R", "R:retriever-1"]
    assert module.short_name(f"{encoder}/") == "e"
    assert module.short_name("some/model") == "some/model"


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
    search = module.rank_to_run
    monkeypatch.setattr(module, "rank_to_run", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        evaluate_beir(str(encoder), folder / "one", tmp_path / "cut")
    monkeypatch.setattr(module, "rank_to_run", search)
    assert evaluate_beir(str(encoder), folder / "one", tmp_path / "cut") == whole


def test_what_cannot_be_evaluated_is_told(folder, encoder, tmp_path):
    for given, said in (
        (tmp_path / "none", "not found: .*/none;"),
        (folder / "notes", r"/notes .*corpus\.jsonl, queries\.jsonl .*qrels/test\.tsv"),
    ):
        with pytest.raises(DrkitError, match=said):
            evaluate_beir(str(encoder), given, tmp_path)
    with pytest.raises(DrkitError, match="unknown measure"):
        evaluate_beir(str(encoder), folder, tmp_path, measures=("mrr",))


def test_any_function_of_texts_is_evaluated_as_an_encoder_is(folder, encoder, tmp_path):
    opened = TextEncoder.load(encoder)
    expected = evaluate_encoder(str(encoder), NamedCollection(f"beir:{folder / 'one'}"), tmp_path)
    how = {"encode_queries": opened.encode_queries, "measures": ["nDCG@10"], "batch": 7}
    found = module.evaluate_encoder(opened.encode_passages, f"beir:{folder / 'one'}", **how)
    assert found == expected
    same = module.evaluate_encoder(opened.encode_passages, BeirCollection(BeirConfig(path=str(folder / "one"))), **how)
    assert same == expected
    with unknown("split", "dev", "test"):
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


def test_a_run_that_was_changed_is_ranked_again(encoder, tmp_path):
    data, measures = write_data_set(tmp_path / "whole"), ("R@100", "nDCG@10")
    first = evaluate_beir(str(encoder), data, tmp_path / "out", measures=measures)
    (run,) = (tmp_path / "out").glob("*.trec")
    whole = run.read_bytes()
    run.write_bytes(whole[: len(whole) // 2])
    assert evaluate_beir(str(encoder), data, tmp_path / "out", measures=measures) == first
    assert run.read_bytes() == whole
    progress = RecordedProgress()
    evaluate_beir(str(encoder), data, tmp_path / "out", measures=measures, progress=progress)
    assert progress.begun == []
