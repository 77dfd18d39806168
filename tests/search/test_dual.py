"""An encoder of queries and one of passages: the folder, and everywhere that one encoder of both is taken."""

import json

import numpy as np
import pytest
from attrs import evolve
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Router

from drkit.errors import DrkitError
from drkit.search import DualEncoder, FlatIndex, Retriever, Storage, TextEncoder, encode_corpus
from drkit.search.dual_encoder import read_encoder
from drkit.search.sentence_encoder import as_encoder
from tests.search.made import export_made, export_two
from tests.search.toys import TEXTS, masked_lm, tokenizer

DECLARED = {"pooling": "mean", "query_length": 8, "passage_length": 40, "query_prompt": "q ", "passage_prompt": "p "}
QUESTIONS = ["who wrote it", "a", "what is that for, and why"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("dual")
    sides = [(masked_lm(seed=seed), tokenizer()) for seed in (1, 2)]
    export_two(*sides, where / "both", similarity="cosine", provenance={"recipe": "r"}, **DECLARED)
    for name, (model, words) in zip(("queries", "passages"), sides, strict=True):
        export_made(model, words, where / name, similarity="cosine", **DECLARED)
    return where


def test_each_side_is_what_its_own_encoder_gives(folder):
    both = DualEncoder.load(folder / "both")
    queries, passages = (TextEncoder.load(folder / name) for name in ("queries", "passages"))
    np.testing.assert_array_equal(both.encode_queries(QUESTIONS), queries.encode_queries(QUESTIONS))
    np.testing.assert_array_equal(both.encode_passages(TEXTS), passages.encode_passages(TEXTS))
    assert np.abs(both.encode_passages(TEXTS) - queries.encode_passages(TEXTS)).max() > 0.05
    for name, alone in (("query_encoder", queries), ("passage_encoder", passages)):
        inside = TextEncoder.load(folder / "both" / name)
        assert inside.identity() == alone.identity()
    assert isinstance(read_encoder(folder / "queries"), TextEncoder)


@pytest.mark.parametrize("again", [False, True], ids=["as drkit wrote it", "saved again"])
def test_sentence_transformers_sends_each_text_its_way(folder, tmp_path, again):
    # one limit for both in sentence-transformers: the texts here are shorter than either
    theirs, where = SentenceTransformer(str(folder / "both"), device="cpu"), folder / "both"
    if again:
        where = tmp_path / "again"
        theirs.save_pretrained(str(where))
    ours, texts = read_encoder(where), [" ".join(text.split()[:3]) for text in QUESTIONS]
    np.testing.assert_allclose(theirs.encode_query(texts), ours.encode_queries(texts), atol=1e-6)
    np.testing.assert_allclose(theirs.encode_document(texts), ours.encode_passages(texts), atol=1e-6)
    wrapped = as_encoder(theirs)
    np.testing.assert_allclose(wrapped.encode_queries(texts), ours.encode_queries(texts), atol=1e-6)
    assert wrapped.identity()["weights"]


def test_an_index_knows_both(folder, tmp_path):
    both = as_encoder(folder / "both")
    rows = [(str(i), text) for i, text in enumerate(TEXTS)]
    made = encode_corpus(both, rows, tmp_path / "vectors", storage=Storage(shard_size=4))
    index = FlatIndex.build(made.shards, made.doc_ids, encoder=made.encoder)
    (found,) = Retriever(both, index).search(["who wrote it"], 3)
    scores = both.encode_passages(TEXTS) @ both.encode_queries(["who wrote it"])[0]
    np.testing.assert_allclose(found.scores, np.sort(scores)[::-1][:3], atol=1e-6)
    other = DualEncoder(evolve(both.passages), both.passages)
    for wrong in (both.passages, both.queries, other):
        with pytest.raises(DrkitError, match="another encoder"):
            Retriever(wrong, index)


def test_tokens_are_those_of_passages(folder):
    both = DualEncoder.load(folder / "both").evolve(token_budget=50)
    rows = tokenizer()(["p " + text for text in TEXTS], truncation=True, max_length=40)["input_ids"]
    np.testing.assert_allclose(both.encode_tokens(rows), both.encode_passages(TEXTS), atol=1e-6)


def test_two_of_different_spaces_are_refused(folder):
    one = TextEncoder.load(folder / "queries")
    for setting in ({"pooling": "cls"}, {"similarity": "dot"}):
        with pytest.raises(DrkitError, match=r"mean .*32 .*cosine .*(cls .*32 .*cosine|mean .*32 .*dot) "):
            DualEncoder(one, one.evolve(**setting))


def test_where_one_is_wanted_two_are_refused(folder):
    with pytest.raises(DrkitError, match=r"both .*query_encoder.*passage_encoder.*DualEncoder"):
        TextEncoder.load(folder / "both")


def test_a_router_of_other_routes_is_refused(folder, tmp_path):
    theirs = SentenceTransformer(str(folder / "both"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "m"))
    path = tmp_path / "m/router_config.json"
    config = json.loads(path.read_text())
    config["structure"]["text"] = config["structure"].pop("document")
    path.write_text(json.dumps(config))
    with pytest.raises(DrkitError, match=r"router_config\.json .*\('document'\).*'query' and 'document'"):
        read_encoder(tmp_path / "m")
    path.write_text("{")
    with pytest.raises(DrkitError, match=r"router_config.json"):
        read_encoder(tmp_path / "m")


def test_what_stands_behind_the_router_is_part_of_both(folder, tmp_path):
    theirs = SentenceTransformer(str(folder / "both"), device="cpu")
    plain = [
        [module for module in route if not isinstance(module, Normalize)] for route in theirs[0].sub_modules.values()
    ]
    router = Router.for_query_document(query_modules=plain[0], document_modules=plain[1])
    both = SentenceTransformer(modules=[router, Normalize()], similarity_fn_name="dot", device="cpu")
    both.save_pretrained(str(tmp_path / "m"))
    ours = read_encoder(tmp_path / "m")
    np.testing.assert_allclose(ours.encode_queries(["who"]), both.encode_query(["who"]), atol=1e-6)
    np.testing.assert_allclose(ours.encode_passages(["who"]), both.encode_document(["who"]), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(ours.encode_queries(["who"])), 1, atol=1e-6)
    dense = SentenceTransformer(modules=[router, Dense(theirs.get_embedding_dimension(), 4)], device="cpu")
    dense.save_pretrained(str(tmp_path / "d"))
    with pytest.raises(DrkitError, match=r"/d/1_Dense: .*Dense.*drkit export --dimension"):
        read_encoder(tmp_path / "d")
