"""Encoders of models with a decoder: T5's family opens as in sentence-transformers, others are refused by class."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf

from drkit.commands.inputs import open_encoder
from drkit.errors import DrkitError
from drkit.search import TextEncoder
from tests.encoders.toys import metaspace

SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
TEXTS = ["a man lay under the tree", "short", "the wolf and the lamb"]


def saved(folder, model_class, **config):
    tokenizer = metaspace()
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id}
    made = model_class(model_class.config_class(vocab_size=len(tokenizer), **ids, **config))
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return made


@pytest.mark.parametrize(
    "model_class",
    [hf.T5EncoderModel, hf.MT5EncoderModel, hf.UMT5EncoderModel, hf.T5Model, hf.T5ForConditionalGeneration],
)
def test_the_encoder_of_a_t5_gives_the_vectors_of_sentence_transformers(model_class, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    saved(tmp_path / "t5", model_class, **SIZES)
    transformer = modules.Transformer(str(tmp_path / "t5"), max_seq_length=32)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), "mean")
    theirs = library.SentenceTransformer(modules=[transformer, pooling], device="cpu")
    theirs.save(str(tmp_path / "encoder"))
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    for ours in (open_encoder(tmp_path / "encoder"), TextEncoder.bare(tmp_path / "t5", pooling="mean")):
        found = np.asarray(ours.encode_passages(TEXTS))
        np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-5)


@pytest.mark.parametrize("model_class", [hf.BartModel, hf.PegasusModel])
def test_another_model_with_a_decoder_is_refused_by_class(model_class, tmp_path):
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 16))}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    saved(tmp_path, model_class, d_model=16, **sizes, **heads)
    with pytest.raises(DrkitError, match=r"which has a decoder, .*T5EncoderModel"):
        TextEncoder.bare(tmp_path, pooling="mean")
