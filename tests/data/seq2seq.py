"""A sequence-to-sequence model small enough for tests: a random T5 and a tokenizer trained on some texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def write_t5(folder: Path, texts: Iterable[str], *, seed: int = 0) -> Path:
    """Save model and tokenizer to a folder, as `from_pretrained` reads them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    pieces = Tokenizer(models.WordPiece(unk_token="<unk>"))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    specials = ["<pad>", "</s>", "<unk>"]
    pieces.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials))
    pieces.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    ids = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(T5Config(vocab_size=len(tokenizer), **sizes, **ids))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
