from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.models.bert.modeling_bert import BertLayer

from drkit.core.draws import Draws
from drkit.core.types import BuildContext, DecoderInput
from drkit.decoders import EnhancedConfig, EnhancedDecoder, MlmDecoder, MlmDecoderConfig
from drkit.decoders.enhanced import row_visibility
from drkit.decoders.layers import PostLnLayer, visibility_rows
from drkit.encoders import context_from
from drkit.encoders.architectures import BERT_LAYER
from drkit.errors import DrkitError
from drkit.losses import MlmLoss
from drkit.maskers import PmiConfig, PmiMasker, UniformConfig, UniformMasker
from drkit.maskers.views import keep_targets
from tests.parts.toys import toy_batch, toy_encoder


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return toy_encoder(tokenizer, layers=3).eval()


@pytest.fixture(scope="module")
def context(encoder, tokenizer):
    return context_from(encoder, tokenizer)


def given(encoder, tokenizer, context, decoder, masker=None):
    tokens = toy_batch(tokenizer, max_length=60)
    tokens = attrs.evolve(tokens, signals={"importance": torch.rand(tokens.ids.shape)})
    masker = masker or UniformMasker(UniformConfig(ratio=0.5), context)
    rng = Draws(1, 0, tokens.keys.numpy())
    read = UniformMasker(UniformConfig(ratio=0.3), context)(tokens, rng)
    view = masker(tokens, rng, rows=visibility_rows(decoder, tokens.ids.shape[1]))
    return DecoderInput(encoded=encoder.encode(read.ids, read.attention), tokens=tokens, view=view)


def test_the_layer_equals_transformers_own(encoder, context):
    mine, theirs = PostLnLayer(context.backbone).eval(), encoder.layers[1]
    assert isinstance(theirs, BertLayer)
    mine.copy_from(theirs, BERT_LAYER)
    states = torch.randn(3, 9, 32)
    attention = torch.ones(3, 9, dtype=torch.bool)
    attention[1, 5:] = False
    wanted = theirs(states, attention_mask=attention[:, None, None])
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    torch.testing.assert_close(mine(states, states, attention[:, None]), wanted)
    torch.testing.assert_close(mine(states, states, attention[:, None], at=attention), wanted[attention])


def test_mlm_decoder_equals_bert_layers_on_the_replaced_first_position(encoder, tokenizer, context):
    decoder = MlmDecoder(MlmDecoderConfig(layers=2, init="encoder-tail"), context).eval()
    decoder.init_from(encoder)
    inputs = given(encoder, tokenizer, context, decoder)
    out = decoder(inputs, encoder.heads())["token_states"]
    view = inputs.view
    states = encoder.model.bert.embeddings(view.ids)
    states = torch.cat([inputs.encoded.bottleneck[:, None], states[:, 1:]], 1)
    for layer in encoder.layers[1:]:
        states = layer(states, attention_mask=view.attention[:, None, None])
        states = states[0] if isinstance(states, tuple) else states
    targets = view.labels != -100
    torch.testing.assert_close(out.states, states[targets])
    assert torch.equal(out.labels, view.labels[targets])
    wanted = F.cross_entropy(encoder.model.cls(states).flatten(0, 1), view.labels.flatten())
    torch.testing.assert_close(MlmLoss()(token_states=out).loss, wanted)


def test_encoder_tail_needs_so_many_layers_and_random_copies_nothing(encoder, context):
    with pytest.raises(DrkitError, match=r"init = 'encoder-tail' .*4 .* 3;"):
        MlmDecoder(MlmDecoderConfig(layers=4, init="encoder-tail"), context).init_from(encoder)
    decoder = MlmDecoder(MlmDecoderConfig(), context)
    before = decoder.layers[0].query.weight.clone()
    decoder.init_from(encoder)
    assert torch.equal(before, decoder.layers[0].query.weight)


def test_encoder_tail_is_a_copy_and_not_shared(encoder, context):
    decoder = MlmDecoder(MlmDecoderConfig(layers=1, init="encoder-tail"), context)
    decoder.init_from(encoder)
    theirs = encoder.layers[-1].attention.self.query.weight
    assert torch.equal(decoder.layers[0].query.weight, theirs)
    assert decoder.layers[0].query.weight.data_ptr() != theirs.data_ptr()


def test_weights_start_as_berts_and_follow_the_seed(context):
    one, two = (MlmDecoder(MlmDecoderConfig(), attrs.evolve(context, seed=seed)) for seed in (1, 2))
    assert one.layers[0].intermediate.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not one.layers[0].intermediate.bias.any()
    assert not torch.equal(one.layers[0].query.weight, two.layers[0].query.weight)


def test_projection_is_applied_to_the_bottleneck_alone(encoder, tokenizer, context):
    plain = MlmDecoder(MlmDecoderConfig(), context).eval()
    projected = MlmDecoder(MlmDecoderConfig(projection=True), context).eval()
    projected.load_state_dict(plain.state_dict(), strict=False)
    linear = projected.bottleneck.projection
    inputs = given(encoder, tokenizer, context, plain)
    moved = attrs.evolve(inputs, encoded=attrs.evolve(inputs.encoded, bottleneck=linear(inputs.encoded.bottleneck)))
    a, b = (d(i, encoder.heads())["token_states"].states for d, i in ((projected, inputs), (plain, moved)))
    torch.testing.assert_close(a, b)


def test_enhanced_row_sees_what_it_may_and_nothing_else(encoder, tokenizer, context):
    """Change one token: exactly the rows that see it change."""
    decoder = EnhancedDecoder(EnhancedConfig(), context).eval()
    inputs = given(encoder, tokenizer, context, decoder)
    view, heads = inputs.view, encoder.heads()
    before = decoder(inputs, heads)["token_states"].states
    targets = view.labels != -100
    for text, position in ((0, 3), (2, 5), (4, 7)):
        ids = view.ids.clone()
        ids[text, position] = 5 + (ids[text, position] - 4) % 50
        changed = attrs.evolve(inputs, view=attrs.evolve(view, ids=ids))
        after = decoder(changed, heads)["token_states"].states
        moved = (before - after).abs().amax(1) > 1e-7
        expected = torch.zeros_like(targets)
        expected[text] = view.visible[text, :, position]
        expected[text, position] = False
        assert torch.equal(moved, expected[targets])


def test_row_visibility_has_the_decoders_rules(encoder, tokenizer, context):
    decoder = EnhancedDecoder(EnhancedConfig(), context)
    view = given(encoder, tokenizer, context, decoder).view
    everything = attrs.evolve(view, visible=torch.ones_like(view.visible))
    visible = row_visibility(everything)
    length = visible.shape[1]
    assert visible[:, :, 0].all()
    assert not visible[:, range(1, length), range(1, length)].any()
    assert not visible.transpose(1, 2)[~view.attention].any()
    nothing = row_visibility(attrs.evolve(view, visible=torch.zeros_like(view.visible)))
    assert nothing.sum() == nothing[:, :, 0].sum()


def test_enhanced_says_what_it_lacks(encoder, tokenizer, context):
    decoder = EnhancedDecoder(EnhancedConfig(), context)
    inputs = given(encoder, tokenizer, context, decoder)
    bare = attrs.evolve(inputs, view=attrs.evolve(inputs.view, visible=None))
    with pytest.raises(DrkitError, match=r"'enhanced' .*rows=decoder\.rows\(L\).*'rows'"):
        decoder(bare, encoder.heads())
    few = attrs.evolve(inputs, view=attrs.evolve(inputs.view, visible=inputs.view.visible[:, :4]))
    with pytest.raises(DrkitError, match=r"'enhanced' .*4 rows .*58 targets.*keep_targets"):
        decoder(few, encoder.heads())
    narrow = attrs.evolve(inputs, view=attrs.evolve(inputs.view, visible=inputs.view.visible[:, :, :4]))
    with pytest.raises(DrkitError, match=r"'enhanced' .*visible bool\[B,R,L\].*got \(16, 60, 4\)"):
        decoder(narrow, encoder.heads())
    with pytest.raises(DrkitError, match=r"context_from\(model, tokenizer\)"):
        EnhancedDecoder(EnhancedConfig(), BuildContext())


@pytest.mark.parametrize("masker", [UniformMasker, PmiMasker])
@pytest.mark.parametrize("decoder", [MlmDecoder, EnhancedDecoder])
def test_every_masker_with_every_decoder_learns(masker, decoder, tokenizer):
    """A few steps on one batch bring the loss down, through encoder and decoder alike, with dropout on."""
    encoder = toy_encoder(tokenizer, dropout=0.1, hidden=48, heads=4).train()
    context = context_from(encoder, tokenizer)
    config = {UniformMasker: UniformConfig, PmiMasker: PmiConfig}[masker]()
    made = decoder({MlmDecoder: MlmDecoderConfig, EnhancedDecoder: EnhancedConfig}[decoder](), context).train()
    optimizer = torch.optim.AdamW([*encoder.parameters(), *made.parameters()], lr=3e-3)
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(12):
            inputs = given(encoder, tokenizer, context, made, masker(config, context))
            loss = MlmLoss()(**made(inputs, encoder.heads())).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.5


def test_only_targets_reach_the_feed_forward(encoder, tokenizer, context):
    """The lean path: the wide inner layer and the LM head see target positions alone."""
    for decoder in (MlmDecoder(MlmDecoderConfig(layers=1), context), EnhancedDecoder(EnhancedConfig(), context)):
        seen = []
        layer = decoder.layers[0] if isinstance(decoder, MlmDecoder) else decoder.layer
        layer.intermediate.register_forward_hook(lambda _m, _i, out, seen=seen: seen.append(out.shape))
        inputs = given(encoder, tokenizer, context, decoder)
        decoder(inputs, encoder.heads())
        assert seen == [(int((inputs.view.labels != -100).sum()), 64)]


def test_a_batch_without_targets_gives_a_zero_loss(encoder, tokenizer, context):
    tokens = toy_batch(tokenizer, ["", ""])
    for decoder in (MlmDecoder(MlmDecoderConfig(), context), EnhancedDecoder(EnhancedConfig(), context)):
        rng = Draws(1, 0, tokens.keys.numpy())
        view = UniformMasker(UniformConfig(), context)(tokens, rng, rows=visibility_rows(decoder, tokens.ids.shape[1]))
        encoded = encoder.encode(tokens.ids, tokens.attention)
        out = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=view), encoder.heads())
        loss = MlmLoss()(**out).loss
        loss.backward()
        assert loss.item() == 0
    encoder.zero_grad()


def test_fewer_rows_give_the_states_of_those_positions(encoder, tokenizer, context):
    """A share of the targets: the same states as when every position has its row, and no other work."""
    full, some = EnhancedDecoder(EnhancedConfig(), context), EnhancedDecoder(EnhancedConfig(targets=0.25), context)
    inputs = given(encoder, tokenizer, context, full)
    length = inputs.view.ids.shape[1]
    keys = inputs.tokens.keys.numpy()
    thin = keep_targets(inputs.view, some.rows, Draws(1, 0, keys))
    kept = thin.labels != -100
    counts = (inputs.view.labels != -100).sum(1)
    assert kept.sum(1).tolist() == [some.rows(int(n)) for n in counts]
    rows = some.rows(length)
    order = kept.byte().argsort(dim=1, descending=True, stable=True)[:, :rows]
    fewer = inputs.view.visible.gather(1, order[:, :, None].expand(-1, -1, length))
    thinned = attrs.evolve(inputs, view=attrs.evolve(thin, visible=fewer))
    wanted = full(inputs, encoder.heads())["token_states"].states[kept[inputs.view.labels != -100]]
    found = some(thinned, encoder.heads())["token_states"]
    assert torch.allclose(found.states, wanted, atol=1e-6)
    assert torch.equal(found.labels, inputs.view.labels[kept])


def test_kept_targets_do_not_depend_on_padding(encoder, tokenizer, context):
    some = EnhancedDecoder(EnhancedConfig(targets=0.25), context)
    view = given(encoder, tokenizer, context, some).view
    keys = list(range(len(view.ids)))
    wider = attrs.evolve(view, labels=torch.nn.functional.pad(view.labels, (0, 9), value=-100))
    one = keep_targets(view, some.rows, Draws(1, 0, keys)).labels
    two = keep_targets(wider, some.rows, Draws(1, 0, keys)).labels
    assert torch.equal(one, two[:, : one.shape[1]])
