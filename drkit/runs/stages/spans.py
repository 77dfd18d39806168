"""Stage: cut every document into spans of whole sentences, for pre-training on pairs of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.data.corpus import StoredCorpus
from drkit.data.spans import Punkt, installed_punkt, sample, sample_positions, split_documents, train_punkt
from drkit.data.tables import open_collection
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes a token store of all spans and their documents; returns counts, and where the sentence model is from."""
    corpus = open_collection(stage.inputs["collection"]).corpus
    splitter = installed_punkt() or _learnt(corpus, stage.recipe.seed)
    counts = split_documents(
        enumerate(passage.content for passage in corpus),
        load_tokenizer(str(stage.inputs["vocabulary"])),
        stage.folder,
        max_length=stage.stage.settings["max_length"],
        splitter=splitter,
        prompt=stage.recipe.encoder.passage_prompt,
    )
    stage.progress.note(
        f"{counts['documents']:,} documents of {counts['sentences']:,} sentences cut into {counts['spans']:,} spans "
        f"(sentences by Punkt, {splitter.source})"
    )
    if counts["alone"]:
        stage.progress.note(f"{counts['alone']:,} documents have one sentence: they are whole, and their own context")
    return {**counts, "punkt": splitter.source}


def _learnt(corpus: StoredCorpus, seed: int) -> Punkt:
    return train_punkt(sample(passage.content for passage in corpus.at(sample_positions(len(corpus), seed))))
