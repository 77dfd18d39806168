"""Recipes in layers: the default, a pipeline, a paper's recipe, the scale, then the user's parts and settings.

A recipe file contains only what differs from `default`, or from the recipe named by `like`; `pipeline = NAME` selects
its fine-tuning. Its numbers are the paper's. If the encoder is made from scratch, `recipes/small.toml` is merged over
them; what a single recipe or pipeline changes at the small scale is in its table `small`. A pipeline whose table says
`like = "default"` adds to the default's, and does without it under a paper's recipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from attrs import asdict, field, frozen

from drkit.core.files import local_path
from drkit.core.registry import Installed, Registry
from drkit.core.spec import BATCH, ComponentSpec, Kind, provided_by
from drkit.errors import DrkitError
from drkit.recipe.schema import FROM_SCRATCH, PSEUDO, RERANKER, Recipe
from drkit.recipe.start import starting_point
from drkit.recipe.toml import assign, parse_toml, recipe_from_table, shortened

PAPER, SMALL, QUICK = SCALES = ("paper", "small", "quick")
PIPELINE, LIKE = "pipeline", "like"
# The tables of fine-tuning, which a pipeline replaces as a whole.
_FINE_TUNING = ("finetune", "reranker", "pseudo_queries")
_STEPS = ("max_steps", "num_train_epochs")
# Settings of a round that depend on the scale.
_NUMBERS = (*_STEPS, "negatives", "learning_rate", "per_device_train_batch_size")
# Characters of a collection's name in the name of a run.
_LONGEST = 40
Table = dict[str, Any]


@frozen
class ComposeRequest:
    """The user's choices for `compose`; None or empty keeps the recipe's own.

    `miners` is one chain, a source of negatives and then filters, each `NAME` or `NAME:VALUE`, like `collection`.
    `settings` are `dotted.path=TOML value`. `scale` is `paper`, `small` or `quick`; None means `paper` with an existing
    encoder, else `small`. `quick` is the scale that None means, with little data and few steps.
    """

    paper: str | None = None
    masker: str | None = None
    decoder: str | None = None
    loss: str | None = None
    miners: tuple[str, ...] = field(default=(), converter=tuple)
    pipeline: str | None = None
    collection: str | None = None
    encoder: str | None = None
    name: str | None = None
    settings: tuple[str, ...] = ()
    scale: str | None = None


def compose(request: ComposeRequest, parts: Installed) -> Recipe:
    """Return the complete recipe for a request.

    Raises UnknownNameError (a part, recipe or pipeline that does not exist), ProblemsError (invalid settings), or
    DrkitError (an empty choice, an unknown scale, or a pipeline for a collection without queries).
    """
    if empty := [name for name, value in asdict(request).items() if value == ""]:
        raise DrkitError(f"{empty[0]} is empty, perhaps an unset variable of the shell; leave it out for the default")
    table = _at_scale(_start(request, parts), request)
    table = merge(table, _slots(request, parts, negatives=table["finetune"].get("negatives") or 1))
    if request.name is None:
        table["name"] = _default_name(table, request, parts.registry)
    _train_decoder(table.get("pretrain", {}), parts.registry)
    for assignment in request.settings:
        assign(table, assignment)
    _delete_trainings(table, request.settings)
    for name in ("encoder", "pretrain", "reranker"):
        if not isinstance(table.get(name, {}), dict):
            raise DrkitError(f"--set {name}: expected a table of settings, got {shortened(table[name])} @ {name}")
    if table["encoder"].get("pretrained"):
        given = {assignment.partition("=")[0].strip() for assignment in request.settings}
        for name in FROM_SCRATCH:
            if f"encoder.{name}" not in given:
                table["encoder"].pop(name, None)
    if "reranker" in table and not {"loss", "miners"} & {*table["reranker"]}:
        raise DrkitError("cannot set reranker: this recipe has no re-ranker. Add one with --pipeline three-stage")
    _delete_unused_losses(table.get("pretrain", {}))
    return recipe_from_table(table, parts.registry)


def _start(request: ComposeRequest, parts: Installed) -> Table:
    """Return the default recipe with the pipeline's fine-tuning, and the paper's recipe merged over both.

    A pipeline that the user chooses also replaces the fine-tuning of the paper's recipe.
    """
    paper = _recipe_table(parts, request.paper) if request.paper else {}
    papers_pipeline = paper.pop(PIPELINE, None)
    if request.pipeline and paper:
        paper = {**_without_fine_tuning(paper), SMALL: _without_fine_tuning(paper.get(SMALL, {}))}
    table = _recipe_table(parts, "default")
    name = request.pipeline or papers_pipeline
    if not paper and not name:
        return table
    defaults = table.pop(SMALL)
    if name:
        pipeline = parse_toml(parts.pipeline(name).read_text(encoding="utf-8"), f"pipeline {name}")
        if pipeline.get(SMALL, {}).pop(LIKE, None):
            pipeline[SMALL] = merge(defaults, pipeline[SMALL]) if not paper else {}
        table = merge(table, pipeline)
    return merge(table, paper)


def _at_scale(table: Table, request: ComposeRequest) -> Table:
    """Return the recipe at the requested scale, with the settings of the encoder it starts from."""
    if request.scale not in (None, *SCALES):
        raise DrkitError(f"unknown scale {request.scale!r}; choose one of {', '.join(SCALES)}")
    small = table.pop(SMALL, {})
    start = starting_point(request.encoder) if request.encoder else None
    is_small = request.scale == SMALL or (request.scale != PAPER and (start is None or start.small))
    if is_small:
        table = merge(_made_small(table), small)
        chosen = any(setting.strip().startswith((RERANKER, "finetune.rounds")) for setting in request.settings)
        if request.scale != QUICK and not chosen and RERANKER not in small:
            _leave_out_reranker(table)
    if start:
        table = merge(table, {"encoder": dict(start.encoder)})
    return _quickened(table, is_small=is_small) if request.scale == QUICK else table


def _made_small(table: Table) -> Table:
    """Return the recipe with the numbers of the small scale; its parts and the order of its rounds stay the same."""
    small = _scale(SMALL)
    entries, reranker = small["finetune"].pop("rounds"), small.pop("reranker")
    table = merge(table, settings_that_apply(small, table))
    table["finetune"]["rounds"] = [_small_round(current, entries) for current in table["finetune"]["rounds"]]
    if "reranker" in table:
        table["reranker"] = {**reranker, "loss": table["reranker"].get("loss", reranker["loss"])}
    return table


def _leave_out_reranker(table: Table) -> None:
    """Delete, in place, a re-ranker made from scratch and its pupils: it ranks below its own retriever.

    The measurements are in docs/experiments/stages.md. Settings of a re-ranker or of single rounds keep it, the user's
    or those of a recipe for the small scale.
    """
    finetune, reranker = table["finetune"], table.pop("reranker", None)
    pupils = [one for one in finetune["rounds"] if one.get("teacher") == RERANKER]
    if reranker:
        finetune["rounds"] = [one for one in finetune["rounds"] if one not in pupils]
        finetune["left_out"] = [RERANKER, *(one["name"] for one in pupils)]


def _small_round(current: Table, entries: Iterable[Table]) -> Table:
    """Return a round with the numbers of the small scale (if it has any for this round) instead of its own."""
    kept = {key: value for key, value in current.items() if key not in _NUMBERS}
    for entry in entries:
        if _identity(entry) == _identity(current):
            chain = zip(_chain(current), entry["miners"], strict=True)
            return {**kept, **entry, "miners": [merge(miner, small) for miner, small in chain]}
    return kept


def _identity(table: Table) -> tuple[Any, ...]:
    """Return what identifies a round across recipes: its name, its start, and the names of its miners."""
    return table.get("name"), table.get("start", "pretrained"), [_use(miner) for miner in _chain(table)]


def _chain(table: Table) -> list[Table]:
    """Return the miners of a round as tables; a recipe may give just a miner's name."""
    return [miner if isinstance(miner, dict) else {"use": miner} for miner in table.get("miners", [])]


def _quickened(table: Table, *, is_small: bool) -> Table:
    """Return the recipe with the sizes of `quick`: its steps in every round, and few passages per query to score."""
    quick = _scale(QUICK)
    paper = quick.pop(PAPER)
    quick = quick if is_small else merge(quick, paper)
    collection, reranker = quick.pop("collection"), quick.pop("reranker")
    table = merge(table, {"collection": collection, **settings_that_apply(quick, table)})
    if "reranker" in table:
        table["reranker"] = merge(table["reranker"], reranker)
        table["reranker"].pop("pretrained", None)  # a smoke run does not download a large model
    for current in table.get("finetune", {}).get("rounds", []):
        for key in _STEPS if is_small else (*_STEPS, "per_device_train_batch_size"):
            current.pop(key, None)
        if "negatives" in current and not is_small:
            current["negatives"] = min(current["negatives"], reranker["negatives"])
        if current.get("teacher") and "negatives" in current:
            for source in current.get("miners", [])[:1]:
                source.update({"depth": min(current["negatives"], source["depth"])} if "depth" in source else {})
    return table


def _scale(name: str) -> Table:
    return parse_toml((files("drkit") / "recipes" / f"{name}.toml").read_text(encoding="utf-8"), f"scale {name}")


def _without_fine_tuning(table: Table) -> Table:
    return {key: value for key, value in table.items() if key not in _FINE_TUNING}


def _train_decoder(pretrain: Table, registry: Registry) -> None:
    """Replace, in place, each loss that reads what the decoder does not provide by the decoder's own loss."""
    decoder = _part_or_none(registry, Kind.DECODER, pretrain.get("decoder", {}))
    for name, term in pretrain.get("losses", {}).items():
        loss = _part_or_none(registry, Kind.LOSS, term)
        if decoder is None or loss is None or not decoder.trained_by or term.get("on") != "decoder":
            continue
        if {*loss.receives} - {*decoder.provides, *provided_by(BATCH)}:
            kept = {key: term[key] for key in ("on", "weight") if key in term}
            pretrain["losses"][name] = {"use": decoder.trained_by, **kept}


def _delete_trainings(table: Table, settings: Iterable[str]) -> None:
    """Delete, in place, the trainings set to `none`, and what is left without use.

    A recipe without fine-tuning has no re-ranker. Pseudo-queries without a round that trains on them stay only if the
    user set them.
    """
    for name in ("pretrain", *_FINE_TUNING):
        if _use(table.get(name, {})) == "none":
            del table[name]
    if "finetune" not in table:
        table.pop("reranker", None)
    rounds = table.get("finetune", {}).get("rounds", [])
    is_used = isinstance(rounds, list) and any(one.get("pairs") == PSEUDO for one in rounds if isinstance(one, dict))
    if not is_used and not any(setting.strip().startswith("pseudo_queries") for setting in settings):
        table.pop("pseudo_queries", None)


def _delete_unused_losses(pretrain: Table) -> None:
    """Delete, in place, the loss terms that use `none`, by which a recipe removes a term of the default."""
    terms = pretrain.get("losses")
    if not isinstance(terms, dict):  # reported when the recipe is read
        return
    for name in [name for name, term in terms.items() if "none" in (term, _use(term))]:
        del terms[name]


def _part_or_none(registry: Registry, kind: Kind, slot: Any) -> ComponentSpec | None:
    """Return the part that a slot names, or None for an unknown name, which is reported when the recipe is read."""
    try:
        return registry.get(kind, _use(slot))
    except DrkitError:
        return None


def _recipe_table(parts: Installed, name: str, *above: str) -> Table:
    """Return the table of a recipe, merged over that of the recipe it is `like`."""
    if name in above:
        cycle = " > ".join((*above, name))
        raise DrkitError(f"the recipes {cycle} form a cycle, each `like` the next; remove `like` from one of them")
    table = parse_toml(parts.recipe(name).read_text(encoding="utf-8"), f"recipe {name}")
    if (other := table.pop(LIKE, None)) is None:
        return table
    under = _recipe_table(parts, other, *above, name)
    # The inherited small scale applies, except for settings of parts that this recipe replaces.
    inherited = settings_that_apply(under.pop(SMALL, {}), table)
    if PIPELINE in table or "rounds" in table.get("finetune", {}):
        inherited = _without_fine_tuning(inherited)
    small = merge(inherited, table.pop(SMALL, {}))
    return {**merge(under, table), SMALL: small}


def _slots(request: ComposeRequest, parts: Installed, *, negatives: int) -> Table:
    """Return the user's parts as a table to merge over the recipe; unknown names raise here, with the kind of part.

    negatives: per query, if miners are chosen: the recipe itself may train without mined ones.
    """
    table: Table = {}
    if request.masker:
        table = merge(table, {"pretrain": {"masker": part_table(Kind.MASKER, request.masker, parts.registry)}})
    if request.decoder:
        table = merge(table, {"pretrain": {"decoder": part_table(Kind.DECODER, request.decoder, parts.registry)}})
    if request.loss:
        table = merge(table, {"finetune": {"loss": part_table(Kind.LOSS, request.loss, parts.registry)}})
    if request.miners:
        miners = [part_table(Kind.MINER, text, parts.registry) for text in request.miners]
        table = merge(
            table, {"finetune": {"negatives": negatives, "rounds": [{"name": "retriever-1", "miners": miners}]}}
        )
    if request.pipeline:
        table = merge(table, {"finetune": {"pipeline": request.pipeline}})
    if request.collection:
        table["collection"] = part_table(Kind.COLLECTION, request.collection, parts.registry)
    if request.name:
        table["name"] = request.name
    return table


def part_table(kind: Kind, text: str, registry: Registry) -> Table:
    """Return the table of a part: `beir:PATH` becomes `{use = "beir", path = "PATH"}`.

    text: `[PACKAGE:]NAME[:VALUE]`; VALUE fills the setting `spec.shorthand`.
    """
    spec, value = registry.split(kind, text)
    chosen = {"use": registry.name_of(spec)}
    return chosen if value is None else {**chosen, spec.shorthand: value}


def _default_name(table: Mapping[str, Any], request: ComposeRequest, registry: Registry) -> str:
    """Return the default name of a run, such as `pydocs-pmi-enhanced`, or `tldr-retromae` for `beir:data/tldr`."""
    parts = [request.paper] if request.paper else [table["pretrain"][slot]["use"] for slot in ("masker", "decoder")]
    if "pretrain=none" in request.settings:
        parts = ["no-pretraining"]
    names = [_collection_name(table["collection"], registry), *parts, *([request.pipeline] if request.pipeline else [])]
    return "-".join(names).strip(" .").replace(":", "-")  # PACKAGE:NAME; some file systems refuse colons


def _collection_name(collection: Mapping[str, Any], registry: Registry) -> str:
    """Return the name of a collection's folder, of its file without suffixes, or its id; otherwise the part's name.

    The id of `irds:beir/scifact/test` becomes beir-scifact-test.
    """
    spec = _part_or_none(registry, Kind.COLLECTION, collection)
    value = str(collection.get(spec.shorthand, "")) if spec and spec.shorthand else ""
    path = local_path(value).resolve()
    if path.exists() and value:
        name = path.name if path.is_dir() else path.name.partition(".")[0]
    else:
        name = "" if spec and spec.shorthand in spec.files else re.sub(r"[^\w.-]+", "-", value).strip("-.")
    return name[:_LONGEST] or _use(collection)


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return `under` overridden by `over`, table by table; a slot whose part changes loses the old part's settings.

    >>> merge({"a": {"use": "x", "n": 1}, "b": 2}, {"a": {"use": "y"}})
    {'a': {'use': 'y'}, 'b': 2}
    """
    out = dict(under)
    for key, value in over.items():
        old = out.get(key)
        another_part = isinstance(old, Mapping) and isinstance(value, Mapping) and _use(value) not in ("", _use(old))
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not another_part:
            out[key] = merge(old, value)
        else:
            out[key] = merge({}, value) if isinstance(value, Mapping) else value
    return out


def settings_that_apply(changes: Mapping[str, Any], table: Mapping[str, Any]) -> Table:
    """Return `changes` without the settings of parts that `table` does not use.

    >>> changes = {"a": {"use": "x", "n": 1}, "b": {"use": "y", "m": 2}}
    >>> settings_that_apply(changes, {"a": {"use": "x"}, "b": {"use": "z"}})
    {'a': {'use': 'x', 'n': 1}}
    """
    kept: Table = {}
    for key, value in changes.items():
        old = table.get(key)
        if not isinstance(value, Mapping) or not isinstance(old, Mapping):
            kept[key] = value
        elif _use(value) in ("", _use(old)):
            kept[key] = settings_that_apply(value, old)
    return kept


def _use(slot: Any) -> str:
    return str(slot.get("use", "")) if isinstance(slot, Mapping) else str(slot)
