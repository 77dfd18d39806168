"""An encoder from scratch reads most texts of its collection whole: lengths that `drkit compose` chooses."""

import json

import pytest

from drkit.core.registry import installed
from drkit.recipe import lengths as lengths_module
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.lengths import Lengths, fit_lengths, follows_texts, suggest_lengths
from drkit.runs.attribution import build_collection
from tests.refusals import says

PARTS = installed()


@pytest.fixture
def texts(tmp_path):
    """A file of 100 passages with 1 to 100 words."""
    path = tmp_path / "texts.jsonl"
    rows = (json.dumps({"id": str(number), "text": "word " * number}) for number in range(1, 101))
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def fitted(request):
    """The recipe of a request, the same with fitted lengths, and notes on these."""
    recipe = compose(request, PARTS)
    return recipe, *fit_lengths(recipe, build_collection(recipe, PARTS.registry), request, PARTS.registry)


def lengths_of(request):
    _, recipe, notes = fitted(request)
    return recipe.encoder.query_length, recipe.encoder.passage_length, notes


def assert_unchanged(request):
    before, after, notes = fitted(request)
    assert (after, notes) == (before, ())


def test_most_passages_are_read_whole(texts):
    query, passage, notes = lengths_of(ComposeRequest(collection=f"jsonl:{texts}"))
    assert passage == 144  # 95 words of 1.5 tokens, two special ones, rounded up to a multiple of 16
    assert query == compose(ComposeRequest(), PARTS).encoder.query_length
    (note,) = notes
    assert says(note, "encoder.passage_length=144", "95 %", "142 tokens")


def test_queries_of_every_split_count(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d", "text": "short"}), encoding="utf-8")
    rows = [json.dumps({"_id": "a", "text": "word " * 4}), json.dumps({"_id": "b", "text": "word " * 40})]
    (tmp_path / "queries.jsonl").write_text("\n".join(rows), encoding="utf-8")
    for split, query in (("train", "a"), ("test", "b")):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{query}\td\t1\n")
    query, passage, _ = lengths_of(ComposeRequest(collection=f"beir:{tmp_path}"))
    assert (query, passage) == (16, 64)  # the quantile of two queries is the shorter one
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nb\td\t1\n")
    assert lengths_of(ComposeRequest(collection=f"beir:{tmp_path}"))[0] == 64


@pytest.mark.parametrize(
    "choices",
    [
        {"scale": "quick"},
        {"scale": "paper"},
        {"settings": ("encoder.passage_length=40", "encoder.query_length=20")},
    ],
)
def test_what_is_chosen_stays(texts, choices):
    request = ComposeRequest(collection=f"jsonl:{texts}", **choices)
    assert_unchanged(request)


def test_a_given_encoder_keeps_its_lengths(texts, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    request = ComposeRequest(collection=f"jsonl:{texts}", encoder=str(folder))
    assert_unchanged(request)


def test_the_default_collection_and_hubs_are_not_read():
    for request in (ComposeRequest(), ComposeRequest(collection="irds:vaswani"), ComposeRequest(collection="pydocs")):
        assert not follows_texts(compose(request, PARTS), request, PARTS.registry)


def test_spans_are_as_long_as_the_recipe_says(texts):
    request = ComposeRequest(collection=f"jsonl:{texts}", paper="cotmae")
    assert_unchanged(request)


@pytest.mark.parametrize(("paper", "limit"), [("words", 512), (None, 256), ("retromae", 256)])
def test_long_texts_are_cut_at_a_limit(tmp_path, paper, limit):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": "1", "text": "word " * 5000}), encoding="utf-8")
    _, passage, notes = lengths_of(ComposeRequest(collection=f"jsonl:{path}", paper=paper))
    assert passage == limit
    assert notes[0].endswith(f"cut at {limit}")


def test_a_bad_file_is_left_to_the_stage_that_reads_it(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("not json", encoding="utf-8")
    request = ComposeRequest(collection=f"jsonl:{path}")
    assert_unchanged(request)


def test_what_a_plugins_reader_raises_is_left_to_the_stage_that_names_it(texts, monkeypatch):
    def broken(collection):
        raise RuntimeError(collection)

    monkeypatch.setattr(lengths_module, "_sample", broken)
    request = ComposeRequest(collection=f"jsonl:{texts}")
    assert_unchanged(request)


def test_only_the_first_texts_are_read(texts, monkeypatch):
    monkeypatch.setattr(lengths_module, "_SAMPLE", 10)
    with texts.open("a", encoding="utf-8") as file:
        file.write("\nnot json")
    _, passage, notes = lengths_of(ComposeRequest(collection=f"jsonl:{texts}"))
    assert passage == 64
    assert "the first 10 passages" in notes[0]


def test_nothing_is_suggested_for_nothing():
    assert suggest_lengths(Lengths(), None) == {}
