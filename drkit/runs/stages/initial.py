"""Stage: the encoder that training starts from, existing or made from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.files import local_path
from drkit.runs.stage import StageRun, StageSpec, from_recipe

if TYPE_CHECKING:
    from drkit.encoders import MaskedLmEncoder


@frozen
class ScratchSettings:
    """Sizes and initialisation of an encoder made from scratch.

    positions: tokens of the longest text. token_weights: whether the pooling has learned weights, which start from idf.
    """

    positions: int
    token_weights: bool
    layers: int = from_recipe("encoder.layers")
    hidden: int = from_recipe("encoder.hidden")
    heads: int = from_recipe("encoder.heads")
    intermediate: int = from_recipe("encoder.intermediate")
    dropout: float = from_recipe("encoder.dropout")
    lm_head: str = from_recipe("encoder.lm_head")
    init_embeddings: str = from_recipe("encoder.init_embeddings")
    seed: int = from_recipe("seed")


@frozen
class ExistingSettings:
    """The path or hub id of the encoder; token_weights: whether the pooling has learned weights.

    Weights that the encoder lacks start from idf.
    """

    token_weights: bool
    pretrained: str = from_recipe("encoder.pretrained")


def make(stage: StageRun[ScratchSettings]) -> Mapping[str, Any]:
    """Write an untrained masked-LM checkpoint; returns its number of parameters.

    With `init_embeddings = "ppmi-svd"` its word embeddings are the truncated SVD of the collection's PPMI matrix. The
    LM head's bias starts from the log frequencies of words, so vectors need not encode them.
    """
    import numpy as np
    import torch

    from drkit.data.embeddings import ppmi_svd
    from drkit.data.store import TokenStore
    from drkit.encoders import BertSizes, MaskedLmEncoder
    from drkit.train.checkpoints import load_tokenizer, save_masked_lm

    settings, tokenizer = stage.settings, load_tokenizer(str(stage.inputs["vocabulary"]))
    sizes = BertSizes(
        hidden=settings.hidden,
        layers=settings.layers,
        heads=settings.heads,
        intermediate=settings.intermediate,
        max_positions=settings.positions,
        dropout=settings.dropout,
        lm_head=settings.lm_head,
    )
    pooling = _pooling(settings)
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer, pooling=pooling, seed=settings.seed)
    store = TokenStore.open(stage.inputs["tokens"])
    seen = np.bincount(store.flat_ids, minlength=len(tokenizer)) + 0.5
    encoder.set_lm_bias(torch.from_numpy(np.log(seen / seen.sum())).float())
    if settings.init_embeddings == "ppmi-svd":
        matrix = ppmi_svd(store, vocab_size=len(tokenizer), dim=settings.hidden, seed=settings.seed, std=0.1)
        encoder.set_word_embeddings(torch.from_numpy(matrix))
    if settings.token_weights:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    save_masked_lm(encoder, tokenizer, stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def load(stage: StageRun[ExistingSettings]) -> Mapping[str, Any]:
    """Write the existing encoder as a masked-LM checkpoint, with its decoder and generator if it has them."""
    from drkit.encoders import MaskedLmEncoder
    from drkit.encoders.token_weights import read_token_weights
    from drkit.train.checkpoints import copy_parts, load_tokenizer, save_masked_lm

    source = stage.settings.pretrained
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    encoder = MaskedLmEncoder.from_pretrained(source, pooling=_pooling(stage.settings))
    if stage.settings.token_weights and read_token_weights(local_path(source)) is None:
        _start_token_weights(encoder, tokenizer, stage.inputs)
    save_masked_lm(encoder, tokenizer, stage.folder)
    copy_parts(Path(source), stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def _pooling(settings: ScratchSettings | ExistingSettings) -> str:
    """Return a pooling with or without token weights; which one it is exactly does not affect a checkpoint."""
    return "weighted" if settings.token_weights else "mean"


def _start_token_weights(encoder: MaskedLmEncoder, tokenizer: Any, inputs: Mapping[str, Path]) -> None:
    """Set the token weights to the inverse document frequencies of the passages."""
    from drkit.data.store import TokenStore
    from drkit.encoders.token_weights import weights_from_idf
    from drkit.signals.idf import document_frequencies, idf

    store = TokenStore.open(inputs["tokens"])
    frequencies = document_frequencies(store, vocab_size=encoder.config.vocab_size)
    encoder.set_token_weights(weights_from_idf(idf(frequencies, texts=len(store)), tokenizer.all_special_ids))


FROM_SCRATCH = StageSpec(
    name="encoder-from-scratch",
    version=1,
    settings=ScratchSettings,
    run=make,
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for frequencies and embeddings"},
)
EXISTING = StageSpec(
    name="existing-encoder",
    version=1,
    settings=ExistingSettings,
    run=load,
    inputs={"vocabulary": "the tokenizer", "tokens": "passages, for token weights that the encoder lacks"},
)
