"""A causal model small enough for tests: a random Llama, and a byte-level tokenizer with a chat template."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_llama(folder: Path, texts: Iterable[str], *, seed: int = 0) -> Path:
    """Save model and tokenizer to a folder, as `from_pretrained` reads them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    specials, alphabet = ["<|end|>", "<|start|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, initial_alphabet=alphabet)
    pieces.train_from_iterator([*texts, "yes no Yes No"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<|end|>", chat_template=TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **sizes,
        eos_token_id=0,
        bos_token_id=None,
        initializer_range=0.3,
        max_position_embeddings=512,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
