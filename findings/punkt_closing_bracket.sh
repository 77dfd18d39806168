#!/usr/bin/env bash
# Punkt ends a sentence before a bracket that closes it, unless white space follows the bracket.
# Exits 0 while the behaviour is as printed, 1 when it has changed.
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
