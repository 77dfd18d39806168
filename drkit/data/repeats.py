"""Separate tokens for repeated words: a word that occurs again soon is written `↻word`, its last occurrence `word`.

A mean over tokens counts a word as often as it occurs. BM25 counts repetitions less and less (k1), which is worth much
to a bag of words. Separate tokens give repetitions their own token weights and vectors. The marks are made
by the tokenizer itself, so every library that loads its `tokenizer.json` makes them, too.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.errors import DrkitError

MARK = "\u21bb"  # ↻: BERT's pre-tokenizer does not split it from the word
# Characters between two occurrences: a limit keeps the time linear in the length of a text.
_WITHIN = 300
# What BERT's pre-tokenizer ends words at: white space, Unicode punctuation, and ASCII symbols.
_ENDS = r"\s\p{P}$+<=>^`|~"
# A longer word, with its mark, would be beyond WordPiece's limit of 100 characters and become [UNK].
_LONGEST = 99
_WORD = rf"(?>[^{_ENDS}]{{1,{_LONGEST}}})"
_REPEATED = rf"(?<![^{_ENDS}])(?=({_WORD})[{_ENDS}](?:.{{0,{_WITHIN - 2}}}?[{_ENDS}])?\1(?![^{_ENDS}]))"
_TYPE, _SEQUENCE = "type", "normalizers"


def mark_repeats(tokenizer: Any) -> Any:
    """Return a copy of a BERT tokenizer that marks repeated words, with a second entry for every first piece of a word.

    A word is marked if it occurs again with at most 300 characters between, as the tokenizer spells and splits them. A
    text has as many tokens as before. The first piece of a word gets its mark, unless the word has 100 characters.

    Raises DrkitError for a tokenizer that is not built like BERT's, or marks words already.

    >>> from drkit.testing.toys import toy_tokenizer
    >>> mark_repeats(toy_tokenizer()).tokenize("Rank the model by the score of the models")
    ['rank', '↻the', 'model', 'by', '↻the', 'score', 'of', 'the', 'model', '##s']
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    built = tuple((backend[part] or {}).get(_TYPE) for part in ("normalizer", "pre_tokenizer", "model"))
    if built != ("BertNormalizer", "BertPreTokenizer", "WordPiece"):
        names = ", ".join(str(name) for name in built)
        raise DrkitError(
            f"repeated words can be marked only by a tokenizer with BertNormalizer, BertPreTokenizer and WordPiece, "
            f"which does not mark them yet; this one has {names}. drkit.data.train_wordpiece makes one"
        )
    entries: dict[str, int] = backend["model"]["vocab"]
    first_pieces = sorted(set(entries) - set(tokenizer.all_special_tokens), key=entries.__getitem__)
    for entry in (entry for entry in first_pieces if not entry.startswith("##")):
        entries[MARK + entry] = len(entries)
    mark = {_TYPE: "Replace", "pattern": {"Regex": _REPEATED}, "content": MARK}
    backend["normalizer"] = {_TYPE: "Sequence", _SEQUENCE: [backend["normalizer"], mark]}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)),
        model_input_names=tokenizer.model_input_names,
        **tokenizer.special_tokens_map,
    )


def marks_repeats(tokenizer: Any) -> bool:
    """Return whether a fast tokenizer marks repeated words."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and str(normalizer.normalize_str("a a")).startswith(MARK)


def unmarked(tokenizer: Any) -> NDArray[np.int64]:
    """Return the id of each entry without its mark, i64[V]: its own, except for marks of `mark_repeats`."""
    plain = np.arange(len(tokenizer))
    if marks_repeats(tokenizer):
        entries = tokenizer.get_vocab()
        marked = [entry for entry in entries if entry[0] == MARK and entry[1:] in entries]
        plain[[entries[entry] for entry in marked]] = [entries[entry[1:]] for entry in marked]
    return plain


def markable_entries(tokenizer: Any) -> frozenset[int]:
    """Return the ids of the entries that are marked where their word occurs again; none without marks."""
    plain, normalizer = unmarked(tokenizer), tokenizer.backend_tokenizer.normalizer
    entries = plain[plain != np.arange(len(plain))].tolist()
    spelled = tokenizer.convert_ids_to_tokens(entries)
    # Punctuation is never marked.
    return frozenset(
        i for i, entry in zip(entries, spelled, strict=True) if normalizer.normalize_str(f"{entry} {entry}")[0] == MARK
    )
