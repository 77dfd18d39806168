"""Deprecated names and parts: they work, warn where they are used, and go in the version that was announced."""

from __future__ import annotations

import sys
import warnings

import pytest
from attrs import evolve, frozen, validators

import drkit.core
from drkit import __version__
from drkit.core.deprecation import DEPRECATED, Deprecation, DrkitDeprecationWarning, FormerName
from drkit.core.registry import Registry, installed
from drkit.core.settings import setting
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import ProblemsError
from drkit.recipe.toml import recipe_from_table
from tests.core.public_api import PACKAGES, deprecations, exports


@frozen
class Settings:
    """No settings."""


def make(_config, _context):
    return "made"


OLD = ComponentSpec(
    Kind.MASKER,
    "old",
    "tests.core.test_deprecation:make",
    Settings,
    "A toy.",
    deprecated=Deprecation("toy", "99.0"),
)


@pytest.fixture
def renamed(monkeypatch):
    """`drkit.data.OldConfig`, which is `drkit.data.BeirConfig` now."""
    table = {"drkit.data.OldConfig": Deprecation("drkit.data.BeirConfig", "99.0")}
    monkeypatch.setattr(drkit.core, "DEPRECATED", table)


def test_a_deprecated_name_is_its_replacement_and_warns_at_its_user(renamed):
    with pytest.warns(DrkitDeprecationWarning, match=r"OldConfig .* version 99.0; use drkit.data.BeirConfig") as found:
        from drkit.data import OldConfig
    assert found[0].filename == __file__
    assert OldConfig is sys.modules["drkit.data"].BeirConfig
    assert "OldConfig" not in exports("drkit.data")


def test_each_place_warns_once(renamed):
    import drkit.data

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            drkit.data.OldConfig  # noqa: B018
        drkit.data.OldConfig  # noqa: B018
    assert len(found) == 2


def test_a_name_that_is_not_deprecated_is_unknown_as_before():
    with pytest.raises(AttributeError, match="OldConfig"):
        sys.modules["drkit.data"].OldConfig  # noqa: B018


def test_building_a_deprecated_part_warns():
    with pytest.warns(DrkitDeprecationWarning, match=r"masker old .*; use toy") as found:
        assert Registry([OLD]).build("masker", "old") == "made"
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Registry([evolve(OLD, deprecated=None)]).build("masker", "old") == "made"


@frozen
class Renamed:
    """A setting that was called `ratio`."""

    rate: float = setting(0.3, validators.gt(0), "a share", formerly=FormerName("ratio", "99.0"))
    depth: int = setting(3, None, "how deep")


def read_settings(table):
    masker = ComponentSpec(Kind.MASKER, "renamed", f"{__name__}:make", Renamed, "A toy.")
    losses = {"encoder": {"use": "mlm", "on": "encoder", "weight": 1.0}}
    pretrain = {"masker": {"use": "renamed", **table}, "decoder": "mlm", "losses": losses}
    recipe = {"name": "x", "collection": "pydocs", "pretrain": pretrain}
    return recipe_from_table(recipe, Registry([*installed().registry, masker])).pretrain.masker.config


def test_a_renamed_setting_is_still_read():
    with pytest.warns(DrkitDeprecationWarning, match=r"the setting ratio .* version 99.0; use rate"):
        assert read_settings({"ratio": 0.5, "depth": 4}) == Renamed(rate=0.5, depth=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_settings({"rate": 0.5}) == Renamed(rate=0.5)


def test_two_names_of_a_setting_are_a_problem_of_the_recipe():
    with pytest.raises(ProblemsError, match=r"'ratio' is the former name of 'rate', and both are set"):
        read_settings({"ratio": 0.5, "rate": 0.5})


@pytest.mark.filterwarnings("ignore::drkit.plugin.DrkitDeprecationWarning")
def test_a_former_name_is_validated_as_the_setting_is():
    with pytest.raises(ProblemsError, match=r"'rate' must be > 0.*pretrain.masker.rate"):
        read_settings({"ratio": -1.0})


@pytest.mark.parametrize("version", ["", "soon", "1", "v1.0"])
def test_a_version_is_numbers(version):
    with pytest.raises(ValueError, match="removed_in"):
        Deprecation("toy", version)


@pytest.mark.parametrize(
    ("version", "is_late"), [("0.2.9", False), ("0.3.0rc1", True), ("0.3", True), ("0.3.1", True), ("0.10", True)]
)
def test_the_version_that_removes_it_has_it_no_longer(version, is_late):
    assert Deprecation("toy", "0.3").outlives(version) is is_late


def test_nothing_outlives_its_version():
    assert not [each.sentence(name) for name, each in deprecations().items() if each.outlives(__version__)]


def test_replacements_are_public():
    for name, deprecation in DEPRECATED.items():
        package, _, replacement = deprecation.replacement.rpartition(".")
        assert package in PACKAGES
        assert replacement in exports(package)
        assert name.rpartition(".")[2] not in exports(name.rpartition(".")[0])
