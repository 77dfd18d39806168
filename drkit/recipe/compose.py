"""Recipes in layers: the default, a pipeline, a paper's recipe, the scale, the user's own parts and settings.

A recipe says only what differs from `default`, or from the recipe that it is `like`, and by `pipeline = NAME` how it is
fine-tuned. Its numbers are those of its paper. The small scale is a file of its own, `recipes/small.toml`, laid over
any recipe where the encoder is made from scratch; what one recipe needs beside it stands in its table `small`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from attrs import field, frozen

from drkit.core.discovery import Installed
from drkit.core.provided import BATCH, provided_by
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError
from drkit.recipe.assign import assign
from drkit.recipe.read import parse_toml, recipe_from_table
from drkit.recipe.schema import Recipe
from drkit.recipe.start import starting_point

PAPER, SMALL, QUICK = SCALES = ("paper", "small", "quick")
PIPELINE, LIKE = "pipeline", "like"
# What belongs to fine-tuning, and is the chosen pipeline's alone.
_SECOND_HALF = ("finetune", "reranker")
_STEPS = ("max_steps", "num_train_epochs")
# What a round sets for itself, and every scale sets anew.
_NUMBERS = (*_STEPS, "negatives", "learning_rate", "per_device_train_batch_size")
Table = dict[str, Any]


@frozen
class ComposeRequest:
    """What the user asked `compose` for; None and empty mean: as the recipe has it.

    `miners` are one chain: a source of negatives, then filters, each `NAME` or `NAME:VALUE`, as `collection` is;
    `settings` are `dotted.path=TOML value`. `scale` is `paper`, `small` or `quick`; None: the paper's with an existing
    encoder, else small. `quick` is the scale that None gives, on little data and with few steps.
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


def compose(wanted: ComposeRequest, parts: Installed) -> Recipe:
    """The recipe that `wanted` describes, complete.

    Raises UnknownNameError (a part, recipe or scale that does not exist), ProblemsError (settings that do not fit).
    """
    table = merge(_at_scale(_start(wanted, parts), wanted), _slots(wanted, parts))
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


def _start(wanted: ComposeRequest, parts: Installed) -> Table:
    """The default, the pipeline's rounds in place of the default's own, and the paper's recipe over both.

    A pipeline that the user names replaces what the paper's recipe says of fine-tuning.
    """
    paper = _named(parts, wanted.paper) if wanted.paper else {}
    own = paper.pop(PIPELINE, None)
    if wanted.pipeline:
        paper = {**_without_second_half(paper), SMALL: _without_second_half(paper.get(SMALL, {}))}
    table = _named(parts, "default")
    if name := wanted.pipeline or own:
        file = parts.pipeline(name)
        table = merge(table, parse_toml(file.read_text(encoding="utf-8"), f"pipeline {name}"))
    return merge(table, paper)


def _at_scale(table: Table, wanted: ComposeRequest) -> Table:
    """The recipe at the scale that was asked for, with the encoder that it starts from."""
    if wanted.scale not in (None, *SCALES):
        raise DrkitError(f"unknown scale {wanted.scale!r}; choose one of {', '.join(SCALES)}")
    own = table.pop(SMALL, {})
    start = starting_point(wanted.encoder) if wanted.encoder else None
    if wanted.scale == SMALL or (wanted.scale != PAPER and (start is None or start.small)):
        table = merge(_made_small(table), own)
    if start:
        table = merge(table, {"encoder": dict(start.encoder)})
    return _quickened(table) if wanted.scale == QUICK else table


def _made_small(table: Table) -> Table:
    """The recipe with the numbers of the small scale; its parts, and what its rounds are, stay."""
    small = _scale(SMALL)
    entries, reranker = small["finetune"].pop("rounds"), small.pop("reranker")
    table = merge(table, fitting(small, table))
    table["finetune"]["rounds"] = [_small_round(current, entries) for current in table["finetune"]["rounds"]]
    if "reranker" in table:
        table["reranker"] = {**reranker, "loss": table["reranker"].get("loss", reranker["loss"])}
    return table


def _small_round(current: Table, entries: Iterable[Table]) -> Table:
    """A round without numbers of its own, and with those that the small scale has for it."""
    kept = {key: value for key, value in current.items() if key not in _NUMBERS}
    for entry in entries:
        if _round_of(entry) == _round_of(current):
            chain = zip(_chain(current), entry["miners"], strict=True)
            return {**kept, **entry, "miners": [merge(own, small) for own, small in chain]}
    return kept


def _round_of(table: Table) -> tuple[Any, ...]:
    """What tells a round from others of its name: its start, and its miners' kinds."""
    return table.get("name"), table.get("start", "pretrained"), [_use(miner) for miner in _chain(table)]


def _chain(table: Table) -> list[Table]:
    """A round's miners, each as a table: a recipe may name one by its name alone."""
    return [miner if isinstance(miner, dict) else {"use": miner} for miner in table.get("miners", [])]


def _quickened(table: Table) -> Table:
    """The recipe with the small sizes of `quick`; rounds without steps of their own; teachers score what is learned."""
    quick = _scale(QUICK)
    collection, reranker = quick.pop("collection"), quick.pop("reranker")
    table = merge(table, {"collection": collection, **fitting(quick, table)})
    if "reranker" in table:
        table["reranker"] = merge(table["reranker"], reranker)
        table["reranker"].pop("pretrained", None)  # a smoke run downloads no model that the user has not named
    for current in table.get("finetune", {}).get("rounds", []):
        for key in _STEPS:
            current.pop(key, None)
        if current.get("teacher") and "negatives" in current:
            for source in current.get("miners", [])[:1]:
                source.update({"depth": min(current["negatives"], source["depth"])} if "depth" in source else {})
    return table


def _scale(name: str) -> Table:
    return parse_toml((files("drkit") / "recipes" / f"{name}.toml").read_text(encoding="utf-8"), f"scale {name}")


def _without_second_half(table: Table) -> Table:
    return {key: value for key, value in table.items() if key not in _SECOND_HALF}


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
    if (other := table.pop(LIKE, None)) is None:
        return table
    under = _named(parts, other, *above, name)
    # Of the other's small scale, what does not belong to a part that this recipe replaces.
    small = merge(fitting(under.pop(SMALL, {}), table), table.pop(SMALL, {}))
    return {**merge(under, table), SMALL: small}


def _slots(wanted: ComposeRequest, parts: Installed) -> Table:
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


def _describe(table: Mapping[str, Any], wanted: ComposeRequest) -> str:
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
