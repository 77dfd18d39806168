"""The built-in recipe files: complete, and what `drkit compose` makes of them, setting by setting."""

import pytest

from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import parse_toml, recipe_table
from tests.core.recipe_files import PARTS, complete, complete_pipeline, completed, files

RECIPES, PIPELINES = files(), files(recipes=False)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_file_is_what_compose_makes(name):
    paper, scale = name.removesuffix("-small"), "small" if name.endswith("-small") else "paper"
    table = parse_toml(RECIPES[name].read_text(encoding="utf-8"), name)
    assert table["name"] == paper
    assert table == recipe_table(compose(ComposeRequest(paper=paper, scale=scale, name=paper), PARTS))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_file_is_complete(name):
    text = RECIPES[name].read_text(encoding="utf-8")
    assert completed(text, complete(parse_toml(text, name))) == text, "python -m tests.core.recipe_files completes it"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_file_is_complete(name):
    text = PIPELINES[name].read_text(encoding="utf-8")
    assert completed(text, complete_pipeline(parse_toml(text, name))) == text


def test_every_recipe_and_pipeline_has_a_file_for_each_scale():
    for found in (RECIPES, PIPELINES):
        of_both = {*found} - {"improve"}  # whose encoder exists: it has one size
        assert of_both == {
            f"{name}{scale}" for name in of_both if not name.endswith("-small") for scale in ("", "-small")
        }
