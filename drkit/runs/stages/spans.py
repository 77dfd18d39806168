"""Stage: cut every document into spans of whole sentences, for pre-training on pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.runs.stage import StageRun, StageSpec, from_recipe


@frozen
class SpanSettings:
    """The length of spans; seed: draws the texts that the sentence model is trained on."""

    max_length: int = from_recipe("encoder.passage_length")
    prompt: str = from_recipe("encoder.passage_prompt")
    seed: int = from_recipe("seed")


def run(stage: StageRun[SpanSettings]) -> Mapping[str, Any]:
    """Write a token store of all spans and their documents; returns counts, and the source of the sentence model."""
    from drkit.data.corpus import StoredCorpus
    from drkit.data.spans import punkt_for, split_documents
    from drkit.train.checkpoints import load_tokenizer

    corpus, settings = StoredCorpus(stage.inputs["passages"]), stage.settings
    splitter = punkt_for(corpus, settings.seed)
    counts = split_documents(
        enumerate(passage.content for passage in corpus),
        load_tokenizer(str(stage.inputs["vocabulary"])),
        stage.folder,
        max_length=settings.max_length,
        splitter=splitter,
        prompt=settings.prompt,
    )
    stage.progress.note(
        f"{counts['documents']:,} documents of {counts['sentences']:,} sentences cut into {counts['spans']:,} spans "
        f"(sentences by Punkt, {splitter.source})"
    )
    if counts["alone"]:
        stage.progress.note(f"{counts['alone']:,} documents have only one sentence and are their own context")
    return {**counts, "punkt": splitter.source}


SPANS = StageSpec(
    name="spans",
    version=1,
    settings=SpanSettings,
    run=run,
    inputs={"passages": "documents to cut", "vocabulary": "the tokenizer"},
)
