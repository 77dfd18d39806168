"""The arguments of trainings are tried as transformers will take them, before a run starts."""

import copy
import dataclasses
import re

import attrs
import pytest
import torch
from attrs import asdict, frozen
from transformers import TrainingArguments

from drkit.core.registry import installed
from drkit.errors import ProblemsError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.training import Training
from drkit.runs import prepare
from drkit.runs.prepare import try_arguments
from drkit.train.arguments import problems
from drkit.train.trainer import restored_torch
from tests.runs.every_loss import batch_of, module_of
from tests.runs.test_acceleration import changed, go

PARTS = installed()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr_scheduler_type": "nosuch"}, "SchedulerType"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr"),
        ({"arguments": {"dataloader_num_workers": "two"}}, "int"),
        ({"arguments": {"optim": "nosuch"}}, "OptimizerNames"),
        ({"arguments": {"optim": "adalomo"}}, "'adalomo' needs a training step of its own"),
        ({"arguments": {"optim": "schedule_free_adamw"}}, "choose another `optim`"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "follows measurements"),
        ({"lr_scheduler_type": "greedy"}, "follows measurements"),
        ({"arguments": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"x": 1}}}, "{'x': 1}"),
        (
            {"arguments": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}},
            "use_reentrant",
        ),
    ],
)
def test_what_cannot_start_is_one_line(settings, said):
    (found,) = problems({"finetune": asdict(Training(**settings))})
    assert said in found
    assert found.endswith("@ finetune")


def test_what_can_start_passes():
    one, other = Training(arguments={"optim": "sgd"}), Training(lr_scheduler_type="cosine", bf16=True)
    assert problems({"pretrain": asdict(one), "finetune": asdict(other)}) == []


@pytest.mark.parametrize("paper", [None, *PARTS.recipes])
def test_nothing_needs_to_be_tried_for_the_recipes_that_come_with_drkit(paper, monkeypatch):
    monkeypatch.setattr(prepare, "subprocess", None)
    try_arguments(compose(ComposeRequest(paper=paper), PARTS))


@pytest.mark.parametrize("value", ["1.0", "-0.1", "true", "'x'", "nan"])
def test_the_optimizers_own_numbers_have_bounds(value):
    with pytest.raises(ProblemsError, match="'adam_beta2' must be"):
        compose(ComposeRequest(settings=(f"pretrain.arguments.adam_beta2={value}",)), PARTS)


def own_names():
    """The fields of TrainingArguments that have no setting of their own in a recipe."""
    return {field.name for field in dataclasses.fields(TrainingArguments)} - {a.name for a in attrs.fields(Training)}


# A valid value for each argument that trainings use; None: it needs a package or a GPU.
VALUES = {
    "optim": "adafactor",
    "optim_args": None,
    "optim_target_modules": None,
    "adam_beta1": 0.8,
    "adam_beta2": 0.9,
    "adam_epsilon": 1e-6,
    "lr_scheduler_kwargs": {},
    "fp16": None,
    "tf32": None,
    "full_determinism": True,
    "use_cpu": True,
    "save_total_limit": 3,
    "torch_compile": None,
    "torch_compile_backend": "eager",
    "torch_compile_mode": None,
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"preserve_rng_state": True},
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs": {"preserve_rng_state": True},
    "dataloader_num_workers": 1,
    "dataloader_prefetch_factor": None,
    "dataloader_pin_memory": False,
    "ddp_find_unused_parameters": True,
    "ddp_bucket_cap_mb": 1,
    "logging_first_step": True,
    "log_level": "error",
    "log_level_replica": "error",
    "log_on_each_node": False,
    "disable_tqdm": True,
    "report_to": "none",
    "run_name": "x",
    "project": "x",
    "trackio_space_id": None,
    "trackio_bucket_id": None,
    "trackio_static_space_id": None,
}


@pytest.mark.parametrize("name", sorted(own_names()))
def test_every_argument_of_transformers_is_used_or_refused(name):
    if name in VALUES:
        assert Training(arguments={name: VALUES[name]}).arguments == {name: VALUES[name]}
        return
    with pytest.raises(ValueError, match=f"'{name}'"):
        Training(arguments={name: 1})


@pytest.mark.parametrize("name", [name for name, value in VALUES.items() if value is not None])
def test_an_argument_that_is_used_trains(name, tmp_path):
    arguments = {name: VALUES[name]}
    with restored_torch():  # a run does this in a process of its own
        assert problems({"pretrain": asdict(Training(arguments=arguments))}) == []
    module = module_of("pairwise")
    before = copy.deepcopy(module)
    go(module, tmp_path, Batches(batch_of("pairwise")), arguments=arguments)
    assert changed(before, module)
    assert not torch.are_deterministic_algorithms_enabled()


@frozen
class Batches:
    """The same batch at every step."""

    batch: dict

    def __call__(self, _):
        return self.batch


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such", "TrainingArguments that a training reads"),
        ("gradient_chekpointing", "did you mean 'gradient_checkpointing'?"),
        ("label_smoothing_factor", "the loss is a part"),
        ("group_by_length", "micro-batches of a step have texts of similar length"),
        ("neftune_noise_alpha", "adds noise"),
        ("deepspeed", "arguments.gradient_checkpointing"),
    ],
)
def test_what_is_refused_says_what_to_do_instead(name, said):
    with pytest.raises(ProblemsError, match=re.escape(said)):
        compose(ComposeRequest(settings=(f"finetune.arguments.{name}=1",)), PARTS)
