#!/usr/bin/env bash
# tokenizers 0.23.3: a token that is unknown to Unigram is named by its text, so one id has many names.
#
# Guess: `Encoding.tokens` are the entries of the vocabulary with the ids in `Encoding.ids`, as they are in WordPiece.
# Behaviour: in Unigram the unknown token is named by the characters that it stands for; `id_to_token` of its id is `<unk>`. A
# check for "<unk>" among tokens never finds one, and a table from id to name depends on which text came first.
# drkit: knows unknown tokens by id; `token_batch` without a tokenizer knows them by an id with several names.
#
# Exits with 1 if that changes.
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
