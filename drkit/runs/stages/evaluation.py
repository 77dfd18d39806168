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
from drkit.core.files import write_text
from drkit.core.types import Judgement, Query
from drkit.recipe.toml import json_text
from drkit.runs.stage import TRUNCATED, StageRun, StageSpec, TextReading, Truncation, from_recipe, record_truncations
from drkit.runs.stages.retriever import chosen_input, load_text_encoder
from drkit.search.fusion import WEIGHT

if TYPE_CHECKING:
    from drkit.data.corpus import StoredCorpus
    from drkit.evaluate import Scores
    from drkit.search import AnyEncoder


BATCH = 256
Ranking = tuple[str, list[tuple[str, float]]]


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
    """Write `SYSTEM.trec` for BM25, every retriever and the re-ranker; returns the number of queries."""
    from drkit.data.corpus import StoredCorpus, read_queries
    from drkit.search import write_run

    settings = stage.settings
    corpus = StoredCorpus(stage.inputs["passages"])
    queries = list(read_queries(stage.inputs["queries"]))
    truncations = []
    for name, retriever in _systems(stage):
        write_run(stage.folder / f"{name}.trec", _rank(retriever, queries, stage), tag=name)
        if name in settings.retrievers:
            truncations.append(_truncation(retriever.encoder, [query.text for query in queries], settings.split))
    record_truncations(truncations, stage.folder, stage.progress)
    for name, source in settings.reranked.items():
        write_run(stage.folder / f"{name}.trec", _rerank(stage, name, source, queries, corpus), tag=name)
    return {"queries": len(queries), "depth": settings.depth}


def _truncation(encoder: AnyEncoder, texts: Sequence[str], split: str) -> Truncation:
    from drkit.data.store import count_truncated

    counts = count_truncated(Counter(encoder.query_lengths(texts)), encoder.query_length)
    return Truncation(f"{split} queries", "encoder.query_length", encoder.query_length, texts=len(texts), **counts)


def _systems(stage: StageRun[SearchSettings]) -> Iterator[tuple[str, Any]]:
    """Yield the systems one by one, so that only one index is in memory at a time."""
    from drkit.search import Bm25Retriever, Retriever, open_index

    if "bm25" in stage.inputs:
        yield "bm25", Bm25Retriever.load(stage.inputs["bm25"])
    for name in stage.settings.retrievers:
        encoder = load_text_encoder(stage.inputs[f"encoder/{name}"], stage.settings.reading)
        yield name, Retriever(encoder, open_index(stage.inputs[f"index/{name}"]))


def _rank(retriever: Any, queries: Sequence[Query], stage: StageRun[SearchSettings]) -> Iterable[Ranking]:
    depth, exclude_self = stage.settings.depth, stage.settings.exclude_self
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        # One more hit, because the passage with the query's own id is dropped afterwards.
        found = retriever.search([query.text for query in part], depth + exclude_self)
        stage.progress.advance(start + len(part), len(queries), "queries")
        for query, hits in zip(part, found, strict=True):
            kept = hits.without([query.query_id]).top(depth) if exclude_self else hits
            yield query.query_id, list(kept.pairs())


def _rerank(
    stage: StageRun[SearchSettings], name: str, source: str, queries: Sequence[Query], corpus: StoredCorpus
) -> Iterator[Ranking]:
    """Yield the rankings of a retriever with their first passages re-ranked by a cross-encoder."""
    from drkit.core.processes import local_device
    from drkit.search import Reranker, read_run, rerank

    scorer = Reranker.load(stage.inputs[f"reranker/{name}"], local_device())
    found = read_run(stage.folder / f"{source}.trec")
    texts = {query.query_id: query.text for query in queries}
    rows = rerank(found, scorer, queries=texts, corpus=corpus, depth=stage.settings.rerank_depth)
    for done, row in enumerate(rows, start=1):
        stage.progress.advance(done, len(queries), "queries re-ranked")
        yield row


SEARCH = StageSpec(
    name="search",
    version=2,
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


HYBRID = StageSpec(
    name="hybrid",
    version=3,
    settings=HybridSettings,
    run=fuse,
    inputs={
        "bm25": "BM25's rankings of the evaluated queries",
        "retriever/*": "a retriever's",
        "choice": "which retriever is exported, if there are several",
        "dev-runs": "the rankings of the dev queries by BM25 and the exported retriever",
        "dev": "the dev queries' judgements",
    },
)


# Stages of the encoder from which a run starts.
STARTS = ("initial", "as-it-is")


@frozen
class EvaluationSettings:
    """Measures and systems; draws: the runs that are averaged for a system with several draws, by system.

    last: the last retriever; the input `choice` names the one that the run exports, if there are several.
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


EVALUATION = StageSpec(
    name="evaluation",
    version=2,
    settings=EvaluationSettings,
    run=evaluate_systems,
    inputs={
        "judged": "the evaluated split of the collection",
        "runs": "the systems' rankings",
        "hybrid": "the fused ranking, and its weight",
        "choice": "which retriever is exported, if there are several",
    },
)
