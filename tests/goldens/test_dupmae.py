"""DupMAE's three losses, its states and gradients equal the recorded ones, for every recording at hand."""

from __future__ import annotations

import attrs
import pytest
import torch

from drkit.core.types import BuildContext, DecoderInput, TextStates, TokenBatch
from drkit.decoders import EnhancedConfig, EnhancedDecoder
from drkit.decoders.bow import word_mask
from drkit.encoders.heads import token_states
from drkit.losses import MlmLoss
from drkit_retromae import loss as bag_of_words
from drkit_retromae.loss import BagOfWordsLoss, highest_scores
from tests.goldens.recordings import SHARED, check_gradients
from tests.goldens.test_retromae import Recording, _decoder_names

WEIGHT = 0.1


def recordings():
    found = []
    for weights in sorted(SHARED.glob("dupmae_*_weights.safetensors")):
        found += sorted(SHARED.glob(f"{weights.name.removesuffix('_weights.safetensors')}_b*.safetensors"))
    return found


class DupMae(Recording):
    """One recorded batch. Its texts are those the decoder labels, and so the words of the bag."""

    def decoder(self) -> EnhancedDecoder:
        decoder = EnhancedDecoder(EnhancedConfig(query="embedded"), BuildContext(backbone=self.backbone()))
        names = _decoder_names()
        decoder.load_state_dict({names[k]: self.weights[k] for k in names}, strict=True)
        return decoder

    def tokens(self) -> TokenBatch:
        view = self.view()
        unused = torch.zeros_like(view.ids)
        return TokenBatch(
            ids=view.ids, attention=view.attention, maskable=view.labels != -100, words=unused, keys=unused[:, 0]
        )

    def run(self, encoder, decoder):
        view, heads, loss, tokens = self.view(), encoder.heads(), MlmLoss(), self.tokens()
        encoded = encoder.encode(self.inputs["encoder_input_ids"], view.attention)
        found = decoder(DecoderInput(encoded=encoded, tokens=tokens, view=view), heads)
        own = token_states(encoded.hidden, self.inputs["encoder_labels"], heads)
        texts = TextStates(states=encoded.hidden, tokens=tokens, heads=heads)
        losses = {
            "loss_enc": loss(token_states=own).loss,
            "loss_dec": loss(**found).loss,
            "loss_bow": BagOfWordsLoss()(text_states=texts).loss,
        }
        total = losses["loss_enc"] + losses["loss_dec"] + WEIGHT * losses["loss_bow"]
        return {**losses, "loss": total, "cls": encoded.bottleneck, "dec_hidden": found["token_states"].states}


@pytest.fixture(scope="module", params=recordings() or [None], ids=lambda path: path.stem if path else "none")
def recording(request) -> DupMae:
    if request.param is None:
        pytest.skip(f"no recordings of DupMAE in {SHARED}")
    return DupMae(request.param)


@pytest.mark.parametrize("at_once", [2**24, 2**17], ids=["whole", "in-chunks"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_losses_vectors_and_gradients(recording, training, at_once, monkeypatch):
    monkeypatch.setattr(bag_of_words, "AT_ONCE", at_once)
    encoder, decoder = recording.encoder().train(training), recording.decoder().train(training)
    got = recording.run(encoder, decoder)
    for name in ("loss_enc", "loss_dec", "loss_bow", "loss", "cls"):
        torch.testing.assert_close(got[name], recording.wanted[name], rtol=1e-5, atol=1e-5)
    for name, value in recording.metrics["losses64"].items():
        assert got[name].item() == pytest.approx(value, rel=1e-5)
    targets = recording.view().labels != -100
    torch.testing.assert_close(got["dec_hidden"], recording.wanted["dec_hidden"][targets], rtol=1e-5, atol=1e-5)

    got["loss"].backward()
    gradients = {f"lm.{name}": p.grad for name, p in encoder.model.named_parameters()}
    back = {mine: theirs for theirs, mine in _decoder_names().items()}
    gradients |= {back[name]: p.grad for name, p in decoder.named_parameters()}
    check_gradients(gradients, recording.gradients, recording.metrics)


def test_targets_and_maxima(recording):
    tokens = recording.tokens()
    words = word_mask(tokens, recording.config["vocab_size"])
    targets = words / tokens.maskable.sum(1, keepdim=True)
    torch.testing.assert_close(targets, recording.inputs["bag_word_weight"])
    states = recording.wanted["enc_last_hidden"]
    peaks = highest_scores(states, tokens.attention, recording.encoder().heads())
    torch.testing.assert_close(peaks, recording.wanted["ot_embedding"], rtol=1e-5, atol=1e-5)


def test_queries_are_the_embedding_layer_on_the_bottleneck(recording):
    h = recording.wanted["cls"]
    length = recording.wanted["dec_query"].shape[1]
    made = recording.encoder().eval().heads().embed_vectors(h[:, None].expand(-1, length, -1))
    torch.testing.assert_close(made, recording.wanted["dec_query"], rtol=1e-5, atol=1e-5)


def test_with_retromaes_query_the_same_weights_give_other_states(recording):
    encoder, decoder = recording.encoder(), recording.decoder()
    decoder.config = attrs.evolve(decoder.config, query="position")
    got = recording.run(encoder, decoder)["dec_hidden"]
    wanted = recording.wanted["dec_hidden"][recording.view().labels != -100]
    assert (got - wanted).norm() > 0.05 * wanted.norm()
