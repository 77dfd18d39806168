"""Every architecture and every decoder: trained, saved, read back, encoded, exported; what does not fit, refused."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.core.types import BuildContext
from drkit.data.contexts import PretrainingTexts
from drkit.data.store import TokenStore, tokenise
from drkit.decoders import MlmDecoder, MlmDecoderConfig
from drkit.encoders import MaskedLmEncoder, context_from, token_batch
from drkit.encoders.architectures import STATIC, architecture, find_architecture, longest_text
from drkit.encoders.batches import group_by_length
from drkit.encoders.heads import tie_lm_head
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.making.pretrain import auto_encoder, build_maskers, masking_collator
from drkit.runs.work import stored_size
from drkit.search import TextEncoder
from drkit.testing import check_architecture
from drkit.train.gradients import GradientStrategy, backward
from drkit.train.pretrain import AutoEncoder
from tests.encoders.toys import CAUSAL, MADE, NAMES, SHARED_KEYS, tiny, tokenizer_of
from tests.parts.toys import texts
from tests.search.made import export_made, reader_of

PARTS = installed()
STEPS, LENGTH = 15, 32
ROOT = Path(__file__).parents[2]
TEXTS = [text for text in texts() if len(text) > 150][:6]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """name -> the token store of the texts, by that architecture's tokenizer."""
    made = {}

    def store_of(name):
        key = MADE[name][1]
        if key not in made:
            folder = tmp_path_factory.mktemp("tokens")
            tokenise([(str(n), text) for n, text in enumerate(TEXTS)], tokenizer_of(name), folder, max_length=LENGTH)
            made[key] = TokenStore.open(folder)
        return made[key]

    return store_of


def recipe_with(decoder):
    """The recipe of this decoder with the first masker that it goes with, the uniform one where it can."""
    for masker in ("uniform", *PARTS.registry.names(Kind.MASKER)):
        recipe = compose(ComposeRequest(masker=masker, decoder=decoder), PARTS)
        try:
            check(recipe, PARTS.registry)
        except ProblemsError:
            continue
        return recipe.pretrain
    return pytest.fail(f"no masker goes with the decoder {decoder}")


def wrapped(name, **changes):
    model, tokenizer = tiny(name, **changes)
    return MaskedLmEncoder(model, pooling="mean"), tokenizer


def batch_of(tokenizer, chosen=TEXTS, longest=LENGTH):
    return token_batch(tokenizer(list(chosen), padding=True, truncation=True, max_length=longest))


def pretraining(name, decoder, store):
    """(module, its batch): what the pre-training stage would build for this decoder."""
    encoder, tokenizer = wrapped(name)
    settings = recipe_with(decoder)
    context = BuildContext(
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=MaskedLmEncoder(tiny(name, seed=2)[0]),
        signals={"idf": torch.linspace(0.5, 2.0, len(tokenizer))},
    )
    maskers = build_maskers(settings, PARTS.registry, context)
    module = auto_encoder(settings, PARTS.registry, encoder, context, maskers)
    collate = masking_collator(settings, PARTS.registry, module, context, maskers, PretrainingTexts(store))
    return module.train(), collate([(0, index) for index in range(len(TEXTS))])


def gradients(module, tensors):
    module.zero_grad()
    loss, _ = backward(module, tensors, GradientStrategy(module, torch.Tensor.backward))
    return loss.item()


def some_pairs():
    """Two decoders for each architecture, every decoder at least twice."""
    decoders = PARTS.registry.names(Kind.DECODER)
    turns = (0, len(decoders) // 2)
    return [(name, decoders[(index + turn) % len(decoders)]) for index, name in enumerate(NAMES) for turn in turns]


def test_every_decoder_is_among_the_pairs():
    decoders = [decoder for _, decoder in some_pairs()]
    assert {*decoders} == {*PARTS.registry.names(Kind.DECODER)}
    assert all(decoders.count(decoder) > 1 for decoder in decoders)


@pytest.mark.parametrize(("name", "decoder"), some_pairs())
def test_pretrains_with_a_decoder_and_is_read_back(name, decoder, stores, tmp_path):
    module, tensors = pretraining(name, decoder, stores(name))
    encoder = module.encoder
    _decoder_teaches_the_encoder(module, tensors)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(STEPS):
        losses.append(gradients(module, tensors))
        assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
        optimizer.step()
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.95 * losses[0]

    encoder.model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = MaskedLmEncoder.from_pretrained(str(tmp_path), pooling="mean").eval()
    tokens, tokenizer = batch_of(tokenizer_of(name)), tokenizer_of(name)
    with torch.no_grad():
        before, after = (one.eval().encode(tokens.ids, tokens.attention) for one in (encoder, again))
        torch.testing.assert_close(after.bottleneck, before.bottleneck, rtol=0, atol=1e-6)
        logits = encoder.heads().logits(before.hidden)
        torch.testing.assert_close(again.heads().logits(after.hidden), logits, rtol=0, atol=1e-5)
    search = reader_of(again.backbone, tokenizer, pooling="mean", similarity="dot", passage_length=LENGTH)
    np.testing.assert_allclose(search.encode_passages(TEXTS), before.bottleneck.numpy(), atol=1e-5)


def _decoder_teaches_the_encoder(module, tensors):
    """The losses on the decoder's output alone move the encoder's first layer."""
    terms = {key: term for key, term in module.terms.items() if term.on == "main"}
    if not terms:
        return
    gradients(AutoEncoder(module.encoder, dict(module.decoders), terms, module.replacer), tensors)
    assert any(p.grad is not None and p.grad.any() for p in module.encoder.layers[0].parameters())


@pytest.mark.parametrize("name", NAMES)
def test_heads_and_layers_are_the_models_own(name):
    encoder, tokenizer = wrapped(name)
    model, tokens = encoder.eval().model, batch_of(tokenizer)
    full = model(input_ids=tokens.ids, attention_mask=tokens.attention.long(), output_hidden_states=True)
    out, heads = encoder.encode(tokens.ids, tokens.attention, layers=(0, 1, len(encoder.layers))), encoder.heads()
    torch.testing.assert_close(heads.logits(out.hidden), full.logits)
    labels = torch.where(tokens.maskable, tokens.ids, -100)
    wanted = F.cross_entropy(full.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(heads.lm_loss(out.hidden[tokens.maskable], labels[tokens.maskable]), wanted)
    assert heads.weight is model.get_input_embeddings().weight
    torch.testing.assert_close(out.layers[0], full.hidden_states[0])
    torch.testing.assert_close(out.layers[2], out.hidden)
    norm = encoder.backbone.final_norm if name == "modernbert" else torch.nn.Identity()
    torch.testing.assert_close(out.layers[1], norm(full.hidden_states[1]))
    assert heads.positions(7).shape == (7, 16)
    assert heads.embed(tokens.ids).shape == out.hidden.shape
    if heads.has_positions:
        torch.testing.assert_close(heads.embed(tokens.ids), full.hidden_states[0])


@pytest.mark.parametrize("lengths", [[70] * 16 + [69, 30, 12, 3] * 8, [9, 70, 2, 40]], ids=["groups", "one-group"])
@pytest.mark.parametrize("name", NAMES)
def test_texts_read_by_length_have_the_vectors_and_gradients_of_one_batch(name, lengths):
    encoder, tokenizer = wrapped(name)
    encoder.eval()
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(2))
    attention = torch.arange(72) < torch.tensor(lengths)[order][:, None]
    ids = torch.randint(10, len(tokenizer), attention.shape, generator=torch.Generator().manual_seed(3))
    ids[~attention] = tokenizer.pad_token_id
    weights = torch.randn(len(lengths), 16, generator=torch.Generator().manual_seed(4))
    found = []
    for vectors in (encoder(ids, attention)["bottleneck"], encoder.vectors(ids, attention)):
        encoder.zero_grad()
        (vectors * weights).sum().backward()
        found.append([vectors.detach(), *(p.grad for p in encoder.backbone.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-4)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_groups_hold_every_text_once_and_all_of_its_tokens(lengths):
    attention = torch.arange(300) < torch.tensor(lengths)[:, None]
    groups = group_by_length(attention)
    assert sorted(row for rows, _ in groups for row in rows.tolist()) == list(range(len(lengths)))
    for rows, length in groups:
        assert length == max(1, *(lengths[row] for row in rows))
    assert all(len(rows) * length >= 1024 for rows, length in groups[:-1])


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.startswith(("modernbert", "deberta")) and name != "electra"]
)
def test_positions_and_vectors_go_through_the_embedding_layer(name):
    encoder, tokenizer = wrapped(name)
    heads, embeddings = encoder.eval().heads(), encoder.backbone.embeddings
    ids = batch_of(tokenizer).ids[:, :9]
    words, table = encoder.model.get_input_embeddings().weight, embeddings.position_embeddings.weight
    first = 2 if name in ("roberta", "xlm-roberta", "camembert", "mpnet") else 0
    torch.testing.assert_close(heads.positions(9), table[first : first + 9])
    types = embeddings.token_type_embeddings.weight[0] if hasattr(embeddings, "token_type_embeddings") else 0
    torch.testing.assert_close(heads.embed(ids), embeddings.LayerNorm(words[ids] + table[first : first + 9] + types))
    torch.testing.assert_close(heads.embed_vectors(words[ids]), heads.embed(ids))


@pytest.mark.parametrize("size", [12, 24])
def test_an_electra_of_two_sizes_projects_positions_and_refuses_vectors(size):
    encoder, tokenizer = wrapped("electra", embedding_size=size)
    heads, backbone = encoder.heads(), encoder.backbone
    table, widen = backbone.embeddings.position_embeddings.weight, backbone.embeddings_project
    torch.testing.assert_close(heads.positions(5), table[:5] @ widen.weight.T)
    ids = batch_of(tokenizer).ids
    assert heads.embed(ids).shape == (*ids.shape, 16)
    assert heads.weight.shape == (len(tokenizer), size)
    with pytest.raises(DrkitError, match=rf" {size} dimensions .* 16,.*query = 'position'"):
        heads.embed_vectors(torch.zeros(1, 3, 16))


def test_modernbert_lends_sinusoids_of_its_words_size():
    encoder, tokenizer = wrapped("modernbert")
    heads, embeddings, ids = encoder.eval().heads(), encoder.backbone.embeddings, batch_of(tokenizer).ids
    words = embeddings.tok_embeddings.weight
    lent = heads.positions(64)
    naive = torch.tensor(
        [[(np.sin, np.cos)[j % 2](i / 10_000 ** ((j - j % 2) / 16)) for j in range(16)] for i in range(64)]
    )
    torch.testing.assert_close(lent / lent[0, 1], naive.float(), rtol=1e-4, atol=1e-5)
    assert lent.square().mean().sqrt().item() == pytest.approx(words.square().mean().sqrt().item(), rel=0.02)
    assert not lent.requires_grad
    wanted = embeddings.norm(words[ids] + lent[: ids.shape[1]])
    torch.testing.assert_close(heads.embed(ids), wanted)
    torch.testing.assert_close(heads.embed_vectors(words[ids]), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_longest_text_is_read_and_a_longer_one_refused(name):
    encoder, tokenizer = wrapped(name)
    longest = longest_text(encoder.config)
    assert longest == (78 if encoder.config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet") else 80)
    ids = torch.full((1, longest + 1), tokenizer.mask_token_id)
    encoder.eval()(ids[:, :-1], torch.ones_like(ids[:, :-1], dtype=torch.bool))
    with pytest.raises(DrkitError, match=rf"{longest + 1} tokens.* {longest};"):
        encoder(ids, torch.ones_like(ids, dtype=torch.bool))
    info = encoder.info(tokenizer)
    assert (info.hidden, info.heads, info.intermediate, info.max_positions) == (16, 2, 24, longest)
    assert info == context_from(encoder.model, tokenizer).backbone
    assert (info.layers, info.vocab, info.pad_id) == (len(encoder.layers), len(tokenizer), tokenizer.pad_token_id)
    assert (info.activation, info.dropout) == ("gelu", 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_decoder_starts_from_the_encoders_last_layers_where_they_are_of_its_kind(name):
    alike = {"relative_attention": False, "pos_att_type": []} if name == "deberta-v2" else {}
    encoder, tokenizer = wrapped(name, **alike)
    context = BuildContext(backbone=encoder.info(tokenizer), tokenizer=tokenizer)
    decoder = MlmDecoder(MlmDecoderConfig(layers=1, init="encoder-tail"), context)
    if name in ("modernbert", "deberta"):
        with pytest.raises(DrkitError, match=r"(ModernBertEncoder|Deberta)Layer.*init = 'random'"):
            decoder.init_from(encoder)
        return
    decoder.init_from(encoder)
    if name == "mpnet":  # its bias by distance stays behind
        encoder.backbone.encoder.relative_attention_bias.weight.data.zero_()
    tokens = batch_of(tokenizer)
    out = encoder.eval().encode(tokens.ids, tokens.attention, layers=(1,))
    mine = decoder.eval().layers[0](out.layers[0], out.layers[0], tokens.attention[:, None])
    torch.testing.assert_close(mine[tokens.attention], out.hidden[tokens.attention], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_word_embeddings_and_bias_are_set_and_the_head_reduced_where_it_can_be(name, tmp_path):
    encoder, tokenizer = wrapped(name)
    words = torch.randn(encoder.heads().weight.shape)
    bias = torch.randn(len(tokenizer))
    encoder.set_word_embeddings(words)
    assert encoder.has_untrained_head()
    encoder.set_lm_bias(bias)
    assert not encoder.has_untrained_head()
    tokens = batch_of(tokenizer)
    full = encoder.eval().model(input_ids=tokens.ids, attention_mask=tokens.attention.long())
    torch.testing.assert_close(encoder.heads().logits(encoder(tokens.ids, tokens.attention)["hidden"]), full.logits)
    if name in ("roberta", "xlm-roberta", "camembert", "mpnet", "electra"):
        with pytest.raises(DrkitError, match="lm_head = 'transform'"):
            tie_lm_head(encoder.model)
        return
    tie_lm_head(encoder.model)
    encoder.model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = MaskedLmEncoder.from_pretrained(str(tmp_path))
    states = torch.randn(3, 16)
    torch.testing.assert_close(again.heads().logits(states), states @ words.T + bias)
    with torch.no_grad():
        tied = again.eval()(tokens.ids, tokens.attention)["hidden"]
        logits = again.model(input_ids=tokens.ids, attention_mask=tokens.attention.long()).logits
    torch.testing.assert_close(logits, tied @ words.T + bias)


def test_a_modernbert_head_without_bias():
    encoder, tokenizer = wrapped("modernbert", decoder_bias=False, classifier_bias=True, norm_bias=True)
    states, labels = torch.randn(4, 16), torch.tensor([5, 6, 7, 8])
    logits = encoder.model.decoder(encoder.model.head(states))
    torch.testing.assert_close(encoder.heads().lm_loss(states, labels), F.cross_entropy(logits, labels))
    with torch.no_grad():
        torch.testing.assert_close(encoder.heads().lm_loss(states, labels), F.cross_entropy(logits, labels))
    assert not encoder.has_untrained_head(), "there is no bias to start from frequencies"
    with pytest.raises(DrkitError, match=r"LM head .*'modernbert' .*bias"):
        encoder.set_lm_bias(torch.zeros(len(tokenizer)))


@pytest.mark.parametrize("name", NAMES)
def test_exported_it_gives_the_same_vectors_everywhere(name, tmp_path):
    from sentence_transformers import SentenceTransformer

    encoder, tokenizer = wrapped(name, seed=4)
    tokens = batch_of(tokenizer)
    with torch.no_grad():
        wanted = F.normalize(encoder.eval()(tokens.ids, tokens.attention)["bottleneck"], dim=-1).numpy()
    how = {"pooling": "mean", "similarity": "cosine", "query_length": LENGTH, "passage_length": LENGTH}
    folder = export_made(encoder.model, tokenizer, tmp_path / "e", **how)
    np.testing.assert_allclose(TextEncoder.load(folder).encode_passages(TEXTS), wanted, atol=1e-5)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode(TEXTS), wanted, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backbone, report = hf.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    words = hf.AutoTokenizer.from_pretrained(folder)
    batch = words(TEXTS, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    with torch.no_grad():
        hidden = backbone.eval()(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mean = encoder.pool(hidden, batch["attention_mask"].bool())
    np.testing.assert_allclose(F.normalize(mean, dim=-1).numpy(), wanted, atol=1e-5)

    with pytest.warns(UserWarning, match="no language-model head"):  # an exported folder, trained on
        again = MaskedLmEncoder.from_pretrained(str(folder), pooling="mean").eval()
    with torch.no_grad():
        bottleneck = again(tokens.ids, tokens.attention)["bottleneck"]
    np.testing.assert_allclose(F.normalize(bottleneck, dim=-1).numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_without_a_layer_is_refused(name, tmp_path):
    from safetensors.torch import load_file, save_file

    encoder, _ = wrapped(name)
    encoder.model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    last = f"{encoder.architecture.layers}.{len(encoder.layers) - 1}."
    kept = {key: value for key, value in load_file(file).items() if last not in key}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(DrkitError, match=rf".*\w+: \d+ missing \(.*{re.escape(last)}"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))


def test_an_electra_discriminator_is_an_encoder_with_a_new_head(tmp_path):
    model, tokenizer = tiny("electra")
    discriminator = hf.ElectraForPreTraining(model.config)
    discriminator.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="no language-model head"):
        encoder = MaskedLmEncoder.from_pretrained(str(tmp_path)).eval()
    tokens = batch_of(tokenizer)
    hidden = discriminator.eval().electra(tokens.ids, attention_mask=tokens.attention.long()).last_hidden_state
    torch.testing.assert_close(encoder(tokens.ids, tokens.attention)["hidden"], hidden)


@pytest.mark.parametrize(
    ("name", "published"), [("deberta", "masked LM"), ("deberta-v2", "masked LM"), ("deberta-v2", "discriminator")]
)
def test_a_published_deberta_is_read_with_its_head(name, published, tmp_path):
    from safetensors.torch import load_file, save_file

    model, tokenizer = tiny(name)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["legacy"]  # the published ones do not have this key
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "model.safetensors")
    if published == "discriminator":
        weights |= {f"mask_predictions.{name}.weight": torch.ones(3, 16) for name in ("dense", "classifier")}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    tokenizer.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = MaskedLmEncoder.from_pretrained(str(tmp_path))
        search = TextEncoder.bare(tmp_path, pooling="cls")
    tokens = batch_of(tokenizer)
    with torch.no_grad():
        expected = model.eval()(tokens.ids, tokens.attention.long())
        found = encoder(tokens.ids, tokens.attention)
    torch.testing.assert_close(encoder.heads().logits(found["hidden"]), expected.logits)
    vectors = F.normalize(found["bottleneck"], dim=-1).numpy()
    np.testing.assert_allclose(search.evolve(passage_length=LENGTH).encode_passages(TEXTS), vectors, atol=1e-5)


@pytest.mark.parametrize("name", ["deberta", "deberta-v2"])
def test_a_deberta_may_have_a_position_table_and_must_have_the_published_head(name):
    encoder, tokenizer = wrapped(name, position_biased_input=True, type_vocab_size=2)
    heads, ids = encoder.eval().heads(), batch_of(tokenizer).ids
    table, words = encoder.backbone.embeddings.position_embeddings.weight, encoder.model.get_input_embeddings().weight
    torch.testing.assert_close(heads.positions(9), table[:9])
    torch.testing.assert_close(heads.embed_vectors(words[ids]), heads.embed(ids))
    torch.testing.assert_close(encoder(ids, ids >= 0, layers=(0,))["layers"][0], heads.embed(ids))
    with pytest.raises(DrkitError, match=r"missing: lm_predictions.* legacy = False"):
        wrapped(name, legacy=True)


def test_models_that_do_not_fit_are_refused_with_the_reason(tmp_path):
    model, tokenizer = tiny("roberta")
    with pytest.raises(DrkitError, match=r"RobertaModel has no language-model head.*AutoModelForMaskedLM"):
        MaskedLmEncoder(model.roberta)
    model.config.is_decoder = True
    with pytest.raises(DrkitError, match=r"RobertaForMaskedLM .*is_decoder = true"):
        MaskedLmEncoder(model)
    stranger, _ = tiny("bert")
    stranger.cls.predictions.transform = None
    with pytest.raises(DrkitError, match=r"BertForMaskedLM .*'bert' .*\(missing: cls\.predictions\.transform\)"):
        MaskedLmEncoder(stranger)
    for model_type in ("gpt2", "albert"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        said = f"'{model_type}' are not supported: no installed package declares where.*supported: bert, camembert"
        with pytest.raises(DrkitError, match=said):
            MaskedLmEncoder.from_pretrained(str(tmp_path))
    with pytest.raises(DrkitError, match=r"'modern-bert' .*'modernbert'\?"):
        architecture("modern-bert")
    stranger.config.model_type = "albert"
    with pytest.raises(DrkitError, match=r"'albert' .*supported: bert, camembert"):
        context_from(stranger, tokenizer)


def test_every_row_of_the_table_is_tested_and_documented():
    declared = set(PARTS.table("architecture"))
    causal = {name for name in declared if find_architecture(name).is_causal}
    assert causal >= set(CAUSAL)
    assert declared - causal - {STATIC} == {MADE[name][0].config_class.model_type for name in NAMES}
    page = (ROOT / "docs" / "guide" / "encoders.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in page.partition("\n| architecture |")[2].split("\n\n")[0].splitlines()[2:]]
    assert {name.replace("_", "-") for name in re.findall("`([^`]+)`", " ".join(rows))} == declared


@pytest.mark.parametrize("name", [*NAMES, *CAUSAL])
def test_costs_are_estimated_from_the_sizes_of_its_configuration(name, tmp_path):
    model, tokenizer = tiny(name)
    model.config.save_pretrained(tmp_path)
    size = stored_size(str(tmp_path))
    found = (size.hidden, size.layers, size.heads, size.intermediate, size.vocabulary, size.dropout)
    assert found == (16, model.config.num_hidden_layers, 2, 24, len(tokenizer), 0)


@pytest.mark.parametrize("name", [name for name in PARTS.table("architecture") if name != STATIC])
def test_drkits_own_architectures_keep_their_contract(name):
    check_architecture(name, **(SHARED_KEYS if find_architecture(name).is_causal else {}))


def test_code_that_comes_with_a_checkpoint_is_not_run_unasked(tmp_path):
    config = {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModelForMaskedLM": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(DrkitError, match=r"configuration .*custom code"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))
    assert not (tmp_path / "ran").exists()
