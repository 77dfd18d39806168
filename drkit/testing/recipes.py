"""The contract of recipes: each composes, its parts go together, and it reads back as it was written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from drkit.core.registry import installed
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import read_recipe, write_recipe
from drkit.testing.specs import require, running


def check_recipe(name: str) -> None:
    """Run the contract of recipes on an installed recipe, as `drkit compose --paper NAME` composes it.

    Its parts and settings exist and are valid, the parts go together, at every scale and as a smoke run, and what is
    written to a file is the same recipe when it is read again. Texts and models are not read.
    """
    here = installed()
    for scale in ("paper", "small", "quick"):
        with TemporaryDirectory() as folder, running(name, f"composing it with --scale {scale}"):
            recipe = compose(ComposeRequest(paper=name, scale=scale), here)
            check(recipe, here.registry)
            write_recipe(recipe, Path(folder) / "recipe.toml")
            read = read_recipe(Path(folder) / "recipe.toml", here.registry)
            require(read == recipe, f"{name}: the recipe changes when it is written to a file and read again")
