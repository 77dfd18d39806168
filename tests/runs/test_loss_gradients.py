"""Every loss of fine-tuning: cached gradients with dropout on, and two processes, are one big batch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drkit.train import gradients
from tests.runs.every_loss import CHUNKS, GROUPS, LOSSES, SHARES, batch_of, module_of
from tests.runs.every_training import STEPS, TRAININGS, trained
from tests.torchrun import run_processes

HERE = Path(__file__).parent


def taken(module, batch, chunk=0):
    module.zero_grad()
    strategy = gradients.GradientStrategy(forward=module, backward=lambda loss: loss.backward(), chunk=chunk)
    loss, metrics = gradients.backward(module, batch, strategy)
    return float(loss), metrics, {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def one_graph(module, parts):
    """The loss with one graph through all parts."""
    outs = [module(**part) for part in parts]
    if not module.compares():
        count = sum(int(out["items.ranking"]) for out in outs)
        return sum(out["loss.ranking"] * int(out["items.ranking"]) for out in outs) / count
    names = dict.fromkeys(name for out in outs for name in out)
    rows = {name.removeprefix("rows."): torch.cat([out[name] for out in outs if name in out]) for name in names}
    return module.compare(rows)[0]


def close(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=tolerance, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_cached_gradients_are_those_of_one_graph_with_dropout_on(name, chunk):
    module, batch = module_of(name, dropout=0.2).train(), batch_of(name)
    torch.manual_seed(11)
    loss, _, found = taken(module, batch, chunk)
    torch.manual_seed(11)
    module.zero_grad()
    expected = one_graph(module, module.chunks(batch, chunk) if chunk else [batch])
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    wanted = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    close(found, wanted)
    assert max(gradient.abs().max() for gradient in wanted.values()) > 1e-3


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What two processes have found, for every loss, whole and in chunks."""
    folder = tmp_path_factory.mktemp("together")
    run_processes("tests.runs.every_loss", folder)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_have_the_gradients_of_one_big_batch(together, name, chunk):
    loss, _, expected = taken(module_of(name).train(), batch_of(name))
    prefix = f"{name} {chunk}."
    found = {key.removeprefix(prefix): value for key, value in together.items() if key.startswith(prefix)}
    assert float(found.pop("loss")) == pytest.approx(loss, rel=1e-5)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-3
    close(found, expected, 2e-6)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainings")
    run_processes("tests.runs.every_training", folder)
    return folder


@pytest.mark.parametrize(("name", "chunk"), TRAININGS)
def test_a_training_on_two_processes_is_that_on_one_with_twice_the_batch(trainings, tmp_path, name, chunk):
    module, losses = trained(name, 0, tmp_path)
    start = dict(module_of(name).named_parameters())
    expected = {n: p.detach() for n, p in module.named_parameters()}
    assert len(losses) == STEPS
    assert max((start[n] - weight).abs().max() for n, weight in expected.items()) > 1e-3, "it has learnt something"
    close(load_file(trainings / f"{name}.safetensors"), expected, 2e-5)


def test_separate_encoders_read_a_side_each():
    module, batch = module_of("separate encoders"), batch_of("separate encoders")
    made = module(**batch)
    alone = module.encoder(batch["query.ids"], batch["query.attention"])["bottleneck"]
    torch.testing.assert_close(made["rows.queries"], alone)
    other = module.passage_encoder(batch["passage.ids"], batch["passage.attention"])["bottleneck"]
    torch.testing.assert_close(made["rows.passages"], other)
    assert not torch.allclose(other, module.encoder(batch["passage.ids"], batch["passage.attention"])["bottleneck"])


def test_the_processes_groups_are_of_unlike_size():
    widths = [batch_of("pairwise", share)["groups"].shape[1] for share in SHARES]
    assert len({*widths}) == 2
    assert sum(map(len, SHARES)) == len(GROUPS)


def test_what_stands_for_nothing_stays_so_among_the_rows_of_all(together):
    """The second process' rows stand behind the first's three passages: padding and unscored stay what they are."""
    assert together["groups"].tolist() == [[0, 2], [1, -1], [3, 4], [5, -1]]
    assert together["teacher"][:, 0].tolist() == [1.0] * 4
    assert together["teacher"][:, 1:].isnan().all()
    assert together["flags"].tolist() == [[True, False]] * 2 + [[True, True]] * 2
