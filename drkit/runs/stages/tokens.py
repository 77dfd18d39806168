"""Stage: tokenise every text once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drkit.data.store import tokenise
from drkit.data.tables import StoredCollection, open_collection
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer

SPLITS = ("train", "dev", "test")


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `passages/` and `queries/`, memory-mapped stores; returns counts, also of texts that were truncated."""
    collection = open_collection(stage.inputs["collection"])
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    encoder = stage.recipe.encoder
    passages = tokenise(
        ((p.doc_id, p.content) for p in collection.corpus),
        tokenizer,
        stage.folder / "passages",
        max_length=encoder.passage_length,
        prompt=encoder.passage_prompt,
    )
    queries = tokenise(
        _training_queries(collection),
        tokenizer,
        stage.folder / "queries",
        max_length=encoder.query_length,
        prompt=encoder.query_prompt,
    )
    for what, counts, length in (("passages", passages, "passage_length"), ("queries", queries, "query_length")):
        if counts["truncated"]:
            stage.progress.note(
                f"{counts['truncated']:,} of {counts['texts']:,} {what} are longer than "
                f"{getattr(encoder, length)} tokens and were cut (encoder.{length})"
            )
    return {"passages": passages, "queries": queries}


def _training_queries(collection: StoredCollection) -> Iterator[tuple[str, str]]:
    return ((query.query_id, query.text) for query in collection.queries("train"))
