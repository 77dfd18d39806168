#!/usr/bin/env bash
# nltk 3.10.4, Punkt: a sentence ends before the bracket that closes it, unless white space follows.
#
# Guess: closing brackets and quotes stay with their sentence (Punkt realigns them).
# Behaviour: the realignment needs white space after the bracket. Before a letter, as in texts of which the spaces got lost and
# in scripts without spaces, the next sentence begins with the bracket.
# drkit: moves closing quotes and brackets back to their sentence.
#
# Exits with 1 if that changes.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "nltk==3.10.4"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

from nltk.tokenize.punkt import PunktSentenceTokenizer

print("nltk", version("nltk"))
punkt = PunktSentenceTokenizer()
found = [punkt.tokenize(text) for text in ("He left (quietly.) Then he ran.", "He left (quietly.)Then he ran.")]
print(*found, sep="\n")
assert found[0] == ["He left (quietly.)", "Then he ran."]
assert found[1] == ["He left (quietly.", ")Then he ran."]
PY
