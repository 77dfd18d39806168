"""What a run fetches from elsewhere when it gets there: collections of ir_datasets, and models of the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drkit.core.files import local_path
from drkit.core.hub import is_cached
from drkit.core.spec import is_stage_output
from drkit.data.column_sources import ENCODED_BY, MODEL
from drkit.data.query_sources import QUERY_MODEL
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import recipe_table

# Settings whose value is a folder or a hub id, wherever they are in a recipe.
_MODELS = ("pretrained", "model", "encoder")
# Before the model that makes queries, in a list of their sources.
_SOURCE = f"{QUERY_MODEL}:"
# Bytes of a file of a collection; ir_datasets leaves smaller ones in a folder that has no texts.
_LEAST = 1024


def downloads(recipe: Recipe) -> list[str]:
    """Return the collections and models of a recipe that are not on this machine yet, without asking the network.

    A collection of ir_datasets counts as here if its folder in `IR_DATASETS_HOME` has texts; a model, if its folder
    exists or the hub's cache has a copy.
    """
    table = recipe_table(recipe)
    texts = [table["collection"], *((table.get("pretrain") or {}).get("texts") or {}).values()]
    datasets = [f"irds:{one['dataset']}" for one in texts if one.get("use") == "irds" and not _has_dataset(one)]
    sources = recipe.finetune.column_sources() if recipe.finetune else []
    teachers = [source.config.path for source in sources if source.use in (MODEL, ENCODED_BY)]
    made = recipe.pseudo_queries.sources if recipe.pseudo_queries else ()
    writers = [
        source.config.path for source in made if source.use == QUERY_MODEL and not is_stage_output(source.config.path)
    ]
    named = [one for one in dict.fromkeys([*_models(table), *writers, *teachers]) if not is_stage_output(one)]
    models = [name for name in named if not _has_model(name)]
    return [*dict.fromkeys(datasets), *models]


def _has_dataset(texts: Mapping[str, Any]) -> bool:
    home = os.environ.get("IR_DATASETS_HOME")
    folder = Path(home) if home else Path.home() / ".ir_datasets"
    found = folder / str(texts["dataset"]).split("/")[0]
    return any(path.is_file() and path.stat().st_size > _LEAST for path in found.rglob("*"))


def _models(table: Any) -> Iterator[str]:
    """Yield every model that a table names, and those of the tables in it."""
    inner = table.values() if isinstance(table, Mapping) else table if isinstance(table, (list, tuple)) else ()
    if isinstance(table, Mapping):
        yield from (table[key] for key in _MODELS if isinstance(table.get(key), str) and table[key])
    for one in inner:
        if isinstance(one, str) and one.startswith(_SOURCE):
            yield one.removeprefix(_SOURCE)
        yield from _models(one)


def _has_model(name: str) -> bool:
    if local_path(name).exists():
        return True
    try:
        return is_cached(name)
    except ValueError:  # no hub id: planning says so elsewhere
        return True
