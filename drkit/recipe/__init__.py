"""Recipes: their schema, reading and writing, composing, and checking which parts go together."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.recipe.compose import ComposeRequest as ComposeRequest
    from drkit.recipe.schema import Recipe as Recipe
    from drkit.recipe.start import find_collection as find_collection
    from drkit.recipe.toml import read_recipe as read_recipe
    from drkit.recipe.toml import write_recipe as write_recipe

lazy_exports(__name__)
