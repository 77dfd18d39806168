"""A step has the examples, the losses and the gradient of its batch size, however many processes divide it."""

import pytest
import torch
from attrs import evolve

from drkit.core.types import StepOutput
from drkit.decoders import MlmDecoder
from drkit.train import gradients
from drkit.train.pretrain import AutoEncoder
from tests.runs.global_batches import TRAININGS, masked_texts, pretraining, trained
from tests.torchrun import run_processes


@pytest.fixture(scope="module")
def eight_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eight")
    run_processes("tests.runs.global_batches", folder, *TRAININGS, processes=8)
    return {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in TRAININGS}


def weights(module):
    return {name: weight.detach() for name, weight in module.named_parameters()}


def assert_close(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, **tolerance, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("at_once", [1, 16])
@pytest.mark.parametrize("name", TRAININGS)
def test_eight_processes_train_the_steps_of_one(eight_processes, tmp_path, name, at_once):
    module, losses = trained(name, tmp_path, per_device_train_batch_size=at_once)
    found = eight_processes[name]
    assert len(losses) == 3
    for mine, theirs in zip(losses, found["losses"], strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
    assert_close(found["weights"], weights(module), atol=2e-5, rtol=1e-4)
    start, _ = trained(name, tmp_path / "start", learning_rate=1e-12)
    moved = [(weight - weights(start)[key]).abs().max() for key, weight in weights(module).items()]
    assert max(moved) > 1e-3, "it has learnt something"


def one_step(folder, at_once):
    """The gradient of one step of 16 texts in float64, read so many at once; by name."""
    module, losses = trained("pretrain", folder, steps=1, double=True, per_device_train_batch_size=at_once)
    return weights(module), losses


def test_micro_batches_sorted_by_length_have_the_gradient_of_the_whole_step(tmp_path):
    expected, losses = one_step(tmp_path / "1", 16)
    start = weights(pretraining(compares=False).double())
    assert max((expected[name] - weight).abs().max() for name, weight in start.items()) > 1e-3
    run_processes("tests.runs.global_batches", tmp_path, "double", processes=2)
    two = torch.load(tmp_path / "double.pt", weights_only=True)
    found = {"4 micro-batches": one_step(tmp_path / "4", 4), "2 processes": (two["weights"], two["losses"])}
    for moved, shown in found.values():
        for name, weight in expected.items():
            step, other = weight - start[name], moved[name] - start[name]
            torch.testing.assert_close(other, step, atol=1e-7 * float(step.abs().max()) + 1e-15, rtol=1e-5)
        assert shown[0] == pytest.approx(losses[0], rel=1e-4)


class Unforeseen(torch.nn.Module):
    """A decoder that does not know its targets before it has computed them."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def forward(self, inputs, heads):
        return self.decoder(inputs, heads)


class Scored:
    """A loss that is a mean over the texts, and counts nothing."""

    def __call__(self, *, bottleneck):
        return StepOutput(loss=bottleneck.square().mean())


def test_items_are_counted_before_a_forward_and_by_one_where_a_part_cannot_say():
    module, batch = pretraining(compares=False), masked_texts([(0, row) for row in range(9)], compares=False)
    module = AutoEncoder(
        module.encoder, dict(module.decoders), {**module.terms, "texts": evolve_term(module.terms["encoder"])}
    )
    out = module(**batch)
    counted = module.count(batch)
    assert {name: int(value) for name, value in counted.items()} == {
        name: int(value) for name, value in out.items() if name.startswith("items.")
    }
    assert int(counted["items.texts"]) == 9
    assert int(counted["items.encoder"]) != int(counted["items.decoder"])
    other = AutoEncoder(module.encoder, {"decoder": Unforeseen(module.decoders["decoder"])}, module.terms)
    assert isinstance(module.decoders["decoder"], MlmDecoder)
    assert other.count(batch) is None
    state = torch.get_rng_state()
    found = [gradients.count_step(one, [batch, batch], torch.device("cpu")) for one in (module, other)]
    assert torch.equal(state, torch.get_rng_state())
    assert found[0] == found[1]
    assert int(found[0]["texts"]) == 18


def evolve_term(term):
    """A loss of the vectors in place of the term's own."""
    return evolve(term, loss=Scored(), receives=("bottleneck",))
