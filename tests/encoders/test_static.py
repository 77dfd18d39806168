"""The encoder without layers: one vector per token, composed with every part, and StaticEmbedding once exported."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.pooling import between_ends
from drkit.encoders.static import fast_ids
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.runs.trial import try_parts
from drkit.search import DualEncoder, TextEncoder
from tests.refusals import says
from tests.runs.test_matrix import DEEDS, NAMES, some_pairs
from tests.search.made import export_made, export_two, reader_of
from tests.search.toys import TEXTS, VOCABULARY, tokenizer

PARTS = installed()
LENGTHS = {"query_length": 24, "passage_length": 24}
SIZES = BertSizes(hidden=16, layers=0, heads=2, intermediate=24, max_positions=64, dropout=0.0)
TOKENIZER = tokenizer()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def static_lm(pooling="mean", seed=1):
    encoder = MaskedLmEncoder.from_scratch(SIZES, TOKENIZER, pooling=pooling, seed=seed).eval()
    if pooling == "weighted":
        draw = torch.Generator().manual_seed(seed)
        encoder.set_token_weights(torch.rand(len(VOCABULARY), generator=draw) + 0.1)
    return encoder


def text_encoder(encoder, **how):
    return reader_of(
        encoder.backbone, tokenizer(), encoder.pooling, token_weights=encoder.token_weights, **{**LENGTHS, **how}
    )


def export(encoder, folder, similarity="cosine", **how):
    given = {"pooling": encoder.pooling, "similarity": similarity, "token_weights": encoder.token_weights, **how}
    return export_made(encoder.model, tokenizer(), folder, **LENGTHS, **given)


def encode(texts):
    return TOKENIZER(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")


def test_the_ends_of_a_text_are_cut_off():
    attention = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
    expected = [[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert between_ends(attention).tolist() == expected
    assert between_ends(attention.bool()).int().tolist() == expected


@pytest.mark.parametrize("pooling", ["mean", "weighted"])
def test_a_text_is_the_mean_of_its_tokens_between_the_ends_whatever_the_padding(pooling):
    encoder, batch = static_lm(pooling), encode(TEXTS)
    table = encoder.model.get_input_embeddings().weight
    out = encoder(batch["input_ids"], batch["attention_mask"].bool(), layers=(0,))
    torch.testing.assert_close(out["hidden"], table[batch["input_ids"]])
    torch.testing.assert_close(out["layers"][0], out["hidden"])
    for vector, text in zip(out["bottleneck"], TEXTS, strict=True):
        ids = TOKENIZER(text, truncation=True, max_length=24)["input_ids"][1:-1]
        weights = torch.ones(len(ids)) if pooling == "mean" else encoder.token_weights.values()[ids]
        expected = (weights[:, None] * table[ids]).sum(0) / weights.sum().clamp(min=1e-9)
        torch.testing.assert_close(vector, expected)
        alone = encode([text])
        narrow = encoder(alone["input_ids"], alone["attention_mask"].bool())["bottleneck"][0]
        torch.testing.assert_close(vector, narrow)
    out["bottleneck"].pow(2).sum().backward()
    used = {i for text in TEXTS for i in TOKENIZER(text, truncation=True, max_length=24)["input_ids"][1:-1]}
    assert set(table.grad.abs().sum(1).nonzero().flatten().tolist()) == used


@pytest.mark.parametrize("pooling", ["mean", "weighted"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_bags_equal_the_padded_forward_pass(pooling, similarity):
    encoder, batch = static_lm(pooling), encode(TEXTS)
    padded = encoder(batch["input_ids"], batch["attention_mask"].bool())["bottleneck"].detach()
    expected = torch.nn.functional.normalize(padded, dim=-1) if similarity == "cosine" else padded
    found = text_encoder(encoder, similarity=similarity).encode_passages(TEXTS)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-6)


@given(text=st.text(max_size=60) | st.lists(st.sampled_from([*TEXTS, "[SEP]", "É", "a\u0301"])).map(" ".join))
def test_cached_words_give_the_ids_of_the_tokenizer(text):
    for length in (2, 5, 24):
        expected = TOKENIZER(text, truncation=True, max_length=length)["input_ids"]
        assert fast_ids(TOKENIZER)(text, length) == expected


@pytest.mark.parametrize(("pooling", "similarity"), [("mean", "cosine"), ("mean", "dot"), ("weighted", "cosine")])
def test_an_exported_encoder_is_a_static_embedding_of_sentence_transformers(tmp_path, pooling, similarity):
    from sentence_transformers import SentenceTransformer

    encoder = static_lm(pooling)
    folder = export(encoder, tmp_path / "e", similarity, query_prompt="remove ", passage_prompt="string ")
    vectors = text_encoder(encoder, similarity=similarity, passage_prompt="string ").encode_passages(TEXTS)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert type(theirs[0]).__name__ == "StaticEmbedding"
    np.testing.assert_allclose(theirs.encode_document(TEXTS), vectors, rtol=0, atol=1e-6)
    loaded = TextEncoder.load(folder)
    assert (loaded.card.query_prompt, loaded.card.query_length, loaded.card.similarity) == ("remove ", 24, similarity)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), vectors, rtol=0, atol=1e-6)
    np.testing.assert_allclose(loaded.encode_queries(TEXTS), theirs.encode_query(TEXTS), rtol=0, atol=1e-6)
    theirs.save(str(tmp_path / "again"))
    again = TextEncoder.load(tmp_path / "again")
    np.testing.assert_allclose(again.encode_passages(TEXTS[:2]), vectors[:2], rtol=0, atol=1e-6)


def test_separate_static_encoders_are_exported_together(tmp_path):
    from sentence_transformers import SentenceTransformer

    sides = [static_lm("weighted", seed) for seed in (1, 2)]
    models = [(side.model, tokenizer()) for side in sides]
    both = (sides[0].token_weights, sides[1].token_weights)
    export_two(*models, tmp_path / "e", token_weights=both, pooling="weighted", similarity="cosine", **LENGTHS)
    dual = DualEncoder.load(tmp_path / "e")
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(dual.encode_queries(TEXTS), text_encoder(sides[0]).encode_queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(theirs.encode_query(TEXTS), dual.encode_queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(theirs.encode_document(TEXTS), dual.encode_passages(TEXTS), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "weighted"])
def test_a_checkpoint_is_saved_and_read(tmp_path, pooling):
    from drkit.train.checkpoints import load_encoder, save_masked_lm

    encoder, batch = static_lm(pooling), encode(TEXTS)
    save_masked_lm(encoder, tokenizer(), tmp_path)
    again = load_encoder(tmp_path, pooling=pooling).eval()
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    logits = again.heads().logits(again(batch["input_ids"], batch["attention_mask"])["hidden"])
    torch.testing.assert_close(logits, encoder.model(batch["input_ids"]).logits)
    assert again.heads().weight is again.model.get_input_embeddings().weight


def recipe_of(*settings, **wanted):
    recipe = compose(ComposeRequest(settings=("encoder.layers=0", *settings), **wanted), PARTS)
    check(recipe, PARTS.registry)
    return recipe


@pytest.mark.parametrize(("masker", "decoder"), [(masker, decoder) for masker, decoder, _ in some_pairs()])
def test_every_masker_and_decoder_goes_with_it(masker, decoder):
    try_parts(recipe_of(masker=masker, decoder=decoder), PARTS.registry)


@pytest.mark.parametrize("paper", sorted(PARTS.recipes))
def test_every_recipe_goes_with_it(paper):
    settings = ["encoder.layers=0", "encoder.pooling=mean", "encoder.lm_head=tied"]
    if paper.startswith("simlm"):  # its decoder starts from the encoder's last layers
        settings.append("pretrain.decoders.main.decoder.init=random")
    if paper == "dupmae-lexical":  # its words are scored by a head that a static encoder does not have
        settings.append("finetune.pooling=mean")
    try_parts(compose(ComposeRequest(paper=paper, settings=tuple(settings)), PARTS), PARTS.registry)


@pytest.mark.parametrize(
    ("settings", "wanted", "named"),
    [
        (("encoder.pooling=cls",), {}, ("'cls'", "mean or weighted", "@ encoder.pooling")),
        (("encoder.pooling=max",), {}, ("'max'", "mean or weighted", "@ encoder.pooling")),
        (("encoder.pooling=weighted", "finetune.loss.similarity=dot"), {}, ("static encoder", "length 1", "dot")),
        (("encoder.lm_head=transform",), {}, ("LM head 'tied'",)),
        ((), {"paper": "simlm"}, ("layers", "decoder")),
        ((), {"pipeline": "three-stage"}, ("re-ranker", "static encoder")),
    ],
)
def test_what_it_cannot_do_is_refused_in_the_recipe(settings, wanted, named):
    with pytest.raises(ProblemsError) as caught:
        recipe_of(*settings, **wanted)
    assert says(str(caught.value), *named)


def test_folders_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(DrkitError, match=r"static encoder .*length 1.*dot"):
        export(static_lm("weighted"), tmp_path / "e", "dot")
    folder = export(static_lm(), tmp_path / "e")
    with pytest.raises(ProblemsError, match=r"static encoder.*@ encoder\.pretrained"):
        check(compose(ComposeRequest(encoder=str(folder)), PARTS), PARTS.registry)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    pairs = {"type": "Replace", "pattern": {"String": "a a"}, "content": "a"}  # a word depends on the one before
    for changed in ({"pre_tokenizer": {"type": "Whitespace"}}, {"normalizer": pairs}):
        (folder / "tokenizer.json").write_text(json.dumps({**tokens, **changed}))
        with pytest.raises(DrkitError, match="unsupported tokenizer"):
            TextEncoder.load(folder)
    (folder / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(DrkitError, match=r"static encoder .*/e': .*header"):
        TextEncoder.load(folder)


@pytest.mark.parametrize("pooling", ["mean", "weighted"])
def test_a_whole_run(tmp_path, pooling):
    lines = [f"{name} {deed} and {more}" for name in NAMES for deed in DEEDS for more in DEEDS]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    sizes = ("encoder.vocab_size=100", "encoder.hidden=16", "encoder.heads=2", "encoder.passage_length=32")
    steps = ("pretrain.max_steps=3", "pretrain.batch_size=4", f"encoder.pooling={pooling}")
    recipe = recipe_of(*sizes, *steps, collection=f"jsonl:{tmp_path / 'texts.jsonl'}", masker="pmi", decoder="enhanced")
    execute(plan(recipe, PARTS.registry).stages, tmp_path / "r", recipe, registry=PARTS.registry, progress=Silent())
    encoder = TextEncoder.load(tmp_path / "r" / "encoder")
    vectors = encoder.encode_passages(["ada wrote it", "grace broke a cipher"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    folders = (str(tmp_path / "r" / name) for name in ("initial", "pretrained"))
    before, after = (MaskedLmEncoder.from_pretrained(folder, pooling=pooling) for folder in folders)
    if pooling == "weighted":
        assert len(before.token_weights.weight.unique()) > 2
        assert not torch.equal(before.token_weights.weight, after.token_weights.weight)


@pytest.mark.parametrize("pooling", ["mean", "weighted"])
@given(st.lists(st.lists(st.integers(5, len(VOCABULARY) - 1), max_size=9), min_size=1, max_size=5))
def test_vectors_without_hidden_states_are_the_bottleneck_with_the_same_gradients(pooling, texts):
    ends = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id
    rows = [[ends[0], *text, ends[1]] for text in texts]
    ids = torch.tensor([row + [0] * (11 - len(row)) for row in rows])
    attention = torch.arange(11) < torch.tensor([len(row) for row in rows])[:, None]
    found = {}
    for name, read in (
        ("bottleneck", lambda e: e(ids, attention)["bottleneck"]),
        ("alone", lambda e: e.vectors(ids, attention)),
    ):
        encoder = static_lm(pooling)
        vectors = read(encoder)
        (vectors * torch.arange(1.0, 1 + vectors.numel()).view_as(vectors)).sum().backward()
        found[name] = [vectors.detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)]
    for one, other in zip(found["bottleneck"], found["alone"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
