"""Stage: the tokenizer, taken from the encoder or trained on the collection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drkit.data.tables import StoredCollection, open_collection
from drkit.data.vocabulary import train_wordpiece
from drkit.encoders.masked_lm import check_start, check_vocabulary
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes a tokenizer folder; returns the vocabulary's size."""
    encoder = stage.recipe.encoder
    if encoder.pretrained:
        check_start(encoder.pretrained, length=max(encoder.passage_length, encoder.query_length))
        tokenizer = load_tokenizer(encoder.pretrained)
        check_vocabulary(encoder.pretrained, tokenizer)
        tokenizer.save_pretrained(stage.folder)
    else:
        texts = _texts(open_collection(stage.inputs["collection"]))
        tokenizer = train_wordpiece(texts, stage.folder, size=encoder.vocab_size)
    return {"vocabulary": len(tokenizer)}


def _texts(collection: StoredCollection) -> Iterator[str]:
    """Every passage, and the training queries: those of dev and test stay unseen."""
    for passage in collection.corpus:
        yield passage.content
    for query in collection.queries("train"):
        yield query.text
