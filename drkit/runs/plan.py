"""From a recipe to its plan: the stages of a run, in order, each with what it depends on.

    collection -> vocabulary -> tokens -> [spans -> statistics -> queries] -> initial -> pretrained
               -> negatives-1 -> no-pretraining, retriever-1 -> index-retriever-1 -> negatives-2 -> retriever-2
               -> encoder -> index -> runs -> evaluation -> report

No torch here: `--dry-run` prints this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, fields, frozen

from drkit.core.compose import data_needs
from drkit.core.recipe import Finetune, Pretrain, Recipe, Training
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.write import recipe_table
from drkit.errors import DrkitError
from drkit.maskers.config import GeneratorConfig
from drkit.runs import estimate
from drkit.runs.sources import config_state, path_state
from drkit.runs.stage import Stage

BASELINE = "no-pretraining"
_STAGES = "drkit.runs.stages"
# Where a run logs and saves does not change what it computes.
_COSMETIC = ("logging_steps", "save_steps")
_GENERATOR_SIZES = ("layers", "hidden", "heads", "intermediate")
_TRAININGS = (f"{_STAGES}.pretrain:run", f"{_STAGES}.finetune:run")

Table = Mapping[str, Any]


@frozen
class Plan:
    """The stages of a run, each after those it needs, and what the user should know before it starts."""

    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()


@frozen
class _Draft:
    """A plan being made: the recipe, the same as plain data, and the stages by name."""

    recipe: Recipe
    table: Table
    stages: dict[str, Stage] = field(factory=dict)

    def add(self, name: str, module: str, summary: str, needs: tuple[str, ...], **rest: Any) -> str:
        self.stages.setdefault(
            name, Stage(name=name, target=f"{_STAGES}.{module}:run", summary=summary, needs=needs, **rest)
        )
        return name


def plan(recipe: Recipe, registry: Registry) -> Plan:
    """The plan of a recipe; asks the collection for its splits, so DrkitError where its files are missing."""
    splits = registry.build(Kind.COLLECTION, recipe.collection.use, recipe.collection.config).splits()
    draft = _Draft(recipe, recipe_table(recipe))
    notes: list[str] = []
    _texts(draft)
    last = _encoder(draft, registry)
    systems = [last]
    if recipe.finetune and "train" in splits:
        systems = _rounds(draft, recipe.finetune, start=last)
    elif recipe.finetune:
        notes.append(_no_training_queries(recipe, splits))
    _export(draft, systems[-1])
    if splits:
        _evaluation(draft, systems, splits)
    _report(draft)
    return Plan(tuple(draft.stages.values()), tuple(notes))


def _no_training_queries(recipe: Recipe, splits: tuple[str, ...]) -> str:
    name = recipe.collection.use
    if not splits:
        return f"collection {name!r} has texts alone: the run ends with the pre-trained encoder"
    return (
        f"collection {name!r} has no training queries (splits: {', '.join(splits)}): no fine-tuning, the pre-trained "
        f"encoder is evaluated as it is; --set collection.train_share=0.5 trains on half of the queries"
    )


def _texts(draft: _Draft) -> None:
    recipe, encoder = draft.recipe, draft.table["encoder"]
    draft.add(
        "collection",
        "collection",
        "read texts, queries and judgements",
        (),
        settings={"collection": draft.table["collection"], "files": config_state(recipe.collection.config)},
    )
    wordpiece = {"vocab_size": encoder["vocab_size"]}
    existing = {"pretrained": recipe.encoder.pretrained, "files": path_state(recipe.encoder.pretrained)}
    draft.add(
        "vocabulary",
        "vocabulary",
        "take the encoder's tokenizer" if recipe.encoder.pretrained else "train a WordPiece vocabulary",
        ("collection",),
        settings=existing if recipe.encoder.pretrained else wordpiece,
    )
    draft.add(
        "tokens",
        "tokens",
        "tokenise once, memory-mapped",
        ("collection", "vocabulary"),
        settings={"passage_length": encoder["passage_length"], "query_length": encoder["query_length"]},
    )


def _encoder(draft: _Draft, registry: Registry) -> str:
    """Stages up to the encoder that fine-tuning starts from; returns the last one's name."""
    recipe = draft.recipe
    needs: tuple[str, ...] = ("collection", "tokens", "initial")
    needs += _contexts(draft, data_needs(recipe, registry))
    draft.add(
        "initial",
        "initial",
        "load the encoder to start from" if recipe.encoder.pretrained else "make the encoder from scratch",
        ("vocabulary", "tokens"),
        settings={
            "encoder": draft.table["encoder"],
            "files": path_state(recipe.encoder.pretrained),
            "seed": recipe.seed,
        },
    )
    if recipe.pretrain is None:
        return "initial"
    if "idf" in data_needs(recipe, registry):
        texts = tuple(name for name in ("tokens", "spans") if name in draft.stages)
        draft.add("frequencies", "frequencies", "in how many texts each token occurs", (*texts, "initial"))
        needs += ("frequencies",)
    if "generator" in data_needs(recipe, registry):
        needs += (_generator(draft, recipe.pretrain),)
    return draft.add(
        "pretrained",
        "pretrain",
        f"pre-train with masker {recipe.pretrain.masker.use} and decoder {recipe.pretrain.decoder.use}, "
        f"{estimate.schedule(recipe.pretrain)}",
        needs,
        settings={"pretrain": _trained(draft.table["pretrain"]), "seed": recipe.seed},
        resumable=True,
        cost=estimate.pretraining(recipe),
    )


def _contexts(draft: _Draft, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Stages that make other texts of the texts, and what is known of both; returns those that were added."""
    masker = draft.table["pretrain"]["masker"] if draft.recipe.pretrain else {}
    lengths, texts, made = draft.table["encoder"], "tokens", []
    if "spans" in wanted:
        texts = draft.add(
            "spans",
            "spans",
            "cut documents into spans of whole sentences",
            ("collection", "vocabulary"),
            settings={"max_length": lengths["passage_length"], "seed": draft.recipe.seed},
        )
        made.append(texts)
    if "importance" in wanted:
        settings = {key: masker[key] for key in ("window", "pmi", "min_count") if key in masker}
        made.append(draft.add("statistics", "statistics", "PMI importance of every token", (texts,), settings=settings))
    if "generated-queries" in wanted:
        made.append(_queries(draft, masker, (texts, "statistics")))
    return tuple(made)


def _queries(draft: _Draft, masker: Table, texts: tuple[str, ...]) -> str:
    origin = masker.get("queries", "extractive")
    kind, _, source = origin.partition(":")
    if kind == "file" and not Path(source).expanduser().is_file():
        raise DrkitError(f"there is no file of queries {source} @ pretrain.masker.queries")
    how = {"file": f"read from {source}", "model": f"generated by {source}"}.get(kind, "the text's own best spans")
    return draft.add(
        "queries",
        "queries",
        f"candidate queries: {how}",
        ("collection", "vocabulary", *texts),
        settings={
            "queries": origin,
            "files": path_state(source),
            "candidates": masker.get("candidates", 5),
            "prefix": masker.get("query_prefix", ""),
            "pmi": masker.get("pmi", "fragment"),
            "max_length": draft.table["encoder"]["query_length"],
            "passage_length": draft.table["encoder"]["passage_length"],
            "seed": draft.recipe.seed,
        },
        resumable=True,
    )


def _generator(draft: _Draft, pretrain: Pretrain) -> str:
    """The masked LM that fills masked positions: how it is trained counts where the run trains it alone."""
    wanted, table = GeneratorConfig.of(pretrain.masker.config), draft.table["pretrain"]
    settings: dict[str, Any] = {
        "model": wanted.model,
        "files": path_state(wanted.model),
        "random": wanted.random,
        "passage_length": draft.table["encoder"]["passage_length"],
        "seed": draft.recipe.seed,
    }
    if not wanted.model:
        settings["sizes"] = [getattr(wanted, f"generator_{name}") for name in _GENERATOR_SIZES]
    if wanted.trained_first:
        training = {a.name: table[a.name] for a in fields(Training) if a.name in table and a.name not in _COSMETIC}
        settings |= {"steps": wanted.generator_steps, "training": training, "held_out": pretrain.probe.texts}
    how = "train a small masked LM" if wanted.trained_first else "random weights" if wanted.random else "load"
    return draft.add(
        "generator",
        "generator",
        f"the generator: {' '.join(filter(None, (how, wanted.model)))}",
        ("vocabulary", "tokens"),
        settings=settings,
        resumable=True,
    )


def _trained(table: Table) -> dict[str, Any]:
    """What pre-training depends on: of the probes, the texts that they keep out of it; how often, is no matter."""
    return {**_lasting(table, "probe"), "held_out": table["probe"]["texts"]}


def _lasting(table: Table, *also: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in (*_COSMETIC, *also)}


def _rounds(draft: _Draft, finetune: Finetune, *, start: str) -> list[str]:
    """A retriever a round, and the one without pre-training beside the first; returns their names."""
    systems: list[str] = []
    previous = ""
    for place, current in enumerate(finetune.rounds):
        negatives = _negatives(draft, place, previous) if current.miner and finetune.negatives else ""
        if place == 0 and finetune.baseline and start != "initial":
            systems.append(_retriever(draft, finetune, name=BASELINE, start="initial", negatives=negatives))
        origin = previous if current.start == "previous" and previous else start
        systems.append(_retriever(draft, finetune, name=current.name, start=origin, negatives=negatives))
        previous = current.name
    return systems


def _negatives(draft: _Draft, place: int, previous: str) -> str:
    miner = draft.table["finetune"]["rounds"][place]["miner"]
    needs: tuple[str, ...] = ("collection",)
    if previous:
        needs += (previous, _index(draft, previous))
    return draft.add(
        f"negatives-{place + 1}",
        "negatives",
        f"hard negatives by {miner['use']}",
        needs,
        settings={"miner": miner, "round": place, "seed": draft.recipe.seed},
    )


def _retriever(draft: _Draft, finetune: Finetune, *, name: str, start: str, negatives: str) -> str:
    return draft.add(
        name,
        "finetune",
        f"fine-tune {'without pre-training' if name == BASELINE else f'from {start}'}, {estimate.schedule(finetune)}",
        ("collection", "tokens", start, *((negatives,) if negatives else ())),
        settings={
            "finetune": _lasting(draft.table["finetune"], "rounds", "baseline"),
            "start": start,
            "negatives": negatives,
            "pooling": draft.recipe.encoder.pooling,
            "seed": draft.recipe.seed,
        },
        resumable=True,
        cost=estimate.finetuning(draft.recipe),
    )


def _index(draft: _Draft, encoder: str) -> str:
    return draft.add(
        "index" if encoder == "encoder" else f"index-{encoder}",
        "index",
        f"encode all passages with {encoder}",
        ("collection", "tokens", encoder),
        settings={"encoder": encoder, "similarity": draft.recipe.similarity},
        cost=estimate.encoding(draft.recipe),
    )


def _export(draft: _Draft, last: str) -> None:
    draft.add(
        "encoder",
        "export",
        f"the encoder folder, made from {last}",
        ("vocabulary", last),
        settings={"from": last, "pooling": draft.recipe.encoder.pooling, "similarity": draft.recipe.similarity},
    )


def _evaluation(draft: _Draft, systems: list[str], splits: tuple[str, ...]) -> None:
    wanted = draft.recipe.evaluation
    if wanted.split not in splits:
        raise DrkitError(
            f"the collection has no {wanted.split} queries to evaluate on; it has {', '.join(splits)}: "
            f"--set evaluation.split={splits[-1]}"
        )
    # The last system is the one that is exported, so its index is the run's own.
    encoders = {name: "encoder" if name == systems[-1] else name for name in systems}
    indexes = {name: _index(draft, encoder) for name, encoder in encoders.items()}
    draft.add(
        "runs",
        "search",
        f"search for the {wanted.split} queries",
        ("collection", *encoders.values(), *indexes.values()),
        settings={
            "systems": {name: [encoders[name], indexes[name]] for name in systems},
            "depth": wanted.depth,
            "split": wanted.split,
            "bm25": wanted.bm25,
        },
    )
    draft.add(
        "evaluation",
        "evaluate",
        ", ".join(wanted.measures),
        ("collection", "runs"),
        settings={
            "measures": list(wanted.measures),
            "split": wanted.split,
            "systems": [*(["bm25"] if wanted.bm25 else []), *systems],
        },
    )


def _report(draft: _Draft) -> None:
    """Last: it reads what the trainings logged and the evaluation found."""
    trainings = [name for name, stage in draft.stages.items() if stage.target in _TRAININGS]
    draft.add(
        "report",
        "report",
        "curves, tables, and whether pre-training works",
        (*trainings, *(("evaluation",) if "evaluation" in draft.stages else ())),
        settings={"trainings": trainings},
    )
