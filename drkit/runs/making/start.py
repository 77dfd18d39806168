"""Make or load the encoder that training starts from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from drkit.core.files import local_path
from drkit.data.special_tokens import special_ids
from drkit.data.store import TokenStore
from drkit.data.titles import AS_PAIR, JOINED, SEPARATED, Titles
from drkit.data.word_embeddings import log_frequencies, ppmi_svd
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.architectures import STATIC, attention_keys
from drkit.encoders.folder import is_lexical
from drkit.encoders.learned_pooling import LearnedPooling, read_learned_pooling
from drkit.encoders.token_weights import read_token_weights, weights_from_idf
from drkit.errors import DrkitError
from drkit.runs.stage import StageRun
from drkit.runs.stages.start import (
    ExistingEncoderSettings,
    NewEncoderSettings,
)
from drkit.signals.idf import document_frequencies, idf
from drkit.train.checkpoints import copy_parts, load_tokenizer, save_masked_lm


def make_encoder(stage: StageRun[NewEncoderSettings]) -> Mapping[str, Any]:
    """Write an untrained masked-LM checkpoint; returns its number of parameters.

    With `init_embeddings = "ppmi-svd"` its word embeddings are the truncated SVD of the collection's PPMI matrix. The
    LM head's bias starts from the log frequencies of words, so vectors need not encode them.
    """
    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    sizes = BertSizes.of(
        settings.sizes, max_positions=settings.positions, dropout=settings.dropout, lm_head=settings.lm_head
    )
    encoder = MaskedLmEncoder.from_scratch(
        sizes,
        tokenizer,
        model_type=settings.architecture or "bert",
        pooling=_pooling(settings),
        seed=settings.seed,
        **_configuration(settings),
    )
    store = TokenStore.open(stage.inputs["tokens"])
    if encoder.has_lm_bias():
        encoder.set_lm_bias(torch.from_numpy(log_frequencies(store, vocab_size=len(tokenizer))))
    if settings.init_embeddings == "ppmi-svd":
        matrix = ppmi_svd(
            store,
            vocab_size=len(tokenizer),
            dim=settings.sizes.hidden,
            seed=settings.seed,
            std=0.1,
            folder=stage.folder,
        )
        encoder.set_word_embeddings(torch.from_numpy(matrix))
    if settings.token_weights:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    if settings.learned_pooling:
        encoder = _with_learned_pooling(encoder, tokenizer, stage)
    set_titles(encoder, tokenizer, settings.titles)
    save_masked_lm(encoder, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def start_from_encoder(stage: StageRun[ExistingEncoderSettings]) -> Mapping[str, Any]:
    """Write the existing encoder as a masked-LM checkpoint, with its decoders, losses and replacer if it has them."""
    source = stage.settings.pretrained
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has no language-model head")  # pre-training says what it does then
        encoder = MaskedLmEncoder.from_pretrained(
            source,
            pooling=_pooling(stage.settings),
            attention=stage.settings.attention,
            vocabulary=len(tokenizer),
        )
    if stage.settings.token_weights and read_token_weights(local_path(source)) is None:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    if stage.settings.learned_pooling:
        encoder = _with_learned_pooling(encoder, tokenizer, stage, source=local_path(source))
    set_titles(encoder, tokenizer, stage.settings.titles)
    save_masked_lm(encoder, tokenizer, stage.folder)
    copy_parts(Path(source), stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def _configuration(settings: NewEncoderSettings) -> dict[str, Any]:
    """Return further keys of the configuration of an encoder made from scratch."""
    more = {"model_type": settings.architecture or "bert", **(settings.architecture_settings or {})}
    more |= attention_keys(more, settings.attention)
    del more["model_type"]
    return more


def _pooling(settings: NewEncoderSettings | ExistingEncoderSettings) -> str:
    """Return a pooling with or without token weights; which one it is exactly does not affect a checkpoint."""
    return "weighted" if settings.token_weights else "mean"


def set_titles(encoder: MaskedLmEncoder, tokenizer: Any, titles: str) -> None:
    """Set how a model reads titles. Raises DrkitError if it cannot read them so."""
    if titles in (SEPARATED, AS_PAIR) and encoder.config.model_type == STATIC:
        raise DrkitError(
            f"a static encoder reads words in no order, and no separator between them: --set encoder.titles={JOINED} "
            f"@ encoder.titles"
        )
    Titles.of(titles, tokenizer, encoder.config).save(encoder.config)


def _with_learned_pooling(
    encoder: MaskedLmEncoder,
    tokenizer: Any,
    stage: StageRun[NewEncoderSettings] | StageRun[ExistingEncoderSettings],
    source: Path | None = None,
) -> MaskedLmEncoder:
    """Return the encoder with the pooling of its settings: that of `source` if it was saved with the same, else new.

    An LM head that is to score words from now on gets a centered bias.
    """
    part = stage.settings.learned_pooling
    assert part is not None
    saved = read_learned_pooling(source, stage.registry) if source else None
    pooling = saved
    if pooling is None or (pooling.name, pooling.settings) != (part.name, part.settings):
        backbone = encoder.info(tokenizer)
        pooling = LearnedPooling(part.name, part.settings, backbone, seed=part.seed, registry=stage.registry)
    scored_words = (saved and saved.is_sparse) or (source and is_lexical(source))
    if pooling.is_sparse and not scored_words:
        encoder.center_lm_bias()
    return MaskedLmEncoder(encoder.model, pooling=pooling)


def _start_token_weights(encoder: MaskedLmEncoder, tokenizer: Any, inputs: Mapping[str, Path]) -> None:
    """Set the token weights to the inverse document frequencies of the passages."""
    store = TokenStore.open(inputs["tokens"])
    frequencies = document_frequencies(store, vocab_size=encoder.config.vocab_size)
    weights = weights_from_idf(idf(frequencies, texts=len(store)), special_ids(tokenizer))
    encoder.set_token_weights(weights)
