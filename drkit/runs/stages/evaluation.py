"""Stages of the evaluation: rank queries with every system, fuse the exported retriever with BM25, and measure.

`search` writes a TREC run file per system, re-rankers included; `hybrid` fuses two of them with a weight tuned on dev
queries; `evaluation` is the results table, with a paired t-test of every system against the row above.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from drkit.core.escaping import escape_paragraph
from drkit.core.files import CHECKPOINTS, write_text
from drkit.core.types import Judgement, Query
from drkit.recipe.toml import json_text
from drkit.runs.stage import (
    TRUNCATED,
    Stage,
    StageRun,
    StageSpec,
    TextReading,
    Truncation,
    from_recipe,
    record_truncations,
)
from drkit.runs.stages.reranker import loaded_teacher, scoring_work
from drkit.runs.stages.retriever import AS_IT_IS, bm25_seconds, chosen_input, dense_work, loaded_retriever
from drkit.runs.stages.start import INITIAL
from drkit.runs.work import Sizes, Work
from drkit.search.fusion import WEIGHT

if TYPE_CHECKING:
    from drkit.core.engine import Loaded
    from drkit.evaluate import Scores
    from drkit.search import AnyEncoder
    from drkit.search.run_files import RankedBlock


@frozen
class SearchSettings:
    """The systems: retrievers by name, and re-rankers with the retriever whose ranking they re-rank.

    Their inputs are `encoder/NAME`, `index/NAME` and `reranker/NAME`. BM25 comes first if its index is an input.
    split: whose queries they are.
    """

    retrievers: tuple[str, ...]
    reranked: Mapping[str, str]
    rerank_depth: int
    reading: TextReading
    depth: int = from_recipe("evaluation.depth")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    split: str = from_recipe("evaluation.split", observes=True)


def search(stage: StageRun[SearchSettings]) -> Mapping[str, Any]:
    """Write `SYSTEM.trec` for BM25, every retriever and the re-ranker; returns the number of queries.

    Queries are ranked on the engine. A ranking that an interrupted attempt has finished is kept.
    """
    from drkit.data.corpus import read_queries
    from drkit.search.run_files import retriever_blocks

    settings = stage.settings
    queries = list(read_queries(stage.inputs["queries"]))
    truncations = []
    for name, retriever in _systems(stage):
        blocks = retriever_blocks(retriever, queries, settings.depth, exclude_self=settings.exclude_self)
        _write(stage, name, blocks, len(queries), "queries")
        if name in settings.retrievers:
            texts = [query.text for query in queries]
            truncations.append(_truncation(retriever.value.encoder, texts, settings.split))
    record_truncations(truncations, stage.folder, stage.progress)
    for name, source in settings.reranked.items():
        _write(stage, name, _reranked(stage, name, source, queries), len(queries), "queries re-ranked")
    return {"queries": len(queries), "depth": settings.depth}


def _write(stage: StageRun[SearchSettings], name: str, blocks: Iterable[RankedBlock], total: int, what: str) -> None:
    from drkit.core.file_parts import FileParts
    from drkit.search.run_files import write_blocks

    path = stage.folder / f"{name}.trec"
    if path.is_file():
        return
    write_blocks(
        blocks,
        path,
        tag=name,
        engine=stage.engine,
        parts=FileParts(stage.folder / CHECKPOINTS / name),
        uses="core" if name == "bm25" else "gpu",
        on_progress=lambda done: stage.progress.advance(done, total, what),
    )


def _truncation(encoder: AnyEncoder, texts: Sequence[str], split: str) -> Truncation:
    from drkit.data.store import count_truncated

    counts = count_truncated(Counter(encoder.query_lengths(texts)), encoder.query_length)
    return Truncation(f"{split} queries", "encoder.query_length", encoder.query_length, texts=len(texts), **counts)


def _systems(stage: StageRun[SearchSettings]) -> Iterator[tuple[str, Loaded[Any]]]:
    """Yield the systems one by one, so that only one index is in memory at a time."""
    from drkit.core.engine import Loaded
    from drkit.search import Bm25Retriever

    inputs = stage.inputs
    if "bm25" in inputs:
        yield "bm25", Loaded(Bm25Retriever.load, inputs["bm25"])
    for name in stage.settings.retrievers:
        yield name, loaded_retriever(inputs[f"encoder/{name}"], inputs[f"index/{name}"], stage.settings.reading)


def _reranked(
    stage: StageRun[SearchSettings], name: str, source: str, queries: Sequence[Query]
) -> Iterator[RankedBlock]:
    """Yield the rankings of a retriever with their first passages re-ranked by a cross-encoder."""
    from drkit.core.engine import Loaded
    from drkit.data.corpus import StoredCorpus
    from drkit.search.run_files import reranked_blocks

    return reranked_blocks(
        stage.folder / f"{source}.trec",
        loaded_teacher(stage.inputs[f"reranker/{name}"]),
        queries={query.query_id: query.text for query in queries},
        corpus=Loaded(StoredCorpus, stage.inputs["passages"]),
        depth=stage.settings.rerank_depth,
    )


# Seconds for each hit that is ranked and written, fused, or measured, and for each system that is loaded; bytes of a
# line of a run file, without its two ids.
_RANKED, _FUSED, _MEASURED, _LOADED, _LINE_BYTES = 2.6e-6, 2.7e-6, 1.9e-6, 0.12, 30
# Bytes of memory of each hit while rankings are fused.
_FUSED_BYTES = 40


def _search_work(stage: Stage[SearchSettings], sizes: Sizes) -> Work:
    settings, queries = stage.settings, sizes.count(str(stage.inputs["queries"]))
    dense, words, reranked = len(settings.retrievers), int("bm25" in stage.inputs), len(settings.reranked)
    hits = (dense + words + reranked) * queries * min(settings.depth, sizes.passages)
    pairs = reranked * queries * settings.rerank_depth
    ranked = Work(
        seconds=bm25_seconds(words * queries, sizes) + _LOADED * dense + _RANKED * hits,
        disk=_line_bytes(sizes) * hits,
    )
    scored = scoring_work(sizes.reranker, pairs, None, sizes) if pairs else Work()
    return dense_work(dense * queries, sizes) + ranked + scored


def _line_bytes(sizes: Sizes) -> float:
    return _LINE_BYTES + 2 * sizes.collection.id_length


SEARCH = StageSpec(
    name="search",
    version=3,
    settings=SearchSettings,
    run=search,
    inputs={
        "passages": "the corpus",
        "queries": "the queries to rank passages for",
        "bm25": "BM25's index",
        "encoder/*": "the encoder of a retriever",
        "index/*": "its index",
        "reranker/*": "a cross-encoder",
    },
    records=(TRUNCATED,),
    resumable=True,
    folders=("runs", "dev-runs", "choice-runs"),
    work=_search_work,
)


HYBRID_NAME = "hybrid"
RANKING = f"{HYBRID_NAME}.trec"
# The exported retriever's name in the search of the dev queries.
EXPORTED = "exported"
# The retriever's weight where no dev queries tune it. Where they do, .2 to .3 is best for retrievers trained without
# labels, and .3 to .6 are equally good for others (docs/experiments/default-run.md).
UNTUNED = 0.3


@frozen
class HybridSettings:
    """The measure that the retriever's weight is tuned for; None without dev queries."""

    measure: str | None
    depth: int = from_recipe("evaluation.depth")


def fuse(stage: StageRun[HybridSettings]) -> Mapping[str, Any]:
    """Write `hybrid.trec` and `weight.json`; returns the weight of the retriever, and how it was chosen."""
    from drkit.search import align, convex, read_run, write_run

    depth, ranking = stage.settings.depth, chosen_input(stage.inputs, "retriever")
    facts = {"retriever": ranking.stem, "depth": depth, **_weight(stage)}
    hits = align(read_run(stage.inputs["bm25"]), read_run(ranking))
    write_run(stage.folder / RANKING, convex(hits, facts["weight"], depth), tag=HYBRID_NAME)
    write_text(stage.folder / WEIGHT, json_text(facts))
    return facts


def _weight(stage: StageRun[HybridSettings]) -> dict[str, Any]:
    from drkit.data.corpus import collection_of
    from drkit.evaluate import tune_weight
    from drkit.search import read_run

    settings, inputs = stage.settings, stage.inputs
    judgements = list(collection_of({"dev": inputs["dev"]}).judgements("dev")) if settings.measure else []
    if settings.measure is None or not judgements:
        return {"weight": UNTUNED, "tuned": None}
    first, second = (read_run(inputs["dev-runs"] / name) for name in ("bm25.trec", f"{EXPORTED}.trec"))
    tuned = tune_weight(first, second, judgements, settings.measure)
    means = {f"{weight:g}": mean for weight, mean in tuned.means.items()}
    return {
        "weight": tuned.weight,
        "tuned": {"measure": tuned.measure, "queries": tuned.queries, "means": means},
    }


def _fusion_work(stage: Stage[HybridSettings], sizes: Sizes) -> Work:
    depth = min(stage.settings.depth, sizes.passages)
    tuned = sizes.count(str(stage.inputs["dev"])) if stage.settings.measure else 0.0
    fused = 2 * depth * (sizes.evaluated + tuned)
    disk = _line_bytes(sizes) * depth * sizes.evaluated
    return Work(seconds=_FUSED * fused, memory=_FUSED_BYTES * fused, disk=disk)


HYBRID = StageSpec(
    name="hybrid",
    version=4,
    settings=HybridSettings,
    run=fuse,
    inputs={
        "bm25": "BM25's rankings of the evaluated queries",
        "retriever/*": "a retriever's",
        "choice": "which retriever is exported, if there are several",
        "dev-runs": "the rankings of the dev queries by BM25 and the exported retriever",
        "dev": "the dev queries' judgements",
    },
    folders=(HYBRID_NAME,),
    work=_fusion_work,
)


@frozen
class UntunedSettings:
    """The exported retriever, whose weight no judged queries tune."""

    retriever: str
    depth: int = from_recipe("evaluation.depth")


def keep_weight(stage: StageRun[UntunedSettings]) -> Mapping[str, Any]:
    """Write `weight.json`, with which a run without judged queries is searched by BM25 and its retriever."""
    settings = stage.settings
    facts = {"retriever": settings.retriever, "depth": settings.depth, "weight": UNTUNED, "tuned": None}
    write_text(stage.folder / WEIGHT, json_text(facts))
    return facts


UNTUNED_HYBRID = StageSpec(
    name="hybrid-untuned",
    version=1,
    settings=UntunedSettings,
    run=keep_weight,
    inputs={"bm25": "BM25's index", "index": "the exported retriever's index"},
    folders=(HYBRID_NAME,),
)


# Stages of the encoder from which a run starts.
STARTS = (INITIAL, AS_IT_IS)


@frozen
class EvaluationSettings:
    """Measures and systems; draws: the runs that are averaged for a system with several draws, by system.

    last: the last retriever; the input `choice` names the exported retriever, if there are several.
    """

    systems: tuple[str, ...]
    draws: Mapping[str, tuple[str, ...]]
    last: str
    measures: tuple[str, ...] = from_recipe("evaluation.measures")
    split: str = from_recipe("evaluation.split")
    exclude_self: bool = from_recipe("evaluation.exclude_self")


def evaluate_systems(stage: StageRun[EvaluationSettings]) -> Mapping[str, Any]:
    """Write `table.md`, `results.json`, `scores.json` (per query) and `qrels.txt`; returns those results.

    The row of a system with several draws has means over the draws, query by query. `against`: the p-values of tests of
    the `compared` system against each other one; hybrid is tested against BM25 only, in `hybrid`.
    """
    from drkit.data.corpus import collection_of
    from drkit.evaluate import average, comparison, to_markdown
    from drkit.evaluate.systems import table_caption
    from drkit.search import write_qrels

    settings, split = stage.settings, stage.settings.split
    judgements = list(collection_of({split: stage.inputs["judged"]}).judgements(split))
    measured = {name: _evaluate_system(stage, name, judgements) for name in settings.systems}
    systems = [(name, average(scores)) for name, scores in measured.items()]
    single = {name: scores for name, scores in systems if name != HYBRID_NAME}
    compared = _compared(stage)
    rows = comparison(systems)
    positive = {judgement.query_id for judgement in judgements if judgement.relevance > 0}
    if lost := rows[0].queries - len(positive):
        stage.progress.note(f"{lost:,} of {rows[0].queries:,} judged queries have no relevant passage and score 0")
    write_qrels(stage.folder / "qrels.txt", judgements)
    caption = table_caption({name: len(scores) for name, scores in measured.items()})
    results = {
        "split": split,
        "measures": list(settings.measures),
        "exclude_self": settings.exclude_self,
        "runs": {name: list(settings.draws.get(name, (name,))) for name in settings.systems},
        "queries": rows[0].queries,
        "rows": [attrs.asdict(row) for row in rows],
        "draws": {name: [one.means() for one in scores] for name, scores in measured.items() if len(scores) > 1},
        "compared": compared,
        "against": {name: _p_values(single[compared], scores) for name, scores in single.items() if name != compared},
    }
    if HYBRID_NAME in stage.inputs:
        facts = json.loads((stage.inputs[HYBRID_NAME] / WEIGHT).read_text(encoding="utf-8"))
        tests = _p_values(systems[-1][1], systems[0][1])
        results[HYBRID_NAME] = {**facts, "against": {"bm25": tests}}
    write_text(stage.folder / "table.md", f"{to_markdown(rows)}\n\n{escape_paragraph(caption)}\n")
    write_text(stage.folder / "scores.json", json.dumps({name: dict(s.per_query) for name, s in systems}))
    write_text(stage.folder / "results.json", json_text(results))
    return results


def _compared(stage: StageRun[EvaluationSettings]) -> str:
    """Return the row that the verdicts are on: the exported retriever's; a draw is reported in the row of its round.

    If that is the encoder from which the run started, it is the row of the last retriever, which did not beat it.
    """
    path, settings = stage.inputs.get("choice"), stage.settings
    exported = settings.last if path is None else path.read_text(encoding="utf-8")
    compared = settings.last if exported in STARTS else exported
    return next((name for name, draws in settings.draws.items() if compared in draws), compared)


def _p_values(one: Scores, other: Scores) -> dict[str, float]:
    """Return the p-values of paired t-tests between two systems, by measure."""
    from drkit.evaluate import paired_t_test

    return {m: paired_t_test(values, other.per_query[m]).p for m, values in one.per_query.items()}


def _evaluate_system(stage: StageRun[EvaluationSettings], name: str, judgements: Sequence[Judgement]) -> list[Scores]:
    """Return the scores of a system, one per draw."""
    from drkit.evaluate import evaluate
    from drkit.search import read_run

    settings, folder = stage.settings, stage.inputs[HYBRID_NAME if name == HYBRID_NAME else "runs"]
    runs = (read_run(folder / f"{one}.trec") for one in settings.draws.get(name, (name,)))
    return [evaluate(found, judgements, settings.measures, exclude_self=settings.exclude_self) for found in runs]


def _evaluation_work(stage: Stage[EvaluationSettings], sizes: Sizes) -> Work:
    draws = sum(len(stage.settings.draws.get(name, (name,))) for name in stage.settings.systems)
    hits = draws * sizes.evaluated * min(sizes.depth, sizes.passages)
    return Work(seconds=_MEASURED * hits)


EVALUATION = StageSpec(
    name="evaluation",
    version=3,
    settings=EvaluationSettings,
    run=evaluate_systems,
    inputs={
        "judged": "the evaluated split of the collection",
        "runs": "the systems' rankings",
        "hybrid": "the fused ranking, and its weight",
        "choice": "which retriever is exported, if there are several",
    },
    folders=("evaluation",),
    work=_evaluation_work,
)
