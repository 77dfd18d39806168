"""WordPiece vocabularies trained on the texts themselves, and the special tokens around a text.

The same texts give the same vocabulary. The trainer numbers single characters in the order of its hash tables and
breaks ties between merges by these numbers, so the characters are counted here and handed over in a fixed order.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import BertWordPieceTokenizer, Tokenizer, processors
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from drkit.data.special_tokens import AUTO, choose_mask_token, special_ids
from drkit.data.words import has_lasting_mark
from drkit.errors import DrkitError

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Rare scripts would fill a small vocabulary with single characters.
_ALPHABET = 200
_SMALLEST = 100
# WordPiece makes longer words [UNK] when it tokenises (max_input_chars_per_word). BERT's pre-tokenizer ends a word at
# underscores, punctuation, and CJK ideographs.
_LONGEST_WORD = 100
# Of the characters of texts: from here on, stripping their marks would make other words of them.
_MARKED_SHARE = 0.01
# Measured peak of a distinct word: counted here, then held by the trainer with its pieces.
_BYTES_PER_WORD = 640
_LETTER = "[^\\W_\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_LONG_WORD = re.compile(f"(?<!{_LETTER}){_LETTER}{{{_LONGEST_WORD + 1},}}")


def train_wordpiece(
    texts: Iterator[str],
    folder: Path,
    *,
    size: int,
    lowercase: bool = True,
    memory_mb: int = 256,
) -> Any:
    """Train a BERT tokenizer with at most `size` entries on `texts`, save it to `folder` and return it.

    `AutoTokenizer.from_pretrained(folder)` loads it as a fast tokenizer that makes `[CLS] text [SEP]`. If it
    lower-cases, it strips accents, as BERT's does, unless the texts are in a script whose marks are letters. Characters
    beyond the most frequent ones become [UNK]. WordPiece: Schuster and Nakajima 2012; trained as byte-pair merges.
    memory_mb: approximate memory limit of the distinct words in MiB; the rarest words of texts that have more are left
    out, by `_prune`, and the vocabulary is that of the others.

    Raises DrkitError if `size` is too small or the texts have no words.
    """
    if size < _SMALLEST:
        raise DrkitError(f"a vocabulary of {size} entries is too small; use at least {_SMALLEST}")
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "texts"
        characters, words = _write_lines(texts, lines, max(memory_mb * 2**20 // _BYTES_PER_WORD, 1))
        marks = sum(number for character, number in characters.items() if has_lasting_mark(character))
        # None: as BERT's, which strips them if it lower-cases.
        strips = None if marks < _MARKED_SHARE * characters.total() else False
        trainer = BertWordPieceTokenizer(lowercase=lowercase, strip_accents=strips)
        alphabet = _alphabet(characters, trainer.normalizer, min(_ALPHABET, size // 4))
        if not alphabet:
            raise DrkitError("cannot train a vocabulary: the texts have no words")
        if words is not None:
            lines = _keep_words(lines, words)
        del words
        trainer.train(
            str(lines),
            vocab_size=size,
            min_frequency=2,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=[*_SPECIALS, *alphabet, *(f"##{c}" for c in alphabet if _is_word_character(c))],
            show_progress=False,
        )
    tokenizer: Any = BertTokenizerFast(vocab=trainer.get_vocab(), do_lower_case=lowercase, strip_accents=strips)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _write_lines(texts: Iterator[str], path: Path, limit: int) -> tuple[Counter[str], frozenset[str] | None]:
    """Write the texts to a file, one per line, without words that WordPiece never reads; count their characters.

    Returns the characters, and the words that are frequent enough, at most `limit`; None if all words are.
    """
    characters: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    rare = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            words = text.split()
            if any(len(word) > _LONGEST_WORD for word in words):  # base64, say: the trainer would take minutes for it
                words = _LONG_WORD.sub(" ", text).split()
            line = " ".join(words)
            characters.update(line)
            counts.update(words)
            if len(counts) > limit:
                counts, rare = _prune(counts, limit, rare)
            file.write(line + "\n")
    kept = None if not rare else frozenset(word for word, count in counts.items() if count > rare)
    return characters, kept


def _prune(counts: Counter[str], limit: int, rare: int) -> tuple[Counter[str], int]:
    """Drop the words that have occurred least often, until `limit` has room for as many new ones.

    Returns the counts of the others, and how often a dropped word had occurred at most; rare: this number of the call
    before. A dropped word that occurs again is counted from 0. The same texts drop the same words.

    >>> _prune(Counter("aaabbc"), 3, 0)
    (Counter({'a': 3}), 2)
    """
    numbers = sorted(counts.values(), reverse=True)
    rare = max(rare, numbers[limit // 2])
    return Counter({word: count for word, count in counts.items() if count > rare}), rare


def _keep_words(lines: Path, kept: frozenset[str]) -> Path:
    """Write a copy of a file of texts that has only these words."""
    path = lines.with_name("frequent")
    with lines.open(encoding="utf-8", newline="\n") as texts, path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(" ".join(word for word in text.split() if word in kept) + "\n" for text in texts)
    return path


def _is_word_character(character: str) -> bool:
    """Return whether BERT's pre-tokenizer keeps it inside words: it splits at Unicode punctuation and ASCII symbols."""
    return character.isalnum() or (not character.isascii() and unicodedata.category(character)[0] != "P")


def _alphabet(characters: Counter[str], normalizer: Any, size: int) -> list[str]:
    """Return the `size` most frequent characters as the tokenizer sees them, in a fixed order."""
    seen: Counter[str] = Counter()
    for character, number in characters.items():
        for normal in normalizer.normalize_str(character).split():
            seen.update(dict.fromkeys(normal, number))
    return sorted(sorted(seen, key=lambda c: (-seen[c], c))[:size])


def special_ids_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special ids that a fast tokenizer puts before a text and after it."""
    encoding = tokenizer("a", verbose=False)
    inside = [index for index, text in enumerate(encoding.sequence_ids()) if text is not None]
    ids: list[int] = encoding["input_ids"]
    return (ids[: inside[0]], ids[inside[-1] + 1 :]) if inside else (ids, [])


def with_last_token(tokenizer: Any) -> Any:
    """Return a fast tokenizer that puts a special token after each text, and has a padding token.

    Tokenizers of models that read from left to right often do neither. Then the token is that for the end of a text
    (`eos_token`), for both; what comes before a text stays. Other tokenizers are returned as they are.

    Raises DrkitError if it has no such token.
    """
    before, after = special_ids_around(tokenizer)
    if after and tokenizer.pad_token is not None:
        return tokenizer
    last = tokenizer.eos_token
    if last is None:
        raise DrkitError(
            f"this {type(tokenizer).__name__} has no token for the end of a text, whose state would be the vector; set "
            f"eos_token in its tokenizer_config.json"
        )
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if not after:
        given = json.loads(backend.to_str())["post_processor"] or {}
        kept = [step for step in given.get("processors", [given]) if step.get("type") == "ByteLevel"]
        around = [*tokenizer.convert_ids_to_tokens(before), last]
        template = processors.TemplateProcessing(
            single=" ".join([*around[:-1], "$A", last]),
            special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in dict.fromkeys(around)],
        )
        offsets = [processors.ByteLevel(trim_offsets=step["trim_offsets"]) for step in kept]
        backend.post_processor = processors.Sequence([*offsets, template])
    named = {"pad_token": last, **tokenizer.special_tokens_map}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=tokenizer.model_input_names, **named)


def with_mask_token(tokenizer: Any, chosen: str = AUTO) -> Any:
    """Return a copy of a fast tokenizer whose mask token is the chosen one; see `choose_mask_token`.

    With `new`, its vocabulary has one token more.

    Raises DrkitError if it has no such token.
    """
    specials = tokenizer.convert_ids_to_tokens(list(special_ids(tokenizer)))
    token = choose_mask_token(specials, tokenizer.special_tokens_map, chosen)
    changed = copy.deepcopy(tokenizer)
    changed.add_special_tokens({"mask_token": token})
    return changed
