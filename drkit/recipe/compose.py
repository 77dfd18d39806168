"""Compose a recipe: a complete file, with another pipeline, other parts and other settings.

Each recipe is a file for a scale: `retromae.toml` has the numbers of the paper, `retromae-small.toml` those for an
encoder that is made from scratch in minutes. A pipeline replaces the tables of fine-tuning, a named part replaces a
part, and `--set` replaces a setting.

Until every setting is there, these are tables: a named part may need a setting that follows. A file is read as a recipe
first, so the tables have its shape; what the settings make of them is read once, with all problems reported, and what
then has no use is left out of the typed recipe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Set
from copy import deepcopy
from importlib.resources import files
from itertools import chain, count
from typing import Any

from attrs import asdict, evolve, field, fields, frozen

from drkit.core.files import local_path
from drkit.core.protocols import MaskingRatio, TargetShare
from drkit.core.registry import Installed, Registry
from drkit.core.spec import BATCH, FINETUNING, RERANKING, Choice, ComponentSpec, Kind, provided_by
from drkit.data.column_sources import RERANKER
from drkit.data.splits import PSEUDO
from drkit.errors import DrkitError, ProblemsError, UnknownNameError
from drkit.recipe.encoder_settings import FROM_SCRATCH, EncoderSettings
from drkit.recipe.familiar import meant_settings
from drkit.recipe.paths import setting_paths
from drkit.recipe.schema import ENCODER_SIDE, ITSELF, MAIN, NONE, REPLACED, Recipe
from drkit.recipe.start import StartingPoint, find_collection, starting_point
from drkit.recipe.toml import assign, parse_toml, plain, recipe_from_table, recipe_table, toml_value
from drkit.recipe.training import SCHEDULE

PAPER, SMALL, QUICK = SCALES = ("paper", "small", "quick")
# What a pipeline follows if no paper is named, and it has no recipe of its own; and what an encoder of sentences does,
# which has a use without pre-training.
_BASE, IMPROVE = "default", "improve"
# The highest learning rates of an existing encoder at the small scale, whose own are for random weights.
_RATES = {"pretrain": 5e-5, "finetune": 2e-5, "reranker": 3e-5}
# The choices of a request that only pre-training has.
_OF_PRETRAINING = ("masker", "encoder_masker", "context", "decoder", "pretrain_loss")
# The tables of fine-tuning, which a pipeline replaces as a whole.
_FINE_TUNING = ("finetune", "reranker", "pseudo_queries", "stages")
# Settings by which a round has a schedule of its own, and the most negatives of a round, in a smoke run.
_OWN_SCHEDULE = (*SCHEDULE, "warmup_steps")
_QUICK_NEGATIVES = 3
# The loss of a decoder that names none of its own.
_DEFAULT_LOSS = "mlm"
# Characters of a collection's name in the name of a run.
_LONGEST = 40
_Table = dict[str, Any]


def _in_order(names: str | Iterable[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


@frozen
class ComposeRequest:
    """The user's choices for `compose`; None or empty keeps the recipe's own.

    `masker` and `context` are those of the decoder `main`, `encoder_masker` is the encoder's. The first `decoder` is
    `main`; each further one is named as its part, and has the context and masker of `main` and its own loss; `none`
    leaves out all decoders. Each `pretrain_loss` is `NAME[@SIDE][=WEIGHT]`: a loss that is added to the encoder or to a
    decoder (the first whose outputs it reads, if no side is named), or that gets this weight if the side has it
    already. `miners` is one chain, a source of negatives and then filters, each `NAME` or `NAME:VALUE`,
    like `collection`.
    `settings` are `dotted.path=TOML value`. `scale` is `paper`, `small` or `quick`; None means `paper` with an existing
    encoder, else `small`. `quick` is the scale that None means, with little data and few steps.
    """

    paper: str | None = None
    masker: str | None = None
    encoder_masker: str | None = None
    context: str | None = None
    decoder: tuple[str, ...] = field(default=(), converter=_in_order)
    loss: str | None = None
    batches: str | None = None
    pretrain_loss: tuple[str, ...] = field(default=(), converter=_in_order)
    miners: tuple[str, ...] = field(default=(), converter=_in_order)
    pipeline: str | None = None
    collection: str | None = None
    encoder: str | None = None
    name: str | None = None
    settings: tuple[str, ...] = ()
    scale: str | None = None


# The choices by name; every other one is a setting by its path.
CHOICES = frozenset(one.name for one in fields(ComposeRequest)) - {"settings"}


def compose(request: ComposeRequest, parts: Installed) -> Recipe:
    """Return the complete recipe for a request.

    Raises UnknownNameError (a part, recipe or pipeline that does not exist), ProblemsError (invalid settings), or
    DrkitError (an empty choice, an unknown scale, choices for a decoder that is left out, or a setting of a re-ranker
    that the recipe lacks).
    """
    if empty := [name for name, value in asdict(request).items() if value == ""]:
        raise DrkitError(f"{empty[0]} is empty, perhaps an unset variable of the shell; leave it out for the default")
    if request.collection:
        request = evolve(request, collection=find_collection(request.collection, parts, request.settings))
    table = _read(request, parts)
    table = merge(table, _slots(request, parts, negatives=table.get("finetune", {}).get("negatives") or 1))
    if pretrain := table.get("pretrain"):
        table["pretrain"] = _pretraining(pretrain, request, parts.registry)
        table = merge(table, _rivals(table, request, parts.registry))
    elif unread := [name for name in _OF_PRETRAINING if getattr(request, name)]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unread)
        raise DrkitError(
            f"the recipe {table['name']!r} has no pre-training, so {options} cannot be part of it: leave this out, or "
            f"choose another recipe (--paper) or pipeline (--pipeline)"
        )
    if request.name is None:
        table["name"] = _default_name(table, request, parts.registry)
    before = deepcopy(table)
    for assignment in request.settings:
        assign(table, assignment)
    given = {assignment.partition("=")[0].strip() for assignment in request.settings}
    reranker = table.get(RERANKER)
    if reranker and isinstance(reranker, Mapping) and not {"loss", "miners"} & {*reranker}:
        raise DrkitError("cannot set reranker: this recipe has no re-ranker. Add one with --pipeline three-stage")
    try:
        recipe = recipe_from_table(_without_none(table), parts.registry)
    except ProblemsError as error:
        raise _with_settings_meant(error, request.settings, before, parts.registry) from None
    return _counted_in_epochs(_without_unused(recipe, given), given)


def _with_settings_meant(
    error: ProblemsError, settings: Iterable[str], table: _Table, registry: Registry
) -> ProblemsError:
    """Return the error with what to write instead of each unknown setting.

    settings: those that were assigned; table: the recipe without them.
    """
    try:
        known = [one.path for one in setting_paths(recipe_from_table(table, registry), registry)]
    except ProblemsError:
        return error
    instead: dict[str, str] = {}
    for path, _, value in (assignment.partition("=") for assignment in settings):
        if meant := meant_settings(path.strip(), known):
            lines = " or ".join(f"--set {one}={value.strip()}" for one in meant)
            instead |= {f"no setting named {key.strip()!r}": f"; write {lines}" for key in path.split(".")}
    problems = []
    for problem in error.problems:
        what, at, table_path = problem.rpartition(" @ ")
        parts = (re.split(r"(?=[;?])", one, maxsplit=1) for one in re.split(r"; (?=no setting named)", what))
        said = "; ".join(f"{head}{instead.get(head, ''.join(rest))}" for head, *rest in parts)
        problems.append(f"{said}{at}{table_path}")
    return ProblemsError(error.subject, problems)


def _read(request: ComposeRequest, parts: Installed) -> _Table:
    """Return the recipe at its scale, with the fine-tuning of the pipeline and the encoder to start from."""
    if request.scale is not None and request.scale not in SCALES:
        raise UnknownNameError("scale", request.scale, SCALES)
    start = starting_point(request.encoder) if request.encoder else None
    is_small = _is_small(request, start)
    name = request.paper or _recipe_without_paper(request, start, parts)
    recipe = parts.recipes.get(name)
    table = parse_toml(recipe.text(small=is_small), f"recipe {name}")
    if request.pipeline and (request.paper or name == _BASE):
        text = parts.pipelines.get(request.pipeline).text(small=is_small)
        kept = {key: value for key, value in table.items() if key not in _FINE_TUNING}
        table = merge(kept, parse_toml(text, f"pipeline {request.pipeline}"))
    if request.collection:  # in place of one whose package may be missing
        table = merge(table, {"collection": part_table(Kind.COLLECTION, request.collection, parts.registry)})
    recipe_from_table(table, parts.registry, subject=f"recipe {name}")  # from here on, it has the shape of a recipe
    if name == IMPROVE and not request.paper:
        table = _without_made_queries(table)
    if start:
        table = merge(table, {"encoder": dict(start.encoder), "evaluation": {"start": True}})
        if start.embeds and not _asks_for_pretraining(request):
            table = _without_pretraining(table)
        if is_small and not start.small:
            table = _with_careful_rates(table, _RATES)
        elif start.embeds:
            table = _with_careful_rates(table, {"pretrain": _RATES["pretrain"]})
    if request.scale == QUICK:
        return _quickened(table, "quick" if is_small and recipe.small else "quick-paper")
    return table


def _is_small(request: ComposeRequest, start: StartingPoint | None) -> bool:
    return request.scale == SMALL or (request.scale != PAPER and (start is None or start.small))


def has_numbers_of_paper(request: ComposeRequest) -> bool:
    """Return whether a request is for the recipe of a paper at the paper's scale."""
    if request.paper is None or request.scale == QUICK:
        return False
    return not _is_small(request, starting_point(request.encoder) if request.encoder else None)


def with_mixed_precision(recipe: Recipe, settings: Iterable[str]) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with every training in mixed precision (bfloat16), and the paths of what that changes.

    settings: the request's, `dotted.path=TOML value`; a training whose `bf16` is among them keeps it.
    """
    given = {assignment.partition("=")[0].strip() for assignment in settings}
    tables = {name: getattr(recipe, name) for name in ("pretrain", "finetune", RERANKER)}
    changed = {
        name: evolve(table, bf16=True)
        for name, table in tables.items()
        if table is not None and not table.bf16 and f"{name}.bf16" not in given
    }
    return evolve(recipe, **changed), tuple(f"{name}.bf16" for name in changed)


def _recipe_without_paper(request: ComposeRequest, start: StartingPoint | None, parts: Installed) -> str:
    """Return the name of the recipe that no paper replaces; a pipeline may come with one of its own name.

    An encoder of sentences is tuned without pre-training, unless a part of pre-training is named.
    """
    if request.pipeline is None:
        return IMPROVE if start and start.embeds and not _asks_for_pretraining(request) else _BASE
    chosen = parts.pipelines.get(request.pipeline)
    own = any((one.name, one.provider) == (chosen.name, chosen.provider) for one in parts.recipes.items())
    return request.pipeline if own else _BASE


def _asks_for_pretraining(request: ComposeRequest) -> bool:
    """Return whether a request names a paper, a part of pre-training, or a setting of it."""
    has_part = bool(request.paper) or any(getattr(request, name) for name in _OF_PRETRAINING)
    return has_part or any(setting.startswith("pretrain.") for setting in request.settings)


def _without_pretraining(table: _Table) -> _Table:
    """Return a recipe that fine-tunes at once, without the baselines that compare pre-training."""
    kept = {key: value for key, value in table.items() if key != "pretrain"}
    return merge(kept, {"finetune": {"baselines": []}}) if "finetune" in kept else kept


def _without_made_queries(table: _Table) -> _Table:
    """Return a recipe without the rounds that learn from queries made from the texts, which `drkit improve` tries."""
    rounds = [one for one in table["finetune"]["rounds"] if one["pairs"] != PSEUDO]
    return {**table, "finetune": {**table["finetune"], "rounds": rounds}}


def _with_careful_rates(table: _Table, rates: Mapping[str, float]) -> _Table:
    """Return a recipe whose learning rates do not harm an existing encoder; rates: the highest ones, by table."""

    def lowered(settings: Mapping[str, Any], most: float) -> _Table:
        rates = {key: min(value, most) for key, value in settings.items() if key.endswith("learning_rate") and value}
        kept = {key: value for key, value in settings.items() if key != "baseline_learning_rates"}
        return {**kept, **rates}

    careful = {name: lowered(table[name], most) for name, most in rates.items() if name in table}
    if "finetune" in careful and (rounds := careful["finetune"].get("rounds")):
        careful["finetune"]["rounds"] = [lowered(one, rates["finetune"]) for one in rounds]
    return {**table, **careful}


def quickened(recipe: Recipe, registry: Registry) -> Recipe:
    """Return a complete recipe with the settings of a smoke run, named NAME-quick."""
    table = _quickened(recipe_table(recipe), "quick" if recipe.encoder.pretrained is None else "quick-paper")
    return recipe_from_table({**table, "name": f"{recipe.name}-quick"}, registry)


def _quickened(table: _Table, name: str) -> _Table:
    """Return the recipe with the settings of a smoke run, from a file of this name, and its schedule in every round."""
    quick = parse_toml((files("drkit") / "recipes" / f"{name}.toml").read_text(encoding="utf-8"), f"scale {name}")
    table = {"encoder": {}, **table}  # which a recipe may leave out
    table = merge(table, _settings_that_apply(quick, table))
    if {"hidden", "heads"} <= table["encoder"].keys():  # as many heads as divide the smaller width
        heads = math.gcd(table["encoder"]["heads"], table["encoder"]["hidden"])
        table = merge(table, {"encoder": {"heads": heads}})
    rounds = [_quick_round(current) for current in table.get("finetune", {}).get("rounds", [])]
    return merge(table, {"finetune": {"rounds": rounds}}) if rounds else table


def _quick_round(current: _Table) -> _Table:
    """Return a round with the schedule of [finetune], and few negatives: a teacher scores no other passages."""
    kept = {key: value for key, value in current.items() if key not in _OWN_SCHEDULE}
    if "negatives" in kept:
        kept["negatives"] = min(kept["negatives"], _QUICK_NEGATIVES)
    source, *filters = kept.get("miners") or [{}]
    if kept.get("teacher") and "negatives" in kept and "depth" in source:
        kept["miners"] = [{**source, "depth": min(kept["negatives"], source["depth"])}, *filters]
    return kept


def _pretraining(pretrain: Mapping[str, Any], request: ComposeRequest, registry: Registry) -> _Table:
    """Return a pre-training with the user's maskers, context and decoders. Raises DrkitError as `compose` does."""
    encoder, decoders = dict(pretrain["encoder"]), dict(pretrain.get("decoders", {}))
    if NONE in request.decoder:
        if request.masker or request.context or len(request.decoder) > 1:
            raise DrkitError(
                "--decoder none leaves out every decoder, so it has neither --masker nor --context, nor another "
                "--decoder; --encoder-masker chooses what is hidden from the encoder"
            )
        request, decoders = evolve(request, decoder=()), {}
    main, others = _main(encoder, decoders, request, registry), request.decoder[1:]
    if request.encoder_masker:
        encoder = merge(encoder, {"masker": masker_table(request.encoder_masker, encoder, registry)})
    if request.masker or request.context or request.decoder:
        decoders[MAIN] = main
    for text in others:
        part = part_table(Kind.DECODER, text, registry)
        shared = {key: main[key] for key in ("context", "nested", "masker") if key in main}
        decoders[_free_name(part["use"].replace(":", "-"), decoders)] = {"decoder": part, **shared}
    decoders = {name: _with_losses(task, registry) for name, task in decoders.items()}
    sides = {**decoders, ENCODER_SIDE: encoder}
    for text in request.pretrain_loss:
        side, losses = _added_loss(text, sides, registry)
        sides[side] = merge(sides[side], {"losses": losses})
    return {**pretrain, "encoder": sides.pop(ENCODER_SIDE), "decoders": sides}


def with_part(recipe: Recipe, slot: str, part: str, registry: Registry) -> Recipe:
    """Return the recipe with another part in a slot of its pre-training (`REPLACED`), as if the part had been named.

    Losses that a new decoder cannot read are replaced by its own. A decoder that rebuilds a share of the positions is
    replaced by one that predicts as many. The recipe is returned as it is if it has no such slot. Raises DrkitError as
    `compose` does.
    """
    table = recipe_table(recipe)
    pretrain = table.get("pretrain")
    if not pretrain or (slot != "encoder-masker" and MAIN not in pretrain["decoders"]):
        return recipe
    decoders = pretrain["decoders"]
    if slot == "decoder" and part != NONE:
        decoder = registry.get(Kind.DECODER, registry.split(Kind.DECODER, part)[0].name)
        losses = decoders[MAIN]["losses"]
        share = 1.0 if isinstance(decoder.config(), TargetShare) else _share_of_masked(recipe)
        read = {
            name: {**term, "targets": _scaled(term["targets"], share)} if "targets" in term else term
            for name, term in losses.items()
            if _reads(registry.get(Kind.LOSS, _use(term)), decoder)
        }
        main = {name: value for name, value in decoders[MAIN].items() if name != "losses"}
        pretrain = {**pretrain, "decoders": {**decoders, MAIN: main | ({"losses": read} if read else {})}}
    named: dict[str, Any] = {slot.replace("-", "_"): part}
    request = ComposeRequest(**named)
    return recipe_from_table({**table, "pretrain": _pretraining(pretrain, request, registry)}, registry)


def _scaled(value: Any, factor: float) -> Any:
    """Return a number, or the ends of a schedule, times a factor."""
    if isinstance(value, Mapping):
        return {key: inner * factor if key in ("from", "to") else inner for key, inner in value.items()}
    return value * factor


def _share_of_masked(recipe: Recipe) -> float:
    """Return how many positions the decoder `main` rebuilds, as a share of those that its masker hides, at most 1."""
    assert recipe.pretrain is not None
    task = recipe.pretrain.decoders[MAIN]
    hidden = task.masker.config.ratio if task.masker and isinstance(task.masker.config, MaskingRatio) else 1.0
    rebuilt = task.decoder.config.target_share if isinstance(task.decoder.config, TargetShare) else hidden
    return min(1.0, rebuilt / hidden)


def _rivals(table: Mapping[str, Any], request: ComposeRequest, registry: Registry) -> _Table:
    """Return the baselines that answer for the parts that the user named, in place of those for other parts.

    Only at the scales of minutes: each of them is a pre-training.
    """
    named = {slot for slot in REPLACED if getattr(request, slot.replace("-", "_"))}
    if request.masker and registry.split(Kind.MASKER, request.masker)[0].context:
        named.add("context")
    finetune = table.get("finetune", {})
    is_large = request.scale == PAPER or table.get("encoder", {}).get("pretrained")
    if is_large or not named or "baselines" not in finetune:
        return {}
    kept = [one for one in finetune["baselines"] if "=" not in one]
    rivals = [f"{slot}={plain}" for slot, (_, plain) in REPLACED.items() if slot in named]
    return {"finetune": {"baselines": [*kept, *rivals]}}


def _added_loss(text: str, sides: Mapping[str, Any], registry: Registry) -> tuple[str, _Table]:
    """Return the side of a loss `NAME[@SIDE][=WEIGHT]`, the encoder last among all, and the side's table of it.

    Raises DrkitError for a loss of fine-tuning, an unknown side, and a weight that is not a number.
    """
    named, _, weight = text.partition("=")
    name, _, side = named.partition("@")
    spec = registry.get(Kind.LOSS, name)
    if {*spec.receives} & {*provided_by(FINETUNING, RERANKING)}:
        raise DrkitError(f"--pretrain-loss {text}: {name!r} is a loss of fine-tuning: --loss {name}")
    if side and side not in sides:
        raise UnknownNameError("side", side, sides, where=f"--pretrain-loss {text}")
    reading = (one for one, task in sides.items() if "decoder" in task and _reads(spec, _decoder_of(task, registry)))
    chosen = side or next(reading, ENCODER_SIDE)
    loss: _Table = {"use": name}
    try:
        loss |= {"weight": float(weight)} if weight else {}
    except ValueError:
        raise DrkitError(f"--pretrain-loss {text}: the weight must be a number, got {weight!r}") from None
    present = sides[chosen].get("losses", {})
    key = next((one for one, term in present.items() if _use(term) == name), name)
    return chosen, {key: loss}


def _reads(loss: ComponentSpec, decoder: ComponentSpec) -> bool:
    """Return whether a loss reads the outputs of a decoder, and nothing else of its batch than partners."""
    return {*loss.receives} <= {*decoder.provides, *provided_by(BATCH)}


def _decoder_of(task: Mapping[str, Any], registry: Registry) -> ComponentSpec:
    return registry.get(Kind.DECODER, _use(task["decoder"]))


def _main(encoder: _Table, decoders: _Table, request: ComposeRequest, registry: Registry) -> _Table:
    """Return the decoder `main` with the user's parts; without one, it starts with the encoder's masker."""
    masker = {"masker": encoder["masker"]} if "masker" in encoder else {}
    main = dict(decoders.get(MAIN, masker))
    chosen = masker_slots(request.masker, main, registry) if request.masker else {}
    if request.context:
        context = part_table(Kind.CONTEXT, request.context, registry)
        if _use(chosen.get("context", context)) != context["use"]:
            raise DrkitError(
                f"--masker {request.masker} has the context {_use(chosen['context'])}, not {context['use']}: leave "
                f"--context out, or name a masker of any context, such as --masker {_use(chosen['masker'])}"
            )
        chosen["context"] = context
    chosen |= {"decoder": part_table(Kind.DECODER, request.decoder[0], registry)} if request.decoder else {}
    return merge(main, chosen)


def masker_slots(text: str, task: Mapping[str, Any], registry: Registry) -> _Table:
    """Return the slots of a decoder that a named masker fills: `masker`, and `context` if the masker brings one."""
    table = part_table(Kind.MASKER, text, registry)
    spec = registry.get(Kind.MASKER, table["use"])
    if not spec.context:
        return {"masker": masker_table(text, task, registry)}
    base = table.get("base") or spec.config().base.use
    return {"context": {"use": spec.context}, **masker_slots(base, task, registry)}


def masker_table(text: str, task: Mapping[str, Any], registry: Registry) -> _Table:
    """Return the table of a masker that replaces the one of a task: it hides as many tokens."""
    table, hidden = part_table(Kind.MASKER, text, registry), task.get("masker")
    ratio = hidden.get("ratio") if isinstance(hidden, Mapping) else None
    hides_a_share = isinstance(registry.get(Kind.MASKER, table["use"]).config(), MaskingRatio)
    return table if ratio is None or not hides_a_share else {**table, "ratio": ratio}


def ratio_notes(request: ComposeRequest, recipe: Recipe, registry: Registry) -> tuple[str, ...]:
    """Return a note for each masker that was named, and hides as many tokens as the one before instead of its own."""
    given = {assignment.partition("=")[0].strip() for assignment in request.settings}
    main = recipe.pretrain.decoders.get(MAIN) if recipe.pretrain else None
    found: dict[str, Choice | None] = {}
    if recipe.pretrain and request.encoder_masker:
        found["pretrain.encoder.masker"] = recipe.pretrain.encoder.masker
    if main and request.masker:
        found[f"pretrain.decoders.{MAIN}.masker"] = main.masker
    notes = []
    for path, chosen in found.items():
        if chosen is None or not isinstance(chosen.config, MaskingRatio) or f"{path}.ratio" in given:
            continue
        own = registry.get(Kind.MASKER, chosen.use).config().ratio
        if own != chosen.config.ratio:
            ratio = plain(chosen.config)["ratio"]
            notes.append(
                f"{path}.ratio = {toml_value(ratio)}, as the masker before it in the recipe hides; --set "
                f"{path}.ratio={own:g} is the default of {chosen.use}"
            )
    return tuple(notes)


def _free_name(name: str, taken: Iterable[str]) -> str:
    """Return the name, with a number behind it if it is taken."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in {*taken})


def _with_losses(task: Mapping[str, Any], registry: Registry) -> Mapping[str, Any]:
    """Return a decoder whose losses read what it provides: those that do not are replaced by the decoder's own."""
    if "decoder" not in task:  # which a setting may still name
        return task
    decoder = _decoder_of(task, registry)
    if "losses" not in task:
        own = decoder.trained_by or _DEFAULT_LOSS
        return {**task, "losses": {own: {"use": own}}}
    losses: _Table = {}
    for name, term in task["losses"].items():
        if not decoder.trained_by or _reads(registry.get(Kind.LOSS, _use(term)), decoder):
            losses[name] = term
        else:
            weight = {"weight": term["weight"]} if isinstance(term, Mapping) and "weight" in term else {}
            losses[decoder.trained_by] = {"use": decoder.trained_by, **weight}
    return {**task, "losses": losses}


def _without_unused(recipe: Recipe, given: Set[str]) -> Recipe:
    """Return the recipe without what has no use in it.

    A re-ranker needs fine-tuning, pseudo-queries a round that trains on them, and an existing encoder has no sizes.
    given: the settings that the user chose, which stay.
    """
    finetune, encoder, pseudo_queries = recipe.finetune, recipe.encoder, recipe.pseudo_queries
    is_used = finetune is not None and any(one.pairs == PSEUDO for one in finetune.rounds)
    if not is_used and not any(path.startswith("pseudo_queries") for path in given):
        pseudo_queries = None
    if encoder.pretrained:
        default = EncoderSettings()
        unused = {name: getattr(default, name) for name in FROM_SCRATCH if f"encoder.{name}" not in given}
        encoder = evolve(encoder, **unused)
    reranker = recipe.reranker if finetune else None
    return evolve(recipe, encoder=encoder, pseudo_queries=pseudo_queries, reranker=reranker)


def _counted_in_epochs(recipe: Recipe, given: Set[str]) -> Recipe:
    """Return the recipe without the steps of a training whose epochs the user chose, because steps would decide."""
    trainings = {name: getattr(recipe, name) for name in ("pretrain", "finetune", RERANKER)}
    counted = {
        name: evolve(training, max_steps=-1)
        for name, training in trainings.items()
        if training and f"{name}.num_train_epochs" in given and f"{name}.max_steps" not in given
    }
    return evolve(recipe, **counted)


def _without_none(table: Mapping[str, Any], name: str = "") -> _Table:
    """Return a table without the decoders, losses and columns that are `none`; name: the table's dotted path."""
    are_parts = name.endswith(("decoders", "losses")) or name == "finetune.columns"
    return {
        key: _without_none(value, f"{name}.{key}".lstrip(".")) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if not are_parts or _use(value) != NONE
    }


def _slots(request: ComposeRequest, parts: Installed, *, negatives: int) -> _Table:
    """Return the user's parts of fine-tuning as a table to merge over the recipe, and collection and name.

    negatives: per query, if miners are chosen: the recipe itself may train without mined ones.
    """
    registry = parts.registry
    finetune: _Table = {"pipeline": request.pipeline} if request.pipeline else {}
    if request.loss:
        finetune["loss"] = part_table(Kind.LOSS, request.loss, registry)
    if request.batches:
        finetune["batches"] = part_table(Kind.BATCHES, request.batches, registry)
    if request.miners:
        miners = [part_table(Kind.MINER, text, registry) for text in request.miners]
        finetune |= {"negatives": negatives, "rounds": [{"name": "retriever-1", "miners": miners}]}
    collection = part_table(Kind.COLLECTION, request.collection, registry) if request.collection else {}
    tables = {"finetune": finetune, "collection": collection, "name": request.name}
    return {name: table for name, table in tables.items() if table}


def part_table(kind: Kind, text: str, registry: Registry) -> _Table:
    """Return the table of a part: `beir:PATH` becomes `{use = "beir", path = "PATH"}`.

    text: `NAME[:VALUE]`; VALUE fills the setting `spec.shorthand`.
    """
    spec, value = registry.split(kind, text)
    chosen = {"use": spec.name}
    return chosen if value is None else {**chosen, spec.shorthand: value}


def _default_name(table: Mapping[str, Any], request: ComposeRequest, registry: Registry) -> str:
    """Return the default name of a run, such as `pydocs-pmi-enhanced`, or `tldr-retromae` for `beir:data/tldr`."""
    parts = [request.paper] if request.paper else _names_of_tasks(table.get("pretrain", {}))
    if "pretrain=none" in request.settings:
        parts = ["no-pretraining"]
    names = [
        _collection_name(table["collection"], registry),
        *parts,
        *([request.pipeline] if request.pipeline else []),
    ]
    return "-".join(names).strip(" .").replace(":", "-")  # some file systems refuse colons


def _names_of_tasks(pretrain: Mapping[str, Any]) -> list[str]:
    """Return the masker, context and decoder of the decoder `main`, and the names of the other decoders."""
    if not pretrain:
        return []
    if not (decoders := pretrain["decoders"]):
        return [_use(pretrain["encoder"]["masker"]), "no-decoder"]
    main = decoders.get(MAIN, {})
    names = [_use(main.get("masker", "")), _use(main.get("context", "")), _use(main.get("decoder", "")), *decoders]
    return [name for name in names if name not in ("", ITSELF.use, MAIN)]


def _collection_name(collection: str | Mapping[str, Any], registry: Registry) -> str:
    """Return the name of a collection's folder, of its file without suffixes, or its id; otherwise the part's name.

    The id of `irds:beir/scifact/test` becomes beir-scifact-test.
    """
    shorthand = registry.get(Kind.COLLECTION, _use(collection)).shorthand
    value = str(collection.get(shorthand, "")) if isinstance(collection, Mapping) else ""
    path = local_path(value).resolve()
    if path.exists() and value:
        name = path.name if path.is_dir() else path.name.partition(".")[0]
    else:
        name = re.sub(r"[^\w.-]+", "-", value).strip("-.")
    return name[:_LONGEST] or _use(collection)


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> _Table:
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


def _settings_that_apply(changes: Mapping[str, Any], table: Mapping[str, Any]) -> _Table:
    """Return `changes` without the settings of tables and parts that `table` does not have."""
    kept: _Table = {}
    for key, value in changes.items():
        old = table.get(key)
        if not isinstance(value, Mapping):
            kept[key] = value
        elif isinstance(old, Mapping) and _use(value) in ("", _use(old)):
            kept[key] = _settings_that_apply(value, old)
    return kept


def _use(slot: Any) -> str:
    return str(slot.get("use", "")) if isinstance(slot, Mapping) else str(slot)
