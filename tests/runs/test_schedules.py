"""Schedules in a training: each step has the numbers worked out by hand, resumed or not, in one process or two."""

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from safetensors.torch import load_file
from torch import nn

import drkit
from drkit.core.progress import Silent
from drkit.core.registry import Registry, installed
from drkit.core.scheduled_parts import follow_progress
from drkit.core.schedules import Scheduled
from drkit.core.settings import at_least, setting
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import StepOutput
from drkit.data.store import TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.losses import ContrastiveConfig, ContrastiveLoss
from drkit.maskers import UniformConfig
from drkit.recipe.schema import ENCODER_SIDE
from drkit.recipe.training import Training
from drkit.runs.making.pretrain import auto_encoder, build_maskers, masking_collator
from drkit.runs.trial import try_parts
from drkit.testing import toys
from drkit.testing.contexts import toy_pretraining_texts
from drkit.train.batches import Schedule, SubsetCollator
from drkit.train.trainer import train
from tests.runs.every_loss import GROUPS, batch_of, module_of
from tests.runs.test_processes import SETTINGS, assert_same_weights, compose, killed, resumed, texts  # noqa: F401

STEPS, BATCH = 4, 6
# The values of a linear schedule from .2 to .8 over four steps: progress 0, 1/4, 1/2, 3/4.
BY_HAND = (0.2, 0.35, 0.5, 0.65)
CHANGING = ("encoder.masker.ratio={from=0.2, to=0.8}", "encoder.losses.mlm.weight={from=0.2, to=0.8}")


def pretraining(folder, *settings):
    """The toy auto-encoder and the collator of a recipe's pre-training, with its tokens as units."""
    units = ("encoder.masker.unit=token", "decoders.main.decoder=mlm", "encoder.losses.mlm.targets=1.0")
    written = [f"pretrain.{one}" for one in (*units, *settings)]
    registry, recipe = installed().registry, drkit.compose(paper="retromae", settings=written)
    named = ((str(number), text) for number, text in enumerate(toys.toy_texts() * 3))
    tokenise(named, toys.toy_tokenizer(), folder, max_length=40)
    store = TokenStore.open(folder)
    context = evolve(toys.toy_context(1), registry=registry)
    maskers = build_maskers(recipe.pretrain, registry, context)
    torch.manual_seed(0)
    module = auto_encoder(recipe.pretrain, registry, toys.toy_encoder(1), context, maskers)
    stored = toy_pretraining_texts(store, {}, folder)
    return module, masking_collator(recipe.pretrain, registry, module, context, maskers, stored), store


def losses_and_labels(folder, *settings, **training):
    """The loss of each step with weights that stay, and the encoder's labels in it."""
    folder.mkdir()
    module, collate, store = pretraining(folder, *settings)
    read = []
    module.register_forward_pre_hook(
        lambda _module, _given, tensors: read.append(tensors[f"{ENCODER_SIDE}.labels"]), with_kwargs=True
    )
    settings = {"max_steps": STEPS, "learning_rate": 1e-12, "weight_decay": 0.0, "warmup_steps": 0, "logging_steps": 1}
    training = Training(**{**settings, "per_device_train_batch_size": BATCH, **training})
    schedule = Schedule.of(training, store.lengths, seed=3, compares=False)
    result = train(
        module,
        schedule,
        SubsetCollator(collate, np.arange(len(store))),
        training=training,
        folder=folder / "checkpoints",
        progress=Silent(),
        seed=1,
    )
    return [entry["loss"] for entry in result.log], read


@pytest.mark.parametrize("workers", [0, 2])
def test_every_step_has_the_masks_and_weights_worked_out_by_hand(tmp_path, workers):
    more = {"arguments": {"dataloader_num_workers": workers}}
    losses, read = losses_and_labels(tmp_path / "changing", *CHANGING, **more)
    assert len(losses) == len(read) == STEPS
    for step, value in enumerate(BY_HAND):
        constants = (f"encoder.masker.ratio={value}", f"encoder.losses.mlm.weight={value}")
        expected, labels = losses_and_labels(tmp_path / str(step), *constants)
        assert torch.equal(read[step], labels[step])
        assert losses[step] == pytest.approx(expected[step], abs=2e-4)
    assert len({labels.ne(-100).sum().item() for labels in read}) == STEPS, "the shares differ"


def test_micro_batches_of_a_step_have_one_number(tmp_path):
    whole, read = losses_and_labels(tmp_path / "whole", *CHANGING, batch_size=BATCH)
    cut, parts = losses_and_labels(
        tmp_path / "cut", *CHANGING, batch_size=BATCH, per_device_train_batch_size=BATCH // 2
    )
    assert cut == pytest.approx(whole, abs=2e-3)
    assert [labels.ne(-100).sum() for labels in read] == [
        one.ne(-100).sum() + other.ne(-100).sum() for one, other in zip(parts[::2], parts[1::2], strict=True)
    ]


def test_a_temperature_of_fine_tuning_follows_the_steps(tmp_path):
    def trained(loss, folder):
        module = module_of("all")
        module.loss = loss
        settings = Training(
            max_steps=STEPS, learning_rate=1e-12, per_device_train_batch_size=4, logging_steps=1, warmup_steps=0
        )
        result = train(
            module,
            Schedule(lengths=np.full(len(GROUPS), 9, np.int32), batch_size=4, batches=STEPS, seed=5),
            lambda examples: batch_of("all", [query for _, query in examples]),
            training=settings,
            folder=tmp_path / folder,
            progress=Silent(),
            seed=1,
        )
        return [entry["loss"] for entry in result.log]

    config = ContrastiveConfig(temperature=Scheduled(0.2, 0.8))
    found = trained(installed().registry.build(Kind.LOSS, "contrastive", config), "changing")
    expected = [
        trained(ContrastiveLoss(ContrastiveConfig(temperature=value)), str(step))[step]
        for step, value in enumerate(BY_HAND)
    ]
    assert found == pytest.approx(expected, abs=2e-4)


@frozen
class ScaledConfig:
    scale: float = setting(1.0, at_least(0), "a scale", schedulable=True)


class Scaled(nn.Module):
    """A loss with a weight, a count of its calls, and a number copied from its settings."""

    def __init__(self, config, _context=None):
        super().__init__()
        self.scale = config.scale
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, *, bottleneck):
        self.calls += 1
        return StepOutput(loss=self.scale * (bottleneck * self.weight).sum())

    def items(self, *, bottleneck):
        return torch.tensor(bottleneck.numel())


def test_a_loss_with_weights_keeps_them_while_its_settings_change():
    spec = ComponentSpec(
        Kind.LOSS, "scaled", f"{__name__}:Scaled", ScaledConfig, "A loss with weights", receives=("bottleneck",)
    )
    loss = Registry([spec]).build(Kind.LOSS, "scaled", ScaledConfig(scale=Scheduled(1, 3)))
    holder, rows = nn.ModuleDict({"loss": loss}), torch.ones(2, 3)
    state = torch.get_rng_state()
    (weight,) = holder.parameters()
    for step, scale in enumerate((1.0, 1.5, 2.0)):
        follow_progress(holder, step / 4)
        out = loss(bottleneck=rows)
        assert out.loss.item() == pytest.approx(scale * 2 * weight.sum().item(), rel=1e-5)
        out.loss.backward()
    assert torch.allclose(weight.grad, torch.full((3,), 2 * (1.0 + 1.5 + 2.0)))
    assert loss.state_dict()["part.calls"] == 3
    assert int(loss.items(bottleneck=rows)) == 6
    assert torch.equal(torch.get_rng_state(), state), "dropout is that of a constant"
    assert loss.eval().current.training is False


def test_both_ends_are_tried_before_a_run():
    recipe = drkit.compose(paper="retromae", settings=["pretrain.encoder.masker.ratio={from=0.3, to=0.7}"])
    registry = installed().registry
    try_parts(recipe, registry)
    recipe = evolve(recipe, pretrain=evolve(recipe.pretrain, encoder=broken_at_the_end(recipe.pretrain.encoder)))
    with pytest.raises(DrkitError, match="broken"):
        try_parts(recipe, Registry([*registry, BROKEN]))


class BrokenMasker:
    def __init__(self, config, context):
        assert config.ratio < 0.5
        self.masker = installed().registry.build(Kind.MASKER, "uniform", config, context)

    def __call__(self, *given, **named):
        return self.masker(*given, **named)


BROKEN = ComponentSpec(
    Kind.MASKER, "broken", f"{__name__}:BrokenMasker", UniformConfig, "Breaks late", provides=("view", "rows")
)


def broken_at_the_end(task):
    return evolve(task, masker=evolve(task.masker, use="broken", config=UniformConfig(ratio=Scheduled(0.3, 0.7))))


@pytest.fixture(scope="module")
def scheduled():
    """A schedule of masks, noise, the weight of a loss and a share of targets."""
    main = "--set=pretrain.decoders.main"
    return [
        "--masker=pmi",
        "--decoder=enhanced",
        "--set=pretrain.encoder.masker.ratio={from=0.2, to=0.6, shape='cosine'}",
        f"{main}.masker.ratio={{from=0.3, to=0.7}}",
        f"{main}.masker.sigma={{from=2, to=0, shape='steps'}}",
        f"{main}.losses.mlm.weight={{from=0.1, to=1.0}}",
        "--set=pretrain.encoder.losses.mlm.targets=1.0",
    ]


@pytest.fixture(scope="module")
def uninterrupted(texts, scheduled, tmp_path_factory):  # noqa: F811
    run = tmp_path_factory.mktemp("scheduled") / "run"
    compose(texts, run, 6, *scheduled)
    return run


def test_a_resumed_run_has_the_same_bits(texts, scheduled, uninterrupted, tmp_path):  # noqa: F811
    settings = [f"--collection=jsonl:{texts}", *SETTINGS, *scheduled, "--set=finetune=none"]
    settings.append("--set=pretrain.per_device_train_batch_size=6")
    killed(tmp_path / "run", "pretrained", 2, *settings, processes=1)
    resumed(tmp_path / "run", 1)
    one, two = (load_file(run / "pretrained/model.safetensors") for run in (uninterrupted, tmp_path / "run"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    probes = [(run / "pretrained/probes.jsonl").read_bytes() for run in (uninterrupted, tmp_path / "run")]
    assert probes[0] == probes[1]


def test_two_processes_train_what_one_does(texts, scheduled, uninterrupted, tmp_path):  # noqa: F811
    compose(texts, tmp_path / "two", 3, *scheduled, processes=2)
    assert_same_weights("pretrained/model.safetensors", uninterrupted, tmp_path / "two", 2e-4)


def test_a_schedule_is_not_its_mean(texts, uninterrupted, scheduled, tmp_path):  # noqa: F811
    constant = [one.partition("={")[0] + "=0.4" if "ratio" in one else one for one in scheduled]
    compose(texts, tmp_path / "constant", 6, *constant)
    one, two = (load_file(run / "pretrained/model.safetensors") for run in (uninterrupted, tmp_path / "constant"))
    assert any(not torch.equal(one[name], two[name]) for name in one)
