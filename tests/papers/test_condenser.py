from __future__ import annotations

import attrs
import pytest
import torch
import torch.nn.functional as F

from drkit.core.draws import Draws
from drkit.core.types import DecoderInput
from drkit.encoders import context_from
from drkit.errors import DrkitError
from drkit.losses import MlmLoss
from drkit.maskers import UniformConfig, UniformMasker
from drkit.testing import check_decoder
from drkit_condenser import CondenserConfig
from drkit_condenser.decoder import CondenserDecoder
from tests.parts.toys import toy_batch, toy_encoder


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return toy_encoder(tokenizer, layers=4).eval()


@pytest.fixture(scope="module")
def context(encoder, tokenizer):
    return context_from(encoder, tokenizer)


def given(encoder, tokenizer, context, decoder):
    tokens = toy_batch(tokenizer, max_length=60)
    rng = Draws(1, 0, tokens.keys.numpy())
    read, view = (UniformMasker(UniformConfig(ratio=ratio), context)(tokens, rng) for ratio in (0.15, 0.5))
    encoded = encoder.encode(read.ids, read.attention, decoder.needs_layers)
    return DecoderInput(encoded=encoded, tokens=tokens, view=view, encoder_view=read)


def test_any_layer_keeps_the_contract():
    for layer in range(3):
        check_decoder("condenser", CondenserConfig(layers=1, skip_from=layer))


def test_equals_bert_layers_on_the_late_vector_and_the_early_tokens(encoder, tokenizer, context):
    decoder = CondenserDecoder(CondenserConfig(layers=2, skip_from=1), context).eval()
    for mine, theirs in zip(decoder.layers, encoder.layers[1:3], strict=True):
        mine.copy_from(theirs, encoder.architecture.layer)
    inputs = given(encoder, tokenizer, context, decoder)
    view = inputs.encoder_view
    every = encoder.backbone(input_ids=view.ids, attention_mask=view.attention, output_hidden_states=True).hidden_states
    states = torch.cat([every[4][:, :1], every[1][:, 1:]], 1)
    for layer in encoder.layers[1:3]:
        states = layer(states, attention_mask=view.attention[:, None, None])
        states = states[0] if isinstance(states, tuple) else states
    out = decoder(inputs, encoder.heads())["token_states"]
    targets = view.labels != -100
    torch.testing.assert_close(out.states, states[targets])
    wanted = F.cross_entropy(encoder.model.cls(states).flatten(0, 1), view.labels.flatten())
    torch.testing.assert_close(MlmLoss()(token_states=out).loss, wanted)


@pytest.mark.parametrize(("layers", "half"), [(1, 0), (2, 1), (3, 1), (6, 3), (12, 6)])
def test_reads_by_default_the_middle_layer(context, layers, half):
    sizes = attrs.evolve(context.backbone, layers=layers)
    assert CondenserDecoder(CondenserConfig(), attrs.evolve(context, backbone=sizes)).needs_layers == (half,)


def test_with_one_layer_it_reads_the_embeddings_and_still_teaches_the_encoder(tokenizer):
    encoder = toy_encoder(tokenizer, layers=1, pooling="mean")
    context = context_from(encoder, tokenizer)
    decoder = CondenserDecoder(CondenserConfig(), context)
    inputs = given(encoder, tokenizer, context, decoder)
    torch.testing.assert_close(inputs.encoded.layers[0], encoder.heads().embed(inputs.encoder_view.ids))
    MlmLoss()(**decoder(inputs, encoder.heads())).loss.backward()
    assert encoder.layers[0].attention.self.value.weight.grad.any()


def test_nothing_of_the_decoders_text_and_view_reaches_it(encoder, tokenizer, context):
    decoder = CondenserDecoder(CondenserConfig(), context).eval()
    inputs = given(encoder, tokenizer, context, decoder)
    short = toy_batch(tokenizer, ["another text"] * len(inputs.tokens.ids))
    other = UniformMasker(UniformConfig(), context)(short, Draws(2, 0, short.keys.numpy()))
    moved = attrs.evolve(inputs, tokens=short, view=other)
    one, two = (decoder(given, encoder.heads())["token_states"] for given in (inputs, moved))
    assert torch.equal(one.states, two.states)
    assert torch.equal(one.labels, inputs.encoder_view.labels[inputs.encoder_view.labels != -100])


def test_upper_layers_speak_through_the_vector_alone(encoder, tokenizer, context):
    decoder = CondenserDecoder(CondenserConfig(skip_from=2), context).eval()
    inputs = given(encoder, tokenizer, context, decoder)
    hidden = torch.randn_like(inputs.encoded.hidden)
    one = decoder(inputs, encoder.heads())["token_states"].states
    late = decoder(attrs.evolve(inputs, encoded=attrs.evolve(inputs.encoded, hidden=hidden)), encoder.heads())
    assert torch.equal(late["token_states"].states, one)
    vector = attrs.evolve(inputs.encoded, bottleneck=inputs.encoded.bottleneck + 1)
    moved = decoder(attrs.evolve(inputs, encoded=vector), encoder.heads())["token_states"].states
    assert ((moved - one).abs().amax(1) > 1e-4).all()


def test_what_is_missing_is_said(encoder, tokenizer, context):
    decoder = CondenserDecoder(CondenserConfig(), context)
    inputs = given(encoder, tokenizer, context, decoder)
    with pytest.raises(DrkitError, match=r"'condenser' .*encoder_view="):
        decoder(attrs.evolve(inputs, encoder_view=None), encoder.heads())
    with pytest.raises(DrkitError, match=r"'condenser' .*layer 2; .*decoder\.needs_layers"):
        decoder(attrs.evolve(inputs, encoded=attrs.evolve(inputs.encoded, layers=())), encoder.heads())
    with pytest.raises(DrkitError, match=r"decoder\.skip_from = 5, .*4 layers.* 2, half"):
        CondenserDecoder(CondenserConfig(skip_from=5), context)
    with pytest.raises(ValueError, match="skip_from"):
        CondenserConfig(skip_from=-1)
