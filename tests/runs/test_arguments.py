"""The arguments of trainings are tried as transformers will take them, before a run starts."""

import pytest
from attrs import asdict

from drkit.core.registry import installed
from drkit.errors import ProblemsError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Training
from drkit.runs import prepare
from drkit.runs.prepare import check_arguments
from drkit.train.arguments import problems

PARTS = installed()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr_scheduler_type": "nosuch"}, "SchedulerType"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "min_lr"),
        ({"arguments": {"no_such": 1}}, "no_such"),
        ({"arguments": {"dataloader_num_workers": "two"}}, "int"),
        ({"arguments": {"optim": "nosuch"}}, "OptimizerNames"),
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
    check_arguments(compose(ComposeRequest(paper=paper), PARTS))


@pytest.mark.parametrize("value", ["1.0", "-0.1", "true", "'x'", "nan"])
def test_the_optimizers_own_numbers_have_bounds(value):
    with pytest.raises(ProblemsError, match="'adam_beta2' must be"):
        compose(ComposeRequest(settings=(f"pretrain.arguments.adam_beta2={value}",)), PARTS)
