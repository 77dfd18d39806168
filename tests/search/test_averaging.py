"""The average of encoders: the means of their weights, worked out by hand; and what has none."""

import copy

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drkit.commands import export_checkpoint
from drkit.encoders import EncoderCard, export_encoder
from drkit.errors import DrkitError
from drkit.search import DualEncoder, TextEncoder, average_encoders
from drkit.testing import toys

CARD = EncoderCard(pooling="mean", query_length=16, passage_length=24)
TEXTS = ["a small text", "another one that is longer", "words"]


def encoder(seed, card=CARD, **sizes):
    made = toys.toy_encoder(seed, **sizes)
    return TextEncoder(card, made.model.base_model.eval(), toys.toy_tokenizer())


def states(*encoders):
    return [one.model.state_dict() for one in encoders]


def test_an_average_is_the_mean_of_the_weights():
    one, two, three = encoder(1), encoder(2), encoder(3)
    found = average_encoders([one, two, three])
    for name, value in found.model.state_dict().items():
        expected = torch.stack([state[name].double() for state in states(one, two, three)]).mean(0)
        torch.testing.assert_close(value.double(), expected, atol=1e-7, rtol=0)
    assert states(one)[0].keys() == states(found)[0].keys()
    before = encoder(1).encode_passages(TEXTS)
    assert np.array_equal(one.encode_passages(TEXTS), before), "the encoders stay as they are"
    assert not np.allclose(found.encode_passages(TEXTS), before)


def test_weights_of_an_average_are_shares():
    one, two = encoder(1), encoder(2)
    found = states(average_encoders([one, two], weights=[3, 1]))[0]
    for name, value in found.items():
        torch.testing.assert_close(value, 0.75 * states(one)[0][name] + 0.25 * states(two)[0][name])


def test_the_average_of_equal_encoders_is_that_encoder():
    found = average_encoders([encoder(1), encoder(1)])
    assert np.array_equal(found.encode_passages(TEXTS), encoder(1).encode_passages(TEXTS))


def test_two_encoders_are_averaged_side_by_side():
    one, two = DualEncoder(encoder(1), encoder(2)), DualEncoder(encoder(3), encoder(4))
    found = average_encoders([one, two])
    for side, pair in (("queries", (1, 3)), ("passages", (2, 4))):
        expected = average_encoders([encoder(seed) for seed in pair])
        assert np.array_equal(getattr(found, side).encode_passages(TEXTS), expected.encode_passages(TEXTS))
    with pytest.raises(DrkitError, match="one encoder for queries and passages"):
        average_encoders([one, encoder(1)])


def other_tokenizer():
    tokenizer = copy.deepcopy(toys.toy_tokenizer())
    tokenizer.truncation_side = "left"
    return attrs.evolve(encoder(1), tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: encoder(1, hidden=32), "other weights"),
        (lambda: encoder(1, layers=3), "other weights"),
        (other_tokenizer, "another tokenizer"),
        (lambda: encoder(1, attrs.evolve(CARD, pooling="cls")), r"another pooling \('cls', not 'mean'\)"),
        (lambda: encoder(1, attrs.evolve(CARD, query_prompt="query: ")), "another query_prompt"),
        (lambda: encoder(1, attrs.evolve(CARD, similarity="dot")), "another similarity"),
    ],
)
def test_encoders_that_differ_are_refused(other, said):
    with pytest.raises(DrkitError, match=f"cannot average: the encoder number 2 has {said}"):
        average_encoders([encoder(2), other()])


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_weights_must_be_positive_numbers(weights):
    with pytest.raises(DrkitError, match="a positive weight for each of the 2"):
        average_encoders([encoder(1), encoder(2)], weights)


def test_one_encoder_has_no_average():
    with pytest.raises(DrkitError, match="at least 2"):
        average_encoders([encoder(1)])


def test_export_averages_folders(tmp_path, run_drkit):
    for seed in (1, 2):
        export_encoder(encoder(seed), tmp_path / str(seed))
    made = export_checkpoint(tmp_path / "1", tmp_path / "averaged", average=[tmp_path / "2"])
    one, two, found = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "2", "averaged"))
    for name, value in found.items():
        torch.testing.assert_close(value, (one[name] + two[name]) / 2)
    expected = average_encoders([encoder(1), encoder(2)]).encode_passages(TEXTS)
    assert np.allclose(TextEncoder.load(made).encode_passages(TEXTS), expected, atol=1e-6)
    code, out, _ = run_drkit("export", tmp_path / "1", "--average", tmp_path / "2", "-o", tmp_path / "again")
    assert code == 0
    assert "again" in out
    again = load_file(tmp_path / "again/model.safetensors")
    assert all(torch.equal(again[name], value) for name, value in found.items())
    with pytest.raises(DrkitError, match="holds the encoder itself"):
        export_checkpoint(tmp_path / "1", tmp_path / "2", average=[tmp_path / "2"])
