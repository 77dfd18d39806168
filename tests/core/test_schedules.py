"""Numbers that change over a training: their values, how a recipe writes them, and what is refused."""

import copy
import math
import pickle

import pytest
from attrs import evolve, frozen

import drkit
from drkit.core.registry import Registry, installed
from drkit.core.schedules import Scheduled, is_scheduled, schedules_in, settings_at
from drkit.core.settings import at_least, setting
from drkit.core.spec import Choice, ComponentSpec, Kind
from drkit.errors import ProblemsError
from drkit.losses import ContrastiveConfig, MatryoshkaConfig
from drkit.maskers import PmiConfig, UniformConfig
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose, ratio_notes
from drkit.recipe.paths import describe_schedules, recipe_differences, setting_paths
from drkit.recipe.toml import recipe_from_table, recipe_table, recipe_toml, toml_value
from drkit.runs.stage import lasting_settings

RATIO = "pretrain.encoder.masker.ratio"


def test_values_are_those_of_the_formulas():
    cosine = Scheduled(2.0, 1.0, "cosine", start=0.2, end=0.6)
    for progress in (0.0, 0.2, 0.3, 0.45, 0.6, 1.0):
        within = min(1, max(0, (progress - 0.2) / 0.4))
        assert cosine.value(progress) == pytest.approx(1.5 + 0.5 * math.cos(math.pi * within))
    falling = Scheduled(0.1, 0.02, "exponential")
    assert falling.value(0.5) == pytest.approx(math.sqrt(0.1 * 0.02))
    stairs = Scheduled(0, 3, "steps", steps=4)
    assert [stairs.value(n / 8) for n in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert Scheduled(0.3, 0.7).value(1.0) == 0.7, "the ends are exact"
    assert float(falling) == pytest.approx((0.1 - 0.02) / math.log(5), rel=1e-4), "its mean"


def test_a_schedule_is_copied_pickled_and_compared_as_a_value():
    one = Scheduled(0.3, 0.7, "cosine", end=0.5)
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert hash(one) == hash(Scheduled(0.3, 0.7, "cosine", end=0.5))
    assert one != Scheduled(0.3, 0.7)
    assert one != float(one), "a constant is not a schedule"


def composed(**settings):
    return drkit.compose(paper="retromae", settings=[f"{path}={value}" for path, value in settings.items()])


def test_a_recipe_writes_and_reads_schedules():
    recipe = composed(
        **{
            RATIO: "{from=0.3, to=0.7}",
            "pretrain.encoder.losses.mlm.weight": "{from=1, to=0, shape='steps', steps=3, start=0.5}",
            "finetune.loss.temperature": "{from=0.1, to=0.02, shape='exponential', end=0.8}",
        }
    )
    assert recipe.pretrain.encoder.masker.config.ratio == Scheduled(0.3, 0.7)
    assert recipe_from_table(recipe_table(recipe), installed().registry) == recipe
    assert '[pretrain.encoder.masker.ratio]\nfrom = 0.3\nto = 0.7\nshape = "linear"\n' in recipe_toml(recipe)
    assert [path for path, _, possible in schedules_in(recipe) if possible] == [
        RATIO,
        "pretrain.encoder.losses.mlm.weight",
        "finetune.loss.temperature",
    ]
    shown = {one.path: toml_value(one.value) for one in setting_paths(recipe, installed().registry)}
    assert shown[RATIO] == '{from = 0.3, to = 0.7, shape = "linear"}'
    lines = list(describe_schedules(recipe))
    assert lines[0] == f"{RATIO} 0.3 -> 0.7, linear over 3,000 steps ▁▂▃▄▅▆▇█"
    assert "in 3 steps from step 1,500 to 3,000 of 3,000" in lines[1]
    assert "exponential from step 0 to 360 of 450" in lines[2]
    constant = composed()
    assert next(one.path for one in recipe_differences(constant, recipe)) == RATIO
    assert not list(describe_schedules(constant))


def test_a_schedule_is_in_the_fingerprint_and_a_constant_is_what_it_was():
    def lasting(recipe):
        return lasting_settings(recipe.pretrain)

    constant, changing = composed(), composed(**{RATIO: "{from=0.3, to=0.7}"})
    mean = composed(**{RATIO: "0.5"})
    assert lasting(constant)["encoder.masker.ratio"] == 0.3
    table = {"from": 0.3, "to": 0.7, "shape": "linear"}
    assert {name: lasting(changing)[f"encoder.masker.ratio.{name}"] for name in table} == table
    assert lasting(mean)["encoder.masker.ratio"] == 0.5
    changed = {name for name, value in lasting(changing).items() if lasting(constant).get(name) != value}
    assert changed == {f"encoder.masker.ratio.{name}" for name in table}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (RATIO, "{from=0.3, to=1.7}", "'ratio' must be <= 1: 1.7"),
        (RATIO, "{from=-1, to=0.7}", "'ratio' must be >= 0"),
        (RATIO, "{from=0.3}", "a schedule needs 'to'"),
        (RATIO, "{form=0.3, to=0.7}", "no 'form'; did you mean 'from'?"),
        (RATIO, "{from=0.3, to='0.7'}", "'to' must be a finite number"),
        (RATIO, "{from=0.3, to=true}", "'to' must be a finite number"),
        (RATIO, "{from=0.3, to=0.7, shape='square'}", "must be linear or cosine or exponential or steps"),
        (RATIO, "{from=0.3, to=0.7, start=0.6, end=0.5}", "0 <= start < end <= 1"),
        (RATIO, "{from=0, to=0.7, shape='exponential'}", "use linear or cosine"),
        (RATIO, "{from=0.3, to=0.7, shape='steps', steps=1}", "whole number from 2"),
        ("finetune.loss.temperature", "{from=0.1, to=0}", "'temperature' must be > 0"),
        ("pretrain.encoder.losses.mlm.weight", "{from=1, to=-1}", "'weight' must be >= 0"),
        ("pretrain.learning_rate", "{from=1e-3, to=1e-4}", "'learning_rate' must be one number"),
        ("pretrain.max_steps", "{from=1, to=4}", "'max_steps' must be one number"),
        ("collection.dev_share", "{from=0.1, to=0.2}", "'dev_share' must be one number"),
    ],
)
def test_what_is_not_a_schedule_is_refused_by_its_path(path, value, said):
    with pytest.raises(ProblemsError) as caught:
        composed(**{path: value})
    (problem,) = caught.value.problems
    assert said in problem
    assert problem.endswith(f"@ {path}")


def test_python_cannot_schedule_what_a_recipe_cannot():
    recipe = composed()
    wrong = evolve(recipe, pretrain=evolve(recipe.pretrain, learning_rate=Scheduled(1e-3, 1e-4)))
    with pytest.raises(ProblemsError, match=r"cannot change over a training.*@ pretrain.learning_rate"):
        check(wrong, installed().registry)
    with pytest.raises(ValueError, match="'ratio' must be <= 1"):
        UniformConfig(ratio=Scheduled(0.0, 1.2))
    with pytest.raises(ValueError, match="'weight' must be >= 0"):
        Choice("mlm", PmiConfig(), weight=Scheduled(1.0, -0.5))


def test_parts_get_plain_numbers_at_any_depth():
    inner = Choice("contrastive", ContrastiveConfig(temperature=Scheduled(0.2, 0.1)))
    config = MatryoshkaConfig(loss=inner)
    assert is_scheduled(config)
    found = settings_at(config, 0.5).loss.config.temperature
    assert type(found) is float
    assert found == pytest.approx(0.15)
    plain = MatryoshkaConfig()
    assert settings_at(plain, 0.5) is plain


@frozen
class Sized:
    size: float = setting(1.0, at_least(0), "a size", schedulable=True)


def test_only_maskers_and_losses_change():
    with pytest.raises(ValueError, match="'size' cannot be schedulable: only settings of masker and loss"):
        ComponentSpec(Kind.DECODER, "sized", "tests.core:Sized", Sized, "A decoder")


def echoed(config, _context=None):
    return lambda tokens, rng, rows=0, nested=None: (config.size, type(config.size), rng.progress)


def test_a_plugins_masker_gets_the_current_number_without_any_work():
    from drkit.core.draws import Draws

    spec = ComponentSpec(Kind.MASKER, "sized", f"{__name__}:echoed", Sized, "Gives its size back")
    masker = Registry([spec]).build(Kind.MASKER, "sized", Sized(size=Scheduled(1, 3)))
    found = [masker(None, Draws(0, 0, [0], progress)) for progress in (0.0, 0.25, 0.5)]
    assert found == [(1.0, float, 0.0), (1.5, float, 0.25), (2.0, float, 0.5)]
    constant = Registry([spec]).build(Kind.MASKER, "sized", Sized(size=2.0))
    assert constant(None, Draws(0, 0, [0]))[0] == 2.0


def test_python_takes_settings_as_the_command_does():
    by_path = drkit.compose(paper="retromae", **{"pretrain.max_steps": 500, "seed": 3})
    assert drkit.compose(paper="retromae", settings=["pretrain.max_steps=500", "seed=3"]) == by_path
    assert drkit.compose(paper="retromae", settings="seed=3", **{"pretrain.max_steps": 500}) == by_path
    assert drkit.compose(paper="retromae", settings=["seed=3"], seed=4).seed == 3, "they come last"


def test_a_named_masker_that_hides_as_many_tokens_as_the_one_before_is_noted():
    def notes(**choices):
        request = ComposeRequest(paper="retromae", **choices)
        recipe = compose(request, installed())
        return ratio_notes(request, recipe, installed().registry)

    (note,) = notes(masker="pmi")
    path = "pretrain.decoders.main.masker.ratio"
    assert note.startswith(f"{path} = 0.5, as the masker before it")
    assert f"--set {path}=0.3 is the default of pmi" in note
    assert not notes()
    assert not notes(masker="pmi", settings=(f"{path}=0.5",))
    assert not notes(encoder_masker="pmi"), "the encoder's ratio is the default"
