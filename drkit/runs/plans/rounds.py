"""The second half of a plan: one retriever after the other, each on its own negatives, and the re-ranker between them.

negatives-retriever-1 -> no-pretraining, retriever-1 -> index-retriever-1 -> negatives-retriever-2 -> retriever-2
-> index-retriever-2 -> negatives-reranker -> reranker -> teacher-retriever-3 -> retriever-3
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.core.recipe import RERANKER, Choice, Round
from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.miners.chain import refresh_of
from drkit.miners.config import RunFileConfig
from drkit.runs.plans import estimate
from drkit.runs.plans.drafting import Draft, Table, lasting
from drkit.runs.plans.sources import config_state, path_state

BASELINE = "no-pretraining"
# Settings of fine-tuning that are another stage's, or no retriever's own.
_NOT_ITS_OWN = ("rounds", "baseline", "encoders")


@frozen
class System:
    """What is evaluated under one name: its stages, one a draw; and which stage's ranking it ranks anew, if it does."""

    name: str
    stages: tuple[str, ...]
    reranks: str = ""


@frozen
class _Round:
    """A round in its place: the start of all rounds, the retriever before it, and its own settings as plain data."""

    own: Round
    table: Table
    start: str
    previous: str


def plan_rounds(draft: Draft, *, start: str, splits: tuple[str, ...]) -> list[System]:
    """Add the stages of every round, and of the re-ranker where it belongs; returns the systems, in order."""
    finetune, systems = draft.recipe.finetune, []
    assert finetune is not None
    if finetune.validation.every and "dev" not in splits:
        raise DrkitError(
            f"validation ranks dev queries, and the collection has none (splits: {', '.join(splits)}): "
            f"--set finetune.validation.every=0 @ finetune.validation"
        )
    previous = ""
    for place, own in enumerate(finetune.rounds):
        if own.teacher == RERANKER and RERANKER not in draft.stages:
            systems.append(_reranker(draft, start, previous))
        current = _Round(own, _round_table(draft, own), start, previous)
        negatives = _negatives_of(draft, current)
        if place == 0 and finetune.baseline and start != "initial":
            systems.append(_retriever(draft, evolve(current, start="initial"), negatives, name=BASELINE))
        if own.start == "previous" and previous:
            current = evolve(current, start=previous)
        systems.append(_retriever(draft, current, negatives, name=own.name))
        previous = systems[-1].stages[0]
    if draft.recipe.reranker and RERANKER not in draft.stages:
        systems.append(_reranker(draft, start, previous))
    return systems


def add_index(draft: Draft, encoder: str, purpose: str) -> str:
    """Add the index of an encoder; purpose `mined`: always exact; `searched`: as the evaluation wants it."""
    kind = draft.recipe.evaluation.index if purpose == "searched" else "flat"
    name = "index" if encoder == "encoder" else f"index-{encoder}"
    if name in draft.stages and draft.stages[name].settings["kind"] != kind:
        name = f"{name}-{kind}"
    return draft.add(
        name,
        "index",
        f"encode all passages with {encoder}",
        ("collection", "tokens", encoder),
        settings={"encoder": encoder, "similarity": draft.recipe.similarity, "kind": kind},
        resumable=True,
        joint=True,
        cost=estimate.encoding(draft.recipe),
    )


def _round_table(draft: Draft, own: Round) -> dict[str, Any]:
    """A round's settings with its own laid over those of all rounds."""
    rounds = draft.table["finetune"]["rounds"]
    table = next(row for row in rounds if row["name"] == own.name)
    shared = lasting(draft.table["finetune"], *_NOT_ITS_OWN)
    return {**shared, **{key: table[key] for key in shared if key in table}}


def _negatives_of(draft: Draft, current: _Round) -> str:
    if not (current.own.miners and current.table["negatives"]):
        return ""
    return _negatives(draft, current.own.name, current.previous)


def _negatives(draft: Draft, owner: str, previous: str) -> str:
    """The stage that mines for a round or the re-ranker; what was mined so already is not mined again."""
    table = draft.table["reranker"] if owner == RERANKER else _named(draft.table["finetune"]["rounds"], owner)
    chain = _chain(draft, owner)
    for miner in chain:
        if isinstance(miner.config, RunFileConfig) and not Path(miner.config.path).is_file():
            raise DrkitError(f"the miner run-file of {owner} reads {miner.config.path!r}, and there is no such file")
    states = [config_state(miner.config) for miner in chain]
    settings = {"owner": owner, "miners": table["miners"], "files": states, "seed": draft.recipe.seed, **_own(draft)}
    wanted = _wanted(draft, chain)
    needs: tuple[str, ...] = ("collection",)
    if "retriever" in wanted:
        needs += (previous, add_index(draft, previous, "mined"))
    if RERANKER in wanted:
        needs += (RERANKER,)
    for stage in draft.stages.values():
        same = stage.settings.get("miners") == settings["miners"] and stage.needs == needs
        if stage.name.startswith("negatives-") and same:
            return stage.name
    named = " > ".join(miner.use for miner in chain)
    return draft.add(f"negatives-{owner}", "negatives", f"hard negatives by {named}", needs, settings=settings)


def _chain(draft: Draft, owner: str) -> tuple[Choice, ...]:
    recipe = draft.recipe
    if owner == RERANKER:
        return recipe.reranker.miners if recipe.reranker else ()
    return next(own.miners for own in (recipe.finetune.rounds if recipe.finetune else ()) if own.name == owner)


def _named(rounds: list[Table], name: str) -> Table:
    return next(row for row in rounds if row["name"] == name)


def _wanted(draft: Draft, chain: Sequence[Choice]) -> set[str]:
    """What the miners of a chain require of the run."""
    return {name for miner in chain for name in draft.registry.get(Kind.MINER, miner.use).requires_of(miner.config)}


def _refresh(draft: Draft, own: Round) -> Table:
    """Miners that the training itself asks again: what it learns depends on their settings."""
    if refresh_of(own.miners) is None:
        return {}
    states = [config_state(miner.config) for miner in own.miners]
    return {"refresh": _named(draft.table["finetune"]["rounds"], own.name)["miners"], "files": states}


def _own(draft: Draft) -> Table:
    """Whether a query's own passage is none of its negatives."""
    return {"exclude_self": True} if draft.recipe.evaluation.exclude_self else {}


def _retriever(draft: Draft, current: _Round, negatives: str, *, name: str) -> System:
    own, recipe = current.own, draft.recipe
    assert recipe.finetune is not None
    settings = recipe.finetune.of(own)
    teacher = _teacher(draft, current, negatives)
    refresh = _refresh(draft, own)
    needs = ("collection", "tokens", current.start, *filter(None, (negatives, teacher)))
    if refresh and RERANKER in _wanted(draft, own.miners):
        needs += (RERANKER,)
    separate = {"encoders": recipe.finetune.encoders} if recipe.finetune.encoders == "separate" else {}
    origin = "without pre-training" if name == BASELINE else f"from {current.start}"
    whom = "fine-tune an encoder of queries and one of passages" if separate else "fine-tune"
    made = []
    for draw in range(own.draws):
        stage = name if own.draws == 1 else f"{name}-draw-{draw + 1}"
        made.append(
            draft.add(
                stage,
                "finetune",
                f"{whom} {origin}, {estimate.schedule(settings)}",
                needs,
                settings={
                    "finetune": current.table,
                    "round": own.name,
                    "start": current.start,
                    "negatives": negatives,
                    "teacher": teacher,
                    "queries": own.queries,
                    "draw": draw,
                    "pooling": recipe.encoder.pooling,
                    "seed": recipe.seed,
                    **refresh,
                    **separate,
                    **_own(draft),
                },
                resumable=True,
                joint=True,
                cost=estimate.finetuning(recipe, settings),
            )
        )
    return System(name, tuple(made))


def _teacher(draft: Draft, current: _Round, negatives: str) -> str:
    """The stage that scores a round's positives and negatives by its teacher."""
    who = current.own.teacher
    if not who:
        return ""
    ranks = who == RERANKER
    settings: dict[str, Any] = {"reranker": who, "negatives": negatives, "files": "" if ranks else path_state(who)}
    if draft.recipe.reranker:
        settings["max_length"] = draft.recipe.reranker.max_length
    if current.own.queries:
        settings |= {"queries": current.own.queries, "draws": current.own.draws, "seed": draft.recipe.seed}
    return draft.add(
        f"teacher-{current.own.name}",
        "teacher",
        f"scores of positives and negatives by {who}",
        ("collection", *filter(None, (negatives, RERANKER if ranks else ""))),
        settings=settings,
        resumable=True,
        joint=True,
    )


def _reranker(draft: Draft, start: str, previous: str) -> System:
    reranker = draft.recipe.reranker
    assert reranker is not None
    negatives = _negatives(draft, RERANKER, previous)
    origin = previous if reranker.start == "previous" else start
    stage = draft.add(
        RERANKER,
        "reranker",
        f"train the cross-encoder from {reranker.pretrained or origin}, {estimate.schedule(reranker)}",
        tuple(dict.fromkeys(("collection", negatives, "vocabulary" if reranker.pretrained else origin))),
        settings={
            "reranker": lasting(draft.table["reranker"], "miners", "depth"),
            "start": "" if reranker.pretrained else origin,
            "files": path_state(reranker.pretrained),
            "negatives": negatives,
            "seed": draft.recipe.seed,
        },
        resumable=True,
        joint=True,
        cost=estimate.reranking(draft.recipe),
    )
    return System(RERANKER, (stage,), reranks=previous)
