"""A tiny BERT with random weights and a WordPiece tokenizer of letters and a few words."""

from __future__ import annotations

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

WORDS = ["remove", "suffix", "string", "from", "each", "number", "file"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefgh", *(f"##{c}" for c in "abcdefgh")]
TEXTS = ["remove suffix", "", "string from each number file " * 9, "a", "abba cafe [MASK]", "number " * 40, "file b"]


def tokenizer():
    backend = BertWordPieceTokenizer({word: index for index, word in enumerate(VOCABULARY)})
    return PreTrainedTokenizerFast(
        tokenizer_object=backend._tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def masked_lm(seed=0):
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = BertForMaskedLM(config)
    torch.set_rng_state(state)
    for parameter in model.parameters():
        # away from the tiny initial weights, so that texts differ visibly
        parameter.data.mul_(5)
    return model
