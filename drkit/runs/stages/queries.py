"""Stage: candidate queries of every text that pre-training reads: from a file, from a model, or extractive."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.files import local_path
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    from drkit.data.queries import GivenQueries

GENERATED = "queries.jsonl"
_SCRATCH = "given"


@frozen
class QuerySettings:
    """The source of queries (`extractive`, `file:PATH`, `model:PATH_OR_ID`) and their number per text."""

    queries: str
    candidates: int
    prefix: str
    max_length: int = from_recipe("encoder.query_length")
    passage_length: int = from_recipe("encoder.passage_length")
    seed: int = from_recipe("seed")


def run(stage: StageRun[QuerySettings]) -> Mapping[str, Any]:
    """Write a token store of queries with the text that each belongs to; returns counts.

    A model's queries are kept as `queries.jsonl`, which `queries = "file:PATH"` can read.
    """
    from drkit.data.arrays import SignalValues
    from drkit.data.contexts import open_texts
    from drkit.data.queries import write_candidates
    from drkit.train.checkpoints import load_tokenizer

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
    counts = {**counts, **written}
    if settings.queries != "extractive":
        _report(stage, counts)
    return counts


def _read_or_generate(
    stage: StageRun[QuerySettings], tokenizer: Any, scratch: Path
) -> tuple[GivenQueries | None, dict[str, int]]:
    """Return the tokenised queries of the file or the model with counts; None for extractive queries."""
    from drkit.data.corpus import StoredCorpus
    from drkit.data.queries import read_queries, tokenise_given
    from drkit.data.spans import NamedTexts, Spans

    kind, _, source = stage.settings.queries.partition(":")
    if kind == "extractive":
        return None, {}
    corpus = StoredCorpus(stage.inputs["passages"])
    texts = NamedTexts(corpus, Spans.open(stage.inputs["spans"]) if "spans" in stage.inputs else None)
    path = local_path(source)
    if kind == "model":
        path = generate(stage, iter(texts), len(texts), source, stage.folder / GENERATED, stage.settings.candidates)
    return tokenise_given(read_queries(path), texts, tokenizer, scratch, max_length=stage.settings.max_length)


def generate(
    stage: StageRun[Any], texts: Iterator[tuple[str, str]], total: int, model: str, path: Path, count: int
) -> Path:
    """Generate `count` queries of every (name, text) to `path`, texts as long as the stage's encoder reads them."""
    from drkit.data.generation import QueryModel, Sampling, generate_file, truncate_texts
    from drkit.train.checkpoints import load_tokenizer

    settings = stage.settings
    done = generate_file(
        truncate_texts(texts, load_tokenizer(str(stage.inputs["vocabulary"])), settings.passage_length),
        QueryModel.open(model, Sampling(count=count, prefix=settings.prefix, seed=settings.seed)),
        path,
        on_progress=lambda number: stage.progress.advance(number, total, "texts"),
    )
    assert done is not None  # a single process always finishes the file
    return done


def _report(stage: StageRun[QuerySettings], counts: Mapping[str, int]) -> None:
    if counts["unknown"]:
        stage.progress.note(f"{counts['unknown']:,} queries of passages that the collection lacks were left out")
    if counts["surplus"]:
        stage.progress.note(
            f"{counts['surplus']:,} queries beyond the first {stage.settings.candidates} of their text were left out "
            f"(pretrain.masker.candidates)"
        )
    if counts["extractive"]:
        stage.progress.note(
            f"{counts['extractive']:,} of {counts['texts']:,} texts have no query; their most important spans are "
            f"used instead"
        )


QUERIES = StageSpec(
    name="queries",
    version=1,
    settings=QuerySettings,
    run=run,
    inputs={
        "vocabulary": "the tokenizer",
        "passages": "the texts of queries from a file or model",
        "tokens": "the passages' tokens, without spans",
        "spans": "the spans' tokens, if documents are cut into spans",
        "importance": "importance of the texts' tokens, for extractive queries",
    },
    resumable=True,
)
