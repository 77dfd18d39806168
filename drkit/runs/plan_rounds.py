"""The second half of a plan: one retriever after the other, each on its own negatives, and the re-ranker between them.

negatives-retriever-1 -> no-pretraining, retriever-1 -> index-retriever-1 -> negatives-retriever-2 -> retriever-2
-> index-retriever-2 -> negatives-reranker -> reranker -> teacher-retriever-3 -> retriever-3
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.core.spec import Kind
from drkit.errors import DrkitError
from drkit.miners.chain import refresh_settings
from drkit.miners.specs import RunFileConfig
from drkit.recipe.schema import RERANKER, Choice, Finetune, Round
from drkit.runs import estimate
from drkit.runs.draft import PASSAGES, Draft, files_state, path_state, queries_of, split_of
from drkit.runs.plan_encoder import TOKENS, VOCABULARY
from drkit.runs.retriever import TextReading
from drkit.runs.stage import Part, settings_from
from drkit.runs.stages.finetune import FINETUNE
from drkit.runs.stages.index import INDEX
from drkit.runs.stages.negatives import NEGATIVES
from drkit.runs.stages.reranker import RERANKER as RERANKER_STAGE
from drkit.runs.stages.teacher import TEACHER
from drkit.runs.stages.tokens import QUERY_TOKENS

BASELINE = "no-pretraining"
TRAIN = split_of("train")


@frozen
class System:
    """What is evaluated under one name: its stages, one a draw; and the stage whose ranking it re-ranks, if it does."""

    name: str
    stages: tuple[str, ...]
    reranks: str = ""


@frozen
class _Retriever:
    """A retriever to plan: its round, all its settings, the checkpoint it starts from, and the retriever before it."""

    name: str
    own: Round
    settings: Finetune
    start: str
    previous: str


def plan_rounds(draft: Draft, *, start: str) -> list[System]:
    """Add the stages of every round, and of the re-ranker where it belongs; returns the systems, in order."""
    finetune, systems = draft.recipe.finetune, []
    assert finetune is not None
    if finetune.validation.every and "dev" not in draft.splits:
        raise DrkitError(
            f"validation ranks dev queries, and the collection has none (splits: {', '.join(draft.splits)}): "
            f"--set finetune.validation.every=0 @ finetune.validation"
        )
    tokenised = {"queries": queries_of("train"), "vocabulary": VOCABULARY}
    draft.add("query-tokens", QUERY_TOKENS, "tokenise every training query once", tokenised)
    previous = ""
    for index, own in enumerate(finetune.rounds):
        if own.teacher == RERANKER and RERANKER not in draft.stages:
            systems.append(_plan_reranker(draft, start, previous))
        current = _Retriever(own.name, own, finetune.of(own), start, previous)
        negatives = ""
        if own.miners and current.settings.negatives:
            negatives = _plan_negatives(draft, own.name, own.miners, previous)
        if index == 0 and finetune.baseline and start != "initial":
            baseline = evolve(current, name=BASELINE, start="initial")
            systems.append(_plan_retriever(draft, baseline, negatives))
        if own.start == "previous" and previous:
            current = evolve(current, start=previous)
        systems.append(_plan_retriever(draft, current, negatives))
        previous = systems[-1].stages[0]
    if draft.recipe.reranker and RERANKER not in draft.stages:
        systems.append(_plan_reranker(draft, start, previous))
    return systems


def reading_of(draft: Draft) -> TextReading:
    """How the recipe's encoders read texts."""
    return settings_from(TextReading, draft.recipe)


def add_index(draft: Draft, encoder: str, purpose: str) -> str:
    """Add the index of an encoder; purpose `mined`: always exact; `searched`: as the evaluation wants it."""
    kind = draft.recipe.evaluation.index if purpose == "searched" else "flat"
    name = "index" if encoder == "encoder" else f"index-{encoder}"
    if name in draft.stages and draft.stages[name].settings.kind != kind:
        name = f"{name}-{kind}"
    return draft.add(
        name,
        INDEX,
        f"encode all passages with {encoder}",
        {"encoder": Part(encoder), "tokens": TOKENS, "passages": PASSAGES},
        own={"kind": kind, "reading": reading_of(draft)},
        cost=estimate.encoding(draft.recipe),
    )


def _plan_negatives(draft: Draft, owner: str, chain: tuple[Choice, ...], previous: str) -> str:
    """Add the stage that mines for a round or the re-ranker; a list that is mined already is not mined again."""
    for miner in chain:
        if isinstance(miner.config, RunFileConfig) and not Path(miner.config.path).is_file():
            raise DrkitError(f"the miner run-file of {owner} reads {miner.config.path!r}, which does not exist")
    inputs, searches = {"passages": PASSAGES, "train": TRAIN}, False
    required = _required_by(draft, chain)
    if "retriever" in required:
        index = add_index(draft, previous, "mined")
        inputs, searches = {**inputs, "encoder": Part(previous), "index": Part(index)}, True
    if RERANKER in required:
        inputs = {**inputs, "reranker": Part(RERANKER)}
    for stage in draft.stages.values():
        if stage.spec is NEGATIVES and stage.settings.miners == chain and stage.inputs == inputs:
            return stage.name
    return draft.add(
        f"negatives-{owner}",
        NEGATIVES,
        f"hard negatives by {' > '.join(miner.use for miner in chain)}",
        inputs,
        sources=_sources_of(draft, chain),
        own={"miners": chain, "reading": reading_of(draft) if searches else None},
    )


def _sources_of(draft: Draft, chain: tuple[Choice, ...]) -> dict[str, str]:
    """The state of the local files that miners read."""
    return {
        f"miners.{index}": files_state(draft.registry.get(Kind.MINER, miner.use), miner.config)
        for index, miner in enumerate(chain)
    }


def _required_by(draft: Draft, chain: tuple[Choice, ...]) -> set[str]:
    """What the miners of a chain require of the run."""
    return {name for miner in chain for name in draft.registry.get(Kind.MINER, miner.use).requires_of(miner.config)}


def _plan_retriever(draft: Draft, current: _Retriever, negatives: str) -> System:
    own, settings = current.own, current.settings
    refreshed = own.miners if refresh_settings(own.miners) else ()
    inputs = {
        "start": Part(current.start),
        "passages": PASSAGES,
        "train": TRAIN,
        "tokens": TOKENS,
        "query-tokens": Part("query-tokens"),
    }
    if settings.validation.every:
        inputs["dev"] = split_of("dev")
    if negatives:
        inputs["negatives"] = Part(negatives)
    if own.teacher:
        inputs["teacher"] = Part(_plan_teacher(draft, own, negatives))
    if refreshed and RERANKER in _required_by(draft, refreshed):
        inputs["reranker"] = Part(RERANKER)
    origin = "without pre-training" if current.name == BASELINE else f"from {current.start}"
    encoders = " an encoder of queries and one of passages" if settings.encoders == "separate" else ""
    made = [
        draft.add(
            current.name if own.draws == 1 else f"{current.name}-draw-{draw + 1}",
            FINETUNE,
            f"fine-tune{encoders} {origin}, {estimate.schedule(settings)}",
            inputs,
            sources=_sources_of(draft, refreshed),
            own={
                "miners": refreshed,
                "queries": own.queries,
                "draw": draw,
                "draws": own.draws,
                "reading": reading_of(draft),
                "training": settings.alone(),
                "loss": settings.loss,
                "negatives": settings.negatives,
                "validation": settings.validation if settings.validation.every else None,
            },
            cost=estimate.finetuning(draft.recipe, settings),
        )
        for draw in range(own.draws)
    ]
    return System(current.name, tuple(made))


def _plan_teacher(draft: Draft, own: Round, negatives: str) -> str:
    """Add the stage that scores a round's positives and negatives by its teacher."""
    ranks = own.teacher == RERANKER
    inputs = {"passages": PASSAGES, "train": TRAIN}
    if negatives:
        inputs["negatives"] = Part(negatives)
    if ranks:
        inputs["reranker"] = Part(RERANKER)
    return draft.add(
        f"teacher-{own.name}",
        TEACHER,
        f"scores of positives and negatives by {own.teacher}",
        inputs,
        sources={} if ranks else {"teacher": path_state(own.teacher)},
        own={
            "model": "" if ranks else own.teacher,
            "max_length": draft.recipe.reranker.max_length if draft.recipe.reranker else None,
            "queries": own.queries,
            "draws": own.draws if own.queries else 1,
        },
    )


def _plan_reranker(draft: Draft, start: str, previous: str) -> System:
    reranker = draft.recipe.reranker
    assert reranker is not None
    if refresh_settings(reranker.miners):
        raise DrkitError(
            "refresh mines with the model in training, and a re-ranker cannot search: use dense @ reranker.miners"
        )
    origin = previous if reranker.start == "previous" else start
    begin: dict[str, Any] = {} if reranker.pretrained else {"start": Part(origin)}
    negatives = _plan_negatives(draft, RERANKER, reranker.miners, previous)
    stage = draft.add(
        RERANKER,
        RERANKER_STAGE,
        f"train the cross-encoder from {reranker.pretrained or origin}, {estimate.schedule(reranker)}",
        {**begin, "passages": PASSAGES, "train": TRAIN, "negatives": Part(negatives)},
        sources={"reranker.pretrained": path_state(reranker.pretrained)},
        own={"training": reranker.alone()},
        cost=estimate.reranking(draft.recipe),
    )
    return System(RERANKER, (stage,), reranks=previous)
