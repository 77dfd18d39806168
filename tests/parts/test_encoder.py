from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, BertForMaskedLM

from drkit.encoders import BertSizes, MaskedLmEncoder, context_from, token_batch
from drkit.encoders import heads as heads_module
from drkit.encoders.architectures import architecture
from drkit.encoders.heads import projected_cross_entropy, token_states
from drkit.errors import DrkitError
from tests.parts.toys import texts, toy_batch, toy_encoder
from tests.refusals import unknown


def test_forward_equals_the_wrapped_model(tokenizer):
    encoder, tokens = toy_encoder(tokenizer).eval(), toy_batch(tokenizer)
    out = encoder(tokens.ids, tokens.attention, layers=(0, 1))
    plain = encoder.model.bert(tokens.ids, attention_mask=tokens.attention.long(), output_hidden_states=True)
    torch.testing.assert_close(out["hidden"], plain.last_hidden_state)
    torch.testing.assert_close(out["bottleneck"], plain.last_hidden_state[:, 0])
    for got, wanted in zip(out["layers"], plain.hidden_states, strict=False):
        torch.testing.assert_close(got, wanted)
    assert encoder.encode(tokens.ids, tokens.attention).layers == ()


def test_mean_pooling_is_over_real_tokens_alone(tokenizer):
    encoder, tokens = toy_encoder(tokenizer, pooling="mean").eval(), toy_batch(tokenizer)
    out = encoder(tokens.ids, tokens.attention)
    for row in range(len(tokens.ids)):
        real = out["hidden"][row][tokens.attention[row]].mean(0)
        torch.testing.assert_close(out["bottleneck"][row], real)


def test_heads_are_the_models_own(tokenizer):
    encoder, tokens = toy_encoder(tokenizer).eval(), toy_batch(tokenizer)
    heads = encoder.heads()
    torch.testing.assert_close(heads.embed(tokens.ids), encoder.model.bert.embeddings(tokens.ids))
    torch.testing.assert_close(heads.positions(7), encoder.model.bert.embeddings.position_embeddings.weight[:7])
    hidden = encoder(tokens.ids, tokens.attention)["hidden"]
    logits = encoder.model(tokens.ids, attention_mask=tokens.attention).logits
    torch.testing.assert_close(heads.logits(hidden), logits)
    labels = torch.where(tokens.maskable, tokens.ids, -100)
    found = token_states(hidden, labels, heads)
    wanted = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(heads.lm_loss(found.states, found.labels), wanted)
    right = (logits.argmax(-1) == labels)[tokens.maskable].float().mean()
    torch.testing.assert_close(heads.lm_accuracy(found.states, found.labels), right)


@pytest.mark.parametrize("count", [1, 15, 16, 35])
@pytest.mark.parametrize("fused", [True, False])
def test_projected_cross_entropy_equals_the_plain_one(count, fused, monkeypatch):
    if fused and not heads_module._FUSED:
        pytest.skip("this torch has no fused cross-entropy")
    monkeypatch.setattr(heads_module, "_FUSED", fused)
    monkeypatch.setattr(heads_module, "LOGITS_AT_ONCE", 16 * 50)
    torch.manual_seed(0)
    made = [torch.randn(count, 16), torch.randn(50, 16), torch.randn(50)]
    labels = torch.randint(0, 50, (count,))
    ours, plain = ([t.clone().requires_grad_() for t in made] for _ in range(2))
    loss = projected_cross_entropy(*ours, labels)
    wanted = F.cross_entropy(F.linear(*plain), labels)
    torch.testing.assert_close(loss, wanted)
    with torch.no_grad():
        torch.testing.assert_close(projected_cross_entropy(*ours, labels), wanted)
    (3 * loss).backward()
    (3 * wanted).backward()
    for got, reference in zip(ours, plain, strict=True):
        torch.testing.assert_close(got.grad, reference.grad, rtol=1e-5, atol=1e-6)


def test_no_targets_give_a_zero_loss_with_a_graph(tokenizer):
    encoder = toy_encoder(tokenizer)
    states = torch.zeros(0, 32, requires_grad=True)
    loss = encoder.heads().lm_loss(states, torch.zeros(0, dtype=torch.long))
    assert loss.item() == 0
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in encoder.model.cls.parameters())


def test_fused_loss_under_autocast(tokenizer):
    encoder, tokens = toy_encoder(tokenizer), toy_batch(tokenizer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = encoder(tokens.ids, tokens.attention)["hidden"]
        found = token_states(hidden, torch.where(tokens.maskable, tokens.ids, -100), encoder.heads())
        loss = found.heads.lm_loss(found.states, found.labels)
    loss.backward()
    wanted = F.cross_entropy(encoder.heads().logits(found.states.float()), found.labels)
    assert abs(loss.item() - wanted.item()) < 0.05
    assert encoder.model.bert.embeddings.word_embeddings.weight.grad.isfinite().all()


def test_from_scratch_follows_the_seed_and_leaves_the_global_generator_alone(tokenizer):
    before = torch.get_rng_state()
    one, same, other = (toy_encoder(tokenizer, seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


def test_word_embeddings_stay_tied_when_set(tokenizer):
    encoder = toy_encoder(tokenizer)
    matrix = torch.randn(len(tokenizer), 32)
    encoder.set_word_embeddings(matrix)
    encoder.set_lm_bias(torch.arange(len(tokenizer)).float())
    assert torch.equal(encoder.heads().weight, matrix)
    head = encoder.model.cls.predictions
    assert head.decoder.weight is encoder.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(head.decoder.bias, torch.arange(len(tokenizer)).float())
    with pytest.raises(DrkitError, match=r"\(700, 32\) .*word embeddings.*\(700, 5\)"):
        encoder.set_word_embeddings(matrix[:, :5])


def test_saved_and_loaded_again(tokenizer, tmp_path):
    encoder, tokens = toy_encoder(tokenizer).eval(), toy_batch(tokenizer)
    encoder.model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = MaskedLmEncoder.from_pretrained(str(tmp_path)).eval()
    torch.testing.assert_close(
        loaded(tokens.ids, tokens.attention)["hidden"], encoder(tokens.ids, tokens.attention)["hidden"]
    )
    assert loaded.config._attn_implementation == "sdpa"


def test_a_half_precision_checkpoint_is_trained_in_float32(tokenizer, tmp_path):
    toy_encoder(tokenizer).model.half().save_pretrained(tmp_path)
    assert {p.dtype for p in MaskedLmEncoder.from_pretrained(str(tmp_path)).parameters()} == {torch.float32}


def test_an_encoder_without_lm_head_gets_a_new_one_and_says_so(tokenizer, tmp_path):
    encoder, tokens = toy_encoder(tokenizer).eval(), toy_batch(tokenizer)
    encoder.model.bert.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="no language-model head"):
        loaded = MaskedLmEncoder.from_pretrained(str(tmp_path)).eval()
    torch.testing.assert_close(
        loaded(tokens.ids, tokens.attention)["hidden"], encoder(tokens.ids, tokens.attention)["hidden"]
    )
    assert loaded.heads().weight is loaded.model.cls.predictions.decoder.weight
    with pytest.warns(UserWarning, match="no language-model head"):
        again = MaskedLmEncoder.from_pretrained(str(tmp_path))
    for one, two in zip(loaded.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_cannot_be_loaded_is_refused(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DrkitError, match=r"config\.json"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))
    with pytest.raises(DrkitError, match=r"'\./no/such/folder'.*OWNER/NAME"):
        MaskedLmEncoder.from_pretrained("./no/such/folder")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DrkitError, match=r"/file .*hub id"):
        MaskedLmEncoder.from_pretrained(str(tmp_path / "file"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(DrkitError, match=r"'gpt2' .*supported: bert"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(DrkitError, match=r"configuration .*config\.json"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))
    toy_encoder(tokenizer).config.save_pretrained(tmp_path)
    with pytest.raises(DrkitError, match=r"encoder '.*': .*(safetensors|header)"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))


def test_a_checkpoint_that_lacks_encoder_weights_is_refused(tokenizer, tmp_path):
    from safetensors.torch import load_file, save_file

    toy_encoder(tokenizer).model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1" not in k}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(DrkitError, match=r"BertForMaskedLM: 16 missing \(bert\.encoder\.layer\.1\."):
        MaskedLmEncoder.from_pretrained(str(tmp_path))


def test_a_damaged_weights_file_is_refused(tokenizer, tmp_path):
    toy_encoder(tokenizer).model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(DrkitError, match=r"encoder '.*': .*(safetensors|header)"):
        MaskedLmEncoder.from_pretrained(str(tmp_path))


def test_bad_input_to_the_encoder(tokenizer):
    encoder = toy_encoder(tokenizer)
    ids = torch.zeros(1, 161, dtype=torch.long)
    with pytest.raises(DrkitError, match=r"161 tokens, .* 160;"):
        encoder(ids, ids == 0)
    with pytest.raises(DrkitError, match=r"layer 3 .* 2$"):
        encoder(ids[:, :4], ids[:, :4] == 0, layers=(3,))
    with unknown("pooling", "sum", "cls", "mean"):
        toy_encoder(tokenizer, pooling="sum")
    with pytest.raises(DrkitError, match="supported: bert"):
        architecture("bort")
    with pytest.raises(ValueError, match="multiple"):
        BertSizes(hidden=30, heads=4)


def test_context_and_token_batch_for_someone_elses_loop(tokenizer):
    encoder = toy_encoder(tokenizer)
    assert isinstance(encoder.model, BertForMaskedLM)
    ours, theirs = context_from(encoder, tokenizer, seed=5), context_from(encoder.model, tokenizer, seed=5)
    assert ours.backbone == theirs.backbone == encoder.info(tokenizer)
    assert ours.backbone.mask_id == tokenizer.mask_token_id
    with pytest.raises(DrkitError, match="context_from expects"):
        context_from(tokenizer, tokenizer)
    tokens = token_batch(tokenizer(list(texts()[:3]), padding=True), keys=[5, 6, 9])
    special = (tokens.ids == tokenizer.cls_token_id) | (tokens.ids == tokenizer.sep_token_id)
    assert torch.equal(tokens.maskable, tokens.attention & ~special)
    assert tokens.keys.tolist() == [5, 6, 9]
    with pytest.raises(DrkitError, match="fast tokenizer"):
        token_batch({"input_ids": [[1]]})
    with pytest.raises(DrkitError, match=r"tokenizer\(texts, padding=True\)"):
        token_batch(tokenizer("one text"))
    with pytest.raises(DrkitError, match="padding_side = 'right'"):
        token_batch(tokenizer(list(texts()[:3]), padding=True, padding_side="left"))


def test_a_signal_of_each_text_is_placed_at_its_own_tokens(tokenizer):
    some = ["a masker hides [MASK] tokens", "an encoder"]
    encoding = tokenizer(some, padding=True, truncation=True, max_length=8)
    values = [np.arange(1.0, 1 + len(tokenizer(text, add_special_tokens=False)["input_ids"])) for text in some]
    tokens = token_batch(encoding, signals={"importance": values})
    placed, length = tokens.signals["importance"], int(tokens.attention[1].sum())
    assert placed[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 0], "the rest was truncated"
    assert placed[1].tolist() == [0, *values[1], 0, *[0] * (8 - length)]
    with pytest.raises(DrkitError, match=r"'importance' .*1 values .*text 1, .*3 tokens"):
        token_batch(encoding, signals={"importance": [values[0], values[1][:1]]})


def test_loads_in_transformers_as_well(tokenizer, tmp_path):
    encoder, tokens = toy_encoder(tokenizer).eval(), toy_batch(tokenizer)
    encoder.model.save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(
        plain(tokens.ids, attention_mask=tokens.attention.long()).last_hidden_state[:, 0],
        encoder(tokens.ids, tokens.attention)["bottleneck"],
    )
