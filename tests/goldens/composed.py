"""Recipes as `drkit compose` makes them, by command line: `python -m tests.goldens.composed` records them anew.

Of each recipe, the golden file keeps a digest of every table, so a failure names the tables that changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_table

GOLDEN = Path(__file__).with_name("composed.json")
PARTS = installed()
ENCODER = "some/encoder"
SCALES: tuple[dict[str, Any], ...] = (
    *({"scale": scale} for scale in ("paper", "small", "quick")),
    *({"scale": scale, "encoder": ENCODER} for scale in ("paper", "small", "quick")),
)
CHOICES: tuple[dict[str, Any], ...] = (
    {"masker": "uniform"},
    {"masker": "pmi"},
    {"encoder_masker": "pmi"},
    {"context": "query"},
    {"decoder": "enhanced"},
    {"decoder": "bow"},
    {"decoder": "condenser"},
    {"decoder": "none"},
    {"decoder": ("mlm", "bow")},
    {"masker": "uniform", "decoder": "mlm"},
    {"loss": "contrastive"},
    {"loss": "pairwise"},
    {"miners": ("random",)},
    {"miners": ("dense", "margin")},
    {"pipeline": "two-stage", "loss": "pairwise"},
    {"settings": ("pretrain=none",)},
    {"settings": ("finetune=none",)},
    {"settings": ("pretrain.decoders.main.masker.use=uniform", "finetune.rounds.0.negatives=2", "encoder.hidden=32")},
)


def requests() -> Iterator[ComposeRequest]:
    """Yield every recipe at every scale with every pipeline, then some of them with other parts and settings."""
    papers = sorted({*PARTS.recipes} - {*PARTS.pipelines})
    for paper, pipeline, scale in product((None, *papers), (None, *PARTS.pipelines), SCALES):
        yield ComposeRequest(paper=paper, pipeline=pipeline, **scale)
    for paper, scale, choice in product((None, "simlm", "cpdae", "cotmae"), SCALES, CHOICES):
        yield ComposeRequest(paper=paper, **scale, **choice)


def command_line(request: ComposeRequest) -> str:
    """Return the options of `drkit compose` that ask for a recipe."""
    options = {
        **{name: getattr(request, name) for name in ("paper", "pipeline", "scale", "encoder", "masker")},
        "encoder-masker": request.encoder_masker,
        "context": request.context,
        "loss": request.loss,
    }
    named = [f"--{name} {value}" for name, value in options.items() if value]
    named += [f"--decoder {decoder}" for decoder in request.decoder]
    repeated = [*(f"--miner {miner}" for miner in request.miners), *(f"--set {one}" for one in request.settings)]
    return " ".join((*named, *repeated))


def tables(request: ComposeRequest) -> dict[str, Any]:
    """Return a composed recipe, table by table; its single settings are the table `run`."""
    table = recipe_table(compose(request, PARTS))
    single = {key: value for key, value in table.items() if not isinstance(value, dict)}
    return {"run": single, **{key: value for key, value in table.items() if key not in single}}


def digests(recipe: Mapping[str, Any]) -> str:
    """Return a line of `TABLE=DIGEST`, sorted by table; equal lines mean equal recipes, setting by setting."""
    texts = {name: json.dumps(table, sort_keys=True) for name, table in recipe.items()}
    return " ".join(f"{name}={hashlib.sha256(text.encode()).hexdigest()[:6]}" for name, text in sorted(texts.items()))


def recipes() -> dict[str, str]:
    """Return the digests of every composed recipe, by command line."""
    return {command_line(request): digests(tables(request)) for request in requests()}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(recipes(), indent=0) + "\n", encoding="utf-8")
