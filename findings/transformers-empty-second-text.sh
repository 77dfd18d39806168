#!/usr/bin/env bash
# transformers 5.24.0: a pair whose second text is empty has other tokens alone than in a list.
#
# Guess: a title whose passage has no text (the first ones of CACM) is read as a pair with an empty second text, however
# many pairs are given at once.
# Behaviour: `tokenizer(title, "")` leaves the second text out (one separator, no second segment);
# `tokenizer([title], [""])`, and `encode` of tokenizers 0.23, keep it (two separators, the last one of type 1). An empty
# first text is kept in both. So a vector or a re-ranker's score of the same pair depends on whether it is read alone.
# drkit: gives texts in lists only, and writes the separator out (`drkit.data.titles`).
#
# Exits with 1 if that changes.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "transformers==5.24.0"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

from transformers import BertTokenizerFast

print("transformers", version("transformers"), "tokenizers", version("tokenizers"))
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "algebraic", "language"]
tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
title = "algebraic language"
alone, listed = tokenizer(title, ""), tokenizer([title], [""])
print("alone:", tokenizer.convert_ids_to_tokens(alone["input_ids"]), alone["token_type_ids"])
print("in a list:", tokenizer.convert_ids_to_tokens(listed["input_ids"][0]), listed["token_type_ids"][0])
print("by tokenizers:", tokenizer.backend_tokenizer.encode(title, "").tokens)
assert alone["input_ids"] == [2, 5, 6, 3] and alone["token_type_ids"] == [0, 0, 0, 0]
assert listed["input_ids"] == [[2, 5, 6, 3, 3]] and listed["token_type_ids"] == [[0, 0, 0, 0, 1]]
assert tokenizer.backend_tokenizer.encode(title, "").ids == [2, 5, 6, 3, 3]
assert tokenizer("", title)["input_ids"] == tokenizer([""], [title])["input_ids"][0] == [2, 3, 5, 6, 3]
PY
