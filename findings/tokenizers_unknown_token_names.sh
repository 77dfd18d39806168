#!/usr/bin/env bash
# The token of an unknown run is named by its text, not by its entry: one id has many names, in Unigram alone.
# Exits 0 while the behaviour is as printed, 1 when it has changed.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "tokenizers==0.23.3"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

from tokenizers import Tokenizer, models, pre_tokenizers

print("tokenizers", version("tokenizers"))
unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))
wordpiece = Tokenizer(models.WordPiece({"<unk>": 0, "a": 1}, unk_token="<unk>"))
found = {}
for name, one in (("Unigram", unigram), ("WordPiece", wordpiece)):
    one.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoding = one.encode("a 漢字 xyz")
    found[name] = (encoding.ids, encoding.tokens, [one.id_to_token(number) for number in encoding.ids])
    print(name, "ids", found[name][0], "tokens", found[name][1], "id_to_token", found[name][2])
assert found["Unigram"] == ([1, 0, 0], ["a", "漢字", "xyz"], ["a", "<unk>", "<unk>"])
assert found["WordPiece"] == ([1, 0, 0], ["a", "<unk>", "<unk>"], ["a", "<unk>", "<unk>"])
PY
