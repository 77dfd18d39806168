"""Every number, name and path is bounded where it enters: on the command line, and in recipes."""

from __future__ import annotations

import types
from typing import Union, get_args, get_origin, get_type_hints

import attrs
import click
import pytest

from drkit.core.files import local_path
from drkit.core.registry import installed
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe import schema
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import assign, parse_toml
from drkit_cli.main import cli
from tests.refusals import refused

PARTS = installed()
INFINITE, HUGE = (float("inf"), float("-inf"), float("nan")), (10**30, -(10**30))
TABLES = [value for value in vars(schema).values() if isinstance(value, type) and attrs.has(value)]
CONFIGS = [spec.config for spec in PARTS.registry]


def numbers(config):
    """(field, type) of the settings of a class that are numbers."""
    hints = get_type_hints(config, include_extras=True)
    for field in attrs.fields(config):
        hint = hints.get(field.name, field.type)
        inner = get_args(hint)[0] if get_origin(hint) in (Union, types.UnionType) else hint
        if inner in (int, float):
            yield field, inner


@pytest.mark.parametrize("config", dict.fromkeys([*TABLES, *CONFIGS]), ids=lambda config: config.__name__)
def test_every_number_in_a_recipe_has_bounds_on_both_sides(config):
    for field, kind in numbers(config):
        assert field.validator is not None, field.name
        for value in HUGE if kind is int else (*INFINITE, 1e30, -1e30):
            with pytest.raises(ValueError, match=field.name):
                field.validator(None, field, value)


def commands(group):
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else [command]


def test_every_number_on_the_command_line_has_bounds_and_every_path_is_checked():
    found = [parameter.type for command in commands(cli) for parameter in command.params]
    for kind in found:
        assert kind not in (click.INT, click.FLOAT)
        assert type(kind) is not click.Path
        if isinstance(kind, (click.IntRange, click.FloatRange)):
            assert None not in (kind.min, kind.max)
            with pytest.raises(click.BadParameter):
                kind.convert("nan", None, None)


@pytest.mark.parametrize(
    ("setting", "bound"),
    [
        ("pretrain.max_steps=0", "-1, or from 1 to 1,000,000,000"),
        ("finetune.rounds.0.max_steps=0", "-1, or from 1 to 1,000,000,000"),
        ("pretrain.learning_rate=inf", "finite"),
        ("pretrain.learning_rate=nan", "finite"),
        ("encoder.vocab_size=100000000000", "<= 1000000"),
        (f"seed={'9' * 30}", "64 bits"),
        (f"pretrain.learning_rate=1{'0' * 400}", "64 bits"),
        ("pretrain.arguments={output_dir='elsewhere'}", "'output_dir'"),
        ("pretrain.arguments={fsdp='full_shard'}", "'fsdp'"),
        ("pretrain.arguments={deepspeed='zero.json'}", "'deepspeed'"),
        ("finetune.arguments={max_steps=3}", "'max_steps'"),
        ("name='../../escape'", "slashes"),
        ("name='..'", "dot"),
        ("name='/tmp/x'", "slashes"),
        ('name="a\\u0000b"', "NUL"),
        ("name=''", "empty"),
        (f"name='{'x' * 201}'", "at most 200 bytes"),
        ("encoder.pretrained=''", ">= 1"),
        (f"encoder.query_prompt='{'x' * 9000}'", "at most 8,192"),
    ],
)
def test_a_value_that_no_run_can_use_is_refused_with_its_bound(setting, bound):
    path = setting.partition("=")[0].replace("rounds.0", "rounds[0]")
    with refused(bound, setting=path, error=ProblemsError) as caught:
        compose(ComposeRequest(settings=(setting,)), PARTS)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["collection", "encoder", "name", "paper", "pipeline", "masker"])
def test_an_empty_choice_is_not_the_default(name):
    with pytest.raises(DrkitError, match=f"{name} is empty"):
        compose(ComposeRequest(**{name: ""}), PARTS)


def test_a_name_in_any_script_is_a_name():
    assert compose(ComposeRequest(name="ländlicher Lauf 漢字 v1.2_x-y"), PARTS).name == "ländlicher Lauf 漢字 v1.2_x-y"


@pytest.mark.parametrize("text", ["x" * 256, "x/" * 3000, "a\0b", "a\ud800", "~no-such-user-of-drkit/x"])
def test_a_text_that_cannot_be_a_path_is_refused(text):
    with pytest.raises(DrkitError, match=r"255|in full"):
        local_path(text)


def test_the_longest_names_are_paths(tmp_path):
    assert not local_path(tmp_path / ("x" * 255)).exists()
    assert not local_path("/".join(["x" * 255] * 15)).exists()


@pytest.mark.parametrize("text", ["[" * 5000, "{a=" * 5000, "[" * 5000 + "]" * 5000, "9" * 10_000])
def test_toml_that_is_nested_too_deep_or_too_long_is_refused(text):
    with pytest.raises(DrkitError, match="a is"):
        parse_toml(f"value = {text}", "a")
    with pytest.raises(ProblemsError):
        compose(ComposeRequest(settings=(f"seed={text}",)), PARTS)


@pytest.mark.parametrize("text", [".".join(["a"] * 60) + "=1", "a=" + "[" * 60 + "]" * 60])
def test_assignments_are_as_shallow_as_recipes(text):
    table = {"a": {}}
    try:
        assign(table, text)
    except DrkitError:
        return
    assert isinstance(table["a"], str), "not TOML, so a word"
