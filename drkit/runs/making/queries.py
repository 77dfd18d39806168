"""Make candidate queries of the texts, and pseudo-queries to train on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from drkit.core.engine import Loaded, is_local
from drkit.core.files import local_path
from drkit.core.protocols import QuerySource
from drkit.core.quantities import counted
from drkit.core.registry import installed
from drkit.core.spec import Choice, Kind
from drkit.core.types import BuildContext, Passage
from drkit.data.arrays import SignalValues
from drkit.data.column_sources import source_name
from drkit.data.contexts import open_texts
from drkit.data.corpus import StoredCorpus
from drkit.data.generation import QueryModel, Sampling, forget_origin, generate_file, truncate_texts
from drkit.data.queries import (
    Crops,
    GivenQueries,
    ImportantSpans,
    PassageQueries,
    Sentences,
    given_queries,
    made_queries,
    read_queries,
    titles,
    tokenise_given,
    write_candidates,
    write_computed,
)
from drkit.data.query_sources import EXTRACTIVE, QUERY_FILE, QUERY_MODEL, SENTENCES, TITLES_ALONE, is_from_plugin
from drkit.data.rows import batched
from drkit.data.spans import NamedTexts, Spans, punkt_for
from drkit.data.splits import PSEUDO
from drkit.data.store import TokenStore, prompt_tokens
from drkit.data.titles import Titles
from drkit.data.writing import write_pairs
from drkit.errors import DrkitError
from drkit.recipe.toml import plain
from drkit.runs.making.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.runs.stages.queries import SPLIT, CandidateSettings, PseudoQuerySettings
from drkit.search import Bm25Retriever, Retriever, open_index
from drkit.train.checkpoints import load_tokenizer

GENERATED = "queries.jsonl"
_SCRATCH = "given"


def make_candidates(stage: StageRun[CandidateSettings]) -> Mapping[str, Any]:
    """Write a token store of queries with the text that each belongs to; returns counts.

    A model's queries are kept as `queries.jsonl`, which `queries = "file:PATH"` can read.
    """
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    scratch = stage.folder / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    given, counts = _read_or_generate(stage, tokenizer, scratch)
    written = write_candidates(
        open_texts(stage.inputs),
        SignalValues.open(stage.inputs["importance"]),
        tokenizer,
        stage.folder,
        count=settings.candidates,
        max_length=settings.max_length,
        given=given,
    )
    del given
    shutil.rmtree(scratch, ignore_errors=True)
    forget_origin(stage.folder / GENERATED)  # the manifest says it
    counts = {**counts, **written}
    if settings.queries != "extractive":
        _report(stage, counts)
    return counts


def _read_or_generate(
    stage: StageRun[CandidateSettings], tokenizer: Any, scratch: Path
) -> tuple[GivenQueries | None, dict[str, int]]:
    """Return the tokenised queries of the file or the model with counts; None for extractive queries."""
    settings = stage.settings
    kind, _, source = settings.queries.partition(":")
    if kind == "extractive":
        return None, {}
    corpus = StoredCorpus(stage.inputs["passages"])
    texts = NamedTexts(corpus, Spans.open(stage.inputs["spans"]) if "spans" in stage.inputs else None)
    path = stage.inputs.get(settings.queries, local_path(source))
    if kind == "model":
        path = generate(
            stage,
            iter(texts),
            len(texts),
            source,
            stage.folder / GENERATED,
            settings.candidates,
            settings.passage_length,
        )
    return tokenise_given(read_queries(path), texts, tokenizer, scratch, max_length=settings.max_length)


def generate(
    stage: StageRun[Any], texts: Iterator[tuple[str, str]], total: int, model: str, path: Path, count: int, length: int
) -> Path:
    """Generate `count` queries of every (name, text), cut after `length` tokens, to `path`."""
    settings = stage.settings
    done = generate_file(
        truncate_texts(texts, load_tokenizer(str(stage.inputs["vocabulary"])), length),
        Loaded(QueryModel.open, model, Sampling(count=count, prefix=settings.prefix, seed=settings.seed)),
        path,
        engine=stage.engine,
        on_progress=lambda number: stage.progress.advance(number, total, "texts"),
    )
    assert done is not None  # a single process always finishes the file
    return done


def _report(stage: StageRun[CandidateSettings], counts: Mapping[str, int]) -> None:
    if counts["unknown"]:
        stage.progress.note(f"{counted(counts['unknown'], 'query')} skipped: unknown passage id")
    if counts["surplus"]:
        stage.progress.note(
            f"{counted(counts['surplus'], 'query was', 'queries were')} left out, beyond the first "
            f"{stage.settings.candidates} of a text "
            f"(the setting candidates of the context)"
        )
    if counts["extractive"]:
        stage.progress.note(
            f"{counts['extractive']:,} of {counts['texts']:,} texts have no query; their most important spans are "
            f"used instead"
        )


_BATCH = 256


def make_pseudo_queries(stage: StageRun[PseudoQuerySettings]) -> Mapping[str, Any]:
    """Write `train`, a split of a collection; returns counts of queries made, unknown, dropped and kept, by source.

    Of held-out passages it writes `pseudo`, one query each, which the round trip does not choose: what BM25 finds would
    be easy for BM25.

    Queries that a model generates are kept as `queries-N.jsonl`, which a source `file:PATH` can read.
    """
    settings, corpus = stage.settings, StoredCorpus(stage.inputs["passages"])
    retrievers = _retrievers(stage, corpus) if settings.round_trip else []
    drawn, held = _Drawn.of(settings, len(corpus)), dict[int, list[str]]()
    counts: dict[str, Counter[str]] = {}

    def pairs() -> Iterator[tuple[str, int]]:
        for number, source in enumerate(settings.sources, start=1):
            tally = counts[_name(source, number, settings)] = Counter(made=0, kept=0)
            made = _count_known(drawn.learned_from(_queries(stage, corpus, source, number, drawn), held), tally)
            found = _found_again(made, retrievers, corpus, settings.round_trip) if retrievers else made
            for index, query in found:
                tally["kept"] += 1
                if not tally["kept"] % _BATCH:
                    stage.progress.advance(sum(one["kept"] for one in counts.values()), None, "queries")
                yield query, index

    write_pairs(pairs(), corpus, stage.folder / SPLIT)
    for source, tally in counts.items():
        tally["dropped"] = tally["made"] - tally["kept"]
        stage.progress.note(_describe(source, tally, settings))
    if not any(tally["kept"] for tally in counts.values()):
        raise DrkitError(_no_queries(sum(tally["made"] for tally in counts.values()), settings))
    if settings.held_out:
        _write_held_out(held, corpus, stage)
    for path in stage.folder.glob("*.jsonl"):
        forget_origin(path)  # the manifest says it
    return {source: dict(tally) for source, tally in counts.items()}


@frozen
class _Drawn:
    """The passages whose queries are trained on, None for all others than those that are held out."""

    learned: frozenset[int] | None
    held_out: frozenset[int]

    @classmethod
    def of(cls, settings: PseudoQuerySettings, passages: int) -> _Drawn:
        """Draw them; at most half of the passages are held out."""
        if settings.passages is None and settings.held_out is None:
            return cls(None, frozenset())
        first = min(settings.held_out or 0, passages // 2)
        drawn = np.random.default_rng(settings.seed).permutation(passages)
        learned = drawn[first : first + settings.passages].tolist() if settings.passages else None
        return cls(None if learned is None else frozenset(learned), frozenset(drawn[:first].tolist()))

    def __contains__(self, index: int) -> bool:
        return self.learned is None or index in self.learned or index in self.held_out

    def learned_from(self, made: Iterable[tuple[int, str]], held: dict[int, list[str]]) -> Iterator[tuple[int, str]]:
        """Yield the queries to train on; add the first one of each held-out passage to `held`."""
        seen = set[int]()
        for index, query in made:
            if index in self.held_out:
                if index not in seen:
                    held.setdefault(index, []).append(query)
                seen.add(index)
            elif index < 0 or index in self:
                yield index, query


def _write_held_out(held: Mapping[int, list[str]], corpus: StoredCorpus, stage: StageRun[PseudoQuerySettings]) -> None:
    """Write a query of each held-out passage as a split, of its sources in turn. Raises DrkitError without any."""
    if not held:
        sources = ", ".join(map(source_name, stage.settings.sources))
        raise DrkitError(
            f"no held-out passage has a query to evaluate on (sources: {sources}): a query is never its "
            f"whole passage; hold out more passages @ pseudo_queries.held_out"
        )
    chosen = ((held[index][turn % len(held[index])], index) for turn, index in enumerate(sorted(held)))
    write_pairs(chosen, corpus, stage.folder / PSEUDO)
    stage.progress.note(f"{counted(len(held), 'held-out passage')} with a query to evaluate on")


def _count_known(made: Iterable[tuple[int, str]], tally: Counter[str]) -> Iterator[tuple[int, str]]:
    """Yield and count the queries of known passages; count the others."""
    for index, query in made:
        tally["made" if index >= 0 else "unknown"] += 1
        if index >= 0:
            yield index, query


def _retrievers(stage: StageRun[PseudoQuerySettings], corpus: StoredCorpus) -> list[Any]:
    """Return the retrievers of the round trip."""
    settings, inputs = stage.settings, stage.inputs
    found: list[Any] = [Bm25Retriever(language=settings.language).index(corpus)] if settings.language else []
    if settings.reading is not None:
        found.append(Retriever(load_text_encoder(inputs["encoder"], settings.reading), open_index(inputs["index"])))
    return found


def _found_again(
    made: Iterable[tuple[int, str]], retrievers: Sequence[Any], corpus: StoredCorpus, depth: int
) -> Iterator[tuple[int, str]]:
    """Yield the queries whose passage is among the first `depth` of a retriever (round-trip consistency)."""
    for batch in batched(made, _BATCH):
        texts, doc_ids = [query for _, query in batch], corpus.ids_at([index for index, _ in batch])
        found_by = (one.search(texts, depth) for one in retrievers)
        for (index, query), doc_id, *hits in zip(batch, doc_ids, *found_by, strict=True):
            if any(doc_id in found.doc_ids for found in hits):
                yield index, query


def _describe(source: str, tally: Mapping[str, int], settings: PseudoQuerySettings) -> str:
    unknown = f"; {tally['unknown']:,} of unknown passages left out" if tally.get("unknown") else ""
    kept = f"{_finders(settings)} finds the passage of {tally['kept']:,} within {settings.round_trip}"
    return f"{source}: {counted(tally['made'], 'query')}, {kept if settings.round_trip else 'all kept'}{unknown}"


def _finders(settings: PseudoQuerySettings) -> str:
    """Return the retrievers of the round trip in words."""
    return " or ".join({"bm25": "BM25", "encoder": "the encoder"}[name] for name in settings.found_by)


def _no_queries(made: int, settings: PseudoQuerySettings) -> str:
    """Return why no pseudo-query is left to train on, and what to change."""
    sources = ", ".join(map(source_name, settings.sources))
    if not made:
        return (
            f"no pseudo-query to train on: 0 queries were made (sources: {sources}). A query is never its whole "
            f"passage, so very short texts have none; use longer texts, or queries from elsewhere, as in "
            f"--set pseudo_queries.sources=file:PATH @ pseudo_queries.sources"
        )
    return (
        f"no pseudo-query is left to train on: {_finders(settings)} finds the passage of none of the "
        f"{counted(made, 'query')} "
        f"made (sources: {sources}) within {settings.round_trip}; --set pseudo_queries.round_trip=N looks deeper, "
        f"0 keeps all @ pseudo_queries.round_trip"
    )


def _name(source: Choice, number: int, settings: PseudoQuerySettings) -> str:
    """Return what the counts of a source are called, which differs from the names of the others."""
    names = [*map(source_name, settings.sources)]
    return f"{names[number - 1]} ({number})" if names.count(names[number - 1]) > 1 else source_name(source)


def _queries(
    stage: StageRun[PseudoQuerySettings],
    corpus: StoredCorpus,
    source: Choice,
    number: int,
    drawn: _Drawn,
) -> Iterator[tuple[int, str]]:
    """Yield (passage index, query) of a source, -1 for an unknown passage.

    A model and a part of a plugin read only the drawn passages.
    """
    source = stage.resolved(source)
    if source.use == QUERY_FILE:
        return given_queries(corpus, local_path(source.config.path))
    path, total = stage.folder / f"queries-{number}.jsonl", sum(index in drawn for index in range(len(corpus)))
    passages = (passage for index, passage in enumerate(corpus) if index in drawn)
    if source.use == QUERY_MODEL:
        texts = ((passage.doc_id, passage.content) for passage in passages)
        count, length = stage.settings.count, stage.settings.texts.length
        return given_queries(corpus, generate(stage, texts, total, source.config.path, path, count, length))
    if is_from_plugin(source):
        return given_queries(corpus, _compute(stage, source, passages, total, path))
    return made_queries(corpus, _source(stage, corpus, source.use))


def _compute(
    stage: StageRun[PseudoQuerySettings], source: Choice, passages: Iterable[Passage], total: int, path: Path
) -> Path:
    """Write the queries that a part of a plugin makes, `total` passages at most, to a file; returns it."""
    seed = stage.settings.seed
    if is_local(stage.engine):
        part: Any = stage.registry.build(Kind.QUERIES, source.use, source.config, BuildContext(seed=seed))
    else:
        part = Loaded(build_query_source, source.use, source.config, seed)
    return write_computed(
        part,
        passages,
        path,
        made_by=[source.use, plain(source.config), seed],
        name=source.use,
        engine=stage.engine,
        on_progress=lambda number: stage.progress.advance(number, total, "passages"),
    )


def build_query_source(name: str, config: Any, seed: int) -> QuerySource:
    """Build an installed source of queries, in whatever process of an engine."""
    registry = installed().registry
    return registry.build(Kind.QUERIES, name, config, BuildContext(registry=registry, seed=seed))


def _source(stage: StageRun[PseudoQuerySettings], corpus: StoredCorpus, kind: str) -> PassageQueries:
    """Build a source that takes queries from the passages themselves."""
    settings, inputs = stage.settings, stage.inputs
    if kind == EXTRACTIVE:
        tokenizer = load_tokenizer(str(inputs["vocabulary"]))
        return ImportantSpans(
            settings.count,
            TokenStore.open(inputs["tokens"]),
            SignalValues.open(inputs["importance"]),
            tokenizer,
            len(prompt_tokens(settings.texts.prompt, tokenizer, settings.texts.length)),
            Titles.of(settings.texts.titles, tokenizer),
        )
    if kind == SENTENCES:
        return Sentences(settings.count, settings.seed, punkt_for(corpus, settings.seed))
    return titles if kind == TITLES_ALONE else Crops(settings.count, settings.seed)
