"""Stage: the tokenizer, taken from the encoder or trained on the collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from drkit.runs.stage import StageRun, StageSpec, from_recipe


@frozen
class WordPieceSettings:
    """Settings of a vocabulary trained on the collection."""

    vocab_size: int = from_recipe("encoder.vocab_size")


@frozen
class ExistingSettings:
    """Whose tokenizer is taken; positions: how long texts may get, which the encoder must have positions for."""

    pretrained: str = from_recipe("encoder.pretrained")
    query_length: int = from_recipe("encoder.query_length", observes=True)
    passage_length: int = from_recipe("encoder.passage_length", observes=True)


def train(stage: StageRun[WordPieceSettings]) -> Mapping[str, Any]:
    """Train a WordPiece vocabulary and write its tokenizer; returns its size."""
    from drkit.data.vocabulary import train_wordpiece

    return {"vocabulary": len(train_wordpiece(_texts(stage), stage.folder, size=stage.settings.vocab_size))}


def take(stage: StageRun[ExistingSettings]) -> Mapping[str, Any]:
    """Write the tokenizer of the encoder; returns the size of its vocabulary."""
    from drkit.encoders.masked_lm import check_start, check_vocabulary
    from drkit.runs.tokenizers import load_tokenizer, save_tokenizer

    settings = stage.settings
    check_start(settings.pretrained, length=max(settings.passage_length, settings.query_length))
    tokenizer = load_tokenizer(settings.pretrained)
    check_vocabulary(settings.pretrained, tokenizer)
    save_tokenizer(tokenizer, stage.folder)
    return {"vocabulary": len(tokenizer)}


def _texts(stage: StageRun[Any]) -> Iterator[str]:
    """Every passage, and the training queries: those of dev and test stay unseen."""
    from drkit.data.corpus import StoredCorpus
    from drkit.data.tables import read_queries

    yield from (passage.content for passage in StoredCorpus(stage.inputs["passages"]))
    if "queries" in stage.inputs:
        yield from (query.text for query in read_queries(stage.inputs["queries"]))


WORDPIECE = StageSpec(
    name="wordpiece-vocabulary",
    version=1,
    settings=WordPieceSettings,
    run=train,
    inputs={"passages": "texts to train on", "queries": "training queries"},
)
EXISTING = StageSpec(name="existing-vocabulary", version=1, settings=ExistingSettings, run=take)
