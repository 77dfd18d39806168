#!/usr/bin/env bash
# PyStemmer 2.2.0.3: Stemmer.version() is 2.0.1.
#
# Guess: `Stemmer.version()` is the version of the installed package.
# Behaviour: it is another number, so a record of it does not say with which package an index was stemmed.
# drkit: records the version of the distribution, and compares the stems of the words in an index.
#
# Exits with 1 if that changes.
set -euo pipefail
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --only-binary :all: "PyStemmer==2.2.0.3"
"$work/venv/bin/python" - <<'PY'
from importlib.metadata import version

import Stemmer

print("package", version("PyStemmer"), "Stemmer.version()", Stemmer.version())
assert (version("PyStemmer"), Stemmer.version()) == ("2.2.0.3", "2.0.1")
PY
