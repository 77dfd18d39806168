"""Stage: candidate queries of every text that pre-training reads: from a file, from a model, or extractive."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drkit.data.contexts import open_importance, open_texts
from drkit.data.generation import generate_file, truncate_texts
from drkit.data.importance import importance
from drkit.data.ngrams import NgramCounts
from drkit.data.queries import IMPORTANCE, GivenQueries, Queries, read_queries, tokenise_given, write_candidates
from drkit.data.spans import NamedTexts, Spans
from drkit.data.tables import open_collection
from drkit.errors import DrkitError
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer

GENERATED = "queries.jsonl"
_SCRATCH = "given"


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes a token store of queries, which text each is of, and their importance; returns counts.

    A model's queries are kept as `queries.jsonl`, which `queries = "file:PATH"` reads.
    """
    settings, tokenizer = stage.stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    statistics = open_importance(stage.inputs)
    if statistics is None:
        raise DrkitError(
            "candidate queries need the statistics of the run: those of texts without a query are extractive"
        )
    scratch = stage.folder / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    given, counts = _given(stage, tokenizer, scratch)
    written = write_candidates(
        open_texts(stage.inputs),
        statistics,
        tokenizer,
        stage.folder,
        count=settings["candidates"],
        max_length=settings["max_length"],
        given=given,
    )
    del given
    shutil.rmtree(scratch, ignore_errors=True)
    grams = NgramCounts(stage.inputs["statistics"] / "counts")
    importance(Queries.open(stage.folder).store, grams, stage.folder / IMPORTANCE, pmi=settings["pmi"])
    counts = {**counts, **written}
    if settings["queries"] != "extractive":
        _tell(stage, counts)
    return counts


def _given(stage: StageRun, tokenizer: Any, scratch: Path) -> tuple[GivenQueries | None, dict[str, int]]:
    """The queries of the file or the model, tokenised."""
    kind, _, source = stage.stage.settings["queries"].partition(":")
    if kind == "extractive":
        return None, {}
    corpus = open_collection(stage.inputs["collection"]).corpus
    texts = NamedTexts(corpus, Spans.open(stage.inputs["spans"]) if "spans" in stage.inputs else None)
    path = _generated(stage, texts, tokenizer, source) if kind == "model" else Path(source)
    return tokenise_given(read_queries(path), texts, tokenizer, scratch, max_length=stage.stage.settings["max_length"])


def _generated(stage: StageRun, texts: NamedTexts, tokenizer: Any, source: str) -> Path:
    from drkit.data.generation import QueryModel, Sampling

    settings = stage.stage.settings
    sampling = Sampling(count=settings["candidates"], prefix=settings["prefix"], seed=stage.recipe.seed)
    path = generate_file(
        truncate_texts(iter(texts), tokenizer, stage.recipe.encoder.passage_length),
        QueryModel.open(source, sampling),
        stage.folder / GENERATED,
        on_progress=lambda done: stage.progress.advance(done, len(texts), "texts"),
    )
    assert path is not None  # one process alone always finishes last
    return path


def _tell(stage: StageRun, counts: Mapping[str, int]) -> None:
    if counts["unknown"]:
        stage.progress.note(f"{counts['unknown']:,} queries are of passages that the collection has not: left out")
    if counts["surplus"]:
        stage.progress.note(
            f"{counts['surplus']:,} queries are beyond the first {stage.stage.settings['candidates']} of their text: "
            f"left out (pretrain.masker.candidates)"
        )
    if counts["extractive"]:
        stage.progress.note(
            f"{counts['extractive']:,} of {counts['texts']:,} texts have no query: their own most important spans serve"
        )
