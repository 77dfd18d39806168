"""CoT-MAE, and its heads for queries: losses, states and gradients equal the recorded ones, for every recording."""

from __future__ import annotations

import pytest
import torch

from drkit.core.types import DecoderInput, MaskedView
from drkit.decoders import MlmDecoder, MlmDecoderConfig
from drkit.encoders.heads import token_states
from drkit.losses import MlmLoss
from drkit_seed import AutoregressiveBlockConfig
from drkit_seed.decoder import AutoregressiveBlockDecoder
from tests.goldens.recordings import Recorded, check_gradients, check_outputs, file_of, recordings, shown, text

PAIRS = recordings("cotmae", but="cotmae_qc")
QUERIES = recordings("cotmae_qc")


def mlm_head(recording: Recorded):
    return recording.load_head(MlmDecoder(MlmDecoderConfig(layers=recording.head_layers()), recording.context()))


def decode(decoder, encoded, heads, ids, attention, labels=None):
    """The states at the targets, and the loss over them."""
    view = MaskedView(ids=ids, labels=torch.full_like(ids, -100) if labels is None else labels, attention=attention)
    states = decoder(DecoderInput(encoded=encoded, tokens=text(ids, attention), view=view), heads)["token_states"]
    return states, MlmLoss()(token_states=states).loss


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("path", PAIRS, ids=shown)
def test_cotmae(path, training):
    recording = Recorded(file_of(path, "CoT-MAE"), lm="")
    encoder, decoder = recording.encoder().train(training), mlm_head(recording).train(training)
    given, heads = recording.inputs, encoder.heads()
    encoded = encoder.encode(given["input_ids"], given["attention_mask"].bool())
    own = token_states(encoded.hidden, given["labels"], heads)
    partner = (given["decoder_input_ids"], given["decoder_attention_mask"].bool(), given["decoder_labels"])
    states, loss = decode(decoder, encoded, heads, *partner)
    losses = {"loss_enc": MlmLoss()(token_states=own).loss, "loss_dec": loss}
    losses["loss"] = losses["loss_enc"] + losses["loss_dec"]
    metrics = recording.variants["main"]
    check_outputs(
        {**losses, "cls": encoded.bottleneck, "enc_last_hidden": encoded.hidden}, recording.group("out."), metrics
    )
    wanted = recording.tensors["out.dec_hidden"][given["decoder_labels"] != -100]
    torch.testing.assert_close(states.states, wanted, rtol=1e-5, atol=1e-5)
    losses["loss"].backward()
    check_gradients(recording.gradients(encoder, decoder), recording.group("grad."), metrics)


# GPT-2's weights lie the other way round, and the file leaves out c_attn's bias, which was 0 when it was recorded.
BLOCK = {
    "d_head.0.ln_1": "block.attention_norm",
    "d_head.0.attn.c_attn": "block.attention",
    "d_head.0.attn.c_proj": "block.attention_output",
    "d_head.0.ln_2": "block.intermediate_norm",
    "d_head.0.mlp.c_fc": "block.intermediate",
    "d_head.0.mlp.c_proj": "block.output",
    "d_head_ln_f": "norm",
}


def causal_head(recording: Recorded, window: int) -> AutoregressiveBlockDecoder:
    decoder = AutoregressiveBlockDecoder(AutoregressiveBlockConfig(window=max(window, 0)), recording.context())
    for theirs, mine in BLOCK.items():
        piece = decoder.get_submodule(mine)
        weight, bias = recording.weights[f"{theirs}.weight"], recording.weights.get(f"{theirs}.bias")
        if bias is None:
            assert theirs.endswith("c_attn")
            bias = torch.zeros_like(piece.bias)
        piece.load_state_dict({"weight": weight.T if weight.ndim == 2 else weight, "bias": bias})
    return decoder


def causal_gradients(decoder: AutoregressiveBlockDecoder) -> dict[str, torch.Tensor]:
    found = {}
    for theirs, mine in BLOCK.items():
        piece = decoder.get_submodule(mine)
        found[f"{theirs}.weight"] = piece.weight.grad.T if piece.weight.ndim == 2 else piece.weight.grad
        found[f"{theirs}.bias"] = piece.bias.grad
    return found


def variants():
    windows = [(path, name) for path in QUERIES if path for name in sorted(Recorded(path).variants)]
    return windows or [(None, "none")]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("path", "variant"), variants(), ids=str)
def test_heads_for_queries(path, variant, training):
    """A bidirectional and a causal head on one vector, summed; each is a decoder of drkit's."""
    recording = Recorded(file_of(path, "CoT-MAE with query context"))
    metrics, given = recording.variants[variant], recording.inputs
    encoder, both = recording.encoder().train(training), mlm_head(recording).train(training)
    causal = causal_head(recording, metrics["opts"]["attn_window"]).train(training)
    heads = encoder.heads()
    encoded = encoder.encode(given["input_ids"], given["attention_mask"].bool())
    own = token_states(encoded.hidden, given["labels"], heads)
    bidirectional = (given["enc_head_input_ids"], given["enc_head_attention_mask"].bool(), given["enc_head_labels"])
    clean = (given["dec_head_input_ids"], given["dec_head_attention_mask"].bool())
    first, loss_enc_head = decode(both, encoded, heads, *bidirectional)
    second, loss_dec_head = decode(causal, encoded, heads, *clean)
    losses = {
        "loss_enc": MlmLoss()(token_states=own).loss,
        "loss_enc_head": loss_enc_head,
        "loss_dec_head": loss_dec_head,
    }
    losses["loss"] = torch.stack([*losses.values()]).sum()
    wanted = recording.group(f"out.{variant}.")
    check_outputs({**losses, "cls": encoded.bottleneck, "enc_last_hidden": encoded.hidden}, wanted, metrics)
    indices = given["enc_head_labels"] != -100
    torch.testing.assert_close(first.states, wanted["enc_head_hidden"][indices], rtol=1e-5, atol=1e-5)
    inner = clean[1] & (torch.arange(clean[0].shape[1]) < clean[1].sum(1, keepdim=True) - 1)
    torch.testing.assert_close(second.states, wanted["dec_head_hidden"][inner], rtol=1e-5, atol=1e-5)
    losses["loss"].backward()
    gradients = recording.gradients(encoder, both) | causal_gradients(causal)
    check_gradients(gradients, recording.group(f"grad.{variant}."), metrics)
