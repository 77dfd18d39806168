from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given as cases
from hypothesis import settings
from hypothesis import strategies as st
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from drkit.core.types import DecoderInput, Encoded, MaskedView
from drkit.encoders import context_from
from drkit.testing import check_decoder
from drkit_seed import AutoregressiveBlockConfig, AutoregressiveConfig
from drkit_seed.decoder import (
    AutoregressiveBlockDecoder,
    AutoregressiveDecoder,
    PreLnBlock,
    causal_visibility,
    next_tokens,
)
from tests.parts.toys import toy_batch, toy_encoder

DECODERS = {
    "autoregressive": (AutoregressiveDecoder, AutoregressiveConfig),
    "autoregressive-block": (AutoregressiveBlockDecoder, AutoregressiveBlockConfig),
}


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return toy_encoder(tokenizer).eval()


@pytest.fixture(scope="module")
def context(encoder, tokenizer):
    return context_from(encoder, tokenizer)


def built(name, context, **changes):
    part, config = DECODERS[name]
    decoder = part(config(**changes), context).eval()
    with torch.no_grad():  # far from the small start, so that what is seen shows
        for value in decoder.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())))
    return decoder


def states_of(decoder, encoder, tokens, bottleneck):
    """The states f[B,L,D] at every position with a target, zeros elsewhere."""
    unread = torch.full_like(tokens.ids, -100)
    view = MaskedView(ids=unread, labels=unread, attention=tokens.attention)
    encoded = Encoded(bottleneck=bottleneck, hidden=torch.zeros(0))
    with torch.no_grad():
        out = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=view), encoder.heads())["token_states"]
    positions = next_tokens(tokens, decoder.config.end_token) != -100
    states = torch.zeros(*positions.shape, out.states.shape[1])
    states[positions] = out.states
    return states


def changed_at(decoder, encoder, tokens, position):
    """Which positions' states change when the token at `position` is another one: bool[L]."""
    bottleneck = torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    ids = tokens.ids.clone()
    ids[0, position] = (ids[0, position] + 1) % 600 + 5
    one = states_of(decoder, encoder, tokens, bottleneck)
    two = states_of(decoder, encoder, attrs.evolve(tokens, ids=ids), bottleneck)
    return (one - two).abs().amax((0, 2)) > 1e-5


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("end_token", [True, False])
@pytest.mark.parametrize("window", [0, 1, 4])
def test_keeps_the_contract(name, window, end_token):
    check_decoder(name, DECODERS[name][1](window=window, end_token=end_token))


@pytest.mark.parametrize(
    ("name", "changes", "reach"),
    [
        ("autoregressive", {}, 3 * 1),
        ("autoregressive", {"layers": 1, "window": 4}, 3),
        ("autoregressive", {"layers": 2, "window": 1}, 0),
        ("autoregressive", {"window": 0}, 1000),
        ("autoregressive-block", {}, 2),
        ("autoregressive-block", {"window": 1}, 0),
        ("autoregressive-block", {"window": 0}, 1000),
    ],
)
def test_a_token_reaches_its_own_position_and_so_many_further_ones(name, changes, reach, encoder, tokenizer, context):
    """A later token never changes an earlier state; one beyond the window never matters."""
    decoder = built(name, context, **changes)
    tokens = toy_batch(tokenizer, max_length=24)
    tokens = toy_batch(tokenizer, [tokenizer.decode(tokens.ids[3][1:-1])], max_length=24)
    last = int(tokens.attention.sum()) - (1 if decoder.config.end_token else 2)
    for position in (1, 5, 11):
        changed = changed_at(decoder, encoder, tokens, position).nonzero()[:, 0].tolist()
        assert changed == list(range(position, min(position + reach, last - 1) + 1))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("window", [1, 2, 0])
def test_the_vector_reaches_every_position(name, window, encoder, tokenizer, context):
    decoder, tokens = built(name, context, window=window), toy_batch(tokenizer, max_length=40)
    bottleneck = torch.randn(len(tokens.ids), 32)
    one, two = (states_of(decoder, encoder, tokens, h) for h in (bottleneck, bottleneck.roll(1, 0)))
    positions = next_tokens(tokens, decoder.config.end_token) != -100
    assert ((one - two).abs().amax(2)[positions] > 1e-5).all()


@pytest.mark.parametrize("name", DECODERS)
def test_each_position_tells_the_next_token_of_the_clean_text(name, encoder, tokenizer, context):
    tokens = toy_batch(tokenizer, ["one text", "and another text that is longer"])
    decoder = built(name, context, end_token=False)
    labels = next_tokens(tokens, end_token=False)
    for row, ids, length in zip(labels, tokens.ids, tokens.attention.sum(1), strict=True):
        assert row[: length - 2].tolist() == ids[1 : length - 1].tolist()
        assert (row[length - 2 :] == -100).all()
    unread = MaskedView(ids=tokens.ids * 0, labels=tokens.ids * 0, attention=tokens.attention)
    encoded = encoder.encode(tokens.ids, tokens.attention)
    out = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=unread), encoder.heads())["token_states"]
    assert out.labels.tolist() == labels[labels != -100].tolist()
    assert out.states.shape == (len(out.labels), 32)


def test_the_end_of_a_text_is_a_target_where_it_is_asked_for(tokenizer):
    tokens = toy_batch(tokenizer, ["one text", "and another text that is longer"])
    without, ended = (next_tokens(tokens, end_token=end) for end in (False, True))
    added = (without != ended).nonzero()
    lengths = tokens.attention.sum(1)
    assert added.tolist() == [[row, int(length) - 2] for row, length in enumerate(lengths)]
    assert ended[added[:, 0], added[:, 1]].tolist() == [tokenizer.sep_token_id] * 2


@settings(max_examples=30, deadline=None)
@cases(st.integers(2, 12), st.integers(0, 5), st.integers(0, 4))
def test_visibility_is_the_rule_written_out(length, window, padding):
    attention = torch.ones(1, length + padding, dtype=torch.bool)
    attention[0, length:] = False
    found = causal_visibility(attention, window)[0]
    for i in range(length + padding):
        for j in range(length + padding):
            near = j <= i and (window == 0 or i - j < window) and j < length
            assert bool(found[i, j]) == (j == 0 or near)


def test_the_block_equals_transformers_own(context):
    sizes = context.backbone
    config = GPT2Config(
        n_embd=sizes.hidden,
        n_head=sizes.heads,
        layer_norm_epsilon=sizes.layer_norm_eps,
        activation_function=sizes.activation,
        attn_pdrop=0,
        resid_pdrop=0,
        attn_implementation="eager",
    )
    theirs, mine = GPT2Block(config, layer_idx=0).eval(), PreLnBlock(sizes).eval()
    pairs = {
        "attention_norm": theirs.ln_1,
        "attention": theirs.attn.c_attn,
        "attention_output": theirs.attn.c_proj,
        "intermediate_norm": theirs.ln_2,
        "intermediate": theirs.mlp.c_fc,
        "output": theirs.mlp.c_proj,
    }
    for name, piece in pairs.items():
        torch.nn.init.normal_(piece.bias, std=0.3)
        weight = piece.weight.T if piece.weight.ndim == 2 else piece.weight
        mine.get_submodule(name).load_state_dict({"weight": weight.detach(), "bias": piece.bias.detach()})
    states, visible = torch.randn(3, 9, 32), causal_visibility(torch.ones(3, 9, dtype=torch.bool), 3)
    blocked = torch.zeros(3, 1, 9, 9).masked_fill(~visible[:, None], torch.finfo(torch.float32).min)
    wanted = theirs(states, attention_mask=blocked)
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    everywhere = torch.ones(3, 9, dtype=torch.bool)
    torch.testing.assert_close(mine(states, visible, everywhere).view(3, 9, 32), wanted)


@pytest.mark.parametrize("name", DECODERS)
def test_a_batch_of_empty_texts_gives_no_targets_and_a_gradient_without_nan(name, encoder, tokenizer, context):
    decoder, tokens = built(name, context, end_token=False), toy_batch(tokenizer, ["", ""])
    encoded = encoder.encode(tokens.ids, tokens.attention)
    view = MaskedView(ids=tokens.ids, labels=tokens.ids, attention=tokens.attention)
    out = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=view), encoder.heads())["token_states"]
    assert out.states.shape == (0, 32)
    out.heads.lm_loss(out.states, out.labels).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in [*encoder.parameters(), *decoder.parameters()])
    encoder.zero_grad()
