"""A number has one fingerprint, however it is written: 0, 0.0 and -0.0."""

from __future__ import annotations

import attrs
import pytest

from drkit.core.registry import installed
from drkit.core.spec import Choice, Kind
from drkit.losses import ContrastiveConfig
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import plain
from drkit.recipe.training import Training
from drkit.runs.stage import lasting_settings

PARTS = installed()


@pytest.mark.parametrize(
    ("setting", "one", "other"),
    [
        ("pretrain.arguments.adam_beta1", "0", "0.0"),
        ("pretrain.arguments.adam_beta1", "0.0", "-0.0"),
        ("pretrain.weight_decay", "0", "0.0"),
        ("pretrain.warmup_steps", "3", "3.0"),
        ("pretrain.encoder.losses.mlm.weight", "2", "2.0"),
        ("pretrain.encoder.masker.ratio", "1", "1.0"),
        ("pretrain.arguments.lr_scheduler_kwargs", "{num_cycles = 1}", "{num_cycles = 1.0}"),
        ("encoder.architecture_settings", "{initializer_range = 1}", "{initializer_range = 1.0}"),
        ("evaluation.bm25_k1", "[1, 2]", "[1.0, 2.0]"),
    ],
)
def test_a_setting_has_one_fingerprint(setting, one, other):
    found = [
        lasting_settings(compose(ComposeRequest(settings=(f"{setting}={value}",)), PARTS)) for value in (one, other)
    ]
    assert repr(found[0]) == repr(found[1])


def floats():
    """Every float setting of every part's config and of the trainings: (class, name)."""
    classes = {
        spec.config for kind in Kind for spec in (PARTS.registry.get(kind, name) for name in PARTS.registry.names(kind))
    }
    for cls in sorted({*classes, Training}, key=lambda cls: cls.__qualname__):
        yield from ((cls, a.name) for a in attrs.fields(cls) if str(a.type) in ("float", "<class 'float'>"))


@pytest.mark.parametrize(("cls", "name"), [*floats()], ids=lambda value: getattr(value, "__name__", value))
def test_a_float_of_a_part_given_in_python_has_one_fingerprint(cls, name):
    for number in range(5):
        try:
            found = [cls(**{name: kind(number)}) for kind in (int, float)]
        except ValueError:  # outside the bounds of this setting
            continue
        assert repr(plain(found[0])) == repr(plain(found[1]))
        assert repr(lasting_settings(found[0])) == repr(lasting_settings(found[1]))
        return
    pytest.skip(f"{name} takes no whole number from 0 to 4")


def test_weights_of_losses_and_defaults_of_columns_are_floats():
    config = ContrastiveConfig()
    assert repr(lasting_settings(Choice("x", config, weight=2))) == repr(
        lasting_settings(Choice("x", config, weight=2.0))
    )
    use = Choice("x", config)
    assert repr(plain(Choice("file", use, default=1))) == repr(plain(Choice("file", use, default=1.0)))
