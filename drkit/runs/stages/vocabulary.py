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
    """The encoder whose tokenizer is used; the lengths are only used to check that it has enough positions."""

    pretrained: str = from_recipe("encoder.pretrained")
    query_length: int = from_recipe("encoder.query_length", observes=True)
    passage_length: int = from_recipe("encoder.passage_length", observes=True)


def train(stage: StageRun[WordPieceSettings]) -> Mapping[str, Any]:
    """Train a WordPiece vocabulary and write its tokenizer; returns its size."""
    from drkit.data.vocabulary import train_wordpiece

    return {"vocabulary": len(train_wordpiece(_texts(stage), stage.folder, size=stage.settings.vocab_size))}


def copy_tokenizer(stage: StageRun[ExistingSettings]) -> Mapping[str, Any]:
    """Write the tokenizer of the encoder; returns the size of its vocabulary."""
    from drkit.encoders.masked_lm import check_start, check_vocabulary
    from drkit.train.checkpoints import load_tokenizer, save_tokenizer

    settings = stage.settings
    check_start(settings.pretrained, length=max(settings.passage_length, settings.query_length))
    tokenizer = load_tokenizer(settings.pretrained)
    check_vocabulary(settings.pretrained, tokenizer)
    save_tokenizer(tokenizer, stage.folder)
    return {"vocabulary": len(tokenizer)}


def _texts(stage: StageRun[Any]) -> Iterator[str]:
    """Yield every passage and training query; dev and test queries stay unseen."""
    from drkit.data.corpus import StoredCorpus, read_queries

    yield from (passage.content for passage in StoredCorpus(stage.inputs["passages"]))
    if "queries" in stage.inputs:
        yield from (query.text for query in read_queries(stage.inputs["queries"]))


WORDPIECE = StageSpec(
    name="wordpiece-vocabulary",
    version=2,
    settings=WordPieceSettings,
    run=train,
    inputs={"passages": "texts to train on", "queries": "training queries"},
)
EXISTING = StageSpec(name="existing-vocabulary", version=1, settings=ExistingSettings, run=copy_tokenizer)
