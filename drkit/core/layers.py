"""Recipes in layers: the default, a pipeline, a paper's, what an existing encoder changes, the user's own.

A named recipe says only what differs from `default`, or from the recipe that it is `like`, and by `pipeline = NAME` how
it is fine-tuned. A table `with_encoder` holds what changes when training starts from an existing encoder (`--encoder`):
the paper's own schedule and lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from drkit.core.assigning import assign
from drkit.core.continuing import origin
from drkit.core.discovery import Installed
from drkit.core.provided import BATCH, provided_by
from drkit.core.read import parse_toml, recipe_from_table
from drkit.core.recipe import Recipe
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError

WITH_ENCODER, WITH_RERANKER, PIPELINE, LIKE = "with_encoder", "with_reranker", "pipeline", "like"
# What belongs to fine-tuning, and is the chosen pipeline's alone.
_SECOND_HALF = ("finetune", "reranker")
Table = dict[str, Any]


@frozen
class Wanted:
    """What the user asked `compose` for; None and empty mean: as the recipe has it.

    `miners` are one chain: a source of negatives, then filters, each `NAME` or `NAME:VALUE`, as `collection` is;
    `settings` are `dotted.path=TOML value`.
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
    quick: bool = False


def compose(wanted: Wanted, parts: Installed) -> Recipe:
    """The recipe that `wanted` describes, complete.

    Raises UnknownNameError (a part or recipe nobody registered), ProblemsError (settings that do not fit).
    """
    table = _start(wanted, parts)
    changes = table.pop(WITH_ENCODER, {})
    if wanted.encoder:
        start = origin(wanted.encoder)
        table = merge(table if start.small else merge(table, fitting(changes, table)), {"encoder": dict(start.encoder)})
    if wanted.quick:
        table = _quickened(table, _named(parts, "quick"))
    small = table.pop(WITH_RERANKER, {})
    table = merge(table, small) if "reranker" in table else table
    table = merge(table, _slots(wanted, parts))
    if wanted.name is None:
        table["name"] = _describe(table, wanted)
    _train_decoder(table.get("pretrain", {}), parts.registry)
    for assignment in wanted.settings:
        assign(table, assignment)
    if "reranker" in table and not {"loss", "miners"} & {*table["reranker"]}:
        raise DrkitError("reranker is set, and this recipe has no re-ranker: choose one with --pipeline three-stage")
    if _use(table.get("pretrain", {})) == "none":
        del table["pretrain"]
    _leave_out(table.get("pretrain", {}))
    return recipe_from_table(table, parts.registry)


def _start(wanted: Wanted, parts: Installed) -> Table:
    """The default, the pipeline's rounds in the place of its own, and the paper's recipe over both.

    A pipeline that the user names takes the place of what the paper's recipe says of fine-tuning.
    """
    paper = _named(parts, wanted.paper) if wanted.paper else {}
    own = paper.pop(PIPELINE, None)
    if wanted.pipeline:
        paper = _without_second_half(paper)
    table = _named(parts, "default")
    if name := wanted.pipeline or own:
        file = parts.pipeline(name)
        table = merge(table, parse_toml(file.read_text(encoding="utf-8"), f"pipeline {name}"))
    return merge(table, paper)


def _quickened(table: Table, quick: Table) -> Table:
    """The recipe with the small sizes of `quick`; rounds without steps of their own; teachers score what is learned."""
    table = merge(table, quick)
    for current in table.get("finetune", {}).get("rounds", []):
        current.pop("max_steps", None)
        current.pop("num_train_epochs", None)
        if current.get("teacher") and "negatives" in current:
            for source in current.get("miners", [])[:1]:
                source.update({"depth": min(current["negatives"], source["depth"])} if "depth" in source else {})
    return table


def _without_second_half(table: Table) -> Table:
    kept = {key: value for key, value in table.items() if key not in _SECOND_HALF}
    return {**kept, WITH_ENCODER: _without_second_half(kept[WITH_ENCODER])} if WITH_ENCODER in kept else kept


def _train_decoder(pretrain: Table, registry: Registry) -> None:
    """In place: where a term reads what the chosen decoder does not provide, the decoder's own loss takes its place."""
    decoder = _known(registry, Kind.DECODER, pretrain.get("decoder", {}))
    for name, term in pretrain.get("losses", {}).items():
        loss = _known(registry, Kind.LOSS, term)
        if decoder is None or loss is None or not decoder.trained_by or term.get("on") != "decoder":
            continue
        if {*loss.receives} - {*decoder.provides, *provided_by(BATCH)}:
            kept = {key: term[key] for key in ("on", "weight") if key in term}
            pretrain["losses"][name] = {"use": decoder.trained_by, **kept}


def _leave_out(pretrain: Table) -> None:
    """In place: a loss term that uses `none` is gone; a recipe takes a term of the default away with it."""
    terms = pretrain.get("losses", {})
    for name in [name for name, term in terms.items() if "none" in (term, _use(term))]:
        del terms[name]


def _known(registry: Registry, kind: Kind, slot: Any) -> ComponentSpec | None:
    """The part a slot names, or None where the reader of recipes will refuse it."""
    try:
        return registry.get(kind, _use(slot))
    except DrkitError:
        return None


def _named(parts: Installed, name: str, *above: str) -> Table:
    """The table of a recipe, laid over that of the recipe it is `like`."""
    if name in above:
        raise DrkitError(f"the recipes {' > '.join((*above, name))} are each like the next: one must stand by itself")
    table = parse_toml(parts.recipe(name).read_text(encoding="utf-8"), f"recipe {name}")
    other = table.pop(LIKE, None)
    return merge(_named(parts, other, *above, name), table) if other else table


def _slots(wanted: Wanted, parts: Installed) -> Table:
    """The user's parts as a table to lay over the recipe; each name is checked here, so that errors name the kind."""
    table: Table = {}
    if wanted.masker:
        table = merge(table, {"pretrain": {"masker": part_table(Kind.MASKER, wanted.masker, parts.registry)}})
    if wanted.decoder:
        table = merge(table, {"pretrain": {"decoder": part_table(Kind.DECODER, wanted.decoder, parts.registry)}})
    if wanted.loss:
        table = merge(table, {"finetune": {"loss": part_table(Kind.LOSS, wanted.loss, parts.registry)}})
    if wanted.miners:
        miners = [part_table(Kind.MINER, text, parts.registry) for text in wanted.miners]
        table = merge(table, {"finetune": {"rounds": [{"name": "retriever-1", "miners": miners}]}})
    if wanted.collection:
        table["collection"] = collection_table(wanted.collection, parts)
    if wanted.name:
        table["name"] = wanted.name
    return table


def collection_table(text: str, parts: Installed) -> Table:
    """`beir:PATH` as `{use = "beir", path = "PATH"}`; the spec's shorthand says which setting VALUE fills."""
    return part_table(Kind.COLLECTION, text, parts.registry)


def part_table(kind: Kind, text: str, registry: Registry) -> Table:
    """Return `NAME` or `NAME:VALUE`, with or without `PACKAGE:`, as the table of a part; see `Registry.split`."""
    spec, value = registry.split(kind, text)
    chosen = {"use": registry.name_of(spec)}
    return chosen if value is None else {**chosen, spec.shorthand: value}


def _describe(table: Mapping[str, Any], wanted: Wanted) -> str:
    """`pydocs-pmi-enhanced`, or `pydocs-retromae-two-stage`: the run folder's name where the user gives none."""
    parts = [wanted.paper] if wanted.paper else [table["pretrain"][slot]["use"] for slot in ("masker", "decoder")]
    if "pretrain=none" in wanted.settings:
        parts = ["no-pretraining"]
    names = [table["collection"]["use"], *parts, *([wanted.pipeline] if wanted.pipeline else [])]
    return "-".join(names).replace(":", "-")  # PACKAGE:NAME; some file systems refuse colons


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """`over` laid on `under`, table by table; a slot whose part changes loses the other part's settings.

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


def fitting(changes: Mapping[str, Any], table: Mapping[str, Any]) -> Table:
    """`changes` without the settings of parts that `table` does not use.

    >>> fitting({"a": {"use": "x", "n": 1}, "b": {"use": "y", "m": 2}}, {"a": {"use": "x"}, "b": {"use": "z"}})
    {'a': {'use': 'x', 'n': 1}}
    """
    kept: Table = {}
    for key, value in changes.items():
        old = table.get(key)
        if not isinstance(value, Mapping) or not isinstance(old, Mapping):
            kept[key] = value
        elif _use(value) in ("", _use(old)):
            kept[key] = fitting(value, old)
    return kept


def _use(slot: Any) -> str:
    return str(slot.get("use", "")) if isinstance(slot, Mapping) else str(slot)
