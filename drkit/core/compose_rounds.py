"""Which rounds of fine-tuning go together: losses with teachers, miners in chains, names of folders.

Part of the check that `drkit.core.compose` makes of a whole recipe; `drkit.core.provided` lists the names.
"""

from __future__ import annotations

import re

from drkit.core.loading import check_model_path
from drkit.core.protocols import RefreshesNegatives
from drkit.core.provided import FINETUNING, FOR_LOSSES, RERANKING, provided_by
from drkit.core.reasons import listed, losses_for, missing_extras
from drkit.core.recipe import RERANKER, Choice, Finetune, Recipe, similarity_of
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.errors import DrkitError

# Folders of a run that a round's own folder must not be taken for.
STAGE_NAMES = (
    "collection",
    "vocabulary",
    "tokens",
    "spans",
    "queries",
    "generator",
    "initial",
    "pretrained",
    "no-pretraining",
    "encoder",
    "index",
    "runs",
    "evaluation",
    "report",
    "bm25",
    "reranker",
)
STAGE_FAMILIES = ("signal-", "index-", "negatives-", "teacher-")
_ROUND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def rounds_problems(recipe: Recipe, registry: Registry) -> list[str]:
    """Every combination of rounds, losses, miners and the re-ranker that cannot work."""
    problems = []
    if recipe.finetune:
        problems += _finetune_problems(recipe.finetune, registry)
        problems += _round_problems(recipe, recipe.finetune, registry)
        problems += _model_problems(recipe, recipe.finetune)
    if recipe.reranker:
        problems += _reranker_problems(recipe, registry)
    return problems


def _finetune_problems(finetune: Finetune, registry: Registry) -> list[str]:
    """Losses, and the names of rounds, which become folders."""
    problems = _fine_tuning_loss("finetune.loss", finetune.loss, FINETUNING, registry)
    for place, current in enumerate(finetune.rounds):
        loss = finetune.of(current).loss
        if current.loss:
            problems += _fine_tuning_loss(f"finetune.rounds.{place}.loss", loss, FINETUNING, registry)
        if "teacher" in registry.get(Kind.LOSS, loss.use).requires_of(loss.config) and not current.teacher:
            problems.append(
                f"loss {loss.use!r} learns from a teacher's scores, and the round has none: set teacher to reranker, "
                f"or to a cross-encoder's path or hub id @ finetune.rounds.{place}"
            )
        similarities = {similarity_of(one) for one in (finetune.loss, loss)}
        if len(similarities) > 1:
            problems.append(
                f"the round trains for another similarity than finetune.loss ({', '.join(sorted(similarities))}), and "
                f"one encoder has one: set both to the same @ finetune.rounds.{place}.loss"
            )
    return [*problems, *_name_problems([r.name for r in finetune.rounds])]


def _fine_tuning_loss(path: str, loss: Choice, source: str, registry: Registry) -> list[str]:
    """source: `provided.FINETUNING` or `provided.RERANKING`."""
    spec, offered = registry.get(Kind.LOSS, loss.use), provided_by(source)
    receives = spec.receives_of(loss.config)
    problems = []
    if not receives or not receives <= {*offered}:
        problems.append(
            f"loss {spec.name!r} needs {listed(sorted(receives))}; this training provides {listed(offered)}. "
            f"{losses_for(registry, offered)} @ {path}"
        )
    if signals := sorted(spec.signals_of(loss.config)):
        problems.append(
            f"loss {spec.name!r} reads the signal {listed(signals)}, and {source} carries none; signals reach the "
            f"parts of [pretrain] @ {path}"
        )
    if lacking := sorted(spec.requires_of(loss.config).keys() - {*FOR_LOSSES}):
        problems.append(
            f"loss {spec.name!r} requires {listed(lacking)}; a loss of {source} may require {listed(FOR_LOSSES)} "
            f"@ {path}"
        )
    return problems


def _name_problems(names: list[str]) -> list[str]:
    problems = [
        f"two rounds are named {name!r} @ finetune.rounds" for name in sorted({*names}) if names.count(name) > 1
    ]
    for name in dict.fromkeys(names):
        if name in STAGE_NAMES or name.startswith(STAGE_FAMILIES) or not _ROUND_NAME.fullmatch(name):
            problems.append(
                f"a round cannot be named {name!r}: it becomes a folder beside the run's other stages. Use letters, "
                f"digits, '.', '_' and '-', and none of "
                f"{', '.join(STAGE_NAMES)}, {', '.join(f'{f}*' for f in STAGE_FAMILIES)} @ finetune.rounds"
            )
    return problems


def _round_problems(recipe: Recipe, finetune: Finetune, registry: Registry) -> list[str]:
    """What a round's miners and teacher want of the rounds before it."""
    problems, trained = [], False
    for place, current in enumerate(finetune.rounds):
        path = f"finetune.rounds.{place}"
        if current.teacher == RERANKER:
            problems += _teacher_problems(recipe, place, path)
            trained = True
        if current.teacher and any(isinstance(m.config, RefreshesNegatives) for m in current.miners):
            problems.append(
                f"a teacher scores the list that was mined before the round, and 'refresh' mines another one while it "
                f"runs: take dense in its place @ {path}.miners"
            )
        present = (*(["retriever"] if place else []), *([RERANKER] if trained else []))
        problems += _chain_problems(current.miners, present, registry, f"{path}.miners")
    return problems


def _model_problems(recipe: Recipe, finetune: Finetune) -> list[str]:
    """Models that are first loaded when much is done already: those that cannot be there are told at once."""
    named = {f"finetune.rounds.{place}.teacher": own.teacher for place, own in enumerate(finetune.rounds)}
    if recipe.reranker:
        named["reranker.pretrained"] = recipe.reranker.pretrained or ""
    problems = []
    for path, model in named.items():
        if model and model != RERANKER:
            try:
                check_model_path(model)
            except DrkitError as error:
                problems.append(f"{error} @ {path}")
    return problems


def _teacher_problems(recipe: Recipe, place: int, path: str) -> list[str]:
    if recipe.reranker is None:
        return [f"the teacher 'reranker' wants a table [reranker], and the recipe has none @ {path}.teacher"]
    if not place:
        return [f"the re-ranker is trained on what the round before finds, and there is none @ {path}.teacher"]
    return []


def _reranker_problems(recipe: Recipe, registry: Registry) -> list[str]:
    assert recipe.reranker is not None
    if recipe.finetune is None:
        return ["the re-ranker is trained on what a retriever finds: [finetune] is missing @ reranker"]
    return [
        *_fine_tuning_loss("reranker.loss", recipe.reranker.loss, RERANKING, registry),
        *_chain_problems(recipe.reranker.miners, ("retriever",), registry, "reranker.miners"),
    ]


def _chain_problems(miners: tuple[Choice, ...], present: tuple[str, ...], registry: Registry, path: str) -> list[str]:
    """A chain is a source of negatives, then filters; each needs what the run has by then."""
    problems = []
    for place, choice in enumerate(miners):
        miner = registry.get(Kind.MINER, choice.use)
        requires = miner.requires_of(choice.config)
        problems += missing_extras(miner)
        if ("candidates" in miner.receives_of(choice.config)) != bool(place):
            what = "only filters what another miner found" if not place else "finds negatives itself"
            where = "put a source such as bm25 or dense before it" if not place else "a chain begins with it"
            problems.append(f"miner {miner.name!r} {what}; {where} @ {path}.{place}")
        if "retriever" in requires and "retriever" not in present:
            problems.append(
                f"miner {miner.name!r} searches with the retriever of the round before, and there is none; "
                f"put a round with bm25 or random before it @ {path}.{place}"
            )
        if RERANKER in requires and RERANKER not in present:
            problems.append(
                f"miner {miner.name!r} scores with the run's re-ranker, which is not trained by then; "
                f"give its `model` a cross-encoder's path or hub id @ {path}.{place}"
            )
    return problems
