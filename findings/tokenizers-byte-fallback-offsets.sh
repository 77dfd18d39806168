#!/usr/bin/env bash
# tokenizers 0.23.3: byte fallback of Unigram gives every byte the offsets of the whole unknown run.
#
# Guess: as in BPE, the bytes of a character have the offsets of that character.
# Behaviour: Unigram joins neighbouring unknown characters into one piece first, and each of its bytes then covers all of them.
# So whoever finds whole words or characters by offsets takes a clause of Chinese for one word.
# drkit: reads characters from the bytes that tokens stand for.
#
# Exits with 1 if that changes.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "tokenizers==0.23.3"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

from tokenizers import Tokenizer, models

print("tokenizers", version("tokenizers"))
bytes_ = [f"<0x{number:02X}>" for number in range(256)]
unigram = Tokenizer(models.Unigram([("<unk>", 0.0), *((name, -9.0) for name in bytes_)], unk_id=0, byte_fallback=True))
vocabulary = {name: number for number, name in enumerate(["<unk>", *bytes_])}
bpe = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
text = "漢字"
found = {name: one.encode(text) for name, one in (("Unigram", unigram), ("BPE", bpe))}
for name, encoding in found.items():
    print(name, list(zip(encoding.tokens, encoding.offsets)))
assert found["Unigram"].tokens == found["BPE"].tokens
assert found["Unigram"].offsets == [(0, 2)] * 6, "six bytes, each of two characters"
assert found["BPE"].offsets == [(0, 1)] * 3 + [(1, 2)] * 3
PY
