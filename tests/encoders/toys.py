"""Tiny models of every architecture, each with a real tokenizer of its family trained on real texts."""

from __future__ import annotations

import copy
from functools import cache

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.parts.toys import texts

BERT_SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_SPECIALS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 80,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _trained(backend: Tokenizer, trainer_of, specials: dict[str, str], some=None, **more):
    trainer = trainer_of(vocab_size=500, special_tokens=list(specials.values()), show_progress=False, **more)
    backend.train_from_iterator(texts() if some is None else some, trainer)
    cls, sep = specials["cls"], specials["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(name, backend.token_to_id(name)) for name in (cls, sep)]
    )
    named = {f"{role}_token": name for role, name in specials.items()}
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **named)


@cache
def wordpiece(roberta: bool = False):
    specials = ROBERTA_SPECIALS if roberta else BERT_SPECIALS
    backend = Tokenizer(models.WordPiece(unk_token=specials["unk"]))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _trained(backend, trainers.WordPieceTrainer, specials)


@cache
def byte_level(roberta: bool = True):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ROBERTA_SPECIALS if roberta else BERT_SPECIALS
    return _trained(backend, trainers.BpeTrainer, specials, initial_alphabet=alphabet)


@cache
def metaspace():
    return unigram(texts())


def unigram(some):
    """A tokenizer like SentencePiece's, trained on texts of any script."""
    backend = Tokenizer(models.Unigram())
    backend.normalizer, backend.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _trained(backend, trainers.UnigramTrainer, ROBERTA_SPECIALS, some, unk_token="<unk>")


@cache
def left_to_right(first: str):
    """Byte-level, without padding and mask, and with nothing after a text; `first` is put before it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, specials = pre_tokenizers.ByteLevel.alphabet(), [first, "<|end|>"] if first else ["<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=specials, show_progress=False, initial_alphabet=alphabet
    )
    backend.train_from_iterator(texts(), trainer)
    one = processors.ByteLevel(trim_offsets=False)
    template = processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)]) if first else None
    backend.post_processor = processors.Sequence([one, template]) if template else one
    named = {"bos_token": first} if first else {}
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", model_max_length=512, **named)


def _config(config_class, tokenizer, **sizes):
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep")}
    ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    return config_class(vocab_size=len(tokenizer), **ids, **ends, **{**SIZES, **sizes})


DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "dropout": 0.0, "attention_dropout": 0.0}
# As DeBERTa-v3: distances in buckets, no position table, no token types, and the head of the published checkpoints.
DEBERTA = {
    **NO_DROPOUT,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "type_vocab_size": 0,
    "legacy": False,
}
# As DeBERTa-base: distances up to the length, no position table, and the head of the published checkpoints.
DEBERTA_V1 = {
    **NO_DROPOUT,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
    "type_vocab_size": 0,
    "legacy": False,
}
MADE = {
    "bert": (hf.BertForMaskedLM, wordpiece, NO_DROPOUT),
    "roberta": (hf.RobertaForMaskedLM, byte_level, {**NO_DROPOUT, "type_vocab_size": 1}),
    "xlm-roberta": (hf.XLMRobertaForMaskedLM, metaspace, {**NO_DROPOUT, "type_vocab_size": 1}),
    "camembert": (hf.CamembertForMaskedLM, metaspace, {**NO_DROPOUT, "type_vocab_size": 1}),
    "electra": (hf.ElectraForMaskedLM, wordpiece, {**NO_DROPOUT, "embedding_size": 12}),
    "electra-wide": (hf.ElectraForMaskedLM, wordpiece, {**NO_DROPOUT, "embedding_size": 16}),
    "distilbert": (hf.DistilBertForMaskedLM, wordpiece, DISTILBERT),
    "mpnet": (hf.MPNetForMaskedLM, lambda: wordpiece(roberta=True), NO_DROPOUT),
    "deberta": (hf.DebertaForMaskedLM, lambda: byte_level(roberta=False), DEBERTA_V1),
    "deberta-v2": (hf.DebertaV2ForMaskedLM, metaspace, DEBERTA),
    "modernbert": (
        hf.ModernBertForMaskedLM,
        lambda: byte_level(roberta=False),
        {"num_hidden_layers": 4, "local_attention": 8},
    ),
}
NAMES = tuple(MADE)
# Models that read from left to right: Llama's tokenizer puts a token before a text, and Qwen's does nothing.
SHARED_KEYS = {"num_key_value_heads": 1, "head_dim": 8}
CAUSAL = {
    "llama": (hf.LlamaModel, lambda: left_to_right("<s>"), SHARED_KEYS),
    "qwen3": (hf.Qwen3Model, lambda: left_to_right(""), SHARED_KEYS),
}


def tokenizer_of(name: str):
    """A tokenizer of this architecture's family."""
    return copy.deepcopy({**MADE, **CAUSAL}[name][1]())


def tiny(name: str, seed: int = 1, **changes):
    """(masked LM with random weights, tokenizer); the global random state is left alone."""
    model_class, _, sizes = {**MADE, **CAUSAL}[name]
    tokenizer = tokenizer_of(name)
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = model_class(_config(model_class.config_class, tokenizer, **{**sizes, **changes}))
    torch.set_rng_state(state)
    return model, tokenizer
