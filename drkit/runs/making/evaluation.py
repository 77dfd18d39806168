"""Rank queries with every system, fuse two rankings, and measure all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import attrs

from drkit.core.engine import Loaded
from drkit.core.escaping import escape_paragraph
from drkit.core.file_chunks import FileChunks
from drkit.core.files import CHECKPOINTS, write_json, write_text
from drkit.core.types import Judgement, Query
from drkit.data.column_sources import RERANKER
from drkit.data.corpus import StoredCorpus, collection_of, read_labelled_queries
from drkit.data.data_set_names import data_set_of
from drkit.data.folds import assign_folds
from drkit.data.splits import PSEUDO
from drkit.data.store import count_truncated
from drkit.errors import DrkitError
from drkit.evaluate import (
    Row,
    Scores,
    TieRange,
    average,
    balanced,
    comparison,
    evaluate,
    of_data_set,
    order_bounds,
    paired_t_test,
    tie_ranges,
    to_markdown,
    tune_weight,
)
from drkit.evaluate.gains import decide, gains_markdown
from drkit.evaluate.names import AS_IT_IS, BM25_NAME, HYBRID_NAME, STARTS, fused_with_bm25, without_bm25
from drkit.evaluate.systems import (
    average_title,
    contribution,
    data_set_title,
    describe_contributions,
    results_warning,
    table_caption,
)
from drkit.evaluate.ties import tie_lines
from drkit.recipe.schema import is_baseline
from drkit.runs.making.reranker import loaded_teacher
from drkit.runs.making.retriever import chosen_input, loaded_retriever
from drkit.runs.stage import StageRun, Truncation, record_truncations
from drkit.runs.stages.evaluation import (
    EvaluationSettings,
    EvenFusionSettings,
    GainSettings,
    HybridSettings,
    SearchSettings,
    UntunedSettings,
)
from drkit.runs.stages.retriever import CHOICE, CHOSEN
from drkit.search import AnyEncoder, Bm25Retriever, align, convex, read_run, write_qrels
from drkit.search.blocks import RankedBlock, rank_to_file, reranked_blocks, retriever_blocks
from drkit.search.data_sets import SeparateBm25
from drkit.search.fusion import WEIGHT
from drkit.search.languages import note_query_language
from drkit.search.rankings import Rankings
from drkit.search.run_files import ARROW, write_rankings


def search_runs(stage: StageRun[SearchSettings]) -> Mapping[str, Any]:
    """Write `SYSTEM.arrow` for BM25, every retriever and the re-ranker; returns the number of queries.

    Queries are ranked on the engine. A ranking that an interrupted attempt has finished is kept.
    """
    settings = stage.settings
    queries = list(read_labelled_queries(stage.inputs["queries"]))
    truncations = []
    for name, retriever in _systems(stage):
        for note in _query_languages(stage, retriever.value, queries) if name == "bm25" else ():
            stage.progress.note(note)
        blocks = retriever_blocks(retriever, queries, settings.depth, exclude_self=settings.exclude_self)
        _write(stage, name, blocks, len(queries), "queries")
        if name in settings.retrievers:
            truncations.append(_truncation(retriever.value.encoder, queries, settings.split))
    for name, stages in settings.folds.items():
        _write(stage, name, _by_folds(stage, queries, stages), len(queries), "queries")
    record_truncations(truncations, stage.folder, stage.progress)
    for name, source in settings.reranked.items():
        _write(stage, name, _reranked(stage, name, source, queries), len(queries), "queries re-ranked")
    return {"queries": len(queries), "depth": settings.depth}


def _by_folds(
    stage: StageRun[SearchSettings], queries: Sequence[Query], stages: Sequence[str]
) -> Iterator[RankedBlock]:
    """Yield the rankings of each query by the retriever that has not learned from it."""
    folds, settings = assign_folds(queries, len(stages)), stage.settings
    for fold, name in enumerate(stages):
        asked = [query for query in queries if folds[query.query_id] == fold]
        if asked:
            yield from retriever_blocks(
                _retriever(stage, name), asked, settings.depth, exclude_self=settings.exclude_self
            )


def _query_languages(
    stage: StageRun[SearchSettings], searcher: Bm25Retriever | SeparateBm25, queries: Sequence[Query]
) -> Iterator[str]:
    """Yield a note for queries, of each data set, that look like another language than BM25 reads them as."""
    sets = searcher.sets if isinstance(searcher, SeparateBm25) else {"": searcher}
    for name, retriever in sets.items():
        own = (query.text for query in queries if not name or data_set_of(query.query_id) == name)
        what = f"{stage.settings.split} queries{f' of {name}' if name else ''}"
        if warned := note_query_language(retriever, islice(own, 1000), what):
            yield warned


def _write(stage: StageRun[SearchSettings], name: str, blocks: Iterable[RankedBlock], total: int, what: str) -> None:
    path = stage.folder / f"{name}{ARROW}"
    if _is_whole(path):
        return
    rank_to_file(
        blocks,
        path,
        engine=stage.engine,
        kept=FileChunks(stage.folder / CHECKPOINTS / name),
        uses="core" if name == "bm25" else "gpu",
        on_progress=lambda done: stage.progress.advance(done, total, what),
    )


def _is_whole(path: Path) -> bool:
    """Return whether an interrupted attempt has written the rankings at a path, and they are as it wrote them."""
    try:
        return path.is_file() and bool(len(read_run(path)))
    except DrkitError:
        return False


def _truncation(encoder: AnyEncoder, queries: Sequence[Query], split: str) -> Truncation:
    length, lengths = encoder.card.query_length, Counter[int]()
    for name, own in groupby(queries, lambda query: data_set_of(query.query_id) if encoder.card.prompts else ""):
        lengths.update(encoder.for_data_set(name).query_lengths([query.text for query in own]))
    counts = count_truncated(lengths, length)
    return Truncation(f"{split} queries", "encoder.query_length", length, texts=len(queries), **counts)


def _systems(stage: StageRun[SearchSettings]) -> Iterator[tuple[str, Loaded[Any]]]:
    """Yield the systems one by one, so that only one index is in memory at a time."""
    inputs = stage.inputs
    if "bm25" in inputs and stage.settings.data_sets:
        yield "bm25", Loaded(SeparateBm25.load, inputs["bm25"], stage.settings.data_sets)
    elif "bm25" in inputs:
        yield "bm25", Loaded(Bm25Retriever.load, inputs["bm25"])
    for name in stage.settings.retrievers:
        yield name, _retriever(stage, name)
    for name, (source, part) in stage.settings.parts.items():
        yield name, _retriever(stage, source, part)


def _retriever(stage: StageRun[SearchSettings], name: str, part: str = "") -> Loaded[Any]:
    inputs, settings = stage.inputs, stage.settings
    found = inputs[f"encoder/{name}"], inputs[f"index/{name}"]
    return loaded_retriever(*found, settings.reading, part, settings.data_sets)


def _reranked(
    stage: StageRun[SearchSettings], name: str, source: str, queries: Sequence[Query]
) -> Iterator[RankedBlock]:
    """Yield the rankings of a retriever with their first passages re-ranked by a cross-encoder."""
    return reranked_blocks(
        stage.folder / f"{source}{ARROW}",
        loaded_teacher(stage.inputs[f"reranker/{name}"]),
        queries={query.query_id: query.text for query in queries},
        corpus=Loaded(StoredCorpus, stage.inputs["passages"]),
        depth=stage.settings.rerank_depth,
    )


def fuse_rankings(stage: StageRun[HybridSettings]) -> Mapping[str, Any]:
    """Write `hybrid.arrow` and `weight.json`; returns the weight of the retriever, and how it was chosen."""
    depth, ranking = stage.settings.depth, chosen_input(stage.inputs, "retriever")
    facts = {"retriever": ranking.stem, "depth": depth, **_weight(stage)}
    hits = align(read_run(stage.inputs["bm25"]), read_run(ranking))
    write_rankings(stage.folder / f"{HYBRID_NAME}{ARROW}", convex(hits, facts["weight"], depth))
    write_json(stage.folder / WEIGHT, facts)
    return facts


def _weight(stage: StageRun[HybridSettings]) -> dict[str, Any]:
    settings, inputs = stage.settings, stage.inputs
    judgements = list(collection_of({"dev": inputs["dev"]}).judgements("dev")) if settings.measure else []
    if settings.measure is None or not judgements:
        return {"weight": settings.untuned, "tuned": None}
    first, second = read_run(inputs["dev-bm25"]), read_run(chosen_input(inputs, "dev-retriever"))
    tuned = tune_weight(first, second, judgements, settings.measure, data_sets=settings.data_sets)
    means = {f"{weight:g}": mean for weight, mean in tuned.means.items()}
    return {
        "weight": tuned.weight,
        "tuned": {
            **{"measure": tuned.measure, "queries": tuned.queries, "means": means},
            **{"best": tuned.best, "gain": tuned.gain, "error": tuned.error},
        },
    }


def fuse_evenly(stage: StageRun[EvenFusionSettings]) -> Mapping[str, Any]:
    """Write `NAME+bm25.arrow` for every retriever; returns the weight of each."""
    settings, runs = stage.settings, stage.inputs["runs"]
    for name in settings.retrievers:
        hits = align(read_run(runs / f"{BM25_NAME}{ARROW}"), read_run(runs / f"{name}{ARROW}"))
        fused = convex(hits, settings.weight, settings.depth)
        write_rankings(stage.folder / f"{fused_with_bm25(name)}{ARROW}", fused)
    return {"weight": settings.weight, "depth": settings.depth}


def choose_by_gains(stage: StageRun[GainSettings]) -> Mapping[str, Any]:
    """Write `choice.json`, the verdict of `decide`, and `chosen.txt`, the exported retriever; returns the verdict."""
    settings = stage.settings
    judgements = list(collection_of({settings.split: stage.inputs["judged"]}).judgements(settings.split))
    given = {"exclude_self": settings.exclude_self}
    systems = {
        name: balanced(
            evaluate(read_run(_ranking(stage.inputs, name)), judgements, [settings.measure], **given),
            settings.data_sets,
        )
        for name in settings.systems
    }
    queries = systems[AS_IT_IS].queries
    is_made = settings.split == PSEUDO
    how = f"{settings.folds}-fold cross-validation" if settings.folds else f"the split {settings.split}"
    how = "made from texts that it was not tuned on" if is_made else f"labelled queries, {how}"
    how = f"{queries:,} {'queries ' if is_made else ''}{how}"
    verdict = decide(systems, settings.measure, trained=settings.trained, how=how, is_made=is_made)
    write_json(stage.folder / CHOICE, verdict.facts())
    write_text(stage.folder / CHOSEN, verdict.exported)
    return verdict.facts()


def _ranking(inputs: Mapping[str, Path], name: str) -> Path:
    """Return the file of a system's rankings: alone, or fused with BM25."""
    return inputs["runs" if without_bm25(name) == name else "hybrids"] / f"{name}{ARROW}"


def keep_weight(stage: StageRun[UntunedSettings]) -> Mapping[str, Any]:
    """Write `weight.json`, with which a run without judged queries is searched by BM25 and its retriever."""
    settings = stage.settings
    facts = {"retriever": settings.retriever, "depth": settings.depth, "weight": settings.untuned, "tuned": None}
    write_json(stage.folder / WEIGHT, facts)
    return facts


def evaluate_systems(stage: StageRun[EvaluationSettings]) -> Mapping[str, Any]:
    """Write `table.md`, `results.json`, `scores.json` (per query) and `qrels.txt`; returns those results.

    The row of a system with several draws has means over the draws, query by query; rows are tested against the
    `baseline`. `parts`: what each named part adds. `against`: the p-values of tests of the `compared` system against
    each other one; those of hybrid against BM25 are in `hybrid`, those of a re-ranker against the retriever whose hits
    it ranks in `reranker`.
    """
    settings, split = stage.settings, stage.settings.split
    judgements = list(collection_of({split: stage.inputs["judged"]}).judgements(split))
    measured, ties = dict[str, list[Scores]](), dict[str, dict[str, TieRange]]()
    for name in settings.systems:
        rankings = _read_rankings(stage, name)
        measured[name] = [_scores(stage, one, judgements) for one in rankings]
        ties[name] = {} if settings.data_sets else _tie_ranges(stage, rankings, judgements)
    asked = [(name, average(scores)) for name, scores in measured.items()]
    systems = [(name, balanced(scores, settings.data_sets)) for name, scores in asked]
    single = {name: scores for name, scores in systems if name != HYBRID_NAME}
    compared = _compared(stage)
    rows = comparison(systems, settings.baseline)
    composed, first = settings.composed, settings.measures[0]
    parts = [
        contribution((composed, single[composed]), (name, single[name]), part, first)
        for name, part in settings.replaced.items()
    ]
    positive = {judgement.query_id for judgement in judgements if judgement.relevance > 0}
    if lost := rows[0].queries - len(positive):
        stage.progress.note(f"{lost:,} of {rows[0].queries:,} judged queries have no relevant passage and score 0")
    write_qrels(stage.folder / "qrels.txt", judgements)
    warning = results_warning(rows[0].queries, is_smoke=settings.is_smoke)
    caption = table_caption({name: len(scores) for name, scores in measured.items()}, settings.baseline)
    results = {
        "split": split,
        "measures": list(settings.measures),
        "exclude_self": settings.exclude_self,
        "runs": {name: list(settings.draws.get(name, (name,))) for name in settings.systems},
        "queries": rows[0].queries,
        "warning": warning,
        "ties": {name: {m: attrs.asdict(one) for m, one in ranges.items()} for name, ranges in ties.items() if ranges},
        "rows": [attrs.asdict(row) for row in rows],
        "draws": {
            name: [balanced(one, settings.data_sets).means() for one in scores]
            for name, scores in measured.items()
            if len(scores) > 1
        },
        "compared": compared,
        "baseline": settings.baseline,
        "parts": [attrs.asdict(one) for one in parts],
        "against": {name: _p_values(single[compared], scores) for name, scores in single.items() if name != compared},
    }
    if HYBRID_NAME in stage.inputs:
        facts = json.loads((stage.inputs[HYBRID_NAME] / WEIGHT).read_text(encoding="utf-8"))
        tests = _p_values(systems[-1][1], systems[0][1])
        results[HYBRID_NAME] = {**facts, "against": {"bm25": tests}}
    if RERANKER in single and settings.reranked in single:
        tests = _p_values(single[RERANKER], single[settings.reranked])
        results[RERANKER] = {"against": {settings.reranked: tests}}
    gains = json.loads(stage.inputs["gains"].read_text(encoding="utf-8")) if "gains" in stage.inputs else None
    results |= {"gains": gains} if gains else {}
    tables = _tables_of_data_sets(asked, settings)
    if tables:
        results["data_sets"] = {name: [attrs.asdict(row) for row in own] for name, own in tables.items()}
    shown = gains_markdown(gains) if gains else ""
    added = describe_contributions([attrs.asdict(one) for one in parts])
    below = (escape_paragraph(caption), *map(escape_paragraph, tie_lines(results)), warning, shown)
    each = [text for name, own in tables.items() for text in (data_set_title(name, own), to_markdown(own))]
    of_all = [average_title(tables)] if tables else []
    texts = (escape_paragraph(added), *each, *of_all, to_markdown(rows), *below)
    write_text(stage.folder / "table.md", "\n\n".join(filter(None, texts)) + "\n")
    write_text(stage.folder / "scores.json", json.dumps({name: dict(s.per_query) for name, s in asked}))
    write_json(stage.folder / "results.json", results)
    return results


def _tables_of_data_sets(systems: Sequence[tuple[str, Scores]], settings: EvaluationSettings) -> dict[str, list[Row]]:
    """Return the rows of each data set that has evaluated queries, by its name."""
    split = {name: [(system, of_data_set(scores, name)) for system, scores in systems] for name in settings.data_sets}
    return {name: comparison(own, settings.baseline) for name, own in split.items() if own[0][1].queries}


def _compared(stage: StageRun[EvaluationSettings]) -> str:
    """Return the row that the verdicts are on: the exported retriever's; a draw is reported in the row of its round.

    If that is the encoder from which the run started or a baseline, it is the row of the last retriever, which did not
    beat it.
    """
    path, settings = stage.inputs.get("choice"), stage.settings
    exported = settings.last if path is None else path.read_text(encoding="utf-8")
    compared = settings.last if exported in STARTS or is_baseline(exported) else exported
    return next((name for name, draws in settings.draws.items() if compared in draws), compared)


def _p_values(one: Scores, other: Scores) -> dict[str, float]:
    """Return the p-values of paired t-tests between two systems, by measure."""
    return {m: paired_t_test(values, other.per_query[m]).p for m, values in one.per_query.items()}


def _read_rankings(stage: StageRun[EvaluationSettings], name: str) -> list[Rankings]:
    """Return the rankings of a system, one per draw."""
    inputs = {"runs": stage.inputs[HYBRID_NAME]} if name == HYBRID_NAME else stage.inputs
    return [read_run(_ranking(inputs, one)) for one in stage.settings.draws.get(name, (name,))]


def _scores(stage: StageRun[EvaluationSettings], rankings: Rankings, judgements: Sequence[Judgement]) -> Scores:
    return evaluate(rankings, judgements, stage.settings.measures, exclude_self=stage.settings.exclude_self)


def _tie_ranges(
    stage: StageRun[EvaluationSettings], found: Sequence[Rankings], judgements: Sequence[Judgement]
) -> dict[str, TieRange]:
    """Return the ranges of a system's means, over its draws, by the order of tied hits."""
    settings = stage.settings
    bounds = [
        order_bounds(rankings, judgements, settings.measures, exclude_self=settings.exclude_self) for rankings in found
    ]
    worst, best = (average(scores) for scores in zip(*bounds, strict=True))
    return tie_ranges((worst, best))
