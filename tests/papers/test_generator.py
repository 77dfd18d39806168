"""The masker `generator`, what fills its views, and the decoders and losses that read them."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import attrs
import pytest
import torch
from torch import nn

from drkit.core.draws import Draws
from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, DecoderInput, MaskedView, TextStates, TokenStates
from drkit.decoders import MlmDecoder, MlmDecoderConfig
from drkit.errors import DrkitError
from drkit.losses import MlmLoss, MlmLossConfig
from drkit.plugin import NoSettings
from drkit_simlm import GeneratorConfig
from drkit_simlm import masker as generator
from drkit_simlm.decoder import AutoencoderDecoder, ReplacedTokenDetectionDecoder
from drkit_simlm.loss import EncoderRtdLoss, RtdLoss
from drkit_simlm.masker import GeneratorMasker, GeneratorReplacer, sample_words
from tests.parts.toys import texts, toy_batch, toy_encoder, toy_tokenizer


@pytest.fixture(scope="module")
def context(tokenizer):
    encoder = toy_encoder(tokenizer)
    return BuildContext(
        backbone=encoder.info(tokenizer),
        tokenizer=tokenizer,
        generator=toy_encoder(tokenizer, hidden=16, layers=1, seed=5),
    )


def own_context(context):
    """With a generator that nobody else holds."""
    return attrs.evolve(context, generator=pickle.loads(pickle.dumps(context.generator)))


def masked(context, tokens, rows=0, encoder_ratio=0.3, decoder_ratio=0.5):
    """The views of both sides, as SimLM has them: the decoder's hides what the encoder's hides, and more."""
    outer, inner = (GeneratorMasker(GeneratorConfig(ratio=ratio), context) for ratio in (encoder_ratio, decoder_ratio))
    rng = Draws(3, 0, tokens.keys.numpy())
    view = outer(tokens, rng)
    return SimpleNamespace(encoder=view, decoder=inner(tokens, rng, rows=rows, nested=view))


def replacer(context, **settings):
    return GeneratorReplacer(GeneratorConfig(**settings), own_context(context))


# ------------------------------------------------------------------ masks
@pytest.mark.parametrize(("encoder_ratio", "decoder_ratio"), [(0.3, 0.5), (0.15, 0.15), (0.4, 0.6), (0.3, 0.99)])
def test_the_decoder_hides_all_that_the_encoder_hides_and_more(context, tokenizer, encoder_ratio, decoder_ratio):
    tokens = toy_batch(tokenizer, texts()[:120])
    views = masked(context, tokens, encoder_ratio=encoder_ratio, decoder_ratio=decoder_ratio)
    hidden, union = (view.ids == tokenizer.mask_token_id for view in (views.encoder, views.decoder))
    assert not (hidden & ~union).any()
    count = tokens.maskable.sum()
    assert hidden.sum() / count == pytest.approx(encoder_ratio, abs=0.02)
    assert union.sum() / count == pytest.approx(decoder_ratio, abs=0.02)
    wanted = (decoder_ratio - encoder_ratio) / (1 - encoder_ratio)
    rest = tokens.maskable & ~hidden
    assert (union & rest).sum() / rest.sum() == pytest.approx(wanted, abs=0.02)
    for view, where in ((views.encoder, hidden), (views.decoder, union)):
        assert torch.equal(view.labels, torch.where(tokens.maskable, tokens.ids, -100))
        assert torch.equal(view.ids[~where], tokens.ids[~where])
        assert view.noise.dtype == torch.float32
        hidden = view.ids == context.backbone.mask_id
        assert bool(((view.noise >= 0) & (view.noise < 1))[hidden].all())
        assert bool((view.noise[~hidden] == -1).all())


def test_both_sides_have_noise_of_their_own(context, tokenizer):
    views = masked(context, toy_batch(tokenizer))
    both = views.encoder.noise >= 0  # nested: hidden from the decoder too
    assert both.any()
    assert not (views.encoder.noise == views.decoder.noise)[both].any()


def test_with_rows_only_the_encoders_view_is_to_be_filled(context, tokenizer):
    tokens = toy_batch(tokenizer)
    views = masked(context, tokens, rows=40)
    assert views.encoder.noise is not None
    assert views.decoder.noise is None
    assert torch.equal(views.decoder.ids, tokens.ids)
    hidden = views.encoder.ids == tokenizer.mask_token_id
    assert not views.decoder.visible.transpose(1, 2)[hidden].any()
    seen = views.decoder.visible.transpose(1, 2)[tokens.maskable].float().mean()
    assert float(seen) == pytest.approx(0.5, abs=0.02)


# ------------------------------------------------------------------ samples
class Table(nn.Module):
    """Heads whose logits are a table: state n is row n."""

    def __init__(self, logits):
        super().__init__()
        self.table = logits

    def logits(self, states):
        return self.table[states[:, 0].long()]


@pytest.mark.parametrize("at_once", [2**22, 64])
def test_samples_follow_the_softmax(monkeypatch, at_once):
    monkeypatch.setattr(generator, "AT_ONCE", at_once)
    draws, words = 40_000, 12
    logits = torch.randn(3, words, generator=torch.Generator().manual_seed(1)) * 2
    wanted = logits.double().softmax(-1)
    for row in range(len(logits)):
        noise = torch.from_numpy(Draws(row, 0, [0]).uniform(draws))[0]
        sampled = sample_words(torch.full((draws, 1), float(row)), noise, Table(logits), words)
        counts = torch.bincount(sampled, minlength=words)
        expected = wanted[row] * draws
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < 31.3  # 11 degrees of freedom: once in a thousand


def test_no_more_probabilities_are_held_than_allowed(monkeypatch):
    monkeypatch.setattr(generator, "AT_ONCE", 100)
    seen = []

    class Counted(Table):
        def logits(self, states):
            seen.append(len(states))
            return super().logits(states)

    logits = torch.zeros(1, 30)
    sampled = sample_words(torch.zeros(50, 1), torch.linspace(0, 0.99, 50), Counted(logits), 30)
    assert max(seen) * 30 <= 100
    assert sum(seen) == 50
    assert sampled.tolist() == [int(u * 30 + 1e-6) for u in torch.linspace(0, 0.99, 50).tolist()]


def test_a_sample_is_the_inverse_of_the_distribution_function():
    logits = torch.tensor([[0.5, 0.25, 0.0, 0.25]]).log()
    noise = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 1 - 2**-24])
    sampled = sample_words(torch.zeros(6, 1), noise, Table(logits), 4)
    assert sampled.tolist() == [0, 0, 1, 1, 3, 3]  # what has no probability is never drawn


def test_rows_beyond_the_words_are_never_sampled():
    logits = torch.tensor([[0.0, 0.0, 50.0, 50.0]])
    noise = torch.from_numpy(Draws(1, 0, [0]).uniform(200))[0]
    sampled = sample_words(torch.zeros(200, 1), noise, Table(logits), 2)
    assert set(sampled.tolist()) == {0, 1}
    assert sample_words(torch.zeros(0, 1), noise[:0], Table(logits), 2).shape == (0,)


def test_only_masked_positions_are_filled(context, tokenizer):
    tokens = toy_batch(tokenizer)
    views, fill = masked(context, tokens), replacer(context)
    for view in (views.encoder, views.decoder):
        filled, own = fill(view, tokens, learn=True)
        hidden = view.ids == tokenizer.mask_token_id
        assert own is None
        assert torch.equal(filled.ids[~hidden], tokens.ids[~hidden])
        assert bool((filled.ids[hidden] != tokenizer.mask_token_id).float().mean() > 0.9)
        assert torch.equal(filled.labels, view.labels)


def test_samples_equal_the_naive_ones(context, tokenizer):
    tokens = toy_batch(tokenizer, texts()[:3])
    view = masked(context, tokens).decoder
    fill = replacer(context)
    with torch.no_grad():
        logits = fill.generator.model(input_ids=view.ids, attention_mask=view.attention).logits.double()
    wanted = tokens.ids.clone()
    for row, position in (view.ids == tokenizer.mask_token_id).nonzero().tolist():
        below, target = 0.0, float(view.noise[row, position])
        for word, share in enumerate(logits[row, position].softmax(-1).tolist()):
            below += share
            if below > target:
                wanted[row, position] = word
                break
    assert torch.equal(fill(view, tokens, learn=False)[0].ids, wanted)


def test_a_text_gets_the_same_words_in_any_batch(context, tokenizer):
    tokens, fill = toy_batch(tokenizer), replacer(context)
    together = fill(masked(context, tokens).decoder, tokens, learn=False)[0].ids
    for row in (0, 7, 3):
        alone = toy_batch(tokenizer, [texts()[row]], keys=[row], padding="max_length", max_length=128)
        ids = fill(masked(context, alone).decoder, alone, learn=False)[0].ids[0]
        length = int(alone.attention.sum())
        assert torch.equal(ids[:length], together[row, :length])


# ------------------------------------------------------------------ variants
def test_a_frozen_generator_stays_frozen_whatever_the_trainer_does(context):
    holder = nn.ModuleDict({"inner": nn.ModuleDict({"fill": replacer(context)})})
    holder.train()
    holder["inner"].train(True)
    fill = holder["inner"]["fill"]
    assert not fill.learns
    assert not any(part.training for part in fill.modules())
    assert not any(p.requires_grad for p in holder.parameters())


@pytest.mark.parametrize("variant", ["joint", "joint-random"])
def test_a_joint_generator_learns_by_its_own_loss_alone(context, tokenizer, variant):
    tokens = toy_batch(tokenizer)
    views = masked(context, tokens)
    fill = replacer(context, variant=variant).train()
    assert fill.learns
    assert all(part.training for part in fill.modules())
    view, own = fill(views.encoder, tokens, learn=True)
    hidden = views.encoder.ids == tokenizer.mask_token_id
    logits = fill.generator.model(input_ids=views.encoder.ids, attention_mask=tokens.attention).logits[hidden]
    wanted = nn.functional.cross_entropy(logits, tokens.ids[hidden])
    torch.testing.assert_close(own.loss, 0.2 * wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(own.metrics["mlm"], wanted.detach(), rtol=1e-5, atol=1e-6)
    assert own.metrics["targets"] == hidden.sum()
    own.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in fill.generator.parameters())
    assert not view.ids.is_floating_point()
    assert fill(views.decoder, tokens, learn=False)[1] is None


def test_frozen_and_joint_draw_the_same_words(context, tokenizer):
    tokens = toy_batch(tokenizer)
    view = masked(context, tokens).encoder
    frozen, joint = (replacer(context, variant=variant) for variant in ("frozen", "joint"))
    assert torch.equal(frozen(view, tokens, learn=True)[0].ids, joint(view, tokens, learn=True)[0].ids)


def test_a_frozen_generator_gets_no_gradient_from_the_losses(context, tokenizer):
    tokens = toy_batch(tokenizer)
    views, fill, encoder = masked(context, tokens), replacer(context), toy_encoder(tokenizer)
    view, _ = fill(views.encoder, tokens, learn=True)
    encoded = encoder.encode(view.ids, view.attention)
    states = TokenStates(encoded.hidden[tokens.maskable], tokens.ids[tokens.maskable], encoder.heads())
    MlmLoss()(token_states=states).loss.backward()
    assert all(p.grad is None for p in fill.generator.parameters())


def test_nothing_masked_still_has_a_graph(context, tokenizer):
    tokens = toy_batch(tokenizer)
    view = attrs.evolve(masked(context, tokens).encoder, ids=tokens.ids)
    view = attrs.evolve(view, noise=torch.full_like(view.noise, -1.0))
    filled, own = replacer(context, variant="joint")(view, tokens, learn=True)
    assert torch.equal(filled.ids, tokens.ids)
    assert own.loss.item() == 0
    own.loss.backward()


# ------------------------------------------------------------------ refusals
def test_a_generator_of_another_size_is_refused_by_name(context, tmp_path):
    other = toy_encoder(toy_tokenizer(500), hidden=16)
    other.model.save_pretrained(tmp_path / "small-words")
    loaded = type(other).from_pretrained(str(tmp_path / "small-words"))
    with pytest.raises(DrkitError, match=r"small-words.*500 words.*700"):
        GeneratorReplacer(GeneratorConfig(), attrs.evolve(context, generator=loaded))


def test_a_generator_that_numbers_words_otherwise_is_refused_by_name(context, tokenizer, tmp_path):
    folder = tmp_path / "other-words"
    other = toy_encoder(tokenizer, hidden=16)
    other.model.save_pretrained(folder)
    turned = toy_tokenizer()
    turned.save_pretrained(folder)
    text = (folder / "tokenizer.json").read_text()
    assert '"the"' in text
    assert '"of"' in text
    swapped = text.replace('"the"', '"<<"').replace('"of"', '"the"').replace('"<<"', '"of"')
    (folder / "tokenizer.json").write_text(swapped)
    loaded = type(other).from_pretrained(str(folder))
    with pytest.raises(DrkitError, match=r"other-words.*.*2 words.*'of'"):
        GeneratorReplacer(GeneratorConfig(), attrs.evolve(context, generator=loaded))


def test_the_same_words_beside_a_generator_are_accepted(context, tokenizer, tmp_path):
    other = toy_encoder(tokenizer, hidden=16)
    other.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = type(other).from_pretrained(str(tmp_path))
    assert GeneratorReplacer(GeneratorConfig(), attrs.evolve(context, generator=loaded)).words == len(tokenizer)


def test_without_a_generator_or_noise_it_says_what_to_give(context, tokenizer):
    with pytest.raises(DrkitError, match=r"'generator' .*masked LM .*BuildContext\.generator"):
        GeneratorReplacer(GeneratorConfig(), attrs.evolve(context, generator=None))
    tokens = toy_batch(tokenizer)
    view = MaskedView(ids=tokens.ids, labels=tokens.ids, attention=tokens.attention)
    with pytest.raises(DrkitError, match=r"view .*noise .*'generator'"):
        replacer(context)(view, tokens, learn=False)
    with pytest.raises(ValueError, match=r"'generator_hidden' \(130\) .*'generator_heads' \(4\)"):
        GeneratorConfig(generator_hidden=130)


# ------------------------------------------------------------------ decoders
def decoder_input(context, tokenizer, tokens):
    fill, encoder = replacer(context), toy_encoder(tokenizer)
    views = masked(context, tokens)
    view, again = (fill(side, tokens, learn=False)[0] for side in (views.encoder, views.decoder))
    return encoder, DecoderInput(encoder.encode(view.ids, view.attention), tokens, again, view)


def test_replaced_token_detection_tells_what_differs(context, tokenizer):
    tokens = toy_batch(tokenizer)
    encoder, inputs = decoder_input(context, tokenizer, tokens)
    decoder = ReplacedTokenDetectionDecoder(MlmDecoderConfig(), context)
    out = decoder(inputs, encoder.heads())
    differs = [
        bool(inputs.view.ids[row, position] != tokens.ids[row, position])
        for row, position in tokens.maskable.nonzero().tolist()
    ]
    assert out["replaced"].tolist() == differs
    filled = int((masked(context, tokens).decoder.noise >= 0).sum())  # some samples are the original
    assert filled / len(differs) == pytest.approx(0.5, abs=0.02)
    assert 0.6 < sum(differs) / filled <= 1
    states = MlmDecoder.forward(decoder.decoder, inputs, encoder.heads())["token_states"].states
    wanted = decoder.head.score(nn.functional.gelu(decoder.head.dense(states)))[:, 0]
    torch.testing.assert_close(out["replaced_logits"], wanted)


def test_the_autoencoder_sees_the_vector_and_the_length_alone(context, tokenizer):
    tokens = toy_batch(tokenizer)
    encoder, inputs = decoder_input(context, tokenizer, tokens)
    decoder = AutoencoderDecoder(MlmDecoderConfig(layers=1), context).eval()
    out = decoder(inputs, encoder.heads())["token_states"]
    assert torch.equal(out.labels, tokens.ids[tokens.maskable])
    other_words = attrs.evolve(tokens, ids=torch.where(tokens.maskable, 7, tokens.ids))
    blind = attrs.evolve(inputs, tokens=other_words, view=None)
    assert torch.equal(decoder(blind, encoder.heads())["token_states"].states, out.states)
    shuffled = attrs.evolve(
        inputs, encoded=attrs.evolve(inputs.encoded, bottleneck=inputs.encoded.bottleneck.roll(1, 0))
    )
    assert not torch.allclose(decoder(shuffled, encoder.heads())["token_states"].states, out.states)


@pytest.mark.parametrize("kind", [ReplacedTokenDetectionDecoder, AutoencoderDecoder])
def test_they_start_from_the_encoders_last_layers_where_asked(context, tokenizer, kind):
    encoder = toy_encoder(tokenizer)
    decoder = kind(MlmDecoderConfig(layers=1, init="encoder-tail"), context)
    decoder.init_from(encoder)
    mine, theirs = decoder.decoder.layers[0].query.weight, encoder.layers[-1].attention.self.query.weight
    assert torch.equal(mine, theirs)
    assert mine is not theirs


# ------------------------------------------------------------------ losses
def states_of(tokenizer, count=50):
    draw = torch.Generator().manual_seed(2)
    labels = torch.randint(5, len(tokenizer), (count,), generator=draw)
    return TokenStates(torch.randn(count, 32, generator=draw), labels, toy_encoder(tokenizer).heads())


@pytest.mark.parametrize("share", [1.0, 0.3, 0.01])
def test_replaced_lm_is_cross_entropy_over_all_targets_or_a_share(tokenizer, share):
    given = states_of(tokenizer)
    parts = installed().registry
    loss = parts.get(Kind.LOSS, "replaced-lm").load()(MlmLossConfig(targets=share))
    out = loss(token_states=given)
    kept = [int(i * 50 / -(-50 * share // 1)) for i in range(int(-(-50 * share // 1)))]
    wanted = nn.functional.cross_entropy(given.heads.logits(given.states[kept]), given.labels[kept])
    torch.testing.assert_close(out.loss, wanted, rtol=1e-5, atol=1e-6)
    assert loss.items(token_states=given) == out.metrics["targets"] == len(kept)


def test_rtd_is_binary_cross_entropy():
    logits = torch.tensor([2.0, -1.0, 0.3, 5.0], dtype=torch.float64)
    replaced = torch.tensor([True, True, False, False])
    share = 1 / (1 + (-logits).exp())
    wanted = -torch.cat([share[:2].log(), (1 - share[2:]).log()]).mean()
    out = RtdLoss()(replaced_logits=logits, replaced=replaced)
    torch.testing.assert_close(out.loss, wanted)
    assert out.metrics["replaced"] == 0.5
    assert RtdLoss().items(replaced_logits=logits, replaced=replaced) == 4
    none = RtdLoss()(replaced_logits=logits[:0].requires_grad_(), replaced=replaced[:0])
    assert none.loss.item() == 0
    none.loss.backward()


def test_the_encoders_rtd_has_a_head_of_its_own(context, tokenizer):
    tokens = toy_batch(tokenizer)
    encoder, inputs = decoder_input(context, tokenizer, tokens)
    loss = EncoderRtdLoss(NoSettings(), context)
    replaced = (inputs.encoder_view.ids != tokens.ids)[tokens.maskable]
    texts_ = TextStates(inputs.encoded.hidden, tokens, encoder.heads())
    out = loss(text_states=texts_, replaced=replaced)
    wanted = RtdLoss()(replaced_logits=loss.head(inputs.encoded.hidden[tokens.maskable]), replaced=replaced).loss
    assert torch.equal(out.loss, wanted)
    assert loss.items(text_states=texts_, replaced=replaced) == len(replaced)
    out.loss.backward()
    assert all(p.grad is not None for p in loss.parameters())
    again = EncoderRtdLoss(NoSettings(), context)
    assert all(torch.equal(a, b) for a, b in zip(loss.parameters(), again.parameters(), strict=True))


def test_accuracy_of_replaced_token_detection():
    logits, replaced = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([True, False, False])
    assert RtdLoss().accuracy(replaced_logits=logits, replaced=replaced) == (2.0, 3)
