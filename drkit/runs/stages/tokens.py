"""Stage: tokenise every passage, or every training query, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from drkit.runs.stage import TRUNCATED, StageRun, StageSpec, Truncation, from_recipe, record_truncations


@frozen
class PassageSettings:
    """Length limit and prompt of passages."""

    length: int = from_recipe("encoder.passage_length")
    prompt: str = from_recipe("encoder.passage_prompt")


@frozen
class QuerySettings:
    """Length limit and prompt of queries."""

    length: int = from_recipe("encoder.query_length")
    prompt: str = from_recipe("encoder.query_prompt")


def tokenise_passages(stage: StageRun[PassageSettings]) -> Mapping[str, Any]:
    """Write a memory-mapped store of all passages; returns counts, including truncated texts."""
    from drkit.data.corpus import StoredCorpus

    passages = StoredCorpus(stage.inputs["passages"])
    return _tokenise(stage, ((p.doc_id, p.content) for p in passages), "passages", "encoder.passage_length")


def tokenise_queries(stage: StageRun[QuerySettings]) -> Mapping[str, Any]:
    """Write a memory-mapped store of the training queries; returns counts, including truncated texts."""
    from drkit.data.corpus import read_queries

    queries = read_queries(stage.inputs["queries"])
    return _tokenise(
        stage, ((query.query_id, query.text) for query in queries), "training queries", "encoder.query_length"
    )


def _tokenise(stage: StageRun[Any], texts: Iterator[tuple[str, str]], what: str, setting: str) -> Mapping[str, Any]:
    from drkit.data.store import tokenise
    from drkit.train.checkpoints import load_tokenizer

    settings = stage.settings
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    counts = tokenise(texts, tokenizer, stage.folder, max_length=settings.length, prompt=settings.prompt)
    lengths = {name: int(counts[name]) for name in ("texts", "truncated", "longest", "p95")}
    record_truncations([Truncation(what, setting, settings.length, **lengths)], stage.folder, stage.progress)
    return counts


_VOCABULARY = {"vocabulary": "the tokenizer"}
PASSAGE_TOKENS = StageSpec(
    name="passage-tokens",
    version=2,
    settings=PassageSettings,
    run=tokenise_passages,
    inputs={"passages": "texts to tokenise", **_VOCABULARY},
    records=(TRUNCATED,),
)
QUERY_TOKENS = StageSpec(
    name="query-tokens",
    version=2,
    settings=QuerySettings,
    run=tokenise_queries,
    inputs={"queries": "training queries to tokenise", **_VOCABULARY},
    records=(TRUNCATED,),
)
