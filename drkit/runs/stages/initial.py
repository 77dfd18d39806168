"""Stage: the encoder that training starts from: an existing one, or one made from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drkit.core.recipe import Recipe
from drkit.data.embeddings import ppmi_svd
from drkit.data.store import TokenStore
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.runs.checkpoints import copy_parts, save_masked_lm
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes a masked-LM checkpoint; returns its number of parameters."""
    recipe = stage.recipe
    tokenizer = load_tokenizer(str(stage.inputs["vocabulary"]))
    if recipe.encoder.pretrained:
        encoder = MaskedLmEncoder.from_pretrained(recipe.encoder.pretrained, pooling=recipe.encoder.pooling)
    else:
        encoder = from_scratch(recipe, tokenizer, stage.inputs["tokens"])
    save_masked_lm(encoder, tokenizer, stage.folder)
    if recipe.encoder.pretrained:
        copy_parts(Path(recipe.encoder.pretrained), stage.folder)
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}


def from_scratch(recipe: Recipe, tokenizer: Any, tokens: Path) -> MaskedLmEncoder:
    """An untrained encoder of the recipe's sizes.

    With `init_embeddings = "ppmi-svd"` its word embeddings are the truncated SVD of the collection's PPMI matrix. The
    LM head's bias starts from the log frequencies of words, so that no vector has to carry them.
    """
    sizes = recipe.encoder
    store = TokenStore.open(tokens / "passages")
    encoder = MaskedLmEncoder.from_scratch(
        BertSizes(
            hidden=sizes.hidden,
            layers=sizes.layers,
            heads=sizes.heads,
            intermediate=sizes.intermediate,
            max_positions=max(sizes.passage_length, sizes.query_length),
            dropout=sizes.dropout,
            lm_head=sizes.lm_head,
        ),
        tokenizer,
        pooling=sizes.pooling,
        seed=recipe.seed,
    )
    seen = np.bincount(store.flat_ids, minlength=len(tokenizer)) + 0.5
    encoder.set_lm_bias(torch.from_numpy(np.log(seen / seen.sum())).float())
    if sizes.init_embeddings == "ppmi-svd":
        matrix = ppmi_svd(store, vocab_size=len(tokenizer), dim=sizes.hidden, seed=recipe.seed, std=0.1)
        encoder.set_word_embeddings(torch.from_numpy(matrix))
    return encoder
