"""The table of names is what the documentation says, and what specs are checked against."""

import re
from pathlib import Path

import attrs
import pytest

from drkit.core import protocols
from drkit.core.registry import Registry, installed
from drkit.core.spec import CAPABILITIES, PROVIDED, Choice, ComponentSpec
from drkit.errors import ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.parts import required_signals

PAGE = (Path(__file__).parents[2] / "docs/reference/protocols.md").read_text(encoding="utf-8")


@attrs.frozen
class Plain:
    """A stranger's loss without settings."""


@attrs.frozen
class WantsWindow:
    """A loss that wants importance with n-grams of up to three tokens."""

    @property
    def signals(self):
        return {"importance": {"window": 3}}


@attrs.frozen
class NamedAlike:
    """Settings that are called as declarations are."""

    receives: str = "partners"
    signals: str = "magic"
    scope: str = "wide"


def test_the_page_lists_every_name():
    for name in PROVIDED:
        assert f"| `{name.name}` | {name.source} | {name.meaning} |" in PAGE
    for name, meaning in CAPABILITIES.items():
        assert f"| `{name}` | {meaning} |" in PAGE


def test_the_page_lists_every_optional_protocol():
    beside = {"Replacer", "Corpus", "SignalTexts"}
    own = {n: value for n, value in vars(protocols).items() if getattr(value, "__module__", "") == protocols.__name__}
    named = {name for name, value in own.items() if getattr(value, "_is_protocol", False)} - beside
    assert len(named) > 20
    assert not {name for name in named if f"`{name}`" not in PAGE}


def test_the_page_names_methods_that_exist():
    rows = re.findall(r"^\| (`[A-Z]\w+`(?:, `[A-Z]\w+`)*) \| (?:[\w ]+ \| )?(.+?) \|", PAGE, re.MULTILINE)
    assert len(rows) > 20
    for protocols_named, members in rows:
        classes = [getattr(protocols, name) for name in re.findall(r"\w+", protocols_named)]
        known = {name for one in classes for name in (*dir(one), *one.__annotations__)}
        named = set(re.findall(r"`([a-z]\w+)[`(]", members))
        assert not named - known - {"cosine", "dot", "refuse", "drop", "depth"}, protocols_named


def with_loss(config=Plain, **rest):
    """A recipe whose masker is `pmi`, with one more loss, and the registry that has it."""
    spec = ComponentSpec(kind="loss", name="mine", target="no:Where", config=config, summary="a loss", **rest)
    registry = Registry([*installed().registry, spec])
    recipe = compose(ComposeRequest(masker="pmi", decoder="mlm"), installed())
    task = recipe.pretrain.encoder
    encoder = attrs.evolve(task, losses={**task.losses, "mine": Choice("mine", config(), weight=1.0)})
    return attrs.evolve(recipe, pretrain=attrs.evolve(recipe.pretrain, encoder=encoder)), registry


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ({"receives": ("bottelneck",)}, "'bottelneck'; .*'bottleneck'"),
        ({"receives": ("bottleneck",), "signals": ("importanse",)}, "'importanse'.*'importance'"),
        ({"receives": ("token_states",), "scope": "batch"}, "gathered"),
        ({"receives": ("bottleneck",), "config": WantsWindow}, "with 3, "),
        ({"receives": ("bottleneck",), "requires": ("retriever",)}, "retriever"),
    ],
)
def test_what_cannot_be_given_is_refused_with_a_suggestion(loss, said):
    with pytest.raises(ProblemsError, match=said):
        check(*with_loss(**loss))


def test_a_part_that_copies_layers_says_so_by_what_it_requires():
    recipe, registry = with_loss(receives=("bottleneck",), requires=("encoder-layers",))
    check(recipe, registry)
    static = attrs.evolve(recipe, encoder=attrs.evolve(recipe.encoder, layers=0))
    with pytest.raises(ProblemsError, match=r"has no layers, so loss 'mine' cannot start from them"):
        check(static, registry)


def test_settings_called_like_declarations_declare_nothing():
    recipe, registry = with_loss(NamedAlike, receives=("bottleneck",))
    check(recipe, registry)
    spec, config = registry.get("loss", "mine"), NamedAlike()
    assert (spec.receives_of(config), spec.signals_of(config), spec.scope_of(config)) == ({"bottleneck"}, {}, "rows")


def test_a_signal_is_wanted_with_the_settings_that_parts_name():
    recipe, registry = with_loss(receives=("bottleneck",), signals=("importance", "idf"))
    wanted = required_signals(recipe.pretrain, registry)
    assert list(wanted) == ["idf", "importance"]
    assert wanted["importance"].config.window == recipe.pretrain.decoders["main"].masker.config.window
